"""`stayfinite doctor`: is everything patched and put back, and which ways of replay work here?"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import typer

__all__ = ["register"]

_FRAMEWORKS = {"lightning": "lightning", "transformers": "transformers"}


def register(app: typer.Typer) -> None:
    """Add `doctor` to the command line."""
    app.command("doctor", short_help="Test that everything works on this machine.")(doctor)


def doctor(
    frameworks: bool = typer.Option(
        True, help="Also test installed frameworks; importing one takes seconds."
    ),
) -> None:
    """Test on this machine everything that a protected training relies on.

    Tiny trainings with one bad batch each are run in this process. Exit code 1 if something does not work.
    """
    is_fine = True
    for name, call in _checks(frameworks):
        start = time.perf_counter()
        try:
            with _quiet():
                said, is_ok = call(), True
        except Exception as e:
            said, is_ok = f"{type(e).__name__}: {e}", False
        is_fine = is_fine and is_ok
        mark = "ok  " if is_ok else "FAIL"
        typer.echo(f"{mark}  {name:<24}  {said}  ({time.perf_counter() - start:.1f} s)")
    raise typer.Exit(0 if is_fine else 1)


def _checks(frameworks: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    from ..demo import doctor_cases as cases

    yield "patches", _patches
    yield "replay by guard.step", lambda: _summary(cases.guard_step(_guard()))
    yield "replay by the loop", lambda: _summary(cases.loop(_guard()))
    yield "replay by a closure", lambda: _summary(cases.closure(_guard()))
    for name, package in _FRAMEWORKS.items() if frameworks else ():
        if importlib.util.find_spec(package) is not None:
            yield f"replay by {name}", lambda name=name: _framework(name)  # type: ignore[misc]
    yield "nothing left behind", _nothing_left


def _guard() -> Any:
    from ..guard import Guard

    return Guard


def _framework(name: str) -> str:
    from ..demo import doctor_cases as cases

    package = importlib.import_module(_FRAMEWORKS[name])
    home = importlib.import_module(f"..integrations.{name}", __package__)
    return _summary(getattr(cases, name)(home.StayfiniteCallback(), package))


def _summary(incidents: list[Any]) -> str:
    if len(incidents) != 1:
        raise RuntimeError(f"one incident was to be found, and {len(incidents)} were")
    location, cause = incidents[0].location, incidents[0].diagnosis.cause
    if location.op != "aten.log" or cause != "domain_error":
        raise RuntimeError(f"aten.log was to be found, and it was {location.op} ({cause})")
    return f"found {location.op}, {cause}"


def _patches() -> str:
    """Installs all patches of a watched script, and checks that the originals are back afterwards."""
    from ..config import Settings
    from ..investigate.entry import investigate
    from ..patches.manager import table
    from ..recover.policy import Policy
    from ..runtime.script.block import WatchedBlock

    before = {(r.owner, r.name) for r in table()}
    block = WatchedBlock(Settings(), Policy(), None, investigate)
    block.open("doctor")
    rows = table()
    covered = [f"{r.owner}.{r.name}" for r in rows if r.state != "active"]
    block.close()
    left = {(r.owner, r.name) for r in table()} - before
    if covered:
        raise RuntimeError(f"somebody else has patched on top of ours: {', '.join(covered)}")
    if left:
        raise RuntimeError(f"not put back: {', '.join(sorted('.'.join(x) for x in left))}")
    return f"{len(rows)} put in, all originals back"


def _nothing_left() -> str:
    import gc

    from ..patches.firewall import failures
    from ..patches.manager import table

    gc.collect()
    left = [f"{r.owner}.{r.name}" for r in table()]
    if left or failures():
        raise RuntimeError(f"still patched: {', '.join(left)}; failed: {failures()}")
    return "no patch, no failure of our own"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the output of the trainings and frameworks."""
    was = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(io.StringIO()):
                yield
    finally:
        logging.disable(was)
