"""Reading: ours and foreign, whole and while it grows."""

import json
import math
import os
import tracemalloc

import pytest
from typer.testing import CliRunner

from stayfinite.cli.app import app
from stayfinite.errors import UsageError
from stayfinite.report.curves import Curves, Series
from stayfinite.report.foreign import KeyMap
from stayfinite.report.journal import Journal
from stayfinite.report.journal_read import Tail, journal_of, read_journal
from stayfinite.report.layers import heat_map, latest_layers
from stayfinite.report.model import load_run


def seed_log(path, first_bad=922, last_bad=1901, num_steps=2000):
    """The log of the run whose gradients were NaN from one step on: Python's own NaN, no header."""
    with path.open("w") as f:
        for step in range(num_steps):
            is_bad = first_bad <= step <= last_bad
            figures = {
                "step": step,
                "loss": 3.0 / (1 + step),
                "text_loss": 2.0 / (1 + step),
                "latent_loss": 1.0 / (1 + step),
                "norm": math.nan if is_bad else 1.0,
                "learning_rate": 1e-4,
                "val_loss": 9.9,
                "time": "10:00",
            }
            f.write(json.dumps(figures) + "\n")


def test_the_log_of_a_run_that_wasted_its_steps(tmp_path):
    seed_log(tmp_path / "train_log.jsonl")
    view = load_run(tmp_path / "train_log.jsonl")
    assert view.data.keys == {
        "step": "step", "loss": "loss", "grad_norm": "norm", "lr": "learning_rate"
    }  # fmt: skip
    assert view.findings == [
        "grad_norm first not finite at step 922",
        "980 of 2,000 steps (49.0%) had a value that is not finite",
        "980 of them in a row, from step 922 to 1,901",
    ]
    assert [p.name for p in view.plots] == ["loss", "grad_norm", "lr"]
    assert list(view.plots[0].series) == ["loss", "latent_loss", "text_loss"]
    norm = view.plots[1].series["grad_norm"]
    assert sum(map(bool, norm.bad)) == 980 and len(norm.x) == 2000


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ({"global_step": 3, "train/loss": 1}, {"step": 3, "loss": 1.0}),
        ({"iteration": 3, "train_loss": "NaN", "lr": 0.1}, {"step": 3, "loss": math.nan, "lr": 0.1}),
        ({"_step": 9, "gnorm": "inf", "loss_scale": 8}, {"step": 9, "grad_norm": math.inf, "scale": 8.0}),
        ({"loss": 1.0, "epoch": 2}, {"step": 7, "loss": 1.0, "epoch": 2}),
        ({"eval_loss": 1.0, "epoch": 2}, None),
        ({"message": "hello"}, None),
        ({"loss": True}, None),
    ],
)  # fmt: skip
def test_usual_names_are_known(line, row):
    found = KeyMap().row(line, 7)
    assert str(found) == str(row)


def test_the_better_of_two_names_wins_wherever_it_stands():
    for line in ({"train/loss": 2.0, "loss": 1.0}, {"loss": 1.0, "train/loss": 2.0}):
        assert KeyMap().row(line, 0)["loss"] == 1.0


def test_a_key_map_by_hand(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"n": 5, "objective": 0.5}\n{"n": 6, "objective": 0.25}\n')
    with pytest.raises(UsageError, match="--map loss=objective"):
        load_run(path)
    view = load_run(path, keys=KeyMap.parse(["loss=objective", "step=n"]))
    assert view.plots[0].series["loss"].x == [5, 6]
    with pytest.raises(UsageError, match="unknown field 'los' in the key map; fields: step, epoch"):
        KeyMap.parse(["los=objective"])
    with pytest.raises(UsageError, match="written field=key"):
        KeyMap.parse(["objective"])


def test_text_between_the_lines_is_counted_and_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b'Starting...\n{"step": 0, "loss": 1}\n\n[1]\n{"step": 1, "loss": 2}\n\xff{"st'
    )
    view = load_run(path)
    assert view.data.curves.num_rows == 2
    assert view.problems == ["3 lines of the log could not be read and were left out"]


@pytest.mark.parametrize("points", [10, 100, 2000])
def test_many_steps_become_few_points_and_nothing_is_lost(points, tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for step in range(5000):
        loss = math.nan if step in (7, 4321) else 50.0 if step == 3333 else 1.0
        journal.append((step, 0, loss, 2.0, (0.1,), None, True))
    journal.close()
    data = read_journal(path, points)
    loss = data.curves.series["loss"]
    assert len(loss.x) <= max(points, 10) + 1
    assert max(v for v in loss.high if v is not None) == 50.0
    assert sum(loss.count) == 4998 and loss.num_bad == 2 and sum(map(bool, loss.bad)) == 2
    assert [(s.first, s.last) for s in data.curves.spans] == [(7, 7), (4321, 4321)]


def test_points_are_joined_while_a_run_grows():
    grown = Curves(points=50)
    for start in range(0, 3000, 100):
        grown.feed([{"step": s, "loss": float(s)} for s in range(start, start + 100)])
    grown.finish()
    loss = grown.series["loss"]
    assert len(loss.x) <= 101 and loss.low[0] == 0.0 and loss.high[-1] == 2999.0
    assert sum(loss.count) == 3000
    middles = [(a + b) / 2 for a, b in zip(loss.low, loss.high)]
    assert loss.mean == pytest.approx(middles)


def test_nan_never_hides_the_finite_values_beside_it():
    s = Series()
    s._add(0, [1.0, math.nan, 3.0, "inf", None])
    assert (s.low, s.high, s.mean, s.count, s.bad) == ([1.0], [3.0], [2.0], [2], ["nan"])


def test_a_newer_schema_and_a_missing_session_are_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"kind":"stayfinite.journal","schema":99,"session":1}\n')
    with pytest.raises(UsageError, match="schema 99, this version reads up to 1"):
        read_journal(path)
    path.write_text('{"kind":"stayfinite.journal","schema":1,"session":1}\n{"step":0,"loss":1}\n')
    with pytest.raises(UsageError, match="no session 4; there are 1"):
        read_journal(path, session=4)


def test_what_is_no_run_says_what_it_is(tmp_path):
    with pytest.raises(UsageError, match="no such run"):
        journal_of(tmp_path / "nowhere")
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"neither journal.jsonl nor incidents/ is in it; it has log.jsonl"):  # fmt: skip
        journal_of(tmp_path)
    (tmp_path / "incidents").mkdir()
    assert journal_of(tmp_path) is None
    with pytest.raises(UsageError, match=r"has no journal of rank 3; it has log.jsonl"):
        journal_of(tmp_path, rank=3)


def test_following_a_journal_through_rotations_and_a_new_session(tmp_path):
    path = tmp_path / "journal.jsonl"
    tail = Tail(path)
    assert tail.poll() is False
    journal = Journal(path, segment_bytes=5000, flush_lines=16)
    seen = []
    for step in range(1000):
        journal.append((step, 0, 1.0, None, (0.1,), None, True))
        if step % 37 == 0:
            tail.poll()
            seen.append(tail.data.curves.num_rows)
    journal.close()
    tail.poll()
    assert seen == sorted(seen) and seen[5] > 0
    assert tail.data.curves.num_rows + len(tail.data.curves._held) == 1000
    assert tail.data.is_ended
    late = Tail(path)
    late.poll()
    assert late.data.curves.last_row["step"] == 999
    assert late.data.curves.num_rows + len(late.data.curves._held) == 1000
    again = Journal(path, flush_lines=1)
    again.append((0, 0, 1.0, None, (0.1,), None, True))
    tail.poll()
    assert (tail.data.session, tail.data.curves.num_rows) == (2, 1)
    again.close()
    tail.close()
    late.close()


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0, "loss": 1}\n{"step": 1, "lo')
    tail = Tail(path)
    tail.poll()
    assert (tail.data.curves.num_rows, tail.data.num_broken) == (1, 0)
    with path.open("a") as f:
        f.write('ss": 2}\n')
    tail.poll()
    assert (tail.data.curves.num_rows, tail.data.num_broken) == (2, 0)
    tail.close()


def test_layers_over_time():
    names = {"names": ["a", "b"], "dtypes": ["float16", "float32"]}
    events = [
        {"event": "layers", "step": 0, "weight": [1.0, 1.0], "grad": [1, 1], "update": [0, 0], **names},
        {"event": "layers", "step": 9, "weight": [60000.0, 1.0], "grad": ["nan", None], "update": [0, 0]},
    ]  # fmt: skip
    heat = heat_map(events)
    assert heat.steps == [0, 9] and heat.names == ["a", "b"]
    assert heat.headroom[0] == [16.0, pytest.approx(0.13, abs=0.01)]
    assert math.isnan(heat.grad[0][1]) and heat.grad[1][1] is None
    assert [n for n, _, _ in latest_layers(events)] == ["a", "b"]
    wide = {"names": [f"l{i}" for i in range(500)], "dtypes": ["float16"] * 500}
    many = [
        {"step": s, "weight": [float(i + 1) for i in range(500)], "grad": [], "update": [],
         **(wide if s == 0 else {})} for s in range(300)
    ]  # fmt: skip
    heat = heat_map(many)
    assert (len(heat.names), len(heat.steps), heat.num_left_out) == (60, 120, 440)
    assert heat.names[0] == "l440" and heat.steps[-1] == 299


@pytest.mark.slow
def test_a_long_journal_becomes_a_small_page_in_bounded_memory(tmp_path):
    """Two million steps, and the seconds: python -m benchmarks.journal."""
    from benchmarks.journal import long_journal, report_cost

    long_journal(tmp_path, 200_000)
    cost = report_cost(tmp_path)
    assert cost["peak_mb"] < 500 and cost["page_mb"] < 1.5, cost


BAD_LINES = {
    "brackets": b"[" * 100_000,
    "objects": b'{"a":' * 50_000,
    "digits": b'{"step": 21, "loss": ' + b"9" * 5000 + b"}",
    "bytes": b'{"step": 21, "loss": "\xff\xfe"}',
    "endless step": b'{"step": 1e400, "loss": 1}',
    "step in words": b'{"step": "x", "loss": 1}',
}


@pytest.mark.parametrize("name", BAD_LINES)
@pytest.mark.parametrize("is_ours", [False, True])
def test_one_bad_line_is_left_out_and_counted(tmp_path, name, is_ours):
    head = b'{"kind": "stayfinite.journal", "schema": 1, "session": 1}\n' if is_ours else b""
    good = b"".join(b'{"step": %d, "loss": 0.5}\n' % i for i in range(20))
    file = tmp_path / "log.jsonl"
    file.write_bytes(head + good + BAD_LINES[name] + b"\n" + b'{"step": 30, "loss": 0.25}\n')
    data = read_journal(file)
    rows = data.curves.num_rows
    is_row = name == "step in words" and not is_ours  # a log of somebody else counts by itself
    assert (rows, data.num_broken) == ((22, 0) if is_row else (21, 1))
    tail = Tail(file)
    try:
        assert tail.poll() and tail.data.curves.num_rows == rows
    finally:
        tail.close()


def test_a_line_without_end_takes_no_memory(tmp_path):
    file = tmp_path / "log.jsonl"
    with open(file, "wb") as f:
        f.write(b'{"step": 1, "loss": 0.5}\n')
        f.seek(200 << 20)
        f.write(b"x\n" + b'{"step": 2, "loss": 0.5}\n')
    tracemalloc.start()
    data = read_journal(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.curves.num_rows == 2 and peak < 120 << 20


def test_a_pipe_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / "journal.jsonl")
    with pytest.raises(UsageError):
        journal_of(tmp_path)
    with pytest.raises(UsageError, match="neither a run folder nor an ordinary file"):
        journal_of(tmp_path / "journal.jsonl")
    assert Tail(tmp_path / "journal.jsonl").poll() is False


def test_a_log_that_is_too_large_is_read_in_part_and_reported(tmp_path, monkeypatch):
    from stayfinite.report import journal_read

    monkeypatch.setattr(journal_read, "_BLOCK", 1000)
    monkeypatch.setattr(journal_read, "_MAX_BYTES", 5000)
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"".join(b'{"step": %d, "loss": 0.5}\n' % i for i in range(1000)))
    view = load_run(file)
    assert 100 < view.data.curves.num_rows < 300
    assert view.problems == [
        "the log has more than 4 GB; the rest of it was not read: limit_exceeded"
    ]


def test_a_log_with_endless_names_is_bounded(tmp_path):
    file = tmp_path / "log.jsonl"
    with open(file, "w") as f:
        for i in range(3000):
            f.write(json.dumps({"step": i, "loss": 0.5, f"loss_{i}": 1.0}) + "\n")
    assert len(read_journal(file).curves.series) <= 500


def long_log(path, num_lines=60_000):
    with open(path, "w", encoding="utf-8") as file:
        for i in range(num_lines):
            file.write(json.dumps({"step": i, "loss": 1.0 / (i + 1), "note": "x" * 60}) + "\n")


def test_the_time_for_a_log_is_bounded_and_reported(tmp_path):
    long_log(tmp_path / "log.jsonl")
    cut = read_journal(tmp_path / "log.jsonl", max_seconds=1e-9)
    assert cut.cut.startswith("stopped after 1e-09 s: limit_exceeded")
    whole = read_journal(tmp_path / "log.jsonl")
    assert whole.cut == "" and whole.curves.num_rows == 60_000


def test_a_view_that_has_no_time_reads_on_with_its_next_look(tmp_path):
    long_log(tmp_path / "log.jsonl")
    tail = Tail(tmp_path / "log.jsonl", max_seconds=1e-9)
    seen = []
    while tail.poll():
        seen.append((tail.data.curves.num_rows, bool(tail.data.cut)))
    tail.close()
    assert len(seen) > 2 and seen[0][1] and sorted(seen) == seen
    assert tail.data.curves.last_row["step"] == 59_999 and tail.data.cut == ""


@pytest.mark.parametrize("command", ["report", "watch"])
def test_the_commands_say_that_they_stopped(tmp_path, command):
    long_log(tmp_path / "log.jsonl")
    args = [command, str(tmp_path / "log.jsonl"), "--max-seconds", "1e-9"]
    args += ["-o", str(tmp_path / "page.html"), "--points", "10"] if command == "report" else []
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 1 and "limit_exceeded" in done.output
