"""A script once more, straight to its failed step: its own loop is handed the saved batch.

The script builds its model, optimizer and loaders as always. When it asks for the first batch, the
saved state is put in place and the saved batch is handed out instead; when it asks for the next one,
the script ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..config import Settings
from ..errors import UsageError
from ..observe.witness import witness
from ..records import Incident
from ..recover.policy import Policy
from .core import Core
from .script import ScriptDriver, ScriptRun

__all__ = ["replay_script"]


class _ReplayDriver(ScriptDriver):
    def __init__(self, core: Core, capsule: dict[str, Any], old: Incident) -> None:
        super().__init__(core)
        self._capsule = capsule
        self._old = old
        self.is_served = False

    def stream(self, owner: Any, inner: Iterator[Any]) -> Iterator[Any]:
        if self.is_served:
            return super().stream(owner, inner)
        self.is_served = True
        return super().stream(owner, self._saved(inner))

    def _saved(self, inner: Iterator[Any]) -> Iterator[Any]:
        next(inner, None)  # a loader that cannot give a batch should say so itself
        self._load()
        yield from self._capsule["batches"]
        raise SystemExit(0)

    def _load(self) -> None:
        self.before_window()
        models = list(self.state.roots.values())
        own = dict(witness.restored.items())
        try:
            for model, saved in zip(models, self._capsule["models"].values()):
                model.load_state_dict(saved)
            for optimizer, saved in zip(self.state.optimizers, self._capsule["optimizers"]):
                optimizer.load_state_dict(saved)
        except (RuntimeError, ValueError, KeyError) as e:
            raise UsageError(
                f"the saved state does not fit what the script built: {str(e).splitlines()[0]}\n"
                "  try: the same arguments and the same version of the script"
            ) from e
        # This was a replay, not a resume; what the script itself restored it did restore.
        witness.restored.clear()
        witness.restored.update(own)
        self.state.set_lrs(tuple(self._capsule["lrs"]))
        self.core.prime_again()
        remember(self.core, self._capsule, self._old)
        self.num_batches = self._capsule["step"]
        torch.set_rng_state(self._capsule["rng"])


def remember(core: Core, capsule: dict[str, Any], old: Incident) -> None:
    """The course of the run up to the failure is evidence too."""
    core.state.first_sizes = {k: tuple(v) for k, v in capsule["first_sizes"].items()}
    core.state.first_lrs = tuple(capsule["first_lrs"])
    for r in old.history:
        core.history.append((r.step, r.epoch, r.loss, r.grad_norm, r.lr, r.scale, r.is_applied))


def replay_script(
    capsule: dict[str, Any],
    old: Incident,
    settings: Settings,
    folder: Path,
    script: Sequence[str],
    is_module: bool = False,
) -> Incident | None:
    """Run the user's script (its name and arguments) to the failed step; the new incident, or None."""
    # The saved state may be the bad one: it is to be looked at, not to be refused.
    run = ScriptRun(
        settings=settings, policy=Policy.parse("skip"), run_dir=folder, resume_check=False
    )
    driver = _ReplayDriver(run.core, capsule, old)
    run.driver = driver
    name, *args = script
    code = (run.run_module if is_module else run.run_file)(name, args)
    if not driver.is_served and code:
        raise UsageError(f"{name} ended with exit code {code} before its first batch")
    return run.core.incidents[0] if run.core.incidents else None
