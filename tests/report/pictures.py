"""The pictures in docs/images, made anew: `python -m tests.report.pictures`.

A real training, watched and reported by the real commands, in a real browser and terminal.
"""

import html
import os
import pathlib
import shutil
import subprocess
import sys

from rich.console import Console
from rich.segment import Segment
from rich.terminal_theme import MONOKAI
from tests.report.browser import chromium, screenshot

from stayfinite.report.html import render_html
from stayfinite.report.journal_read import Tail
from stayfinite.report.model import load_run
from stayfinite.report.watch import frame

IMAGES = pathlib.Path(__file__).parents[2] / "docs" / "images"
HOME = pathlib.Path("/tmp/example")

TRAIN = '''"""A small classifier with a hand-written cross entropy. Two samples are far out."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.blocks = nn.Sequential(*[Block(32) for _ in range(4)])
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x))).squeeze(-1)


def cross_entropy(logits, labels):
    p = torch.sigmoid(logits)
    return -(labels * torch.log(p) + (1 - labels) * torch.log(1 - p)).mean()


torch.manual_seed(0)
x = torch.randn(2048, 8)
labels = (x[:, 0] * x[:, 1] + x[:, 2].sin() + torch.randn(2048) * 0.4 > 0).float()
x[500], x[1500] = 900.0, -900.0
loader = DataLoader(TensorDataset(x, labels), batch_size=16, shuffle=True)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10 * len(loader))
for epoch in range(10):
    for batch, target in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(batch), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    torch.save(model.state_dict(), f"epoch{epoch}.pt")
'''


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    (HOME / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "stayfinite", "run", "--run-dir", "classifier", "train.py"]
    subprocess.run(command, cwd=HOME, check=True)
    os.chdir(HOME)  # so that the page names its files as a user in that folder sees them
    page = HOME / "report.html"
    page.write_text(render_html(load_run(HOME / "classifier")).replace(f"{HOME}/", ""))
    for width in (1280, 390):
        with chromium(width) as driver:
            driver.get(page.as_uri())
            screenshot(driver, IMAGES / f"report-{width}.png")
            if width == 1280:
                driver.find_element("id", "theme").click()
                driver.save_screenshot(str(IMAGES / "report-dark.png"))
    for width, height in ((80, 24), (160, 50)):
        terminal(width, height)


def cells(segment: Segment) -> str:
    """One box a character, as a terminal has it, whatever font the browser finds."""
    look = segment.style.get_html_style(MONOKAI) if segment.style else ""
    look = ";".join(p for p in look.split("; ") if "background" not in p)
    return "".join(f'<i style="{look}">{html.escape(c)}</i>' for c in segment.text if c != "\n")


def terminal(width: int, height: int) -> None:
    """The live view as it stands at the end, photographed in the browser."""
    tail = Tail(HOME / "classifier" / "journal.jsonl")
    tail.poll()
    tail.close()
    console = Console(width=width, force_terminal=True)
    rows = console.render_lines(frame(tail.data, "classifier", width, height))
    text = "".join("".join(map(cells, row)) + "<br>" for row in rows)
    style = (
        "body{background:#14171a;color:#e6e8ea;margin:0;padding:12px;display:inline-block;"
        "font:15px/18px 'DejaVu Sans Mono',monospace;white-space:nowrap}"
        "i{display:inline-block;width:9px;height:18px;font-style:normal;overflow:hidden;"
        "vertical-align:top;white-space:pre}"
    )
    file = HOME / f"watch-{width}.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><style>{style}</style>{text}")
    with chromium(width * 9 + 60, height * 18 + 60) as driver:
        driver.get(file.as_uri())
        body = driver.find_element("css selector", "body")
        body.screenshot(str(IMAGES / f"watch-{width}.png"))


if __name__ == "__main__":
    main()
