"""Runs a script directly to its failed step with the saved batch.

The script builds its model, optimizer and loaders as usual. When it requests the first batch, the saved state is restored and
it gets the saved batch instead. When it requests the next one, the script ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..config import Settings
from ..errors import UsageError
from ..patches.provenance import provenance
from ..records import Incident
from ..recover.policy import Policy
from ..runtime.engine import Engine
from ..runtime.loop.script_driver import ScriptDriver
from ..runtime.script.run_script import ScriptRun
from .entry import investigate

__all__ = ["remember", "replay_script"]


class _ReplayDriver(ScriptDriver):
    def __init__(self, engine: Engine, capsule: dict[str, Any], old: Incident) -> None:
        super().__init__(engine)
        self._capsule = capsule
        self._old = old
        self._left: list[Any] | None = None

    @property
    def is_served(self) -> bool:
        return self._left is not None

    def draw(self, loader: Any, draw: Callable[[], Any]) -> Any:
        """Replaces the loader's batches by the saved ones; then the script ends."""
        if self._left is None:
            draw()  # a loader that cannot provide a batch should report that itself
            self._load()
            self._left = list(self._capsule["batches"])
        if not self._left:
            raise SystemExit(0)
        return self._left.pop(0)

    def _load(self) -> None:
        self.before_window()
        models = list(self.state.roots.values())
        own = dict(provenance.restored.items())
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
        # This was a replay and not a resume; what the script itself restored still counts.
        provenance.restored.clear()
        provenance.restored.update(own)
        self.state.set_lrs(tuple(self._capsule["lrs"]))
        self.engine.deep_checks.reinitialize()
        remember(self.engine, self._capsule, self._old)
        self.tracker.num_batches = self._capsule["step"]
        torch.set_rng_state(self._capsule["rng"])


def remember(engine: Engine, capsule: dict[str, Any], old: Incident) -> None:
    """The history before the failure is evidence too."""
    engine.state.first_sizes = {k: tuple(v) for k, v in capsule["first_sizes"].items()}
    engine.state.first_lrs = tuple(capsule["first_lrs"])
    for r in old.history:
        engine.history.append((r.step, r.epoch, r.loss, r.grad_norm, r.lr, r.scale, r.is_applied))


class _QuietRun(ScriptRun):
    """Its folder is deleted when the command ends, so the command itself prints the result."""

    def _set_up(self, folder: Path | None, name: str) -> None:
        super()._set_up(folder, name)
        assert self.folder is not None
        self.folder._say = lambda incident: None

    def _print_summary(self, folder: Path) -> None:
        return


def replay_script(
    capsule: dict[str, Any],
    old: Incident,
    settings: Settings,
    folder: Path,
    script: Sequence[str],
    is_module: bool = False,
) -> Incident | None:
    """Run the user's script (its name and arguments) to the failed step; returns the new incident, or None."""
    # The saved state may be the bad one, which must not be refused here.
    run = _QuietRun(
        settings=settings, policy=Policy.parse("skip"), run_dir=folder, resume_check=False,
        investigate=investigate,
    )  # fmt: skip
    driver = _ReplayDriver(run.engine, capsule, old)
    run.driver = driver
    name, *args = script
    code = (run.run_module if is_module else run.run_file)(name, args)
    if not driver.is_served and code:
        raise UsageError(f"{name} ended with exit code {code} before its first batch")
    return run.engine.incidents[0] if run.engine.incidents else None
