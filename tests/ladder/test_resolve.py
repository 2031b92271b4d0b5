"""Which thing a key means: flag, config key, variable or knob, in this order; and what is said of
keys that mean nothing."""

import pytest

from stayfinite.errors import UsageError
from stayfinite.ladder.defaults import default_ladder
from stayfinite.ladder.records import Outcome, Survey
from stayfinite.ladder.resolve import Resolver, changed_file
from stayfinite.ladder.values import parse_try


def flag(name, current, kind="value"):
    return {
        "strings": [f"--{name}"],
        "dest": name.replace("-", "_"),
        "kind": kind,
        "current": current,
    }


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("optim: {lr: 1e-3}\nuse_amp: true\nseed: 1\n")
    (tmp_path / "model.json").write_text('{"width": 8, "seed": 2}')
    (tmp_path / "train.py").write_text("CLIP_GRAD = 3.0\nseed = 7\n")
    (tmp_path / "bad.yaml").write_text("a: [")
    return tmp_path


def resolver(home, *flags, config=None, files=("config.yaml",), args=()):
    survey = Survey(
        flags=flags,
        files=tuple(str(home / f) for f in files),
        modules=(str(home / "train.py"),),
        has_parser=True,
    )
    return Resolver(survey, args, config)


def resolve(found, text):
    change = found.resolve(parse_try(text), {"EPS": "2"})
    return (change.kind, change.key, change.before, change.after)


def test_flags_come_before_config_keys_and_these_before_constants_and_knobs(home):
    found = resolver(home, flag("seed", 5), flag("lr", None))
    assert resolve(found, "seed=9") == ("flag", "seed", "5", "9")
    assert resolve(found, "lr=1e-4") == ("flag", "lr", None, "1e-4")
    assert resolve(found, "lr=0.1x") == ("config", "optim.lr", "1e-3", "0.0001")
    assert resolve(found, "use-amp=false") == ("config", "use_amp", "true", "false")
    assert resolve(found, "clip_grad=0.5x") == ("config", "CLIP_GRAD", "3", "1.5")
    assert resolve(found, "clip=1") == ("knob", "clip", None, "1")
    assert resolve(found, "stayfinite:lr=0.1x") == ("knob", "lr", None, "0.1x")
    assert resolve(found, "skip_bad_samples") == ("knob", "skip_bad_samples", None, "true")
    assert resolve(found, "env:EPS=0.5x") == ("env", "EPS", "2", "1")
    assert resolve(found, "env:NEW=3") == ("env", "NEW", None, "3")


def test_lr_as_a_factor_works_with_a_script_that_has_nothing(home):
    found = Resolver(Survey(), ())
    assert resolve(found, "lr=0.1x") == ("knob", "lr", None, "0.1x")
    with pytest.raises(UsageError) as caught:
        resolve(found, "lr=1e-4")
    assert "try: a factor, --try lr=0.1x, works with every script" in str(caught.value)


def test_a_config_among_the_arguments_is_found_and_config_alone_counts(home):
    found = resolver(home, files=(), args=["--cfg=model.json", "x"])
    assert resolve(found, "width=4") == ("config", "width", "8", "4")
    only = resolver(home, config="model.json")
    assert resolve(only, "seed=3") == ("config", "seed", "2", "3")
    with pytest.raises(UsageError, match="the script has no 'use_amp'"):
        resolve(only, "use_amp=false")


def test_an_unknown_key_says_where_it_was_looked_for_and_what_is_near(home):
    found = resolver(home, flag("epochs", 3), files=("config.yaml", "bad.yaml"))
    with pytest.raises(UsageError) as caught:
        resolve(found, "use_ampp=false")
    assert str(caught.value).splitlines()[:2] == [
        "--try use_ampp=false: the script has no 'use_ampp'",
        "  looked at: 1 flags; config files: config.yaml, bad.yaml, train.py; stayfinite's knobs: "
        "autocast, precision, lr, clip, init_scale, growth_interval, scaler, skip_bad_samples",
    ]
    assert "could not read: the config" in str(caught.value)
    assert "nearest names: use_amp" in str(caught.value)
    with pytest.raises(UsageError, match="nearest names: use_amp"):
        resolve(found, "fp16=false")


def test_a_name_that_fits_several_keys_lists_them(home):
    found = resolver(home, files=("config.yaml", "model.json"))
    with pytest.raises(UsageError) as caught:
        resolve(found, "seed=3")
    assert str(caught.value).splitlines() == [
        "--try seed=3: 'seed' fits 2 keys:",
        "    seed = 1  (config.yaml)",
        "    seed = 2  (model.json)",
        "  try: give the dotted key, or the file with --config",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stayfinite:clip=-1", "clip takes a number above 0, got '-1'"),
        ("stayfinite:autocast=on", "autocast takes off, got 'on'"),
        ("stayfinite:precision=fp8", "precision takes fp32, got 'fp8'"),
        ("stayfinite:lr=3", "lr takes a factor such as 0.1x, got '3'"),
        ("stayfinite:growth_interval=1.5", "growth_interval takes a number above 0, got '1.5'"),
        ("stayfinite:skip_bad_samples=7", "skip_bad_samples takes true, got '7'"),
    ],
)
def test_a_knob_says_what_it_takes(home, text, said):
    with pytest.raises(UsageError) as caught:
        resolve(resolver(home), text)
    assert said in str(caught.value)


def test_the_scripts_own_parser_has_the_last_word(home):
    survey = Survey(flags=(flag("lr", 1.0),), complaints={"lr=x": "invalid float value: 'x'"})
    with pytest.raises(UsageError, match="the script rejects it: invalid float value: 'x'"):
        Resolver(survey, ()).resolve(parse_try("lr=x"))


def test_two_changes_of_one_file_are_both_in_it(home):
    found = resolver(home)
    file = str(home / "config.yaml")
    text = (home / "config.yaml").read_text()
    for wanted in ("use_amp=false", "lr=0.1x"):
        text = changed_file(file, text, found.resolve(parse_try(wanted)))
    assert text == "optim: {lr: 0.0001}\nuse_amp: false\nseed: 1\n"


def labels(found, **seen):
    changes = default_ladder(found, Outcome(status="failed", step=3, **seen))
    return [c.label for c in changes]


def test_the_default_ladder_has_the_usual_order_and_only_what_is_there(home):
    (home / "config.yaml").write_text(
        "mixup_alpha: 0.4\nlr: 1e-3\nuse_focal_loss: true\nfocal_gamma: 2.5\nuse_amp: true\n"
        "label_smoothing: 0.0\nuse_augmentation: false\nepochs: 3\n"
    )
    assert labels(resolver(home), has_loader=True, has_autocast=True) == [
        "use_amp=false",
        "stayfinite:skip_bad_samples",
        "use_focal_loss=false",
        "focal_gamma=0",
        "lr=0.1x",
        "mixup_alpha=0",
        "stayfinite:clip=1",
    ]


def test_temperatures_an_exponent_and_the_batch_are_rungs_where_they_are_there(home):
    (home / "config.yaml").write_text(
        "teacher_temp: [0.07, 0.01]\nstudent_temp: 0.1\ntemperature: 0.02\nbeta: 0.6\n"
        "batch_size: 64\nlr: 1e-3\ntemp_dir: x\n"
    )
    assert labels(resolver(home)) == [
        "teacher_temp=[0.07, 0.05]",
        "temperature=0.05",
        "beta=0.55",
        "lr=0.1x",
        "batch_size=32",
        "stayfinite:clip=1",
    ]
    (home / "config.yaml").write_text("beta: 4.0\nbatch_size: 1\nlr: 1e-3\n")
    assert labels(resolver(home)) == ["lr=0.1x", "stayfinite:clip=1"]


def test_the_default_ladder_of_a_script_without_any_setting():
    assert labels(Resolver(Survey(), ())) == ["stayfinite:lr=0.1x", "stayfinite:clip=1"]
    assert labels(Resolver(Survey(), ()), has_autocast=True, is_half=True) == [
        "stayfinite:autocast=off",
        "stayfinite:lr=0.1x",
        "stayfinite:clip=1",
    ]
    assert labels(Resolver(Survey(), ()), is_half=True, cause="loss_scaling") == [
        "stayfinite:lr=0.1x",
        "stayfinite:init_scale=1024",
        "stayfinite:precision=fp32",
        "stayfinite:clip=1",
    ]


@pytest.mark.parametrize(
    ("name", "value", "label"),
    [
        ("mixed-precision", "fp16", "mixed_precision=no"),
        ("precision", 16, "precision=32"),
        ("precision", "bf16-mixed", "precision=32-true"),
        ("dtype", "float16", "dtype=float32"),
        ("dtype", "float32", None),
        ("fp16", False, None),
    ],
)
def test_precision_is_spelled_as_the_script_spells_it(name, value, label):
    found = labels(Resolver(Survey(flags=(flag(name, value),)), ()))
    assert found[:-2] == ([label] if label else [])
