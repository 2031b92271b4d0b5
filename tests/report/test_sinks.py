"""What goes into other tools, read back by those tools themselves."""

import json
import logging
import math
import struct
import time

import pytest
from tests.report.runs import EVIL, incident, row

from stayfinite.errors import MissingExtraError, UsageError
from stayfinite.report.journal import Journal
from stayfinite.report.sinks import export, make_sink
from stayfinite.report.store import RunFolder


def live_run(folder, sink):
    """Ten steps, the fifth one bad, through the journal as in a training."""
    saved = RunFolder(folder, say=lambda i: None).save(incident(4, folder / "src"))
    journal = Journal(folder / "journal.jsonl", listeners=[sink])
    for step in range(10):
        if step == 4:
            journal.append(row(step, math.nan, applied=False))
            journal.event("incident", step=4, id=saved.id, text="step 4")
        else:
            journal.append(row(step, 1.0 / (step + 1), parts={"text": 0.5}))
    journal.event("checkpoint", step=9, path=f"{EVIL}.pt", status="good")
    journal.close()
    return saved


def test_plain_logging(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="stayfinite"):
        saved = live_run(tmp_path, make_sink("logging:0", tmp_path))
    texts = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert ("WARNING", f"incident {saved.id} saved in {saved.path}") in texts
    assert any(level == "WARNING" and "step 4  loss nan" in text for level, text in texts)
    assert any(level == "INFO" and text.startswith("step 9  loss 0.1") for level, text in texts)
    assert any("checkpoint good" in text for _, text in texts)


def test_a_sink_that_is_not_known_or_not_installed(tmp_path, monkeypatch):
    with pytest.raises(
        UsageError, match="unknown sink 'x'; known: tensorboard, wandb, mlflow, log"
    ):
        make_sink("x", tmp_path)
    with pytest.raises(UsageError, match="seconds between two lines"):
        make_sink("logging:often", tmp_path)
    import sys

    for name in ("tensorboard", "wandb", "mlflow"):
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=r"pip install 'stayfinite\[sinks\]'"):
            make_sink(name, tmp_path)


@pytest.mark.slow
def test_tensorboard_reads_its_own_files(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    saved = live_run(tmp_path, make_sink("tensorboard", tmp_path))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    loss = [(e.step, e.value) for e in events.Scalars("loss")]
    assert [s for s, _ in loss] == list(range(10))
    assert math.isnan(loss[4][1]) and loss[9][1] == pytest.approx(0.1)
    assert [e.value for e in events.Scalars("nonfinite")] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert {"lr", "scale", "parts/text", "grad_norm", "skipped"} <= set(events.Tags()["scalars"])
    reported = [t.tensor_proto.string_val[0].decode() for t in events.Tensors("events")]
    assert "log_of_zero" in reported[0] and "checkpoint good" in reported[1]
    (story,) = events.Tensors("incidents")
    assert "### Step 4: the loss is nan" in story.tensor_proto.string_val[0].decode()
    assert "log_of_zero" in (tmp_path / "tensorboard" / f"{saved.id}.html").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_its_own_store(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    sink = make_sink(f"mlflow:{tmp_path / 'store'}", tmp_path)
    saved = live_run(tmp_path, sink)
    client = MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("stayfinite").experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_id == sink.run_id
    loss = sorted(client.get_metric_history(sink.run_id, "loss"), key=lambda m: m.step)
    assert [m.step for m in loss] == list(range(10))
    assert math.isnan(loss[4].value) and loss[9].value == pytest.approx(0.1)
    bad = sorted(client.get_metric_history(sink.run_id, "nonfinite"), key=lambda m: m.step)
    assert [m.value for m in bad] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert "log_of_zero" in found.data.tags["event.001"]
    (page,) = client.list_artifacts(sink.run_id, "incidents")
    assert page.path == f"incidents/{saved.id}.html"
    local = client.download_artifacts(sink.run_id, page.path, str(tmp_path))
    with open(local, encoding="utf-8") as f:
        assert "log_of_zero" in f.read()


def wandb_records(data):
    """The frames of an offline run (LevelDB's log format); W&B's own classes read what is inside."""
    assert data[:4] == b":W&B"
    at, parts = 7, []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield b"".join(parts)
            parts = []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_its_own_offline_run(tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    live_run(tmp_path, make_sink("wandb", tmp_path))
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    kinds, history = [], []
    end = time.monotonic() + 300
    while "exit" not in kinds and time.monotonic() < end:
        # W&B's service writes the file by itself, a moment after `finish`.
        time.sleep(0.1)
        kinds, history = [], []
        for data in wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kinds.append(record.WhichOneof("record_type"))
            items = record.history.item
            if items:
                history.append({"/".join(i.nested_key) or i.key: i.value_json for i in items})
    by_step = {int(json.loads(h["train_step"])): h for h in history if "loss" in h}
    assert sorted(by_step) == list(range(10))
    assert "nan" in by_step[4]["loss"].lower() and by_step[4]["nonfinite"] in ("1", "1.0")
    assert json.loads(by_step[9]["loss"]) == pytest.approx(0.1)
    assert any("log_of_zero" in h.get("event", "") for h in history)
    pages = list((file.parent / "files").rglob("*.html"))
    assert len(pages) == 1 and "log_of_zero" in pages[0].read_text()


@pytest.mark.slow
def test_a_finished_run_can_be_given_away_too(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from stayfinite.report.model import load_run

    class Nothing:
        def rows(self, rows): ...
        def event(self, event): ...
        def close(self): ...

    live_run(tmp_path / "run", Nothing())
    export(tmp_path / "run", load_run(tmp_path / "run"), [f"tensorboard:{tmp_path / 'tb'}"])
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    loss = [e.value for e in events.Scalars("loss")]
    assert len(loss) == 10 and math.isnan(loss[4])
    assert len(events.Scalars("parts/text")) == 9
