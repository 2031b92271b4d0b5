"""One key of a config file changed; everything else stays, character for character."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfinite.errors import UsageError
from stayfinite.ladder.configs import edited, entries, find_entries, load_config

YAML = """\
# a comment
model: &m
  width: 8   # small
  act: "relu"
train:
  lr: 1e-3
  betas: [0.9, 0.99]
  amp: yes
  note: |
    two
    lines
copy: *m
stages:
  - {lr: 1.0, name: one}
  - {lr: 2.0, name: two}
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("model.width", 4, "width: 8 ", "width: 4 "),
        ("train.lr", 1e-4, "lr: 1e-3", "lr: 0.0001"),
        ("train.betas", [0.5, 0.6], "[0.9, 0.99]", "[0.5, 0.6]"),
        ("train.amp", False, "amp: yes", "amp: false"),
        ("model.act", "gelu", '"relu"', "gelu"),
        ("stages.1.lr", 0.5, "lr: 2.0", "lr: 0.5"),
    ],
)
def test_yaml_keeps_its_comments_and_order(key, value, old, new):
    (entry,) = find_entries(entries("c.yaml", YAML), key)
    assert edited("c.yaml", YAML, entry.path, value) == YAML.replace(old, new)


def test_yaml_that_cannot_be_changed_in_place_is_written_anew():
    text = edited("c.yaml", "a: &x 1\nb: *x\n", ("a",), 2)
    assert yaml.safe_load(text) == {"a": 2, "b": 1}
    text = edited("c.yaml", YAML, ("train", "note"), "short")
    assert yaml.safe_load(text)["train"]["note"] == "short"
    assert yaml.safe_load(text)["train"]["lr"] == yaml.safe_load(YAML)["train"]["lr"]


_leaves = st.one_of(
    st.booleans(), st.none(), st.integers(-9, 9), st.floats(-9, 9), st.text("ab: #'", max_size=5)
)
_trees = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.one_of(_leaves, st.dictionaries(st.text("xyz", min_size=1, max_size=3), _leaves)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(tree=_trees, value=_leaves, data=st.data(), name=st.sampled_from(["c.json", "c.yaml"]))
def test_any_key_of_any_file_takes_any_value(tree, value, data, name):
    text = json.dumps(tree) if name == "c.json" else yaml.safe_dump(tree)
    load = json.loads if name == "c.json" else yaml.safe_load
    entry = data.draw(st.sampled_from(entries(name, text)))
    wanted = load(text)
    home = wanted
    for part in entry.path[:-1]:
        home = home[part]
    home[entry.path[-1]] = value
    assert load(edited(name, text, entry.path, value)) == wanted


def test_toml_is_changed_on_its_line():
    text = '# c\nseed = 1\n[optim]\nlr = 1e-3 # high\nname = "adam"\n[optim.decay]\nlr = 2\n'
    found = entries("c.toml", text)
    assert [e.key for e in find_entries(found, "lr")] == ["optim.lr", "optim.decay.lr"]
    assert edited("c.toml", text, ("optim", "lr"), 0.1) == text.replace("1e-3", "0.1")
    assert edited("c.toml", text, ("optim", "name"), "sgd") == text.replace("adam", "sgd")
    with pytest.raises(UsageError, match=r"c.toml: a.b stands in a form that cannot be changed"):
        edited("c.toml", "a = {b = 1}", ("a", "b"), 2)


def test_python_constants_classes_and_dicts():
    text = (
        "é = 'ü'; LR = 5e-5  # low\n"
        "class Config:\n    use_amp: bool = True\n"
        "TRAIN = dict(clip=1.0, optim={'eps': 2**-20})\n"
        "def f(lr=3): ...\n"
    )
    found = {e.key: e.value for e in entries("c.py", text)}
    assert found["LR"] == 5e-5
    assert found["Config.use_amp"] is True
    assert found["TRAIN.clip"] == 1.0
    assert repr(found["TRAIN.optim.eps"]) == "an expression"
    assert not [k for k in found if k.endswith("f.lr")]
    changed = edited("c.py", text, ("LR",), 1e-5)
    assert changed == text.replace("5e-5", "1e-05")
    changed = edited("c.py", text, ("TRAIN", "optim", "eps"), 1e-8)
    assert changed == text.replace("2**-20", "1e-08")


def test_a_plain_name_finds_the_deep_key_and_an_exact_one_wins():
    found = entries("c.yaml", "optim: {Weight-Decay: 1}\nweight_decay: 2\nx: {lr: 1}\ny: {lr: 2}")
    assert [e.key for e in find_entries(found, "weight_decay")] == ["weight_decay"]
    assert [e.key for e in find_entries(found, "optim.weight_decay")] == ["optim.Weight-Decay"]
    assert [e.key for e in find_entries(found, "lr")] == ["x.lr", "y.lr"]
    assert find_entries(found, "nothing") == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "c.yaml",
            "a:\n\tb: 1\n",
            "c.yaml:2:1 cannot be parsed: found a tab; YAML is indented with",
        ),
        ("c.yaml", "a: [1,", ":1:7 cannot be parsed: expected the node content"),
        ("c.json", "{", "cannot be parsed"),
        ("c.toml", "a = = 1", "cannot be parsed"),
        ("c.py", "a = (", "cannot be parsed"),
        ("c.ini", "a=1", "a config must be one of .yaml, .yml, .json, .toml, .py, got c.ini"),
    ],
)
def test_a_file_that_is_no_config_says_so(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config(str(tmp_path / name))
    assert said in str(caught.value)
    assert name in str(caught.value)


def test_a_file_that_is_not_there_or_too_large_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the config .*none\.yaml"):
        load_config(str(tmp_path / "none.yaml"))
    (tmp_path / "big.json").write_text(" " * (1 << 20) + " {}")
    with pytest.raises(UsageError, match="too large for a config"):
        load_config(str(tmp_path / "big.json"))
