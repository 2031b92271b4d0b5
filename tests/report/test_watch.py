"""The live view: its pictures at several sizes, and the real thing in a real terminal."""

import shlex
import subprocess
import sys
import time

import pytest
import typer
from rich.cells import cell_len
from tests.report.browser import need
from tests.report.runs import row, write_run
from tests.report.test_journal_read import seed_log
from typer.testing import CliRunner

from stayfinite.cli import watch as watch_command
from stayfinite.report.journal import Journal
from stayfinite.report.journal_read import JournalData, Tail
from stayfinite.report.watch import frame


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch") / "run"
    write_run(folder)
    return folder


def picture(path, width, height, is_ascii=False):
    tail = Tail(path)
    tail.poll()
    tail.close()
    return frame(tail.data, path.parent.name, width, height, is_ascii).plain.splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (40, 12), (200, 80), (100, 10)])
def test_it_fits_whatever_the_size(run, width, height):
    lines = picture(run / "journal.jsonl", width, height)
    assert len(lines) <= height and max(map(cell_len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_everything_is_there(run, width, height):
    text = "\n".join(picture(run / "journal.jsonl", width, height))
    for words in (
        "step 399  epoch 3", "ended", "loss 0.005", "scale 6.554e+04", "skipped 2 (1 in a row)",
        "loss  2 not finite (v)", "grad norm", "headroom by layer", " bits", "incidents, newest first",
        "step 33: the loss is 9", "step 300: log_of_zero, aten.log in", "lr  ", "q quits",
    ):  # fmt: skip
        assert words in text, words
    curve = [line for line in text.splitlines() if "│" in line]
    assert sum("\u2800" < c <= "\u28ff" for line in curve for c in line) > width
    assert "v" in curve[0]


def test_a_foreign_log_can_be_watched(tmp_path):
    seed_log(tmp_path / "log.jsonl")
    text = "\n".join(picture(tmp_path / "log.jsonl", 80, 24))
    assert "grad norm  980 not finite" in text and "step 922 to 1901: grad_norm not finite" in text


def test_a_name_cannot_speak_to_the_terminal(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(row(0, 1.0))
    journal.event("incident", step=0, cause="\x1b[2J\x9b31m", op="a\r\nb\x07", action="skipped")
    journal.close()
    text = "\n".join(picture(tmp_path / "journal.jsonl", 80, 24))
    assert "step 0: ?[2J?31m, a?b; skipped" in text
    assert not [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]


def test_before_the_first_step():
    text = frame(JournalData(), "run", 80, 24).plain
    assert "waiting for the first step" in text


def test_a_terminal_without_unicode(run):
    lines = picture(run / "journal.jsonl", 80, 24, is_ascii=True)
    curve = [line for line in lines if "|" in line]
    assert len(curve) > 6 and all(line.isascii() for line in curve)


def invoke(*args):
    app = typer.Typer()
    watch_command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["watch", *map(str, args)])


def test_once_prints_one_picture(run):
    done = invoke(run, "--once")
    assert done.exit_code == 0 and "step 399" in done.output
    assert invoke(run).exit_code == 0, "nobody at a terminal: one picture is enough"


def test_a_run_that_is_not_there():
    done = invoke("nowhere")
    assert done.exit_code == 2 and "no such run: nowhere" in done.output


class Tmux:
    """A terminal of its own, on a socket of its own."""

    def __init__(self, socket, width, height, command):
        need(("tmux", "tmux"))
        self._base = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        size = ["-x", str(width), "-y", str(height)]
        self._do("new-session", "-d", "-s", "w", *size, f"{command}; echo CODE $?; sleep 600")

    def _do(self, *args):
        return subprocess.run(
            [*self._base, *args], capture_output=True, text=True, check=True
        ).stdout

    def screen(self):
        return self._do("capture-pane", "-p", "-t", "w")

    def keys(self, *keys):
        self._do("send-keys", "-t", "w", *keys)

    def resize(self, width, height):
        self._do("resize-window", "-t", "w", "-x", str(width), "-y", str(height))

    def wait_for(self, *words, seconds=300):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            screen = self.screen()
            if all(w in screen for w in words):
                return screen
            time.sleep(0.1)
        raise AssertionError(f"{words} did not come; the screen:\n{self.screen()}")

    def close(self):
        self._do("kill-server")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_live_in_a_real_terminal(width, height, tmp_path):
    program = (
        "import typer; from stayfinite.cli import watch; app = typer.Typer(); watch.register(app); "
        "app.callback()(lambda: None); app(['watch', 'run', '--interval', '0.1'])"
    )
    command = f"cd {tmp_path} && LC_ALL=C.UTF-8 {sys.executable} -c {shlex.quote(program)}"
    (tmp_path / "run").mkdir()
    terminal = Tmux(tmp_path / "socket", width, height, command)
    try:
        terminal.wait_for("waiting for the first step")
        journal = Journal(tmp_path / "run" / "journal.jsonl", flush_lines=1)
        for step in range(50):
            journal.append(row(step, 2.0 / (step + 1)))
        screen = terminal.wait_for("step 49", "running", "none")
        journal.append(row(50, float("nan"), applied=False, flags=["incident"]))
        journal.event("incident", step=50, cause="log_of_zero", op="aten.log", action="skipped")
        journal.append(row(51, 0.03))
        screen = terminal.wait_for(
            "step 50: log_of_zero, aten.log; skipped", "skipped 1 ", "step 51"
        )
        lines = screen.rstrip("\n").splitlines()
        assert len(lines) <= height and max(map(cell_len, lines)) <= width
        assert sum("\u2800" < c <= "\u28ff" for c in screen) > width // 2, screen
        is_beside = any(line.startswith("loss  1 not") and "grad norm" in line for line in lines)
        assert is_beside == (width >= 120), screen
        journal.close()
        terminal.wait_for("ended")
        terminal.resize(100, 30)
        terminal.wait_for("step 51", "q quits")
        terminal.keys("q")
        terminal.wait_for("CODE 0")
    finally:
        terminal.close()
