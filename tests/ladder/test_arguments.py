"""A flag of the script changed as one would type it; the script's own parser is the judge."""

import argparse

import pytest

from stayfinite.errors import UsageError
from stayfinite.ladder.arguments import changed, describe_parser, find_flag, typed_flags
from stayfinite.ladder.values import as_number, as_switch, parse_try, parse_value, resolved


def parser():
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--lr", "-l", type=float, default=0.1)
    p.add_argument("--use-amp", action="store_true")
    p.add_argument("--no-clip", dest="clip", action="store_false")
    p.add_argument("--mixup", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--betas", nargs=2, type=float, default=[0.9, 0.99])
    p.add_argument("--eps", type=float)
    return p


@pytest.mark.parametrize(
    ("args", "key", "text", "dest", "value"),
    [
        (["d"], "lr", "0.01", "lr", 0.01),
        (["d", "--lr", "1"], "lr", "0.01", "lr", 0.01),
        (["--lr=1", "d"], "lr", "0.01", "lr", 0.01),
        (["-l", "1", "d"], "l", "0.01", "lr", 0.01),
        (["--lr", "1", "d", "--lr", "2"], "lr", "-3", "lr", -3.0),
        (["d"], "use_amp", "true", "use_amp", True),
        (["d", "--use-amp"], "use-amp", "off", "use_amp", False),
        (["d"], "clip", "false", "clip", False),
        (["d", "--no-clip"], "clip", "true", "clip", True),
        (["d"], "no_clip", "true", "clip", False),
        (["d", "--mixup"], "mixup", "no", "mixup", False),
        (["d", "--no-mixup"], "mixup", "1", "mixup", True),
        (["d", "--betas", "0.8", "0.9", "--lr", "1"], "betas", "0.5,0.6", "betas", [0.5, 0.6]),
        (["d"], "betas", "0.5,0.6", "betas", [0.5, 0.6]),
    ],
)
def test_the_parser_gets_the_new_value_and_nothing_else_changes(args, key, text, dest, value):
    p = parser()
    before = p.parse_args(args)
    flag = find_flag(describe_parser(p, before), key)
    after = vars(p.parse_args(changed(args, flag, key, text)))
    assert after == vars(before) | {dest: value}


def test_options_go_before_a_subcommand_and_its_own_behind_it():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=0)
    train = p.add_subparsers(dest="command").add_parser("train")
    train.add_argument("--lr", type=float, default=1.0)
    args = ["train"]
    flags = describe_parser(p, p.parse_args(args))
    for key, text in (("seed", "3"), ("lr", "0.5")):
        args = changed(args, find_flag(flags, key), key, text)
    assert vars(p.parse_args(args)) == {"seed": 3, "command": "train", "lr": 0.5}


def test_what_ends_the_options_stays_at_the_end():
    flag = find_flag(describe_parser(parser(), parser().parse_args(["d"])), "lr")
    assert changed(["--", "d"], flag, "lr", "3") == ["--lr", "3", "--", "d"]


def test_a_switch_takes_no_number():
    (flag,) = typed_flags(["--amp"])
    with pytest.raises(UsageError, match="--amp is a switch: give true or false, got '7'"):
        changed(["--amp"], flag, "amp", "7")


def test_arguments_of_other_parsers_are_read_as_they_stand():
    args = ["optim.lr=0.1", "+aug=true", "--wd", "-0.5", "--name=x", "--fast", "--", "--not"]
    flags = {f["dest"]: (f["kind"], f["current"]) for f in typed_flags(args)}
    assert flags == {
        "optim.lr": ("token", 0.1),
        "aug": ("token", True),
        "wd": ("value", -0.5),
        "name": ("value", "x"),
        "fast": ("on", True),
    }
    token = find_flag(typed_flags(args), "optim.lr")
    assert changed(args, token, "optim.lr", "0.01")[0] == "optim.lr=0.01"


@pytest.mark.parametrize("text", ["", "=3", "a b=3", "magic:x=3"])
def test_a_try_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="--try"):
        parse_try(text)


def test_relative_values_need_a_number_to_start_from():
    assert resolved(parse_try("lr=.5x"), 3) == 1.5
    assert resolved(parse_try("lr=1e-2x"), "1e-3") == 1e-5
    for current in (None, True, "fast", [1]):
        with pytest.raises(UsageError, match="cannot be multiplied"):
            resolved(parse_try("lr=0.1x"), current)


def test_values_are_read_as_a_config_would():
    assert parse_value("{bad") == "{bad"
    assert parse_value('{"a": [1]}') == {"a": [1]}
    assert as_number("nan") is None
    assert as_switch("maybe") is None
