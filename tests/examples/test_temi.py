"""The TEMI example: corrupt rows in a cache, one head that dies alone, and both repaired."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
import yaml
from tests.examples import runs

from stayfinite.checkpoint import scan_file
from stayfinite.numerics import beta_mi
from stayfinite.records import Incident

HERE = Path(__file__).parents[2] / "examples" / "temi"
FIXED = HERE / "config_fixed.yaml"
CACHE = "data/embeddings/embeddings_train.pt"
BAD_ROWS = [1234, 1327]
LINE = "beta_emi = (((p1 * p2) ** beta) / pk).sum(dim=-1)"
FIRST_BAD_BATCH = 14


def python(folder, *command):
    return runs.python(folder, *command).out


def losses(output):
    """The loss of each head at each epoch's end."""
    rows = re.findall(r"loss of each head: (.*)", output)
    return torch.tensor([[float(x) for x in row.split()] for row in rows])


def scores(output):
    """(accuracy, chance) from the last line."""
    found = re.match(
        r"best head \d: accuracy ([\d.]+)  NMI [\d.]+  \(chance ([\d.]+)\)$",
        output.splitlines()[-1],
    )
    return tuple(map(float, found.groups()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("temi")


@pytest.fixture(scope="module")
def plain(folder):
    return python(folder, HERE / "train.py", "--out", "plain.pt")


@pytest.fixture(scope="module")
def guarded(folder, plain):
    """Nothing changed, on the cache that the plain run has left."""
    return python(folder, "-m", "stayfinite", "run", "--run-dir", "run", HERE / "train.py")


@pytest.fixture(scope="module")
def incidents(folder, guarded):
    paths = sorted((folder / "run" / "incidents").glob("*/incident.json"))
    return [Incident.from_json(path.read_text()) for path in paths]


@pytest.mark.slow
def test_plainly_two_corrupt_rows_kill_every_head(folder, plain):
    assert losses(plain).isnan().all()
    accuracy, chance = scores(plain)
    assert accuracy == chance == 0.1
    assert not scan_file(folder / "plain.pt").is_usable
    saved = torch.load(folder / CACHE)["embeddings"]
    assert saved.isnan().any(1).nonzero().flatten().tolist() == BAD_ROWS


@pytest.mark.slow
def test_the_scan_finds_the_corrupt_rows_in_the_cache(folder, plain):
    report = scan_file(folder / CACHE)
    (finding,) = report.findings
    assert (finding.tensor, finding.role) == ("embeddings", "data")
    assert tuple(finding.stats.first_bad) == (BAD_ROWS[0], 0)


@pytest.mark.slow
def test_with_a_clean_cache_one_head_dies_and_the_others_go_on(folder):
    out = python(
        folder, HERE / "train.py", "--config", FIXED, "--data-dir", "clean", "--out", "head.pt"
    )
    by_head = losses(out).T
    assert by_head[:3].isfinite().all()
    assert by_head[3].isfinite().tolist() == [True] * 6 + [False] * 2
    # argmin takes the NaN for the least, so the dead head is the one that is used.
    assert out.splitlines()[-1].startswith("best head 3: accuracy 0.100")


@pytest.mark.slow
def test_the_corrupt_rows_are_caught_and_named(incidents):
    first = incidents[0]
    assert (first.event.step, first.event.phase) == (FIRST_BAD_BATCH, "data")
    assert first.diagnosis.cause == "bad_input_data"
    assert first.diagnosis.dataset_indices == (BAD_ROWS[1],)
    assert [e.outcome for e in first.diagnosis.experiments if e.name == "without_rows"] == [
        "finite"
    ]


@pytest.mark.slow
def test_the_head_is_caught_at_the_power_of_a_probability_that_is_zero(incidents):
    found = next(i for i in incidents if i.event.phase == "backward")
    assert found.event.epoch == 6
    assert found.event.name.startswith("student.heads.3.")
    assert (found.location.op, found.location.module) == ("PowBackward0", "criterion")
    assert Path(found.location.file).name == "train.py"
    assert found.location.source.strip() == LINE
    assert found.diagnosis.cause == "singular_gradient"
    assert found.diagnosis.fixes[0].status == "proved"
    others = {i.location.source.strip() for i in incidents if i.event.phase == "backward"}
    assert others == {LINE}


@pytest.mark.slow
def test_the_state_stays_clean_and_the_run_goes_on(folder, guarded):
    assert scan_file(folder / "temi.pt").verdict == "healthy"
    # The loop prints the loss that it has: of an epoch's last step, whether that was applied or not.
    is_shown = losses(guarded).isfinite().all(1)
    assert len(is_shown) == 8 and is_shown.sum() >= 7
    accuracy, chance = scores(guarded)
    assert chance == 0.1
    assert accuracy > 0.8


@pytest.mark.slow
def test_repaired_every_head_trains(folder, plain):
    """`--force-recompute` replaces the corrupt cache."""
    target = folder / "fixed"
    target.mkdir()
    (target / "data" / "embeddings").mkdir(parents=True)
    (target / CACHE).write_bytes((folder / CACHE).read_bytes())
    out = python(target, HERE / "train_fixed.py", "--force-recompute")
    assert losses(out).isfinite().all()
    accuracy, chance = scores(out)
    assert chance == 0.1
    assert accuracy > 0.9
    assert scan_file(target / CACHE).verdict == "healthy"
    assert scan_file(target / "temi.pt").verdict == "healthy"


def load(name):
    spec = importlib.util.spec_from_file_location(f"temi_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_accuracy_is_that_of_the_best_match():
    metrics = load("metrics")
    labels = torch.arange(30) % 3
    swapped = torch.tensor([2, 0, 1])[labels]
    assert metrics.accuracy(swapped, labels, 3) == 1.0
    assert metrics.nmi(swapped, labels, 3) == pytest.approx(1.0)
    constant = torch.zeros_like(labels)
    assert metrics.accuracy(constant, labels, 3) == pytest.approx(1 / 3)
    assert metrics.nmi(constant, labels, 3) == pytest.approx(0.0, abs=1e-9)


def test_only_16_bit_pixels_overflow_in_the_backbone():
    data = load("data")
    images, _ = data.make_images(1500, seed=0)
    bright = (images > 65519).any(-1).any(-1).nonzero().flatten().tolist()
    assert bright == BAD_ROWS
    some = images[[0, *BAD_ROWS]]
    assert data.compute_embeddings(some, 64, use_fp16=True).isnan().any(1).tolist() == [
        False, True, True,
    ]  # fmt: skip
    assert data.compute_embeddings(some, 64, use_fp16=False).isfinite().all()


def test_the_seed_s_epsilon_gives_other_gradients_than_the_logarithms():
    """Clamped at 1e-8, the products of the clusters that differ get no gradient at all."""
    logits = torch.tensor([[0.0, 4.0, 30.0]], requires_grad=True)
    teacher = torch.tensor([[1.0, 1e-6, 1e-30]])
    pk = torch.full((3,), 1 / 3)

    def gradient(loss):
        return torch.autograd.grad(loss.sum(), logits)[0]

    def clamped(p):
        beta_emi = (((p * teacher).clamp(min=1e-8) ** 0.6) / pk).sum(-1)
        return beta_emi.clamp(min=1e-8).log()

    exact = gradient(beta_mi(logits.softmax(-1), teacher, pk, 0.6).double())
    assert exact.isfinite().all()
    assert exact.abs().max() > 0.1
    assert gradient(clamped(logits.softmax(-1))).abs().max() < 1e-6


def test_the_configs_differ_in_one_key():
    broken, fixed = (
        yaml.safe_load((HERE / name).read_text()) for name in ("config.yaml", FIXED.name)
    )
    assert {k for k in broken if broken[k] != fixed[k]} == {"use_fp16"}
