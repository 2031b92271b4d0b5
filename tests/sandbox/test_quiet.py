"""What a replay says is not heard, and whoever listens notices nothing."""
# ruff: noqa: SIM115  (files are opened as scripts open them)

import contextlib
import io
import logging
import os
import sys

import pytest
import rich.console
import rich.progress
import tqdm
import tqdm.auto
from tests.sandbox.test_compute import sandbox_rows

from stayfinite.sandbox import computing_only, open_streams


class Tee:
    """A stream of the user's own."""

    def __init__(self):
        self.heard = []

    def write(self, text):
        self.heard.append(text)
        return len(text)

    def flush(self):
        self.heard.append("flush")


class Slotted(Tee):
    __slots__ = ()


class Narrow:
    __slots__ = ("heard",)

    def __init__(self):
        self.heard = []

    def write(self, text):
        self.heard.append(text)

    def flush(self):
        pass


def test_prints_are_muted_by_whatever_way(capfd):
    kept, buffer = sys.stdout, sys.stdout.buffer
    print("before")
    with computing_only():
        print("a")
        print("b", file=sys.stderr, flush=True)
        print("c", file=kept)
        sys.stdout.write("d")
        sys.stdout.writelines(["e", "f"])
        buffer.write(b"g")
        sys.__stderr__.write("h")
        assert os.write(1, b"i") == 1 and os.write(2, b"jk") == 2
        assert sys.stdout.write("lmn") == 3
    print("after")
    out = capfd.readouterr()
    assert (out.out, out.err) == ("before\nafter\n", "")


@pytest.mark.parametrize("kind", [Tee, Slotted, Narrow, io.StringIO])
def test_a_stream_of_the_users_own_is_muted_and_stays_the_same_object(kind, monkeypatch):
    stream = kind()
    monkeypatch.setattr(sys, "stdout", stream)
    own = dict(getattr(stream, "__dict__", {}))
    with computing_only():
        assert sys.stdout is stream
        print("muted")
    assert sys.stdout is stream
    assert getattr(stream, "__dict__", {}) == own
    assert stream.getvalue() == "" if kind is io.StringIO else stream.heard == []
    print("heard", end="")
    assert stream.getvalue() == "heard" if kind is io.StringIO else "heard" in stream.heard


def test_another_stream_of_the_same_class_is_not_muted(monkeypatch):
    stream = Narrow()
    monkeypatch.setattr(sys, "stdout", stream)
    with computing_only():
        own = io.StringIO()
        with contextlib.redirect_stdout(own):
            print("caught by the replay itself")
    assert own.getvalue() == "caught by the replay itself\n"
    assert stream.heard == []


def test_a_replay_that_replaces_stdout_and_forgets_it_is_put_right(monkeypatch):
    before = sys.stdout
    with computing_only():
        sys.stdout = io.StringIO()
    assert sys.stdout is before


def test_no_stdout_at_all_is_no_problem(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with computing_only():
        print("nowhere")


def test_files_that_are_open_already_can_be_muted(tmp_path):
    log = open(tmp_path / "log.txt", "w")
    raw = open(tmp_path / "raw.bin", "wb", buffering=0)
    log.write("1\n")
    streams = open_streams()
    assert any(s is log for s in streams) and any(s is raw for s in streams)
    with computing_only(streams=streams):
        log.write("2\n")
        print("3", file=log)
        raw.write(b"4")
        assert log.truncate(0) is None
        made = open(tmp_path / "new.txt", "w")
        made.write("5")
        made.close()
        assert (tmp_path / "new.txt").read_text() == "5"
    log.write("6\n")
    raw.write(b"7")
    log.close()
    raw.close()
    assert (tmp_path / "log.txt").read_text() == "1\n6\n"
    assert (tmp_path / "raw.bin").read_bytes() == b"7"


def test_an_error_in_a_finalizer_is_not_reported(monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)

    class Failing:
        def __del__(self):
            raise ValueError("in a finalizer")

    with computing_only():
        Failing()
    assert heard == []
    Failing()
    assert len(heard) == 1
    heard.clear()


def test_no_record_reaches_a_handler_and_nothing_is_configured(capfd):
    class Counting(logging.Handler):
        num = 0

        def emit(self, record):
            Counting.num += 1

    made = []
    logger, root = logging.getLogger("stayfinite.test.quiet"), logging.getLogger()
    logger.addHandler(Counting())
    logger.setLevel(logging.INFO)
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *a, **k: made.append(1) or factory(*a, **k))
    handlers, level = list(root.handlers), root.level
    try:
        with computing_only():
            logger.info("a")
            logger.exception("b")
            logging.warning("c")
            logging.basicConfig(level=1, force=True)
            logger.handle(logger.makeRecord("x", 30, "f", 1, "m", (), None))
            logger.handlers[0].handle(None)
            logger.addHandler(logging.StreamHandler())
            logger.setLevel(logging.ERROR)
            logging.disable(logging.CRITICAL)
        assert (Counting.num, len(made)) == (0, 1)  # the one that the body made itself
        assert (root.handlers, root.level, len(logger.handlers)) == (handlers, level, 1)
        logger.info("heard")
        assert (Counting.num, len(made)) == (1, 2)
    finally:
        logging.setLogRecordFactory(factory)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
    assert capfd.readouterr() == ("", "")


def test_progress_bars_stand_still(capfd, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)
    bar = tqdm.tqdm(range(10), file=stream, mininterval=0)
    bar.update(3)
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 10)  # a new bar would start a thread
    interval, monitor = tqdm.tqdm.monitor_interval, tqdm.tqdm.monitor
    shown, num_bars = stream.getvalue(), len(tqdm.tqdm._instances)
    with computing_only() as report:
        bar.update(1)
        bar.set_postfix(loss=1)
        bar.set_description("x")
        bar.refresh()
        bar.close()
        assert list(bar) == list(range(10))
        assert list(tqdm.tqdm(range(3))) == [0, 1, 2]
        assert list(tqdm.auto.trange(2)) == [0, 1]
        with tqdm.tqdm(total=5) as other:
            other.update(2)
        tqdm.tqdm.write("hello")
    assert report.refused == {}
    assert (bar.n, bar.postfix, bar.desc, bar.disable) == (3, None, "", False)
    assert stream.getvalue() == shown
    assert (tqdm.tqdm.monitor_interval, tqdm.tqdm.monitor) == (interval, monitor)
    assert len(tqdm.tqdm._instances) == num_bars
    bar.update(1)
    assert bar.n == 4
    bar.close()
    assert capfd.readouterr() == ("", "")


def test_rich_progress_stands_still(capfd):
    stream = io.StringIO()
    progress = rich.progress.Progress(console=rich.console.Console(file=stream))
    task = progress.add_task("training", total=10)
    progress.update(task, completed=2)
    with computing_only() as report:
        progress.advance(task)
        progress.update(task, completed=9)
        made = progress.add_task("replay", total=1)
        progress.advance(made)
        assert list(progress.track([1, 2])) == [1, 2]
        with rich.progress.Progress() as own:
            own.advance(own.add_task("x", total=1))
        rich.console.Console().print("hello")
    assert report.refused == {}
    assert progress.tasks[0].completed == 2 and len(progress.tasks) == 1
    assert stream.getvalue() == ""
    assert capfd.readouterr() == ("", "")


def test_nothing_of_the_streams_is_left_in_the_table():
    with computing_only():
        assert any("write" in row.name for row in sandbox_rows())
    assert not sandbox_rows()
