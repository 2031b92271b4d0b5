"""A probe measures one step and leaves no trace of it."""

import copy
import math

import pytest
import torch
from tests.preflight.healthy import TARGETS
from torch import nn
from torch.nn import functional as F

from stayfinite.errors import UsageError
from stayfinite.preflight.probes import Probe, Seen, Subject
from stayfinite.preflight.records import GROUPS, CheckReport, Finding, failed, passed, warned
from stayfinite.preflight.runner.build import BuildRunner
from stayfinite.preflight.runner.check import check
from stayfinite.preflight.runner.groups import Book, conduct, drive
from stayfinite.preflight.target import Built, understand


def runner_of(build):
    built = understand(build(), "t")
    runner = BuildRunner(built, "t")
    return built, runner, runner.prepare()


def state_of(built):
    tensors = [t.detach().clone() for t in (*built.model.parameters(), *built.model.buffers())]
    moments = copy.deepcopy([o.state_dict() for o in built.optimizers])
    scheduler = built.scheduler.state_dict() if built.scheduler is not None else None
    scale = built.scaler.state_dict() if built.scaler is not None else None
    return tensors, moments, scheduler, scale


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a[0], b[0])) and str(a[1:]) == str(b[1:])


def amp_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(m, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(m(batch[0]), batch[1])

    batches = [(torch.randn(6, 4), torch.arange(6) % 2) for _ in range(4)]
    return {"model": model, "loss_fn": loss, "loader": batches, "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
            "scaler": torch.amp.GradScaler("cpu"), "clip_norm": 1.0}  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [{}, {"apply": True}, {"watch": True}, {"trace": True}, {"precision": "fp32"}, {"scale": 8.0},
     {"precision": "fp16", "watch": True}, {"precision": "bf16"}, {"apply": True, "lr_factor": 10.0}],
    ids=str,
)  # fmt: skip
def test_a_probe_leaves_everything_as_it_was(more):
    built, runner, subject = runner_of(amp_training)
    before, rng = state_of(built), torch.get_rng_state()
    seen = runner.run(Probe(subject.batches[0], "p", **more))
    assert seen.error is None
    assert seen.is_finite
    assert math.isfinite(seen.loss) and seen.grad_norm > 0
    assert same(before, state_of(built))
    assert all(p.grad is None for p in built.model.parameters())
    assert torch.equal(rng, torch.get_rng_state())
    assert not torch.is_autocast_enabled("cpu")
    assert seen.loss == pytest.approx(runner.run(Probe(subject.batches[0], "q", **more)).loss)


def test_a_chain_of_kept_steps_is_real_training_and_then_undone():
    built, runner, subject = runner_of(TARGETS["mlp"])
    before = state_of(built)
    losses = [runner.run(Probe(b, "s", apply=True, keep=True)).loss for b in subject.batches]
    assert losses == pytest.approx([s.loss for s in subject.steps])
    assert not same(before, state_of(built))
    last = runner.run(Probe(subject.batches[0], "last"))
    assert last.loss < losses[0]  # it went on from where the chain had come
    assert same(before, state_of(built))


def test_an_error_is_reported_with_its_line_and_ends_the_chain():
    def build():
        model = nn.Linear(3, 2)

        def loss(m, batch):
            return m(batch).sum() / len(batch)

        return model, loss, [torch.ones(2, 3)], torch.optim.SGD(model.parameters(), lr=0.1)

    built, runner, subject = runner_of(build)
    before = state_of(built)
    runner.run(Probe(subject.batches[0], "a", apply=True, keep=True))
    seen = runner.run(Probe(torch.ones(2, 7), "b", keep=True))
    assert seen.error.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert "test_runner.py" in seen.error_at and "return m(batch).sum()" in seen.error_at
    assert same(before, state_of(built))


def test_a_bad_value_is_traced_to_its_line():
    def build():
        model = nn.Linear(3, 1)

        def loss(m, batch):
            return torch.log(m(batch).abs().sum() * batch.sum())

        return model, loss, [torch.ones(2, 3)], torch.optim.SGD(model.parameters(), lr=0.1)

    _, runner, _ = runner_of(build)
    seen = runner.run(Probe(torch.zeros(2, 3), "zero", trace=True))
    assert not seen.is_finite
    assert seen.location.op == "aten.log"
    assert "torch.log(" in seen.location.source


def test_watch_measures_every_layer_and_gradients_without_the_scale():
    _, runner, subject = runner_of(TARGETS["mlp"])
    plain = runner.run(Probe(subject.batches[0], "p", watch=True))
    assert [s.module for s in plain.layers] == ["0", "1", "2", "3", "4", ""]
    first = plain.layers[0]
    assert (first.kind, first.shape, first.num_calls) == ("Linear", (16, 32), 1)
    assert first.peak_op == "aten.addmm" and first.peak == pytest.approx(first.abs_max)
    assert set(plain.param_grads) == {f"{i}.{n}" for i in (0, 2, 4) for n in ("weight", "bias")}
    scaled = runner.run(Probe(subject.batches[0], "p", watch=True, scale=1024.0))
    assert scaled.grad_norm == pytest.approx(plain.grad_norm, rel=1e-4)
    assert scaled.layers[0].grad_norm == pytest.approx(plain.layers[0].grad_norm, rel=1e-4)
    assert plain.loss_ops[:2] == ("NllLossBackward0", "LogSoftmaxBackward0")


def test_updates_are_measured_at_the_rate_that_was_asked_for():
    _, runner, subject = runner_of(TARGETS["cnn_batchnorm"])
    once = runner.run(Probe(subject.batches[0], "p", apply=True)).updates
    tenfold = runner.run(Probe(subject.batches[0], "p", apply=True, lr_factor=10.0)).updates
    assert tenfold["0.weight"] == pytest.approx(10 * once["0.weight"], rel=1e-3)


def test_half_precision_is_half_precision():
    _, runner, subject = runner_of(TARGETS["cnn_batchnorm"])
    dtypes = {
        p: {s.module: s.dtype for s in runner.run(Probe(subject.batches[0], p, precision=p, watch=True)).layers}
        for p in ("fp32", "bf16", "fp16")
    }  # fmt: skip
    assert (dtypes["fp32"]["0"], dtypes["bf16"]["0"], dtypes["fp16"]["0"]) == (
        "float32", "bfloat16", "float16",
    )  # fmt: skip
    huge = runner.run(
        Probe((subject.batches[0][0] * 1e6, subject.batches[0][1]), "h", precision="fp16")
    )
    assert not huge.is_finite  # 65504 is the limit, quick products or not


def test_lazy_layers_are_sized_before_the_state_is_kept():
    def build():
        model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        return model, lambda m, b: m(b).square().mean(), [torch.ones(3, 5)], optimizer

    built, runner, subject = runner_of(build)
    before = state_of(built)
    assert runner.run(Probe(subject.batches[0], "p", apply=True)).error is None
    assert same(before, state_of(built))


def test_a_loss_that_is_no_loss_is_a_finding():
    def build():
        model = nn.Linear(2, 2)
        return (
            model,
            lambda m, b: m(b),
            [torch.ones(3, 2)],
            torch.optim.SGD(model.parameters(), lr=1),
        )

    report = check(build, only=["forward", "init"])
    (runs,) = [f for f in report.findings if f.check == "forward/runs"]
    assert (
        "loss_fn must return a tensor with one number, got a tensor of shape (3, 2)" in runs.value
    )
    assert report.exit_code == 1


def asking(subject):
    first = yield Probe(None, "one")
    second = yield Probe(None, "two")
    return [passed("init", "init/x", f"{first.loss} {second.loss}")]


def stopping(subject):
    yield Probe(None, "one")
    raise ZeroDivisionError("oops")


def test_answers_that_are_known_are_not_asked_again():
    class Known(Book):
        def answer(self, group, index):
            return Seen("old", loss=7.0) if index == 0 else None

    asked = []
    book = Known()

    def run(probe):
        asked.append(probe.name)
        return Seen(probe.name, loss=1.0)

    drive(conduct(Subject(models={}), {"init": asking}, book), run)
    assert asked == ["two"]
    assert book.findings[0].value == "7.0 1.0"


def test_a_chain_that_an_earlier_start_began_is_run_again_from_its_start():
    class Known(Book):
        def answer(self, group, index):
            return Seen("known", loss=1.0) if index < 3 else None

    def group(subject):
        yield Probe(batch=0, name="alone")
        for name in ("a", "b", "c"):
            yield Probe(batch=0, name=name, keep=name != "c")
        return [passed("init", "init/x")]

    asked = []

    def run(probe):
        asked.append((probe.name, probe.fresh))
        return Seen(probe.name, loss=1.0)

    drive(conduct(Subject(models={}), {"init": group}, Known()), run)
    assert asked == [("a", True), ("b", False), ("c", False)]


def test_a_group_that_stops_is_left_out_with_its_reason_and_the_others_go_on():
    book = Book()
    groups = {"edges": stopping, "init": asking}
    drive(conduct(Subject(models={}), groups, book), lambda p: Seen(p.name, loss=1.0))
    assert book.skipped[0].reason.startswith(
        "it stopped with ZeroDivisionError: oops (test_runner.py:"
    )
    assert [f.group for f in book.findings] == ["init"]


def test_verdict_and_what_comes_first():
    light = warned("config", "config/lr", "0.1", "lower it")
    heavy = failed("data", "data/finite", "NaN", "fill it", subject="sample 3", weight=9)
    small = failed("init", "init/x", "y", "do it", weight=2)
    again = failed("data", "data/range", "1e30", "fill it", subject="sample 3", weight=1)
    report = CheckReport(target="t", findings=(light, small, again, heavy))
    assert [f.check for f in report.first_things(9)] == ["data/finite", "init/x", "config/lr"]
    assert (report.verdict, report.exit_code) == ("do not start", 1)
    assert CheckReport(target="t", findings=(light,)).verdict == "look first"
    assert CheckReport(target="t", findings=(light,)).exit_code == 0
    assert CheckReport.from_json(report.to_json()) == report


def test_records_refuse_what_they_cannot_mean():
    with pytest.raises(UsageError, match="`group` must be one of environment, config"):
        Finding(group="x", check="x", status="pass")
    with pytest.raises(UsageError, match="`status` must be one of pass, warn, fail, skip"):
        Finding(group="init", check="x", status="bad")
    with pytest.raises(UsageError, match="`init/x` is a warn and must say what to do"):
        Finding(group="init", check="init/x", status="warn")
    with pytest.raises(UsageError, match="not a check report: expected an object with kind"):
        CheckReport.from_json("{}")
    assert isinstance(
        understand(Built(nn.Linear(1, 1), len, [], [torch.optim.SGD([torch.zeros(1)], lr=1)])),
        Built,
    )


@pytest.mark.slow
def test_every_group_of_checks_runs_on_a_healthy_transformer():
    """How long it takes for six layers: python -m benchmarks.preflight."""
    from benchmarks.models import transformer

    def build():
        w = transformer(width=64, num_layers=2)
        return w.model, w.loss_fn, w.batches, w.optimizer()

    shown = []
    report = check(build, progress=lambda group, what: shown.append(group))
    assert report.count("fail") == 0 and report.count("warn") <= 1
    assert list(dict.fromkeys(shown)) == list(GROUPS)


class Annealed(nn.Module):
    """Keeps its own counts in every way that a training's code has."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("temperature", torch.tensor(1.0))
        self.num_calls = 0
        self.history = []

    def forward(self, x):
        self.temperature = self.temperature - 0.125  # another tensor in its place
        self.num_calls += 1
        self.history.append(self.num_calls)
        return self.linear(x) / self.temperature


def annealed_training():
    torch.manual_seed(0)
    model = Annealed()
    counts = {"steps": 0}
    queue = torch.zeros(3)
    beta = 1.0

    def loss(m, batch):
        nonlocal beta
        counts["steps"] += 1
        queue[counts["steps"] % 3] += 1
        beta *= 0.5
        return F.cross_entropy(m(batch[0]), batch[1]) * (1 + beta)

    batches = [(torch.randn(6, 4), torch.arange(6) % 2) for _ in range(4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    built = {"model": model, "loss_fn": loss, "loader": batches, "optimizer": optimizer}
    return built, lambda: (
        model.num_calls, list(model.history), float(model.temperature), counts["steps"], queue.tolist(), beta
    )  # fmt: skip


def test_what_a_training_counts_in_python_is_put_back_with_its_tensors():
    built, counted = annealed_training()
    before = counted()
    buffer = built["model"].temperature
    runner = BuildRunner(understand(built, "t"), "t")
    subject = runner.prepare()
    for _ in range(3):
        runner.run(Probe(subject.batches[0], "once", apply=True))
    assert counted() == before and built["model"].temperature is buffer


def test_schedule_that_a_model_keeps_by_itself_breaks_at_its_own_step():
    built, _ = annealed_training()
    found = check(lambda: built, only=["edges"]).findings
    (ahead,) = (f for f in found if f.check == "edges/ahead")
    assert ahead.status == "fail" and "step 7 " in ahead.value
    assert ahead.location.source == "return self.linear(x) / self.temperature"
