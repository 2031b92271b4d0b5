"""Seed 002: an overflow in Sinkhorn, the checkpoints after it, and a resume with the old rate."""

import importlib.util
import json
import re
import shutil

import pytest
import torch
from tests.launch import ROOT, forked

from stayfinite.checkpoint import scan, scan_file
from stayfinite.numerics import log_sinkhorn

HOME = ROOT / "examples" / "restran_mhc"
STEPS = 24  # of an epoch
CHANCE = 1 / 36
EPOCH = re.compile(r"Ep (\d+)/7: loss=(\S+), lr=(\S+), val plates=(\S+), characters=(\S+)")
LAST = re.compile(r"plate accuracy (\S+), character accuracy (\S+)")


def module(name):
    spec = importlib.util.spec_from_file_location(f"restran_mhc_{name}", HOME / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def train(folder, script="train.py", *args):
    return forked([str(HOME / script), *args], folder)


def guarded(folder, options, *args):
    words = ["-m", "stayfinite", "run", "--run-dir", "run", *options]
    return forked([*words, str(HOME / "train.py"), *args], folder)


def incidents(folder):
    paths = sorted(folder.glob("run/incidents/*/incident.json"))
    return [json.loads(path.read_text()) for path in paths]


def losses(done):
    return [float(found[2]) for found in EPOCH.finditer(done.out)]


def first_nan(done):
    """Counted from 0."""
    return next(i for i, loss in enumerate(losses(done)) if loss != loss)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return folder, train(folder)


def test_every_glyph_is_another():
    data = module("data")
    assert set(data.GLYPHS) == set(data.ALPHABET)
    assert len(set(data.GLYPHS.values())) == 36


def test_the_same_plates_every_time(tmp_path):
    data = module("data")
    for name in ("a", "b"):
        data.write_plates(tmp_path / f"{name}.npz", 4, 0.08, seed=3)
    a, b = (data.Plates(tmp_path / f"{name}.npz") for name in ("a", "b"))
    assert a.texts == b.texts
    assert all(re.fullmatch(r"[A-Z]{3}\d[A-Z]\d\d", text) for text in a.texts)
    assert torch.equal(a.frames, b.frames)
    assert a[0][0].shape == (data.FRAMES, data.HEIGHT, data.WIDTH)


def test_sinkhorn_is_doubly_stochastic_until_it_overflows():
    sinkhorn = module("model").sinkhorn_knopp
    torch.manual_seed(0)
    h = torch.randn(5, 4, 4)
    torch.testing.assert_close(sinkhorn(h, 1.0), log_sinkhorn(h).exp())
    large = h * 100
    assert large.max() > 88.7
    assert sinkhorn(large, 1.0).isnan().any()
    stable = log_sinkhorn(large).exp()
    torch.testing.assert_close(stable.sum(-2), torch.ones(5, 4))


@pytest.mark.slow
def test_the_plain_run_breaks_and_poisons_its_checkpoints(plain):
    folder, done = plain
    assert done.code == 0, done.err
    broken = first_nan(done)
    assert broken >= 1, "healthy at first"
    assert all(loss != loss for loss in losses(done)[broken:]), "and never again"
    assert LAST.search(done.out)[1] == "0.000"
    report = scan([str(folder / "results")], lr=1e-3)
    assert report.last_good.endswith(f"epoch_{broken:02d}.pth")
    verdicts = {file.path.rpartition("/")[2]: file.verdict for file in report.files}
    assert verdicts["last.pth"] == "corrupt"
    assert sum(verdict == "corrupt" for verdict in verdicts.values()) == 7 - broken + 1
    good = next(c for c in report.checkpoints if c.path == report.last_good)
    (mismatch,) = [f for f in good.findings if f.code == "lr_mismatch"]
    assert "a schedule built on 0.005" in mismatch.message


@pytest.mark.slow
def test_it_is_caught_explained_and_survived(plain, tmp_path):
    done = guarded(tmp_path, ["--policy", "rollback:6:lr=0.2"])
    assert done.code == 0, done.err
    broken = first_nan(plain[1])
    assert losses(done)[:broken] == losses(plain[1])[:broken], "nothing changed until then"
    first = incidents(tmp_path)[0]
    where, why = first["location"], first["diagnosis"]
    assert first["event"]["step"] // STEPS == broken
    assert (where["op"], where["file"]) == ("aten.exp", str(HOME / "model.py"))
    assert where["source"].strip() == "m = torch.exp(h_tilde / tau)"
    assert where["module"] in ("blocks.0", "blocks.1", "blocks.2")
    assert why["cause"] == "exp_overflow"
    repair = why["fixes"][0]
    assert repair["status"] == "proved" and repair["remedy"] == "normalized_in_log_space"
    assert "+        m = m - torch.logsumexp(m, dim=-1, keepdim=True)" in repair["diff"]
    assert why["fixes"][0]["status"] == "proved"
    assert "-    m = torch.exp(h_tilde / tau)" in why["fixes"][0]["diff"]
    assert first["action"]["kind"] == "rolled_back"
    last = scan_file(str(tmp_path / "results" / "last.pth"))
    assert last.is_usable
    assert not any(f.code.startswith("nonfinite") for f in last.findings)
    assert losses(done)[-1] < losses(done)[0] / 4, "it went on learning"
    assert float(LAST.search(done.out)[2]) > 3 * CHANCE


@pytest.mark.slow
def test_a_corrupt_checkpoint_is_refused_and_moved_away(plain, tmp_path):
    shutil.copytree(plain[0] / "results", tmp_path / "results")
    good = f"results/epoch_{first_nan(plain[1]):02d}.pth"
    done = guarded(tmp_path, [], "--lr", "1e-3", "--resume", "results/last.pth")
    assert done.code == 1
    assert "results/last.pth must not be resumed from" in done.err
    assert f"last good: {good}" in done.err
    assert "resumed from" not in done.out
    moved = forked(
        ["-m", "stayfinite", "scan", "results", "--quarantine", "corrupted_backup", "--yes"],
        tmp_path,
    )
    assert moved.code == 1
    left = sorted(path.name for path in (tmp_path / "results").glob("epoch_*.pth"))
    assert left[-1] == good.rpartition("/")[2]
    assert not (tmp_path / "results" / "last.pth").exists()
    assert len(list((tmp_path / "corrupted_backup").glob("*/*.pth"))) == 8 - len(left)


@pytest.mark.slow
def test_a_resume_with_the_old_rate_breaks_again_and_is_warned_of(plain, tmp_path):
    """The config says 1e-3 now; the schedule in the file says 5e-3, and wins."""
    good = plain[0] / f"results/epoch_{first_nan(plain[1]):02d}.pth"
    done = guarded(tmp_path, ["--policy", "raise"], "--lr", "1e-3", "--resume", str(good))
    assert done.code == 1
    assert "warning: the script says lr 0.001" in done.err
    assert "then follow a schedule built on 0.005" in done.err
    (incident,) = incidents(tmp_path)
    assert incident["diagnosis"]["cause"] == "exp_overflow"
    assert "resume_mismatch" in {c["cause"] for c in incident["diagnosis"]["candidates"]}
    assert incident["event"]["lr"][0] > 2e-3

    args = ("--lr", "1e-3", "--epochs", str(first_nan(plain[1]) + 1), "--resume", str(good))
    fixed = train(tmp_path, "train_fixed.py", *args, "--results", "fixed")
    assert fixed.code == 0, fixed.err
    loss, lr = re.search(r"loss=(\S+), lr=(\S+),", fixed.out).groups()
    assert 0 < float(loss) < 10
    assert float(lr) <= 1e-3
    rates = torch.load(tmp_path / "fixed" / "last.pth")["scheduler"]["_last_lr"]
    assert max(rates) <= 20 * 1e-3


@pytest.mark.slow
def test_the_fixed_training_reads_plates(tmp_path):
    """The same settings and the same learning rate: only the line that was blamed is another."""
    done = train(tmp_path, "train_fixed.py")
    assert done.code == 0, done.err
    assert "nan" not in done.out
    rows = EPOCH.findall(done.out)
    assert float(rows[0][4]) < 3 * CHANCE, "it knows nothing at first"
    plates, characters = map(float, LAST.search(done.out.splitlines()[-1]).groups())
    assert plates > 0.7
    assert characters > 0.8
