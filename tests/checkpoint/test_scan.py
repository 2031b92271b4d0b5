"""Folders, verdicts, roles and the story of a run."""

import json
import math
import os
import warnings

import pytest
import torch
from tests.checkpoint import samples

from stayfinite.checkpoint import (
    Contents,
    Reader,
    ScanReport,
    diff,
    register_reader,
    scan,
    scan_file,
    scan_object,
    unregister_reader,
)
from stayfinite.errors import UsageError


def trainer_state(step, scale=1.0, lr=1e-3, seed=0):
    """What an ordinary script saves."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    model(torch.rand(6, 4)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model[0].weight.mul_(scale)
    ema = {k: v.clone() for k, v in model.state_dict().items()}
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3},
        "ema": ema,
        "step": step,
        "loss": 0.25,
    }


def codes(report):
    return [f.code for f in report.findings]


@pytest.mark.parametrize(
    ("keys", "role"),
    [
        (("model", "0.weight"), "weights"),
        (("model", "1.running_var"), "batchnorm"),
        (("optimizer", "state", 0, "exp_avg"), "optimizer"),
        (("ema", "0.weight"), "ema"),
    ],
)
def test_the_role_of_what_is_bad(tmp_path, keys, role):
    state = trainer_state(1)
    entry = state
    for key in keys:
        entry = entry[key]
    entry.view(-1)[2] = math.nan
    torch.save(state, tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt")
    assert report.verdict == "corrupt"
    assert [f.role for f in report.findings] == [role]
    assert report.findings[0].tensor == ".".join(map(str, keys))


def test_a_healthy_trainer_state_has_no_finding(tmp_path):
    torch.save(trainer_state(1), tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt")
    assert (report.verdict, report.findings, report.placeholders) == ("healthy", (), ())
    assert report.step == 1
    assert report.rates.optimizer == (1e-3,) and report.rates.base == (1e-3,)


@pytest.mark.parametrize(
    ("change", "code", "verdict"),
    [
        (lambda s: s["model"]["0.weight"].mul_(1e9), "absurd_magnitude", "suspicious"),
        (lambda s: s["model"]["0.weight"].zero_(), "all_zero", "suspicious"),
        (lambda s: s["model"]["0.weight"].fill_(0.5), "constant", "suspicious"),
        (lambda s: s["model"]["1.running_var"][3].zero_(), "dead_variance", "suspicious"),
        (lambda s: s["model"]["1.running_var"][3].fill_(-1e-3), "dead_variance", "suspicious"),
        (lambda s: s["model"]["0.weight"].mul_(1e-39), "subnormal_flood", "suspicious"),
        (lambda s: s["model"].update({"0.weight": torch.tensor([[6e4, 1.0]]).half()}), "near_limit", "suspicious"),
        (lambda s: s["model"]["0.weight"][0, 0].fill_(3e38), "near_limit", "suspicious"),
        (lambda s: s["optimizer"]["state"][0]["exp_avg_sq"][0, 0].fill_(-1.0), "negative_second_moment", "suspicious"),
        (lambda s: s["scaler"].update(scale=1e-4), "scaler_collapsed", "suspicious"),
        (lambda s: s["scaler"].update(scale=math.inf), "nonfinite_setting", "corrupt"),
        (lambda s: s["optimizer"]["param_groups"][0].update(lr=math.nan), "nonfinite_setting", "corrupt"),
        (lambda s: s["scheduler"].update(_last_lr=[math.nan]), "nonfinite_setting", "corrupt"),
        (lambda s: s.update(loss=math.nan), "nonfinite_metric", "suspicious"),
    ],
)  # fmt: skip
def test_what_is_suspicious_and_what_is_corrupt(tmp_path, change, code, verdict):
    state = trainer_state(1)
    change(state)
    torch.save(state, tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt")
    assert codes(report) == [code] and report.verdict == verdict
    assert codes(scan_object(state)) == [code]


@pytest.mark.parametrize(
    "state",
    [
        {"model": {"attn.mask": torch.full((4, 4), -math.inf).triu(1)}},
        {"model": {"h.0.attn.causal": torch.full((4, 4), -math.inf).triu(1)}},
        {"model": {"h.0.bias_table": torch.full((4, 4), torch.finfo(torch.float32).min).triu(1)}},
        {"model": {"obs.min_val": torch.tensor(math.inf), "obs.max_val": torch.tensor(-math.inf)}},
        {"callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(math.inf)}}},
        {"lr_schedulers": [{"best": math.inf, "mode_worse": math.inf, "base_lrs": [0.1]}]},
        {
            "model": {
                "fc.bias": torch.zeros(64),
                "norm.weight": torch.ones(64),
                "lora_B.weight": torch.zeros(8, 8),
            }
        },
        {"model": {"w": torch.rand(8, 8).to(torch.float8_e4m3fn)}, "step": 3},
        {
            "optimizer": {
                "state": {
                    0: {"exp_avg": torch.zeros(8, 8), "exp_avg_sq": torch.full((8, 8), 1e-42)}
                }
            }
        },
        {
            "model": {"emb": torch.cat([torch.zeros(1, 8), torch.rand(9, 8)])},
            "epoch": 2,
            "args": {"scale": 0.5},
        },
        {"q": torch.full((16, 16), 448.0).to(torch.float8_e4m3fn)},
    ],
)
def test_what_is_so_by_design_is_no_finding(tmp_path, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(state, tmp_path / "t.pt")
    report = scan_file(tmp_path / "t.pt")
    assert [f for f in report.findings if f.code != "constant"] == [], report.findings


def test_nan_in_a_mask_is_still_corrupt(tmp_path):
    mask = torch.full((4, 4), -math.inf).triu(1)
    mask[0, 0] = math.nan
    torch.save({"attn.mask": mask}, tmp_path / "t.pt")
    assert scan_file(tmp_path / "t.pt").verdict == "corrupt"


def make_run(folder, broken_from=400):
    folder.mkdir(exist_ok=True)
    for step in (100, 200, 300, 400, 1000):
        state = trainer_state(step, scale=1 + step / 1000)
        if step >= broken_from:
            state["model"]["2.weight"][1, 3] = math.nan
        if step == 1000:
            state["model"]["0.weight"].fill_(math.nan)
        torch.save(state, folder / f"step_{step}.pt")
    return folder


def test_the_timeline_of_a_run(tmp_path):
    report = scan(make_run(tmp_path / "run"))
    (timeline,) = report.timelines
    assert [e.step for e in timeline.entries] == [100, 200, 300, 400, 1000]
    assert [e.verdict for e in timeline.entries] == ["healthy"] * 3 + ["corrupt"] * 2
    assert timeline.last_good == report.last_good == str(tmp_path / "run/step_300.pt")
    assert timeline.broke_at == str(tmp_path / "run/step_400.pt")
    assert timeline.first_broken == ("model.2.weight",)
    first, second = timeline.entries[:2]
    assert first.change is None and second.changed_tensor == "model.0.weight"
    assert second.change == pytest.approx(0.1 / 1.1, rel=1e-4)
    weights = [
        v
        for v in trainer_state(100, 1.1)["model"].items()
        if "running" not in v[0] and "num" not in v[0]
    ]
    norm = math.sqrt(sum(float(v.double().square().sum()) for _, v in weights))
    assert first.weight_norm == pytest.approx(norm, rel=1e-5)
    assert math.isnan(timeline.entries[3].weight_norm)
    assert second.rates.optimizer == (1e-3,) and second.rates.scheduler == (1e-3,)


def test_a_run_that_recovered_has_its_last_good_at_the_end(tmp_path):
    folder = make_run(tmp_path / "run", broken_from=2000)
    bad = trainer_state(200)
    bad["model"]["2.weight"][0, 0] = math.inf
    torch.save(bad, folder / "step_200.pt")
    (folder / "step_1000.pt").unlink()
    (timeline,) = scan(folder).timelines
    assert timeline.last_good.endswith("step_400.pt") and timeline.broke_at.endswith("step_200.pt")


def test_an_unreadable_checkpoint_is_part_of_the_story(tmp_path):
    folder = make_run(tmp_path / "run", broken_from=2000)
    last = folder / "step_1000.pt"
    last.write_bytes(last.read_bytes()[:3000])
    (timeline,) = scan(folder).timelines
    assert timeline.entries[-1].verdict == "unreadable" and timeline.last_good.endswith(
        "step_400.pt"
    )


def test_two_models_in_one_folder_are_not_one_run(tmp_path):
    torch.save({"a": torch.rand(3, 3)}, tmp_path / "one.pt")
    torch.save({"b": torch.rand(3, 3)}, tmp_path / "two.pt")
    assert scan(tmp_path).timelines == ()


@pytest.mark.parametrize("kind", ["sharded", "dcp", "deepspeed"])
def test_folders_are_one_checkpoint(tmp_path, kind):
    tensors = {"fc.weight": torch.rand(4, 4).half().cumsum(0), "fc.bias": torch.rand(4).half()}
    folder = samples.WRITERS[kind][0](tmp_path, tensors)
    report = scan(tmp_path)
    (checkpoint,) = report.checkpoints
    assert (checkpoint.kind, checkpoint.path, checkpoint.verdict) == (kind, str(folder), "healthy")
    if kind == "deepspeed":
        assert checkpoint.step == 10 and checkpoint.rates.optimizer == (1e-3,)
        roles = {t.role for f in checkpoint.files for t in f.tensors}
        assert roles == {"weights", "optimizer"}


def test_a_missing_shard_and_a_missing_tensor(tmp_path):
    folder = samples.write_sharded(tmp_path, {"a": torch.rand(3), "b": torch.rand(3)})
    index = folder / "model.safetensors.index.json"
    plan = json.loads(index.read_text())
    plan["weight_map"]["c"] = plan["weight_map"]["a"]
    index.write_text(json.dumps(plan))
    (checkpoint,) = scan(folder).checkpoints
    assert [f.code for f in checkpoint.findings] == [
        "missing_tensor"
    ] and checkpoint.verdict == "corrupt"
    (folder / "model-00001-of-00002.safetensors").unlink()
    (checkpoint,) = scan(folder).checkpoints
    assert {f.code for f in checkpoint.findings} == {"missing_tensor", "missing_file"}
    assert checkpoint.verdict == "unreadable"


def test_a_distributed_checkpoint_without_its_file(tmp_path):
    folder = samples.write_dcp(tmp_path, {"w": torch.rand(3)})
    next(folder.glob("*.distcp")).unlink()
    (checkpoint,) = scan(folder).checkpoints
    assert checkpoint.verdict == "unreadable"
    assert "missing_file" in {f.code for r in checkpoint.files for f in r.findings}


def test_formats_are_recognized_by_content_not_by_name(tmp_path):
    torch.save({"w": torch.rand(3)}, tmp_path / "weights.safetensors")
    samples.write_safetensors(tmp_path, {"w": torch.rand(3)})
    os.rename(tmp_path / "file.safetensors", tmp_path / "model.pt")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "train.bin").write_bytes(b"\x00\x01" * 100)
    report = scan(tmp_path)
    assert {os.path.basename(f.path): f.format for f in report.files} == {
        "weights.safetensors": "torch zip",
        "model.pt": "safetensors",
    }
    assert sorted(os.path.basename(p) for p in report.skipped) == ["notes.txt", "train.bin"]


def test_the_saved_step_of_an_incident_is_no_checkpoint_unless_it_is_named(tmp_path):
    home = tmp_path / "run" / "incidents" / "step000007-1"
    home.mkdir(parents=True)
    torch.save(trainer_state(7), home / "capsule.pt")
    torch.save(trainer_state(7), tmp_path / "capsule.pt")
    (home / "incident.json").write_text("{}")
    assert [c.path for c in scan([tmp_path]).checkpoints] == [str(tmp_path / "capsule.pt")]
    assert len(scan([home / "capsule.pt"]).checkpoints) == 1


def test_globs_and_paths_that_are_not_there(tmp_path):
    make_run(tmp_path / "run")
    report = scan([f"{tmp_path}/run/step_[12]00.pt"])
    assert len(report.checkpoints) == 2
    with pytest.raises(UsageError, match="no such file or folder") as caught:
        scan([tmp_path / "nothing", f"{tmp_path}/*.none"])
    assert "nothing" in str(caught.value) and "*.none" in str(caught.value)
    with pytest.raises(UsageError, match="nothing to scan"):
        scan([])
    with pytest.raises(UsageError, match="must be at least 1, got 0"):
        scan([tmp_path], jobs=0)


def test_a_link_is_not_counted_as_another_checkpoint_of_the_run(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "latest.pt").symlink_to("step_1000.pt")
    report = scan(folder)
    assert len(report.checkpoints) == 6 and len(report.timelines[0].entries) == 5
    assert next(c for c in report.checkpoints if c.link_to).link_to == "step_1000.pt"


def test_the_report_survives_json(tmp_path):
    report = scan(make_run(tmp_path / "run"), lr=5.0)
    text = report.to_json()
    assert "NaN" not in text.replace('"message"', "") or json.loads(text)
    again = ScanReport.from_json(text)
    assert again.to_json() == text and again.verdict == report.verdict
    assert again.checkpoints[0] == report.checkpoints[0]


def test_checksums_find_a_flipped_bit_that_stays_finite(tmp_path):
    path = tmp_path / "t.pt"
    torch.save({"w": torch.rand(100)}, path)
    raw = bytearray(path.read_bytes())
    at = raw.index(torch.load(path)["w"].numpy().tobytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    assert scan([path]).verdict == "healthy"
    report = scan([path], verify=True)
    assert report.verdict == "suspicious" and codes(report.files[0]) == ["checksum_mismatch"]


def test_full_counts_zeros_of_healthy_tensors_too(tmp_path):
    torch.save({"w": torch.tensor([0.0, 1.0, 1e-40])}, tmp_path / "t.pt")
    (tensor,) = scan([tmp_path / "t.pt"], full=True).files[0].tensors
    assert (tensor.stats.num_zero, tensor.stats.num_subnormal) == (1, 1)
    assert tensor.stats.mean == pytest.approx(1 / 3)


def test_a_reader_of_ones_own(tmp_path):
    from stayfinite.checkpoint.files import Blob
    from stayfinite.checkpoint.values import StorageRef, TensorRef

    def read(file, limits):
        storage = StorageRef("all", "float32", (file.size - 4) // 4)
        storage.blob = Blob(file.view[4:], file.size - 4, file=file)
        return Contents(
            "mine",
            roots=[("", {"w": TensorRef(storage, "float32", 0, (storage.num_elements,), (1,))})],
        )

    register_reader(Reader("mine", lambda head: head[:4] == b"MINE", read))
    try:
        with pytest.raises(UsageError, match="already registered; known: mine"):
            register_reader(Reader("mine", lambda head: False, read))
        values = torch.tensor([1.0, math.inf])
        (tmp_path / "x.mine").write_bytes(b"MINE" + values.numpy().tobytes())
        report = scan(tmp_path)
        assert report.files[0].format == "mine" and report.files[0].findings[0].stats.first_bad == (
            1,
        )
    finally:
        unregister_reader("mine")
    for wrong in ("text", Reader("", len, read), Reader("x", None, read)):
        with pytest.raises(UsageError):
            register_reader(wrong)
    with pytest.raises(UsageError, match="known: torch zip"):
        unregister_reader("mine")


def test_diff(tmp_path):
    a, b = trainer_state(1), trainer_state(2, scale=1.5, lr=2e-3)
    del b["model"]["2.bias"]
    b["model"]["new"] = torch.ones(2)
    b["model"]["1.bias"] = torch.zeros(9)
    b["model"]["2.weight"] = a["model"]["2.weight"].t().contiguous().t()
    torch.save(a, tmp_path / "a.pt")
    torch.save(b, tmp_path / "b.pt")
    report = diff(tmp_path / "a.pt", tmp_path / "b.pt")
    by_name = {t.name: t for t in report.tensors}
    assert by_name["0.weight"].status == "changed"
    assert by_name["0.weight"].relative_change == pytest.approx(0.5, rel=1e-2)
    assert by_name["2.bias"].status == "only_in_a" and by_name["new"].status == "only_in_b"
    assert by_name["1.bias"].detail == "[8] → [9]"
    assert by_name["2.weight"].status == "same"
    assert (report.rates_a.optimizer, report.rates_b.optimizer) == ((1e-3,), (2e-3,))
    assert not report.is_same and diff(tmp_path / "a.pt", tmp_path / "a.pt").is_same


def test_diff_counts_what_became_nonfinite(tmp_path):
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pt")
    torch.save({"w": torch.tensor([1.0, math.nan, math.inf, 1.0])}, tmp_path / "b.pt")
    (row,) = diff(tmp_path / "a.pt", tmp_path / "b.pt").tensors
    assert (row.num_nonfinite_a, row.num_nonfinite_b, row.status) == (0, 2, "changed")


def test_diff_of_several_checkpoints_is_a_usage_error(tmp_path):
    make_run(tmp_path / "run")
    with pytest.raises(UsageError, match="holds 5 checkpoints"):
        diff(tmp_path / "run", tmp_path / "run/step_100.pt")


def test_every_code_is_explained():
    from pathlib import Path

    from stayfinite.checkpoint.judge import SEVERITY

    text = (Path(__file__).parents[2] / "docs" / "SCAN.md").read_text(encoding="utf-8")
    rows = {
        line.split("|")[1]: line.split("|")[2].strip()
        for line in text.splitlines()
        if line.startswith("| `")
    }
    for code, severity in SEVERITY.items():
        assert [v for k, v in rows.items() if f"`{code}`" in k] == [severity], code
