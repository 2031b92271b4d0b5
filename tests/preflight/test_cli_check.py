"""The command as a user meets it: what it prints, what it refuses, how it ends."""

import json
import textwrap

import pytest
from typer.testing import CliRunner

from stayfinite.cli.app import app
from stayfinite.errors import UsageError
from stayfinite.preflight.records import CheckReport
from stayfinite.preflight.target import ScriptTarget

GOOD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def build():
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    loss = lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1])
    data = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16, shuffle=True)
    print("not in the report")
    return model, loss, data, torch.optim.Adam(model.parameters(), lr=LR)

LR = 1e-3
def none(): pass
def three(): return 1, 2, 3
def wrong(): return "model", 3, 4, nn.Linear(1, 1)
def partial(): return {"model": nn.Linear(1, 1), "lossfn": None}
def boom(): raise KeyError("data")
def hollow(): return nn.Linear(1, 1), len, [], torch.optim.SGD([torch.zeros(1)], lr=1)
value = 3
"""
EXPECTED = (
    "expected model, loss_fn, loader, optimizer (a tuple in this order, or a dict with these keys; "
    "a dict may also have scheduler, scaler, clip_norm)"
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad_lr.py").write_text(GOOD.replace("LR = 1e-3", "LR = 0.5"))

    def call(*args, **files):
        for name, text in files.items():
            (tmp_path / name.replace("_DOT_", ".")).write_text(textwrap.dedent(text))
        return CliRunner().invoke(app, ["check", *args])

    return call


def test_a_good_target_is_ready(run):
    out = run("--only", "environment,config,init", "good.py:build")
    assert out.exit_code == 0, out.output
    assert "verdict: ready: no problem was found" in out.stdout
    assert "  pass  lr " in out.stdout
    assert "Adam lr 0.001" in out.stdout
    assert "not in the report" not in out.stdout
    assert "stayfinite check: 2/3 config" in out.stderr


def test_a_fail_ends_with_1_and_says_what_to_do_first(run):
    out = run("-q", "--only", "config", "bad_lr.py:build")
    assert out.exit_code == 1
    assert out.stdout.splitlines() == [
        "stayfinite check bad_lr.py:build",
        "config: 1 fail, 5 pass  (0.0 s)",
        "  fail  lr  Adam lr: 0.5 (expected at most 0.1)",
        "            do: start at 1e-3 or below",
        "            why: Kingma & Ba 2015: 1e-3, betas 0.9/0.999, eps 1e-8 as tested defaults",
        "",
        "do this:",
        "  1. Adam lr: start at 1e-3 or below",
        "     (fail config/lr: 0.5 (expected at most 0.1))",
        "more: stayfinite explain config/lr",
        "",
        out.stdout.splitlines()[-3],
        "verdict: do not start: this run would break or be worthless",
        out.stdout.splitlines()[-1],
    ]
    assert out.stdout.splitlines()[-1].startswith("1 fail, 0 warn, 5 pass in ")


def test_json_is_all_of_stdout_and_comes_back(run):
    out = run("--json", "--only", "config", "bad_lr.py:build")
    assert out.exit_code == 1
    assert json.loads(out.stdout)["verdict"] == "do not start"
    report = CheckReport.from_json(out.stdout)
    assert report.count("fail") == 1
    assert report.findings[0].data == {"quantity": "lr", "value": 0.5}


def test_a_page_is_one_file_with_everything_escaped(run, tmp_path):
    out = run("--html", "page.html", "--only", "config", "bad_lr.py:build")
    page = (tmp_path / "page.html").read_text()
    assert "page: page.html" in out.stderr
    assert "start at 1e-3 or below" in page
    assert "Kingma &amp; Ba" in page
    assert "http://" not in page and "https://" not in page


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no target\ntry: stayfinite check train.py [ARGS]…, or stayfinite check pkg.module:build"),
        (("nope.py",), "target 'nope.py' is no file; expected a script (train.py) or a function "
         "(pkg.module:build, path/to/file.py:build)"),
        ((".",), "target '.' is a folder; expected a script (train.py) or a function "
         "(pkg.module:build, path/to/file.py:build)"),
        (("godo.py",), "target 'godo.py' is no file; expected a script (train.py) or a function "
         "(pkg.module:build, path/to/file.py:build)\ntry: good.py"),
        (("-m", "good.py"), "-m takes a module's name, got the file 'good.py'\n"
         "try: good.py without -m, or -m good"),
        (("nope.py:build",), "target 'nope.py:build': there is no file nope.py"),
        (("good.py:nope",), "good.py has no 'nope'; functions there: build, none, three, wrong, "
         "partial, boom, hollow"),
        (("good.py:value",), "good.py:value is an int, expected a function without arguments"),
        (("good.py:none",), f"good.py:none returned None; {EXPECTED}"),
        (("good.py:three",), f"good.py:three returned 3 values (int, int, int); {EXPECTED}"),
        (("good.py:partial",), "good.py:partial returned a dict without loss_fn, loader, optimizer "
         f"and with the unknown lossfn; {EXPECTED}"),
        (("good.py:wrong",), "good.py:wrong returned something else:\n"
         "  - model must be a torch.nn.Module, got a str\n"
         "  - loss_fn must be a function loss_fn(model, batch) -> loss, got an int\n"
         "  - loader must be iterable (a DataLoader), got an int\n"
         "  - optimizer must be a torch.optim.Optimizer (or a list of them), got a Linear"),
        (("good.py:hollow",), "good.py:hollow: the loader is empty; expected at least one batch"),
        (("good.py:build", "--lr"), "good.py:build: a build function takes no arguments, got "
         "--lr\ntry: stayfinite's own options go before the target"),
        (("--only", "dat", "good.py:build"), "there is no group 'dat'; groups: environment, config, "
         "data, init, forward, edges, precision, stability, resources, proof"),
        (("--steps", "0", "good.py:build"), "`--steps` must be at least 1, got 0"),
        (("--seed", "-1", "good.py:build"), "`--seed` must be 0 or more, got -1"),
        (("--data-samples", "x", "--data", "a.npy"), "`--data-samples` must be a number above 0 or "
         "`all`, got 'x'"),
        (("--data", "a.npy"), "there is no data file a.npy"),
        (("--data", "good.py"), "good.py: not a known format; it begins with b'\\nimport '; expected "
         "npy, npz, safetensors, pt or csv"),
        (("--config", "a.ini"), "a config must be .yaml, .yml, .json, .toml, .py, got 'a.ini'"),
        (("--config", "a.yaml"), "there is no config file a.yaml"),
        (("--preset", "mild", "--config", "a.yaml"), "there is no preset 'mild'; presets: "
         "conservative, very-conservative"),
        (("--preset", "conservative"), "`--preset` needs a config to start from\ntry: --config FILE"),
    ],
)  # fmt: skip
def test_wrong_usage_says_what_was_found_and_what_was_expected(run, args, message):
    out = run(*args)
    assert out.exit_code == 2
    said = [line for line in out.stderr.splitlines() if not line.startswith("stayfinite check:")]
    assert "\n".join(said) == f"error: {message}"
    assert out.stdout == ""


def test_a_build_that_does_not_import_or_raises_is_reported_with_its_line(run, tmp_path):
    out = run("good.py:boom")
    assert out.stderr.endswith(f"good.py:boom raised KeyError: 'data' ({tmp_path}/good.py:20)\n")
    out = run("needs.py:build", needs_DOT_py="import nosuchpackage")
    expected = f"importing needs.py raised ModuleNotFoundError: No module named 'nosuchpackage' ({tmp_path}/needs.py:1)\n"
    assert out.stderr.endswith(expected)
    out = run("torn.py:build", torn_DOT_py="def build(:")
    assert (
        f"importing torn.py raised SyntaxError: invalid syntax ({tmp_path}/torn.py:1)" in out.stderr
    )
    out = run("-m", "nosuch.module")
    assert f"there is no module 'nosuch' in {tmp_path} or on the Python path" in out.stderr
    out = run("nosuch.module:build")
    assert f"no module named 'nosuch' in {tmp_path} or on the Python path" in out.stderr
    assert out.exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "lr: 1e-3\n  clip: [1\n", "c.yaml:2:7: mapping values are not allowed here; expected a YAML mapping"),
        ("c.yaml", "a:\n\tlr: 1\n", "c.yaml:2:1: found a tab; YAML is indented with spaces; expected a YAML mapping"),
        ("c.yaml", "- 1\n", "c.yaml:1:1: found a list; expected a YAML mapping"),
        ("c.json", '{"lr": 1,}', "c.json:1:"),
        ("c.json", "[1]", "c.json:1:1: found a list; expected a JSON object"),
        ("c.toml", "[a\nlr = 1", "c.toml:1:3: Expected ']' at the end of a table declaration; expected a TOML document"),
        ("c.py", "LR = = 1", "c.py:1:6: invalid syntax; expected a Python file with assignments"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_parsed_is_reported_with_its_place(
    run, tmp_path, name, text, message
):
    (tmp_path / name).write_text(text)
    out = run("--config", name, "good.py:build")
    assert out.exit_code == 2
    assert f"error: {message}" in out.stderr


def test_a_config_alone_is_checked(run):
    out = run("--config", "c.yaml", c_DOT_yaml="optimizer: {name: adamw, lr: 0.5}\n")
    assert out.exit_code == 1
    assert "  fail  lr  c.yaml: optimizer.lr: 0.5 (expected at most 0.1)" in out.stdout


def test_the_config_is_compared_with_what_is_used(run):
    out = run(
        "-q", "--config", "c.yaml", "--only", "config", "good.py:build", c_DOT_yaml="lr: 5e-4\n"
    )
    assert out.exit_code == 0
    assert "c.yaml: lr: 0.0005 in the file; Adam lr is 0.001" in out.stdout
    assert "verdict: look first" in out.stdout


def test_a_preset_is_written_beside_the_config(run, tmp_path):
    out = run("--config", "c.yaml", "--preset", "conservative", c_DOT_yaml="lr: 1e-3  # mine\n")
    assert out.exit_code == 0
    assert out.stdout.splitlines()[0] == "conservative: c.conservative.yaml"
    assert (tmp_path / "c.conservative.yaml").read_text() == (
        "# made by stayfinite check --preset conservative from c.yaml\n"
        "lr: 0.0005  # mine  # was 0.001: a smaller step is the first thing that helps against "
        "divergence\n"
    )
    assert (tmp_path / "c.yaml").read_text() == "lr: 1e-3  # mine\n"


def test_a_preset_that_the_target_has_not_read_is_not_held_against_it(run):
    words = ("--only", "config", "--config", "c.yaml", "--preset", "conservative", "good.py:build")
    out = run(*words, c_DOT_yaml="lr: 1e-3\n")
    assert "checked with the script's own settings" in out.stdout
    assert out.exit_code == 0 and "0 fail, 0 warn" in out.stdout, out.output


def test_a_data_file_alone_is_checked(run, tmp_path):
    (tmp_path / "d.csv").write_text("a,b,name\n" + "".join(f"{i},{i % 3},x\n" for i in range(40)))
    out = run("--data", "d.csv")
    assert out.exit_code == 0, out.output
    assert "all 40 samples" in out.stdout
    (tmp_path / "e.csv").write_text("a,b\n1,2\n,4\n5,6\n")
    out = run("--data", "e.csv")
    assert out.exit_code == 1
    assert "  fail  finite    a, sample 1: 1 NaN in 1 of 3 samples" in out.stdout


@pytest.mark.parametrize(
    ("args", "own", "only"),
    [
        ("-m json.tool --lr 3", ("--lr", "3"), ()),
        ("--only data -m json.tool --lr 3", ("--lr", "3"), ("data",)),
        ("-m json.tool --lr 3 --only data", ("--lr", "3"), ("data",)),
        ("-m json.tool -- --lr 3 --only data", ("--lr", "3", "--only", "data"), ()),
        ("-q --module=json.tool --seed 1", ("--seed", "1"), ()),
        ("-mjson.tool", (), ()),
    ],
)
def test_what_follows_a_module_is_its_own(run, monkeypatch, args, own, only):
    called = []

    def note(target, **more):
        called.append((target, tuple(more["only"])))
        raise UsageError("seen")

    monkeypatch.setattr("stayfinite.preflight.capture.script.check_script", note)
    assert run(*args.split()).stderr.endswith("error: seen\n")
    assert called == [(ScriptTarget("json.tool", own, is_module=True), only)]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_forks")
def test_scripts_that_never_train_are_reported(run):
    out = run("s.py", s_DOT_py="import torch\nprint('hello')\n")
    assert out.exit_code == 2
    assert out.stderr.splitlines()[-2:] == [
        "error: s.py ended with exit code 0 before any training step",
        "seen: no optimizers, no batches; expected a loop that takes batches from a DataLoader, "
        "calls backward() and optimizer.step()",
    ]
    out = run("r.py", r_DOT_py="raise RuntimeError('no data folder')\n")
    assert out.stderr.splitlines()[-3:] == [
        "error: r.py raised RuntimeError: no data folder before its first step",
        "where: r.py:1 raise RuntimeError('no data folder')",
        "try: run the training by itself and mend this first",
    ]
    out = run("x.py", "--lr", "1", x_DOT_py="import sys; sys.exit(f'usage: {sys.argv[1:]}')\n")
    assert "error: x.py --lr 1 ended with exit code 1 before any training step" in out.stderr
    assert "its last words: usage: ['--lr', '1']" in out.stderr
