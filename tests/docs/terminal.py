"""docs/images/terminal.svg, made anew from real output: `python -m tests.docs.terminal`.

The tutorial's script is run in a real terminal (a pty), in color; the picture shows the command and what
came, down to the line that says where it was saved.
"""

import os
import pathlib
import pty
import re
import sys
import tempfile

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from tests.docs.blocks import _MARK, DOCS

COMMAND = ["stayfinite", "run", "--run-dir", "run", "train.py"]
WIDTH = 110
PICTURE = DOCS / "images" / "terminal.svg"
THEME = TerminalTheme(
    (21, 25, 30), (214, 219, 224),
    [(21, 25, 30), (240, 113, 120), (127, 214, 154), (255, 207, 112), (111, 176, 255), (217, 162, 240), (107, 211, 218), (214, 219, 224)],
    [(92, 102, 112), (255, 138, 128), (152, 230, 175), (255, 220, 150), (140, 195, 255), (230, 185, 250), (140, 230, 235), (255, 255, 255)],
)  # fmt: skip


def script() -> str:
    """The training of the tutorial."""
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    return next(m["body"] for m in _MARK.finditer(text) if m["file"] == "train.py")


def in_a_terminal(command: list[str], folder: pathlib.Path) -> str:
    """What a command prints when it talks to a terminal."""
    said = bytearray()

    def read(fd: int) -> bytes:
        data = os.read(fd, 4096)
        said.extend(data)
        return data

    before = os.getcwd()
    names = {"COLUMNS": str(WIDTH), "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    os.environ.update(names, PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    os.chdir(folder)
    try:
        pty.spawn(command, read)
    finally:
        os.chdir(before)
    return said.decode().replace("\r\n", "\n")


def picture(said: str) -> str:
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), color_system="truecolor", force_terminal=True)  # fmt: skip  # noqa: SIM115
    console.print(Text.assemble(("$ ", "green"), (" ".join(COMMAND), "bold")))
    for line in said.splitlines():
        if not line.strip("-─ "):
            continue
        console.print(Text.from_ansi(line))
        if "more: stayfinite explain" in line:
            break
    svg = console.export_svg(title="stayfinite", theme=THEME, unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)  # no font from elsewhere
    return svg.replace(
        "Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "train.py").write_text(script(), encoding="utf-8")
        PICTURE.write_text(picture(in_a_terminal(COMMAND, pathlib.Path(folder))), encoding="utf-8")
