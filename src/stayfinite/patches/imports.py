"""Patches functions of modules that may not be imported yet."""

from __future__ import annotations

import sys
from typing import Any

from .manager import MakeWrapper, Subscription, Target, close_all, subscribe

__all__ = ["ImportPatch", "patch_when_imported", "renew"]

_HOLDERS = (
    "torch.distributed.checkpoint", "safetensors", "transformers", "accelerate", "lightning",
    "pytorch_lightning", "lightning_fabric", "diffusers", "peft",
)  # fmt: skip
_waiting: list[ImportPatch]


class ImportPatch:
    """A patch of `module.name`, and of every framework module that has the same function under another name.

    It does not hook Python's import system. Instead `renew` checks whether the module is imported by now. It is called when
    something begins (a gate is opened, an optimizer is made), and at each deep check.
    """

    def __init__(
        self, module: str, name: str, reason: str, switch: str, make: MakeWrapper, subscriber: Any
    ) -> None:
        self._module = module
        self._name = name
        self._reason = reason
        self._switch = switch
        self._make = make
        self._subscriber = subscriber
        self._subscriptions: list[Subscription] = []
        self.try_now()
        _waiting.append(self)

    def try_now(self) -> None:
        """Patch the function if its module was imported since the last call."""
        home = sys.modules.get(self._module)
        if self._subscriptions or home is None or not hasattr(home, self._name):
            return
        original = getattr(home, self._name)
        holders = [
            (module, key)
            for module_name, module in list(sys.modules.items())
            if module_name.startswith(_HOLDERS)
            for key, value in list(getattr(module, "__dict__", {}).items())
            if value is original
        ]
        for owner, key in dict.fromkeys([(home, self._name), *holders]):
            target = Target(owner, key, self._reason, self._switch)
            self._subscriptions.append(subscribe(target, self._make, self._subscriber))

    def close(self) -> None:
        if self in _waiting:
            _waiting.remove(self)
        close_all(self._subscriptions)


_waiting = []


def patch_when_imported(
    module: str, name: str, reason: str, switch: str, make: MakeWrapper, subscriber: Any
) -> ImportPatch:
    """Patch `module.name` now, or at the first `renew` after its import."""
    return ImportPatch(module, name, reason, switch, make, subscriber)


def renew() -> None:
    """Check again for modules that were not imported before."""
    for patch in list(_waiting):
        patch.try_now()
