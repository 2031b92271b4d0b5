"""A preset knows the settings of the guides, in every form in which people write them."""

from pathlib import Path

import pytest

from stayfinite.preflight.config.presets import changes_of, note_of, write_preset
from stayfinite.preflight.config.read import read_config

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def changed(tmp_path):
    """The values that a preset writes, by key."""

    def write(text, preset="conservative", name="c.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        target, _ = write_preset(tmp_path / name, preset)
        before = read_config(tmp_path / name).values()
        after = read_config(target).values()
        return {k: v for k, v in after.items() if before[k] != v}

    return write


def test_each_value_of_a_list_is_judged_by_itself(changed):
    assert changed("teacher_temp: [0.07, 0.05, 0.04, 0.01]\n") == {
        "teacher_temp.2": 0.05,
        "teacher_temp.3": 0.05,
    }


@pytest.mark.parametrize("written", ["2.**16", "'2.**16'", "2 ** 16", "65536.0", "6.5536e4"])
def test_a_loss_scale_is_read_as_people_write_it(changed, written):
    assert changed(f"scaler:\n  init_scale: {written}\n") == {"scaler.init_scale": 1024}


def test_a_power_of_two_stays_one(changed, tmp_path):
    changed("INIT_SCALE = 2.**16  # the default\n", name="c.py")
    assert "INIT_SCALE = 2.**10  # the default" in (tmp_path / "c.conservative.py").read_text()


def test_a_python_config_in_any_of_its_forms(changed):
    text = (
        "from dataclasses import dataclass, field\n"
        "BETA = 0.6\nLEARNING_RATE = 1e-4\nBATCH_SIZE = 2 * 128\n"
        "@dataclass\nclass C:\n    grad_clip: float = field(default=3.0)\n"
        "    temps: tuple = (0.1, 0.001)\n    debug: bool = not True\n"
        'parser.add_argument("--max-epochs", default=10)\n'
        'parser.add_argument("--init-scale", type=float, default=2.0**16)\n'
    )
    assert changed(text, name="c.py") == {
        "BETA": 0.55, "LEARNING_RATE": 5e-5, "BATCH_SIZE": 128, "C.grad_clip": 1.0,
        "C.temps.1": 0.05, "init_scale": 1024.0,
    }  # fmt: skip


def test_warm_up_is_no_more_than_a_tenth_of_the_run(changed):
    assert changed("num_steps: 160\nwarmup_steps: 10\n") == {"warmup_steps": 16}
    assert changed("num_steps: 160\nwarmup_steps: 40\n") == {}
    assert changed("num_steps: 100000\nwarmup_steps: 100\n") == {"warmup_steps": 1000}
    assert changed("warmup_steps: 100\n") == {"warmup_steps": 200}


def test_a_smaller_batch_is_accumulated_to_as_many_samples(changed):
    text = "train_batch_size: 256\ngradient_accumulation_steps: 2\n"
    assert changed(text) == {"train_batch_size": 128, "gradient_accumulation_steps": 4}
    assert changed(text, "very-conservative") == {
        "train_batch_size": 64,
        "gradient_accumulation_steps": 8,
    }
    assert changed("batch_size: 64\n", "very-conservative") == {"batch_size": 32}
    assert changed("batch_size: 8\ngradient_accumulation_steps: 2\n") == {}


def test_one_part_of_the_loss_keeps_its_weight(changed):
    text = "loss: {latent_loss_weight: 1.0, text_loss_weight: 1.0}\n"
    assert changed(text) == {"loss.latent_loss_weight": 0.5}
    assert changed("loss: {text_loss_weight: 1.0}\n") == {}


@pytest.mark.parametrize(
    ("text", "mild", "strong"),
    [
        ("dtype: fp16\n", "bf16", "fp32"),
        ("dtype: bf16\n", None, "fp32"),
        ('precision: "16-mixed"\n', "bf16-mixed", "32-true"),
        ("torch_dtype: torch.float16\n", "torch.bfloat16", "torch.float32"),
        ("precision: 16\n", None, 32),
        ("mixed_precision: fp16\n", "bf16", "no"),
        ("bf16: true\n", None, False),
    ],
)
def test_half_precision_gets_range_first_and_then_width(changed, text, mild, strong):
    assert list(changed(text).values()) == ([] if mild is None else [mild])
    assert list(changed(text, "very-conservative").values()) == [strong]


def test_betas_and_epsilon_and_growth_interval(changed):
    text = "betas: [0.9, 0.999]\nadam_eps: 1e-8\neps: 1e-8\ngrowth_interval: 100\n"
    assert changed(text) == {
        "betas.1": 0.98, "adam_eps": 1e-7, "eps": 1e-7, "growth_interval": 2000,
    }  # fmt: skip


def test_a_beta_that_is_no_exponent_is_left_alone(changed):
    assert changed("beta: 4.0\noptimizer: {beta: 0.9}\nlr: 1\n").keys() == {"lr"}


def test_a_longer_run_goes_with_a_much_smaller_rate(changed):
    assert changed("lr: 4e-3\nepochs: 7\n", "very-conservative") == {"lr": 1e-3, "epochs": 14}


def test_a_level_that_the_script_may_not_know_is_left_to_the_user(changed, tmp_path):
    assert changed("augmentation_level: full\n") == {}
    (change,) = changes_of(read_config(tmp_path / "c.yaml"), "conservative")
    assert change.why_by_hand == "if your script knows this value"
    text = "augmentation_level: full   # none, light, full\n"
    assert changed(text) == {"augmentation_level": "light"}


@pytest.mark.parametrize("folder", sorted(p.parent for p in EXAMPLES.glob("*/config.yaml")))
def test_every_change_of_an_example_has_its_reason(folder):
    for preset in ("conservative", "very-conservative"):
        found = changes_of(read_config(folder / "config.yaml"), preset)
        assert len(found) >= 5
        assert all(len(c.reason) > 20 and note_of(c).startswith("was ") for c in found)
