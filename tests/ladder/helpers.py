"""Running the ladder as a user does, and proving that nothing of theirs was touched."""

import hashlib
import pathlib
import subprocess
import sys

from tests.launch import Done, environment

LIMIT_SECONDS = 560
"""A ladder is many runs; on a busy machine each takes its time."""


def ladder(cwd: pathlib.Path, *args: str) -> Done:
    run = subprocess.run(
        [sys.executable, "-m", "stayfinite", "ladder", *args], cwd=cwd, env=environment(),
        capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    return Done(run.returncode, run.stdout, run.stderr)


def tree(folder: pathlib.Path) -> dict[str, tuple[str, int, int]]:
    """Names, contents, modes and times of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (data, about.st_mode, about.st_mtime_ns)
    return found
