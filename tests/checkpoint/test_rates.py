"""Learning rates: the config against what a resume will really use."""

import pytest
import torch

from stayfinite.checkpoint import compare, read_config_rate, scan
from stayfinite.checkpoint.records import LearningRates
from stayfinite.errors import UsageError


def save_one_cycle(path, max_lr=5e-4, steps=30):
    """The run of seed 002: OneCycleLR at 5e-4, resumed with a config that says 1e-4."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), max_lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, total_steps=100)
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, path)
    return scheduler.get_last_lr()[0]


def test_the_scheduler_overrides_the_config(tmp_path):
    lr = save_one_cycle(tmp_path / "t.pt")
    report = scan([tmp_path / "t.pt"], lr=1e-4, lr_source="config.py (LEARNING_RATE)")
    (found,) = report.checkpoints[0].findings
    assert found.code == "lr_mismatch" and report.verdict == "suspicious"
    assert report.exit_code() == 0 and report.exit_code(strict=True) == 1
    assert (
        f"A resume will train with {lr:.6g}, then follow a schedule built on 0.0005"
        in found.message
    )
    assert "config.py (LEARNING_RATE) says lr 0.0001" in found.message
    assert "load_state_dict" in found.action


def test_what_will_really_be_used_is_what_torch_uses(tmp_path):
    """Resume for real: the first rate is the saved one, whatever the new optimizer was given."""
    lr = save_one_cycle(tmp_path / "t.pt")
    state = torch.load(tmp_path / "t.pt")
    optimizer = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters(), 1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-4, total_steps=100)
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(lr)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr()[0] > 3e-4  # on the way down from 5e-4, not from 1e-4


def test_the_right_rate_is_no_finding(tmp_path):
    save_one_cycle(tmp_path / "t.pt")
    assert scan([tmp_path / "t.pt"], lr=5e-4).verdict == "healthy"


@pytest.mark.parametrize(
    ("rates", "wanted", "is_match"),
    [
        (LearningRates(), 1.0, True),
        (LearningRates(optimizer=(1e-3, 1e-4)), 1e-4, True),
        (LearningRates(optimizer=(5e-5,), initial=(1e-3,)), 1e-3, True),
        (LearningRates(optimizer=(5e-5,), initial=(1e-3,)), 5e-5, False),
        (LearningRates(scheduler=(1e-5,), base=(1e-3,)), 1e-3, True),
        (LearningRates(optimizer=(0.1,)), 0.2, False),
    ],
)
def test_compare(rates, wanted, is_match):
    assert (compare(rates, wanted, "--lr") is None) == is_match


@pytest.mark.parametrize(
    ("name", "text", "value", "key"),
    [
        ("c.json", '{"optim": {"lr": 0.001}, "model": {"width": 3}}', 1e-3, "optim.lr"),
        ("c.yaml", "train:\n  learning_rate: 1e-4\n", 1e-4, "train.learning_rate"),
        ("c.yml", "lr: 0.5\nnested:\n  lr: 0.1\n", 0.5, "lr"),
        ("c.toml", "[optimizer]\nbase_lr = 3e-4\n", 3e-4, "optimizer.base_lr"),
        (
            "c.py",
            "import os\nLEARNING_RATE = 1e-4  # lower\nclass C:\n    lr: float = 2e-4\n",
            2e-4,
            "lr",
        ),
        ("d.py", "raise SystemExit('never run')\nLEARNING_RATE = 1e-4\n", 1e-4, "LEARNING_RATE"),
    ],
)
def test_the_rate_in_a_config(tmp_path, name, text, value, key):
    (tmp_path / name).write_text(text)
    assert read_config_rate(tmp_path / name) == (value, key)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.json", "{}", "no learning rate in"),
        ("c.json", "{", "cannot be parsed"),
        ("c.yaml", "a: [", "cannot be parsed"),
        ("c.ini", "lr=1", "must be .json, .yaml, .yml, .toml or .py, got c.ini"),
        ("c.py", "lr = make()", "no learning rate in"),
    ],
)
def test_a_config_without_a_rate(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        read_config_rate(tmp_path / name)


def test_tensor_rates_are_read(tmp_path):
    """`capturable` optimizers keep their learning rate in a tensor."""
    groups = [{"lr": torch.tensor(2e-3), "params": [0]}]
    torch.save({"optimizer": {"state": {}, "param_groups": groups}}, tmp_path / "t.pt")
    report = scan([tmp_path / "t.pt"])
    assert report.checkpoints[0].rates.optimizer == (pytest.approx(2e-3),)
