"""Config files are read without being run, their keys understood, and presets written beside them."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stayfinite.errors import UsageError
from stayfinite.preflight.config.names import quantity_of
from stayfinite.preflight.config.preset_rules import SAFER
from stayfinite.preflight.config.presets import PRESETS, changes_of, write_preset
from stayfinite.preflight.config.read import read_config
from stayfinite.preflight.config.rules import RULES, broken, expected_range
from stayfinite.preflight.runner.check import check

YAML = """\
# a run
optimizer:
  name: adamw   # the usual one
  lr: 1e-3
  betas: [0.9, 0.999]
train: {use_amp: true, clip_grad_norm: {'max_norm': 5.0, 'norm_type': 2}}
loss: {color: "#fff", student_temp: 0.01}
"""
TOML = """\
name = "run"
[optimizer]
lr = 1e-3 # mine
betas = [0.9, 0.999]
[train]
use_amp = true
clip_grad_norm = { max_norm = 5.0 }
"""
PYTHON = """\
import os
LEARNING_RATE = 5e-4  # größer
os.makedirs("never")
class Config:
    USE_FP16 = True
    warmup_steps: int = 100
cfg = dict(student_temp=0.01, loss={"focal_gamma": 2.5}, color="#fff")
cfg.mixup_alpha = -1
"""
JSON = '{\n\t"optimizer": {"lr": 0.001, "weight_decay": 0.1},\n\t"use_amp": true, "clip": 10}'


@pytest.fixture
def file(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_every_format_gives_flat_keys_and_numbers(file, tmp_path):
    values = read_config(file("c.yaml", YAML)).values()
    assert values["optimizer.lr"] == 1e-3
    assert values["train.clip_grad_norm.max_norm"] == 5.0
    assert read_config(file("c.toml", TOML)).values()["optimizer.betas.1"] == 0.999
    python = read_config(file("c.py", PYTHON)).values()
    assert python["LEARNING_RATE"] == 5e-4
    assert python["Config.USE_FP16"] is True
    assert python["loss.focal_gamma"] == 2.5
    assert python["cfg.mixup_alpha"] == -1
    assert not (tmp_path / "never").exists()  # parsed, not run
    assert read_config(file("c.json", JSON)).values()["clip"] == 10


@pytest.mark.parametrize(
    ("key", "quantity"),
    [("LEARNING_RATE", "lr"), ("optim.encoder_lr", "lr"), ("min_lr", None), ("lr_scheduler", None),
     ("trainer.gradient_clip_val", "clip"), ("grad_clip", "clip"), ("CLIP_GRAD", "clip"),
     ("adam_beta2", "beta2"), ("adam_epsilon", "adam_eps"), ("optimizer.eps", "adam_eps"),
     ("model.rms_norm_eps", "norm_eps"), ("sinkhorn.eps", "sinkhorn_eps"), ("loss.eps", "eps"),
     ("loss.focal.gamma", "focal_gamma"), ("scheduler.gamma", None), ("STUDENT_TEMP", "temperature"),
     ("temp_dir", None), ("per_device_train_batch_size", "batch_size"), ("eval_batch_size", None),
     ("accumulate_grad_batches", "accumulation"), ("bn.momentum", "bn_momentum"),
     ("num_warmup_steps", "warmup_steps"), ("warmup_ratio", "warmup_ratio"), ("seed", None)],
)  # fmt: skip
def test_keys_are_understood(key, quantity):
    assert quantity_of(tuple(key.split("."))) == quantity


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("name", "text"), [("c.yaml", YAML), ("c.toml", TOML), ("c.py", PYTHON), ("c.json", JSON)]
)
def test_a_preset_changes_the_values_and_nothing_else(file, name, text, preset):
    old = read_config(file(name, text))
    target, changed = write_preset(old.path, preset)
    new = read_config(target)
    assert target.name == f"c.{preset}.{name.partition('.')[2]}"
    wanted = {c.entry.key: c.value for c in changed if c.is_applied}
    assert new.values() == pytest.approx({**old.values(), **wanted}, nan_ok=True)
    assert len(wanted) >= 2
    assert old.path.read_text(encoding="utf-8") == text
    comments = [line.partition(" # ")[2] for line in text.splitlines() if " # " in line]
    assert all(f"# {c}" in target.read_text(encoding="utf-8") for c in comments)
    written = target if old.kind != "json" else target.with_suffix(".reasons.txt")
    for c in changed:
        assert c.reason in written.read_text(encoding="utf-8")
    write_preset(old.path, preset)  # our own file may be replaced


def test_very_conservative_is_never_bolder(file):
    config = read_config(file("c.yaml", YAML))
    mild = {c.entry.key: c.value for c in changes_of(config, "conservative")}
    strong = {c.entry.key: c.value for c in changes_of(config, "very-conservative")}
    assert strong["optimizer.lr"] < mild["optimizer.lr"] < 1e-3
    assert strong["train.use_amp"] is mild["train.use_amp"] is False
    norm = "train.clip_grad_norm.max_norm"
    assert (mild[norm], strong[norm]) == (1.0, 0.5)


@given(st.floats(1e-6, 1e6), st.sampled_from(sorted(SAFER)))
def test_a_safer_figure_is_not_made_safer_again_in_the_other_direction(value, quantity):
    safer = SAFER[quantity]
    mild, strong = safer.mild(value), safer.strong(value)
    assert math.isfinite(mild) and math.isfinite(strong)
    assert (mild - value) * (strong - value) >= 0
    assert abs(strong - value) >= abs(mild - value)


def test_a_file_that_is_not_ours_is_not_replaced(file):
    path = file("c.yaml", "lr: 0.1\n")
    file("c.conservative.yaml", "mine: 1\n")
    with pytest.raises(UsageError, match="is there already and was not made by a preset"):
        write_preset(path, "conservative")


def test_what_is_safe_already_is_left_alone(file):
    path = file("c.yaml", "clip: 0.5\nname: x\n")
    assert write_preset(path, "conservative") == (path, [])


def test_rules_are_complete_and_do_not_contradict_themselves():
    for rule in RULES:
        assert rule.source and rule.action and expected_range(rule), rule
        assert rule.status in ("warn", "fail")
        assert rule.is_broken_by(math.nan) and rule.is_broken_by(math.inf)
    for quantity in {r.quantity for r in RULES}:
        bounds = [r for r in RULES if r.quantity == quantity]
        assert max(max(r.above, r.at_least) for r in bounds) < min(
            min(r.below, r.at_most) for r in bounds
        ), quantity


def test_a_fail_comes_before_a_warning():
    assert broken("lr", 0.5, frozenset({"adam"})).status == "fail"
    assert broken("lr", 0.05, frozenset({"adam"})).status == "warn"
    assert broken("lr", 0.05, frozenset({"sgd"})) is None


def test_looking_ahead_leaves_the_schedule_where_it_was():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50)
    before = json.dumps([scheduler.state_dict(), optimizer.state_dict()], default=str)
    parts = {"model": model, "loss_fn": lambda m, b: m(b).square().mean(), "loader": [torch.ones(3, 2)],
             "optimizer": optimizer, "scheduler": scheduler}  # fmt: skip
    report = check(lambda: parts, only=["config"])
    assert json.dumps([scheduler.state_dict(), optimizer.state_dict()], default=str) == before
    (found,) = [f for f in report.findings if f.check == "config/schedule"]
    assert (found.status, found.subject) == ("pass", "OneCycleLR")


def test_bad_rate_is_reported_at_the_line_of_the_formula_that_gives_it():
    def factor(step):
        left = 1 - step / 10
        rate = left**0.9
        return rate if step else 1.0

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    parts = {"model": model, "loss_fn": lambda m, b: m(b).square().mean(),
             "loader": [torch.ones(3, 2)] * 15, "optimizer": optimizer, "scheduler": scheduler}  # fmt: skip
    report = check(lambda: parts, only=["config"])
    (found,) = [f for f in report.findings if f.check == "config/schedule"]
    assert found.location.line == factor.__code__.co_firstlineno + 2
    assert (found.location.source, scheduler.last_epoch) == ("rate = left**0.9", 0)


def test_the_manual_has_every_rule():
    manual = (Path(__file__).parents[2] / "docs" / "CHECK.md").read_text(encoding="utf-8")
    for rule in RULES:
        row = f"| {expected_range(rule)} | {rule.status}: {rule.action} | {rule.source} |"
        assert f"| `{rule.name}` | {rule.quantity} |" in manual
        assert row in manual, row
