"""A good checkpoint is never overwritten by a bad one, whatever writes it; a bad one is not resumed from."""

import io
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from stayfinite import CheckpointError, Guard, NonFiniteError, last_good, load_last_good, save_gate

NAN = float("nan")


def state(value=0.5, **others):
    return {"model": {"fc.weight": torch.full((2, 2), value)}, **others}


def by_torch(value, path):
    torch.save(state(value), path)


def by_path_object(value, path):
    torch.save(state(value), path.with_suffix(path.suffix))


def by_open_file(value, path):
    with open(path, "wb") as handle:
        torch.save(state(value), handle)


def by_old_format(value, path):
    torch.save(state(value), path, _use_new_zipfile_serialization=False)


def by_temporary_name(value, path):
    torch.save(state(value), f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def by_whole_model(value, path):
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(value)
    torch.save(model, path)


def by_lightning(value, path):
    cloud = pytest.importorskip("lightning.fabric.utilities.cloud_io")
    cloud._atomic_save(state(value), path)


def by_lightning_holder(value, path):
    torch_io = pytest.importorskip("lightning.fabric.plugins.io.torch_io")
    torch_io.TorchCheckpointIO().save_checkpoint(state(value), path)


def by_accelerate(value, path):
    other = pytest.importorskip("accelerate.utils.other")
    other.save(state(value), path)


WRITERS = [
    by_torch, by_path_object, by_old_format, by_temporary_name, by_whole_model,
    *(pytest.param(w, marks=pytest.mark.slow) for w in (by_lightning, by_lightning_holder, by_accelerate)),
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_a_bad_state_goes_beside_the_good_one(write, tmp_path, capsys):
    path = tmp_path / "last.pt"
    write(0.5, tmp_path / "first.pt")  # what writes it is imported by now, as in any script
    (tmp_path / "first.pt").unlink()
    with save_gate() as gate:
        write(0.5, path)
        good = path.read_bytes()
        write(NAN, path)
    assert path.read_bytes() == good
    assert (tmp_path / "last.nonfinite.pt").exists()
    kept = torch.load(tmp_path / "last.nonfinite.pt", weights_only=False)
    kept = kept.state_dict() if isinstance(kept, nn.Module) else kept["model"]
    assert any(torch.isnan(t).any() for t in kept.values())
    assert sorted(os.listdir(tmp_path)) == ["last.nonfinite.pt", "last.pt"]
    assert "is not finite; written to" in capsys.readouterr().err
    assert gate.last_good is not None


@pytest.mark.parametrize("write", [by_torch, by_whole_model], ids=lambda w: w.__name__)
def test_without_the_gate_it_is_lost(write, tmp_path):
    path = tmp_path / "last.pt"
    write(0.5, path)
    good = path.read_bytes()
    write(NAN, path)
    assert path.read_bytes() != good
    assert os.listdir(tmp_path) == ["last.pt"]


def test_safetensors_pass_the_gate_too(tmp_path):
    import safetensors.torch as safe

    path = tmp_path / "model.safetensors"
    with save_gate() as gate:
        safe.save_file({"fc.weight": torch.ones(2)}, path)
        safe.save_file({"fc.weight": torch.full((2,), NAN)}, path)
    assert torch.equal(safe.load_file(path)["fc.weight"], torch.ones(2))
    assert gate.refused == {str(path): str(tmp_path / "model.nonfinite.safetensors")}


def test_a_good_file_is_read_though_a_bad_one_lies_beside_it(tmp_path, capsys):
    path = tmp_path / "last.pt"
    with save_gate():
        by_torch(0.5, path)
        by_torch(NAN, path)
        assert torch.load(path)["model"]["fc.weight"][0, 0] == 0.5
        capsys.readouterr()
        path.unlink()
        assert torch.load(path)["model"]["fc.weight"].isnan().all()
        assert f"reading {tmp_path}/last.nonfinite.pt instead" in capsys.readouterr().err
        by_torch(0.25, path)
        path.unlink()
        with pytest.raises(FileNotFoundError):  # what was held back long ago is no stand-in
            torch.load(path)


def test_safetensors_are_read_back_too(tmp_path, capsys):
    safe = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    with save_gate():
        safe.save_file({"fc.weight": torch.full((2, 2), NAN)}, path)
        assert not path.exists()
        assert safe.load_file(path)["fc.weight"].isnan().all()
    assert "model.nonfinite.safetensors instead" in capsys.readouterr().err


def test_a_file_that_was_opened_for_a_bad_state_keeps_the_good_one(tmp_path):
    """It was truncated when it was opened; the last good contents are written into it again."""
    path = tmp_path / "last.pt"
    with save_gate():
        by_open_file(0.5, path)
        good = path.read_bytes()
        assert torch.load(path)["model"]
        by_open_file(NAN, path)
    assert path.read_bytes() == good
    assert (tmp_path / "last.nonfinite.pt").exists()


@pytest.mark.slow
def test_a_distributed_checkpoint_passes_the_gate(tmp_path):
    script = f"""
        import os, torch
        import torch.distributed.checkpoint as dcp
        from stayfinite import save_gate
        with save_gate() as gate:
            dcp.save({{"w": torch.ones(2)}}, checkpoint_id="{tmp_path}/one", no_dist=True)
            dcp.save({{"w": torch.full((2,), float("nan"))}}, checkpoint_id="{tmp_path}/one", no_dist=True)
        state = {{"w": torch.zeros(2)}}
        dcp.load(state, checkpoint_id="{tmp_path}/one", no_dist=True)
        print(state["w"].tolist(), sorted(os.listdir("{tmp_path}")))
    """
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
    )
    assert out.stdout.strip() == "[1.0, 1.0] ['one', 'one.nonfinite']", out.stderr


def test_saving_is_byte_for_byte_what_it_was(tmp_path):
    plain, gated = tmp_path / "a" / "last.pt", tmp_path / "b" / "last.pt"
    plain.parent.mkdir()
    gated.parent.mkdir()
    by_torch(0.5, plain)
    with save_gate():
        by_torch(0.5, gated)
    assert plain.read_bytes() == gated.read_bytes()
    assert plain.stat().st_mode == gated.stat().st_mode


def test_what_is_no_training_state_is_let_through(tmp_path):
    """A tensor of data, masks of -inf, memory buffers: none of the gate's business."""
    with save_gate() as gate:
        torch.save(torch.tensor([1.0, NAN]), tmp_path / "data.pt")
        torch.save(
            {"w": torch.ones(1), "attn.mask": torch.full((3, 3), -torch.inf).triu(1)},
            tmp_path / "m.pt",
        )
        torch.save(state(NAN), io.BytesIO())
        torch.save({"epoch": 3, "loss": NAN}, tmp_path / "e.pt")
    assert gate.refused == {}
    assert sorted(os.listdir(tmp_path)) == ["data.pt", "e.pt", "m.pt"]


def test_a_save_that_raises_leaves_what_it_leaves_without_the_gate(tmp_path):
    cannot_be_saved = {"model": lambda x: x}
    for name in ("plain", "gated"):
        (tmp_path / name).mkdir()
    with pytest.raises(Exception, match="pickle"):
        torch.save(cannot_be_saved, tmp_path / "plain" / "new.pt")
    with save_gate():
        torch.save({"w": torch.ones(2)}, tmp_path / "gated" / "old.pt")
        for name in ("new.pt", "old.pt"):
            with pytest.raises(Exception, match="pickle"):
                torch.save(cannot_be_saved, tmp_path / "gated" / name)
    plain, gated = (tmp_path / name / "new.pt" for name in ("plain", "gated"))
    assert gated.read_bytes() == plain.read_bytes()
    assert sorted(p.name for p in gated.parent.iterdir()) == ["new.pt", "old.pt"]
    assert torch.load(tmp_path / "gated" / "old.pt")["w"].tolist() == [1, 1]


def test_a_file_keeps_its_mode_and_its_other_names(tmp_path):
    secret, shared, other = (tmp_path / name for name in ("secret.pt", "shared.pt", "other.pt"))
    for path in (secret, shared):
        torch.save({"w": torch.zeros(2)}, path)
    secret.chmod(0o600)
    other.hardlink_to(shared)
    with save_gate():
        for path in (secret, shared):
            torch.save({"w": torch.ones(2)}, path)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert torch.load(other)["w"].tolist() == torch.load(secret)["w"].tolist() == [1, 1]


def test_a_symbolic_link_stays_one(tmp_path):
    by_torch(0.1, tmp_path / "real.pt")
    (tmp_path / "link.pt").symlink_to(tmp_path / "real.pt")
    with save_gate():
        by_torch(0.5, tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert torch.load(tmp_path / "real.pt")["model"]["fc.weight"][0, 0] == 0.5


# -- under a guard ------------------------------------------------------------------------------


def guarded(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer, Guard(model, optimizer, settings={"diagnose": False}, **options)


@pytest.mark.parametrize("place", ["weight", "moment", "running_var"])
def test_a_guard_holds_a_bad_save_back_and_tells(place, tmp_path):
    model, optimizer, guard = guarded(run_dir=tmp_path / "run")
    path = tmp_path / "last.pt"

    def save():
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    with guard:
        guard.step(lambda m, x: m(x).pow(2).sum(), torch.randn(4, 2))
        save()
        with torch.no_grad():
            target = {
                "weight": model[0].weight, "moment": optimizer.state[model[0].bias]["exp_avg_sq"],
                "running_var": model[1].running_var,
            }[place]  # fmt: skip
            target.fill_(torch.inf)
        save()
        (incident,) = guard.incidents
        assert (incident.event.phase, incident.action.kind) == ("checkpoint", "diverted")
        assert f"the last good checkpoint is {path}" in incident.action.detail
        assert "last.nonfinite.pt" in incident.action.detail
    assert all(torch.isfinite(t.float()).all() for t in torch.load(path)["model"].values())


def test_policy_raise_raises_at_the_save(tmp_path):
    model, _, guard = guarded(policy="raise")
    with torch.no_grad():
        model[0].weight.fill_(NAN)
    with guard, pytest.raises(NonFiniteError, match=r"was held back: 0\.weight is not finite"):
        torch.save(model.state_dict(), tmp_path / "a.pt")


def test_data_saved_during_training_is_let_through(tmp_path):
    _, _, guard = guarded()
    with guard:
        torch.save({"features": torch.tensor([NAN])}, tmp_path / "cache.pt")
    assert guard.incidents == []
    assert (tmp_path / "cache.pt").exists()


# -- resuming -------------------------------------------------------------------------------------


def test_a_bad_checkpoint_is_refused_and_the_last_good_one_named(tmp_path):
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()
    for step, value in ((1, 0.5), (2, 0.6), (3, NAN)):
        floats = {k: torch.full_like(v, value) for k, v in plain.items() if v.is_floating_point()}
        torch.save({"step": step, "model": {**plain, **floats}}, tmp_path / f"step_{step}.pt")
    model, _, guard = guarded()
    before = model[0].weight.detach().clone()
    with guard, pytest.raises(CheckpointError) as caught:
        model.load_state_dict(torch.load(tmp_path / "step_3.pt")["model"])
    assert torch.equal(model[0].weight, before)
    text = str(caught.value)
    assert "step_3.pt must not be resumed from: not finite are 0.weight (4 NaN of 4 values" in text
    assert f"last good: {tmp_path}/step_2.pt" in text
    (incident,) = guard.incidents
    assert (incident.event.phase, incident.diagnosis.cause) == ("resume", "corrupt_checkpoint")
    assert last_good(tmp_path) == str(tmp_path / "step_2.pt")
    path, kept = load_last_good(tmp_path)
    assert (path, kept["step"]) == (str(tmp_path / "step_2.pt"), 2)


def half_precision_export(path, dtype):
    """A file with one weight beyond what float16 holds."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[1].weight[1] = 9.1e4
    torch.save({k: v.to(dtype) for k, v in model.state_dict().items()}, path)


def test_a_sound_checkpoint_of_another_model_is_not_the_last_good_one(tmp_path):
    torch.save({"step": 9, "model": nn.Linear(7, 7).state_dict()}, tmp_path / "other.pt")
    model = nn.Linear(2, 2)
    for step, value in ((1, 0.5), (2, NAN)):
        state = {k: torch.full_like(v, value) for k, v in model.state_dict().items()}
        torch.save({"step": step, "model": state}, tmp_path / f"step_{step}.pt")
    assert last_good(tmp_path) == str(tmp_path / "other.pt")
    bad = str(tmp_path / "step_2.pt")
    assert last_good(tmp_path, like=bad) == str(tmp_path / "step_1.pt")
    (tmp_path / "step_1.pt").unlink()
    assert last_good(tmp_path, like=bad) is None


def test_a_cast_does_not_hide_where_a_bad_value_comes_from(tmp_path):
    half_precision_export(tmp_path / "a.pt", torch.float16)
    model, _, guard = guarded()
    with guard, pytest.raises(CheckpointError) as caught:
        saved = torch.load(tmp_path / "a.pt")
        model.load_state_dict({k: v.float() for k, v in saved.items()})
    assert "a.pt must not be resumed from: not finite are 1.weight (1 +Inf of 2" in str(
        caught.value
    )
    assert torch.equal(model[1].weight, torch.ones(2))
    (incident,) = guard.incidents
    assert (incident.event.phase, incident.diagnosis.cause) == ("resume", "corrupt_checkpoint")


def test_a_good_file_is_not_blamed_for_a_cast_that_overflows(tmp_path):
    half_precision_export(tmp_path / "a.pt", torch.float32)
    model, _, guard = guarded()
    with guard, pytest.raises(CheckpointError) as caught:
        model.load_state_dict({k: v.half() for k, v in torch.load(tmp_path / "a.pt").items()})
    text = str(caught.value)
    assert text.startswith("a state must not be restored: not finite are 1.weight (1 +Inf of 2")
    assert f"{tmp_path}/a.pt is finite there: look at what the script does with it" in text


def test_a_bad_state_from_memory_is_refused_as_well():
    model, _, guard = guarded()
    other = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        other[0].weight.fill_(NAN)
    with guard, pytest.raises(CheckpointError, match=r"not finite are 0\.weight"):
        model.load_state_dict(other.state_dict())
    assert torch.isfinite(model[0].weight).all()


def test_good_states_from_memory_are_nobodys_business(tmp_path):
    half_precision_export(tmp_path / "a.pt", torch.float16)
    torch.load(tmp_path / "a.pt")  # a bad file that nothing is restored from
    model, optimizer, guard = guarded()
    kept, other = model.state_dict(), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with guard:
        model.load_state_dict(other.state_dict())
        model.load_state_dict(kept)
        optimizer.load_state_dict(optimizer.state_dict())
    assert guard.warnings == [] and guard.incidents == []


def test_an_infinity_by_design_may_be_restored():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("lowest", torch.full((2, 2), float("inf")))
            self.hidden = nn.Parameter(
                torch.full((2, 2), float("-inf")).triu(1), requires_grad=False
            )

    model = Masked()
    with Guard(model, torch.optim.SGD([model.weight], lr=0.1)) as guard:
        model.load_state_dict(Masked().state_dict())
    assert guard.incidents == [] and guard.warnings == []


def test_a_copy_of_the_model_never_sees_the_bad_step():
    """A target network that follows the model: nothing of the bad step may stay in it."""

    def train(batches):
        torch.manual_seed(0)
        model, target = nn.Linear(2, 1), nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Guard(model, optimizer, settings={"diagnose": False}) as guard:
            for x, rate in guard(batches):
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                (model(x) - target(x).detach() - 1).pow(2).mean().backward()
                optimizer.step()
                target.load_state_dict(model.state_dict())
        return guard, [*model.parameters(), *target.parameters()]

    good = (torch.ones(3, 2), 0.1)
    guard, ended = train([good, good, (torch.ones(3, 2), float("inf")), good, good])
    _, wanted = train([good] * 4)
    assert guard.warnings == []  # the step was left out before there was anything bad to copy
    assert [i.event.step for i in guard.incidents] == [2]
    assert all(torch.equal(a, b) for a, b in zip(ended, wanted))


def test_the_rate_that_a_resume_brings_back_is_shown_with_the_one_that_was_set_up(tmp_path, capsys):
    model, optimizer, guard = guarded()
    old = torch.optim.Adam(model.parameters(), lr=5e-4)
    torch.save({"optimizer": old.state_dict()}, tmp_path / "a.pt")
    with guard:
        optimizer.load_state_dict(torch.load(tmp_path / "a.pt")["optimizer"])
    (warning,) = guard.warnings
    assert (warning.phase, warning.kind) == ("resume", "resume_mismatch")
    assert "the script says lr 0.1; the optimizer in the file has lr 0.0005" in warning.message
    assert "set `lr` (and `initial_lr`) of every param group" in warning.message
    assert "warning: the script says lr 0.1" in capsys.readouterr().err


def test_a_schedule_built_on_another_rate_is_shown(tmp_path):
    model, optimizer, guard = guarded()
    old = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(old, 10)
    schedule.base_lrs = [0.4]
    torch.save({"scheduler": schedule.state_dict()}, tmp_path / "a.pt")
    new = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    with guard:
        new.load_state_dict(torch.load(tmp_path / "a.pt")["scheduler"])
    assert "the script says lr 0.1" in guard.warnings[0].message


def test_an_ordinary_resume_is_silent(tmp_path):
    """The rate has decayed as planned; the one it started from is the same."""
    model, optimizer, guard = guarded()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    torch.save({"o": optimizer.state_dict(), "s": schedule.state_dict()}, tmp_path / "a.pt")
    fresh = torch.optim.Adam(model.parameters(), lr=0.1)
    again = torch.optim.lr_scheduler.ExponentialLR(fresh, 0.5)
    with guard:
        saved = torch.load(tmp_path / "a.pt")
        fresh.load_state_dict(saved["o"])
        again.load_state_dict(saved["s"])
    assert guard.warnings == [] and guard.incidents == []


def test_last_good_of_nothing(tmp_path):
    assert last_good(tmp_path) is None
    assert load_last_good(tmp_path) is None
    by_torch(NAN, tmp_path / "a.pt")
    assert last_good(tmp_path) is None


def test_a_size_that_is_called_rank_is_no_rank(tmp_path):
    state = {"model": torch.nn.Linear(2, 2).state_dict()}
    for name in ("lora_rank8_step100.pt", "lora_rank8_step200.pt"):
        torch.save(state | {"step": int(name[-6:-3])}, tmp_path / name)
    assert last_good(tmp_path) == str(tmp_path / "lora_rank8_step200.pt")
    (tmp_path / "other" / "rank16_lr1e-4").mkdir(parents=True)
    torch.save(state, tmp_path / "other" / "rank16_lr1e-4" / "last.pt")
    found = last_good(tmp_path / "other")
    assert found == str(tmp_path / "other" / "rank16_lr1e-4" / "last.pt")
