"""The callback in the real transformers Trainer."""

import math

import pytest
import torch
from tests.integrations.watched import line_of, reported, under_run
from tests.launch import alone
from torch import nn

from stayfinite import NonFiniteError
from stayfinite.patches.manager import table

pytest.importorskip("transformers")
from transformers import Trainer, TrainerCallback, TrainingArguments

from stayfinite.integrations.transformers import StayfiniteCallback

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
LINE = line_of(__file__, "# HERE")


class Rates(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.seen = []

    def forward(self, x, labels):
        self.seen.append(len(x))
        loss = (self.net(x).squeeze(-1) - torch.log(labels)).pow(2).mean()  # HERE
        return {"loss": loss}


class Noting(Trainer):
    """Notes what its `compute_loss` computes, as the trainers of trl do."""

    noted: list

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.noted.append(loss.item())
        return loss


def samples(is_bad=True):
    torch.manual_seed(1)
    found = [{"x": torch.randn(4), "labels": torch.rand(()) + 0.5} for _ in range(40)]
    if is_bad:
        found[13]["labels"] = torch.tensor(-1.0)
    return found


def trainer(folder, *callbacks, is_bad=True, **options):
    torch.manual_seed(0)
    defaults = {
        "per_device_train_batch_size": 4, "max_steps": 10, "logging_steps": 1, "save_strategy": "no",
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2,
    }  # fmt: skip
    args = TrainingArguments(output_dir=str(folder), **{**defaults, **options})
    made = Noting(Rates(), args, train_dataset=samples(is_bad), callbacks=list(callbacks))
    made.noted = []
    return made


def bad_step(one):
    return next(i for i, loss in enumerate(one.noted) if math.isnan(loss))


def is_finite(model):
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "max_steps": 5}])
def test_one_callback_finds_the_line_and_leaves_the_step_out(tmp_path, options):
    callback = StayfiniteCallback(settings={"diagnose": False})
    one = trainer(tmp_path, callback, **options)
    one.train()
    (incident,) = callback.incidents
    assert (incident.location.op, incident.location.line) == ("aten.log", LINE)
    assert incident.event.step == bad_step(one)
    assert one.state.global_step == options.get("max_steps", 10)
    assert is_finite(one.model)
    assert len(one.noted) == len(one.model.seen) == 10  # what a replay noted is gone


def test_the_filter_of_the_logs_hides_nothing(tmp_path):
    callback = StayfiniteCallback(settings={"diagnose": False})
    one = trainer(tmp_path, callback, logging_nan_inf_filter=True)
    one.train()
    assert all(math.isfinite(row["loss"]) for row in one.state.log_history if "loss" in row)
    assert [i.event.symptom for i in callback.incidents] == ["loss"]


def test_the_incident_is_the_one_that_run_gives(tmp_path):
    callback = StayfiniteCallback()
    trainer(tmp_path / "a", callback).train()
    _, (other,) = under_run(trainer(tmp_path / "b").train, tmp_path / "run")
    (mine,) = callback.incidents
    assert reported(mine) == reported(other)
    assert mine.diagnosis.cause == "domain_error"


def test_under_run_there_is_one_report(tmp_path, capfd):
    callback = StayfiniteCallback()
    call = trainer(tmp_path / "a", callback).train
    _, incidents = under_run(call, tmp_path / "run", diagnose=False)
    assert callback.incidents == incidents
    assert capfd.readouterr().err.count("the loss is nan") == 2  # the report, and run's summary


def test_a_healthy_training_is_as_without_it(tmp_path):
    plain = trainer(tmp_path / "a", is_bad=False)
    watched = trainer(tmp_path / "b", StayfiniteCallback(), is_bad=False)
    plain.train()
    watched.train()
    assert torch.equal(plain.model.net.weight, watched.model.net.weight)
    assert plain.noted == watched.noted


def test_an_optimizer_of_ones_own_is_watched_too(tmp_path):
    callback = StayfiniteCallback(settings={"diagnose": False})
    one = trainer(tmp_path, callback)
    optimizer = torch.optim.SGD(one.model.parameters(), lr=0.1)
    one.optimizer = optimizer
    one.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    one.train()
    assert [i.location.line for i in callback.incidents] == [LINE]
    assert is_finite(one.model)


class Corrupting(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 4:
            with torch.no_grad():
                model.net.weight[0, 0] = math.nan


def test_a_corrupt_model_costs_no_good_checkpoint(tmp_path, capfd):
    callback = StayfiniteCallback(settings={"diagnose": False})
    options = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1, "max_steps": 4}
    one = trainer(tmp_path, callback, Corrupting(), is_bad=False, **options)
    one.train()
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.safetensors")}
    assert files == {"checkpoint-2/model.safetensors", "checkpoint-4/model.nonfinite.safetensors"}
    assert callback.incidents[0].event.phase == "checkpoint"
    assert "was not deleted" in capfd.readouterr().err


class Interrupting(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise KeyboardInterrupt


def test_an_interrupted_training_leaves_only_the_wrapper_of_train(tmp_path):
    """In an interpreter of its own: what frameworks keep of other tests' trainings is not counted."""
    call = f"from {__name__} import interrupt; interrupt({str(tmp_path)!r})"
    done = alone(["-W", "ignore", "-c", call], tmp_path)
    assert (done.code, done.out.splitlines()[-1:]) == (0, ["trained"]), done.err


def interrupt(folder):
    callback = StayfiniteCallback()
    one = trainer(folder, callback, Interrupting(), is_bad=False)
    with pytest.raises(KeyboardInterrupt):
        one.train()
    assert [r.name for r in table()] == ["train"]  # until the callback goes
    another = trainer(folder, is_bad=False)
    another.train()
    assert another.state.global_step == 10 and callback.incidents == []
    assert [r.name for r in table()] == ["train"]
    print("trained")


def test_the_policy_raise_ends_the_training(tmp_path):
    callback = StayfiniteCallback(policy="raise", settings={"diagnose": False})
    with pytest.raises(NonFiniteError) as caught:
        trainer(tmp_path, callback).train()
    assert caught.value.incident.location.line == LINE
