"""Messages about runs that gave no result."""

from __future__ import annotations

from collections.abc import Sequence

from .pool import Job, last_words
from .records import Change

__all__ = ["announced", "no_input", "no_survey", "silent_end"]


def silent_end(job: Job) -> str:
    """Describes how a run without a result ended."""
    if job.code is not None and job.code < 0:
        return f"killed by signal {-job.code}"
    return f"ended with exit code {job.code} and no word"


def no_survey(target: str, job: Job) -> str:
    """The reason why nothing is known about the script."""
    if job.is_late:
        return (
            f"{target} came to no training within {job.duration_s:.0f} s\n"
            "  try: smaller data, or a longer --timeout"
        )
    said = last_words(job, 3).replace("\n", "\n    ") or silent_end(job)
    return f"{target} ends with an error before any training:\n    {said}{no_input(said)}"


def no_input(said: str) -> str:
    """A further line if a script waits for input."""
    if "EOFError" not in said:
        return ""
    return "\n  it asks for input, and has none here: take the answer from an argument or a file"


def announced(changes: Sequence[Change], failing: int | None, goal: int | None) -> str:
    """The result of the unchanged run, and the next step."""
    many = f"{len(changes)} change{'s' if len(changes) != 1 else ''}"
    return f"it fails at step {failing}; {many} to try, each has to finish step {goal}"
