"""A comparison for people: weights by layer, direction, and what is usual in this run."""

import math
import re

import pytest
import torch
from typer.testing import CliRunner

from stayfinite.checkpoint import diff
from stayfinite.checkpoint.diff_text import describe_diff


def save(folder, step, layers, moments=1.0):
    model = {f"{name}.weight": value for name, value in layers.items()}
    state = {i: {"exp_avg": torch.full((4,), moments), "exp_avg_sq": torch.full((4,), moments)} for i in range(3)}  # fmt: skip
    torch.save(
        {"step": step, "model": model, "optimizer": {"state": state}}, folder / f"step_{step}.pt"
    )
    return folder / f"step_{step}.pt"


@pytest.fixture
def run(tmp_path):
    """Three ordinary steps of one percent each, then one in which a single layer jumps."""
    base = {"embed": torch.ones(8, 8), "head": torch.ones(8, 8)}
    for step in (100, 200, 300):
        save(tmp_path, step, {k: v * 1.01 ** (step / 100) for k, v in base.items()}, moments=step)
    last = {k: v * 1.01**4 for k, v in base.items()}
    last["head"] = last["head"] * 1.5
    save(tmp_path, 400, last, moments=9e9)
    return tmp_path


def test_weights_come_first_and_moments_in_one_line(run):
    lines = list(describe_diff(diff(run / "step_300.pt", run / "step_400.pt")))
    assert lines[2] == "weights: 2 of 2 layers changed"
    head = next(i for i, line in enumerate(lines) if line.startswith("  head "))
    moments = [i for i, line in enumerate(lines) if "optimizer moments: 6 tensors changed" in line]
    assert head == 4 and moments and moments[0] > head
    assert sum("exp_avg" in line for line in lines) == 1


def test_against_what_is_usual_in_the_run(run):
    report = diff(run / "step_300.pt", run / "step_400.pt")
    by_layer = {d.layer: d for d in report.layers}
    assert by_layer["embed"].times_usual == pytest.approx(1.0, abs=0.05)
    assert by_layer["head"].times_usual == pytest.approx(51.5, rel=0.05)
    assert "step_200.pt → step_300.pt" in report.usual_source
    text = "\n".join(describe_diff(report))
    assert re.search(r"head .* far more than usual, grew a lot", text)


def test_directions(tmp_path):
    a = save(tmp_path, 1, {"turned": torch.tensor([[1.0, 0.0]]), "grown": torch.ones(1, 2)})
    b = save(tmp_path, 2, {"turned": torch.tensor([[0.0, 1.0]]), "grown": torch.full((1, 2), 2.0)})
    by_layer = {d.layer: d for d in diff(a, b).layers}
    assert by_layer["turned"].angle == pytest.approx(90) and by_layer["turned"].growth == 0
    assert by_layer["grown"].angle == pytest.approx(0, abs=1e-3) and by_layer["grown"].growth == 1
    text = "\n".join(describe_diff(diff(a, b)))
    assert "points elsewhere" in text and "+100.0%" in text and "90.0°" in text


def test_what_turned_nonfinite_leads(run):
    bad = {"embed": torch.ones(8, 8), "head": torch.full((8, 8), math.nan)}
    save(run, 500, bad)
    report = diff(run / "step_400.pt", run / "step_500.pt")
    assert report.tensors[0].name == "head.weight"
    assert list(describe_diff(report))[4].endswith("non-finite: 0 in A, 64 in B")


def test_no_neighbors_no_usual(tmp_path):
    a = save(tmp_path, 1, {"w": torch.ones(2, 2)})
    b = save(tmp_path, 2, {"w": torch.full((2, 2), 1.5)})
    report = diff(a, b)
    assert report.usual_source == "" and report.layers[0].times_usual is None


def test_the_page_has_a_picture_and_keeps_names_as_text(run):
    from stayfinite.cli.app import app

    evil = "<script>x</script>"
    save(run, 500, {"embed": torch.ones(8, 8), evil: torch.ones(2, 2)})
    page = run / "page.html"
    pair = [str(run / "step_300.pt"), str(run / "step_400.pt")]
    done = CliRunner().invoke(app, ["diff", *pair, "--html", str(page)])
    assert done.exit_code == 1, done.output
    text = page.read_text()
    assert text.count('class="unusual"') == 1 and "x the usual" in text and "step_200.pt" in text
    pair[0] = str(run / "step_500.pt")
    CliRunner().invoke(app, ["diff", *pair, "--html", str(page)])
    assert evil not in page.read_text() and "&lt;script&gt;" in page.read_text()
