"""Running the ladder as a user does, and proving that nothing of theirs was touched."""

import hashlib
import pathlib

from tests.launch import Done, forked


def ladder(cwd: pathlib.Path, *args: str) -> Done:
    return forked(["-m", "stayfinite", "ladder", *args], cwd)


def tree(folder: pathlib.Path) -> dict[str, tuple[str, int, int]]:
    """Names, contents, modes and times of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (data, about.st_mode, about.st_mtime_ns)
    return found
