"""Ray Train: wraps the training function.

from stayfinite.integrations.ray import protected

trainer = TorchTrainer(protected(train_loop), scaling_config=ScalingConfig(num_workers=4))
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..config import Settings
from ..recover.policy import Policy
from ..runtime.script.run_script import ScriptRun, run_here

__all__ = ["Protected", "protected"]

_INVESTIGATE = "stayfinite.investigate.entry:investigate"


class Protected:
    """The function that Ray sends to its workers, where it is watched like a script under `run`."""

    def __init__(
        self, train_loop: Callable[..., Any], policy: Policy, run_dir: Path, settings: Settings
    ) -> None:
        functools.update_wrapper(self, train_loop)  # Ray looks at how many arguments it takes
        self._train_loop = train_loop
        self._policy = policy
        self._settings = settings
        self.run_dir = run_dir

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(self._train_loop, *args, **kwargs)
        if run_here() is not None:
            return call()
        run = ScriptRun(self._settings, self._policy, self.run_dir, _INVESTIGATE)
        return run.run_call(call)


def protected(
    train_loop: Callable[..., Any],
    policy: str | Policy = "skip",
    run_dir: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
) -> Protected:
    """The same training function, protected on every worker; one run folder for all of them.

    `run_dir` must be a place that the workers can write to; without one it is `stayfinite-runs/NAME-TIME` in the
    folder of the program that starts them.
    """
    if run_dir is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = getattr(train_loop, "__name__", "ray")
        run_dir = Path("stayfinite-runs") / f"{name}-{stamp}"
    chosen = settings if isinstance(settings, Settings) else Settings.from_mapping(settings or {})
    return Protected(train_loop, Policy.parse(policy), Path(run_dir).absolute(), chosen)
