"""The callback in the real Trainer, and Fabric."""

import copy
import csv
import math
import pickle
import threading

import pytest
import torch
from tests.integrations.watched import line_of, reported, under_run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite import NonFiniteError
from stayfinite.patches.manager import table

L = pytest.importorskip("lightning")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from stayfinite.integrations.lightning import StayfiniteCallback, protect  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
LINE = line_of(__file__, "# HERE")
BAD_ROW = 27  # in batch 6 of 10


class Rates(L.LightningModule):
    """The logarithm of a negative number in one sample."""

    def __init__(self, is_manual=False, num_optimizers=1, raises=False):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.automatic_optimization = not is_manual
        self.num_optimizers = num_optimizers
        self.raises = raises
        self.seen = []

    def loss(self, batch):
        x, y = batch
        return (self.net(x).squeeze(-1) - torch.log(y)).pow(2).mean()  # HERE

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        self.seen.append(batch_idx)
        if self.raises and loss.isnan():
            raise ValueError("the loss is gone")
        if self.automatic_optimization:
            return loss
        for optimizer in self.trainer.strategy._lightning_optimizers:
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return None

    def on_before_zero_grad(self, optimizer):
        self.seen.append(("zero", self.trainer.global_step))

    def configure_optimizers(self):
        parts = [self.net] if self.num_optimizers == 1 else [self.net[0], self.net[3]]
        return [torch.optim.SGD(p.parameters(), lr=1e-2, momentum=0.9) for p in parts]


def batches(is_bad=True):
    torch.manual_seed(1)
    x, y = torch.randn(40, 4), torch.rand(40) + 0.5
    if is_bad:
        y[BAD_ROW] = -1.0
    return DataLoader(TensorDataset(x, y), batch_size=4)


def trainer(*callbacks, **options):
    defaults = {
        "max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1,
    }  # fmt: skip
    return L.Trainer(callbacks=list(callbacks), **{**defaults, **options})


def model(**options):
    torch.manual_seed(0)
    return Rates(**options)


def is_finite(module):
    return all(bool(torch.isfinite(t).all()) for t in module.state_dict().values())


@pytest.mark.parametrize(
    ("made", "options", "step", "num_steps"),
    [
        ({}, {}, 6, 10),
        ({"is_manual": True}, {}, 6, 10),
        ({"is_manual": True, "num_optimizers": 2}, {}, 6, 20),
        ({}, {"accumulate_grad_batches": 2}, 6, 5),
        ({}, {"accumulate_grad_batches": 3, "gradient_clip_val": 1.0}, 6, 4),
        ({}, {"precision": "bf16-mixed"}, 6, 10),
        ({}, {"precision": "64-true"}, 6, 10),
    ],
)
def test_one_callback_finds_the_line_and_leaves_the_step_out(made, options, step, num_steps):
    module, callback = model(**made), StayfiniteCallback(settings={"diagnose": False})
    one = trainer(callback, **options)
    one.fit(module, batches())
    first = callback.incidents[0]
    assert (first.event.step, first.location.op, first.location.line) == (step, "aten.log", LINE)
    assert all(reported(i)[:9] == reported(first)[:9] for i in callback.incidents)
    assert len(callback.incidents) == made.get("num_optimizers", 1)
    assert one.global_step == num_steps  # a replay counts no step
    assert is_finite(module)


def test_the_incident_is_the_one_that_run_gives(tmp_path):
    callback = StayfiniteCallback()
    trainer(callback).fit(model(), batches())
    _, (other,) = under_run(lambda: trainer().fit(model(), batches()), tmp_path / "run")
    (mine,) = callback.incidents
    assert reported(mine) == reported(other)
    assert mine.diagnosis.cause == "domain_error"


def test_under_run_there_is_one_report(tmp_path, capfd):
    callback = StayfiniteCallback(run_dir=tmp_path / "own")
    call = trainer(callback).fit
    _, incidents = under_run(lambda: call(model(), batches()), tmp_path / "run", diagnose=False)
    assert callback.incidents == incidents
    assert len(incidents) == 1
    assert capfd.readouterr().err.count("the loss is nan") == 2  # the report, and run's summary
    assert not (tmp_path / "own").exists()


def test_a_healthy_training_is_as_without_it():
    plain, watched = model(), model()
    one, other = trainer(), trainer(StayfiniteCallback())
    one.fit(plain, batches(is_bad=False))
    other.fit(watched, batches(is_bad=False))
    assert all(
        torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in (plain, watched)))
    )
    assert other.fit_loop.state_dict() == one.fit_loop.state_dict()
    assert plain.seen == watched.seen


@pytest.mark.parametrize("is_manual", [False, True])
def test_hooks_counters_and_notes_are_as_if_nothing_was_replayed(is_manual):
    plain, watched = model(is_manual=is_manual), model(is_manual=is_manual)
    one, other = trainer(), trainer(StayfiniteCallback(settings={"diagnose": False}))
    one.fit(plain, batches())
    other.fit(watched, batches())
    assert other.fit_loop.state_dict() == one.fit_loop.state_dict()
    assert plain.seen == watched.seen


def test_the_nan_stays_visible_in_the_logger_with_the_incident_beside_it(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="one")
    callback = StayfiniteCallback(settings={"diagnose": False})
    trainer(callback, logger=logger).fit(model(), batches())
    with open(tmp_path / "one" / "metrics.csv", encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    losses = {int(r["step"]): float(r["loss"]) for r in rows if r["loss"]}
    assert [step for step, loss in losses.items() if math.isnan(loss)] == [6]
    assert sorted(losses) == list(range(10))
    assert [r["step"] for r in rows if r["stayfinite/incidents"]] == ["6"]


def test_a_corrupt_model_does_not_take_the_place_of_a_good_checkpoint(tmp_path, capfd):
    class Corrupting(L.Callback):
        def on_train_epoch_end(self, trainer, module):
            if trainer.current_epoch == 1:
                with torch.no_grad():
                    module.net[0].weight[0, 0] = math.nan

    saver = ModelCheckpoint(tmp_path, filename="{epoch}", save_on_train_epoch_end=True)
    callback = StayfiniteCallback(settings={"diagnose": False})
    one = trainer(callback, Corrupting(), saver, max_epochs=2, enable_checkpointing=True)
    one.fit(model(), batches(is_bad=False))
    # One checkpoint is kept: for the second, which was held back, the first must not go.
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch=0.ckpt", "epoch=1.nonfinite.ckpt"]
    kept = torch.load(tmp_path / "epoch=0.ckpt", weights_only=False)["state_dict"]
    assert all(bool(torch.isfinite(t).all()) for t in kept.values())
    assert callback.incidents[0].event.phase == "checkpoint"
    assert "epoch=0.ckpt was not deleted" in capfd.readouterr().err


def test_a_training_that_raises_is_explained_and_nothing_stays_open(capfd):
    callback = StayfiniteCallback(settings={"diagnose": False})
    with pytest.raises(ValueError, match="the loss is gone"):
        trainer(callback).fit(model(raises=True), batches())
    (incident,) = callback.incidents
    assert (incident.event.step, incident.location.line) == (6, LINE)
    assert table() == []


def test_the_policy_raise_ends_the_training():
    callback = StayfiniteCallback(policy="raise", settings={"diagnose": False})
    with pytest.raises(NonFiniteError) as caught:
        trainer(callback).fit(model(), batches())
    assert caught.value.incident.location.line == LINE
    assert callback.incidents[0].action.kind == "raised"


def test_nothing_of_ours_hangs_on_the_training():
    others = set(threading.enumerate())
    callback = StayfiniteCallback()
    inside = []

    class Looks(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 1:
                inside.append(pickle.dumps(trainer.optimizers[0].state_dict()))
                inside.append(copy.deepcopy(module.net))
                inside.append(pickle.loads(pickle.dumps(callback)))

    module = model()
    trainer(callback, Looks()).fit(module, batches())
    assert len(inside) == 3
    assert not inside[2]._session.is_open
    assert not module.net._forward_hooks and not module.net._backward_hooks
    mine = set(threading.enumerate()) - others
    assert [t for t in mine if "stayfinite" in t.name] == []


def test_one_callback_serves_several_fits():
    callback = StayfiniteCallback(settings={"diagnose": False})
    trainer(callback).fit(model(), batches())
    trainer(callback).fit(model(), batches())
    assert [i.event.step for i in callback.incidents] == [6, 6]


@pytest.mark.parametrize("is_early", [True, False])
def test_fabric_is_protected_from_the_line_on(is_early):
    fabric = L.Fabric(accelerator="cpu", devices=1)
    if is_early:
        protection = protect(fabric, settings={"diagnose": False})
    net = model().net
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    net, optimizer = fabric.setup(net, optimizer)
    loader = fabric.setup_dataloaders(batches())
    if not is_early:
        protection = protect(fabric, settings={"diagnose": False})
    with protection:
        for x, y in loader:
            optimizer.zero_grad()
            loss = (net(x).squeeze(-1) - torch.log(y)).pow(2).mean()  # FABRIC
            fabric.backward(loss)
            optimizer.step()
    (incident,) = protection.incidents
    assert (incident.event.step, incident.location.op) == (6, "aten.log")
    assert incident.location.line == line_of(__file__, "# FABRIC")
    assert is_finite(net)
