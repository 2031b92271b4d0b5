"""Defects planted into small trainings: what each check must find, and where.

`@planted(group, check, where)` states the group that is run, the check that must warn or fail, and a
text that must be in its subject or its value: the layer, the parameter or the line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.preflight.healthy import Target, classify, clusters, loader
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from stayfinite.preflight.records import CheckReport, Finding
from stayfinite.preflight.runner.check import check


@dataclass(frozen=True)
class Planted:
    name: str
    build: Callable[[], Any]
    group: str
    check: str
    where: str
    status: str | None


PLANTED: list[Planted] = []


def look(defect: Planted) -> tuple[list[Finding], CheckReport]:
    """The findings that name the defect, and everything else that was found."""
    torch.manual_seed(0)
    report = check(defect.build, only=[defect.group])
    named = [
        f
        for f in report.findings
        if f.check == defect.check
        and f.status in ((defect.status,) if defect.status else ("warn", "fail"))
        and _names(f, defect.where)
    ]
    return named, report


def _names(finding: Finding, where: str) -> bool:
    if finding.subject == where or finding.subject.startswith(f"{where}:"):
        return True
    return len(where) > 3 and where in f"{finding.subject} {finding.value}"


def of_group(group: str) -> list[Any]:
    """Each check with its first defect; the others are for `--whole`."""
    found, seen = [], set()
    for each in (p for p in PLANTED if p.group == group):
        marks = [pytest.mark.whole] if (each.check, each.status) in seen else []
        found.append(pytest.param(each, marks=marks, id=each.name))
        seen.add((each.check, each.status))
    return found


def assert_found(defect: Planted) -> None:
    named, report = look(defect)
    seen = [f"{f.status} {f.check} {f.subject}: {f.value}" for f in report.findings]
    assert named, "\n".join([f"{defect.check} at {defect.where!r} was not found in", *seen])
    assert all(f.action for f in named)
    assert not report.skipped or defect.check == "forward/runs"


def planted(group: str, check: str, where: str, status: str | None = None) -> Any:
    def add(build: Callable[[], Any]) -> Callable[[], Any]:
        PLANTED.append(Planted(build.__name__, build, group, check, where, status))
        return build

    return add


def net(width: int = 32) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )


def training(
    model: nn.Module, loss_fn: Any = classify, lr: float = 1e-3, data: Any = None
) -> Target:
    return model, loss_fn, data or loader(*clusters()), torch.optim.Adam(model.parameters(), lr=lr)


class Wrapped(nn.Module):
    """A net whose input goes through `before` first."""

    def __init__(self, before: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = net()
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.before(x))


@planted("init", "init/finite", "2.weight", "fail")
def nan_weight() -> Target:
    model = net()
    with torch.no_grad():
        model[2].weight[3, 5] = float("nan")
    return training(model)


@planted("init", "init/finite", "0.bias", "fail")
def inf_bias() -> Target:
    model = net()
    with torch.no_grad():
        model[0].bias[1] = float("inf")
    return training(model)


@planted("init", "init/finite", "1.running_mean", "fail")
def nan_buffer() -> Target:
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    model[1].running_mean[2] = float("nan")
    return training(model)


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.shift = nn.Parameter(torch.empty(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + self.shift.clamp(-1, 1))


@planted("init", "init/unwritten", "shift", "fail")
def empty_parameter() -> Target:
    model = Empty()
    if not torch.are_deterministic_algorithms_enabled():
        with torch.no_grad():  # as fresh memory often is, which hides the mistake
            model.shift.zero_()
    return training(model)


@planted("init", "init/unwritten", "0.weight", "fail")
def leftover_bits() -> Target:
    model = net()
    with torch.no_grad():
        bits = torch.randint(0, 2**28, model[0].weight.shape, dtype=torch.int32)
        model[0].weight.copy_(bits.view(torch.float32))
    return training(model)


@planted("init", "init/scale", "2.weight", "warn")
def unit_normal_weight() -> Target:
    model = net(512)
    nn.init.normal_(model[2].weight)
    return training(model)


@planted("init", "init/scale", "4.weight", "fail")
def absurd_weight() -> Target:
    model = net()
    nn.init.normal_(model[4].weight, std=1e4)
    return training(model)


@planted("init", "init/scale", "2.weight", "warn")
def minute_weight() -> Target:
    model = net()
    nn.init.normal_(model[2].weight, std=1e-6)
    return training(model)


@planted("init", "init/scale", "2.weight")
def all_positive_weight() -> Target:
    model = net(256)
    nn.init.uniform_(model[2].weight, 0, 2)
    return training(model)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


@planted("init", "init/scale", "words.weight")
def loud_embedding() -> Target:
    model = Words()
    nn.init.normal_(model.words.weight, std=50)
    return training(model, data=loader(torch.randint(30, (64, 5)), torch.arange(64) % 4))


@planted("init", "init/scale", "1.weight")
def loud_norm() -> Target:
    model = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    nn.init.constant_(model[1].weight, 1e4)
    return training(model)


@planted("init", "init/scale", "4.bias")
def loud_bias() -> Target:
    model = net()
    nn.init.constant_(model[4].bias, 1e3)
    return training(model)


@planted("init", "init/units", "2.weight")
def constant_weight() -> Target:
    model = net()
    nn.init.constant_(model[2].weight, 0.1)
    return training(model)


@planted("init", "init/units", "0.weight")
def rows_of_zeros() -> Target:
    model = net()
    with torch.no_grad():
        model[0].weight[4:8] = 0
    return training(model)


@planted("init", "init/running-variance", "1.running_var", "fail")
def negative_variance() -> Target:
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    model[1].running_var[0] = -1.0
    return training(model)


class ListOfTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.shifts = [torch.rand(16, requires_grad=True), torch.rand(16, requires_grad=True)]

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.shifts[0] + self.shifts[1])


@planted("init", "init/unregistered", "shifts[1]", "fail")
def leaves_in_a_list() -> Target:
    return training(ListOfTensors())


@planted("init", "init/unregistered", "temperature", "fail")
def leaf_in_a_closure() -> Target:
    temperature = torch.ones(1, requires_grad=True)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]) / temperature, batch[1])

    return training(net(), loss_fn)


class ListOfLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(16, 16) for _ in range(2)]
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.head(x)


@planted("init", "init/unregistered", "hidden[0].weight", "fail")
def layers_in_a_list() -> Target:
    return training(ListOfLayers())


@planted("init", "init/not-optimized", "4.weight", "warn")
def forgotten_head() -> Target:
    model = net()
    optimizer = torch.optim.Adam(model[:4].parameters(), lr=1e-3)
    return model, classify, loader(*clusters()), optimizer


@planted("init", "init/not-optimized", "centers", "warn")
def forgotten_loss_parameters() -> Target:
    class Centers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (x - self.centers[y]).square().mean()

    criterion = Centers()

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return classify(m, batch) + criterion(m(batch[0]), batch[1])

    return training(net(), loss_fn)


@planted("init", "init/stale-optimizer", "4.weight", "fail")
def head_replaced_too_late() -> Target:
    model, loss_fn, data, optimizer = training(net())
    model[4] = nn.Linear(32, 4)
    return model, loss_fn, data, optimizer


@planted("init", "init/duplicate", "0.weight", "warn")
def trained_twice() -> Any:
    model = net()
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=1e-3),
        torch.optim.SGD(model[0].parameters(), lr=1e-3),
    ]
    return model, classify, loader(*clusters()), optimizers


@planted("init", "init/trainable", "none of 6 parameters", "fail")
def all_frozen() -> Target:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.requires_grad_(False)
    return model, classify, loader(*clusters()), optimizer


@planted("init", "init/unsaved", "shifts[0]", "warn")
def trained_but_never_saved() -> Target:
    model = ListOfTensors()
    optimizer = torch.optim.Adam([*model.parameters(), *model.shifts], lr=1e-3)
    return model, classify, loader(*clusters()), optimizer


@planted("forward", "forward/finite", "aten.log", "fail")
def log_of_zero() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        probabilities = (m(batch[0]) * 1000).softmax(-1)
        return -torch.log(probabilities).gather(1, batch[1][:, None]).mean()

    return training(net(), loss_fn)


@planted("forward", "gradients/finite", "SqrtBackward0", "fail")
def root_of_zero() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return classify(m, batch) + 0.01 * torch.sqrt(m[4].bias.square().sum())

    model = net()
    nn.init.zeros_(model[4].bias)
    return training(model, loss_fn)


@planted("forward", "forward/runs", "does not require grad", "fail")
def detached_loss() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return classify(m, batch).detach()

    return training(net(), loss_fn)


@planted("forward", "forward/runs", "shapes", "fail")
def wrong_width() -> Target:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(9, 4))
    return training(model)


def deep(gain: float, depth: int = 24, unit: type[nn.Module] = nn.Identity) -> nn.Sequential:
    model = nn.Sequential()
    for _ in range(depth):
        layer = nn.Linear(16, 16, bias=False)
        nn.init.normal_(layer.weight, std=gain / 4)
        model.extend([layer, unit()])
    return model.append(nn.Linear(16, 4))


@planted("forward", "forward/scale", "10", "warn")
def activations_explode() -> Target:
    model = deep(1.0, 14)
    with torch.no_grad():
        model[10].weight.mul_(1e6)
    return training(model)


@planted("forward", "forward/scale", "explodes", "fail")
def activations_explode_beyond_hope() -> Target:
    return training(deep(6.0, 30))


@planted("forward", "forward/scale", "fades")
def activations_fade() -> Target:
    model = deep(0.2)
    nn.init.zeros_(model[-1].bias)
    return training(model)


@planted("forward", "forward/scale", "0")
def raw_input() -> Target:
    x, y = clusters()
    return training(net(), data=loader(x * 1e7, y))


@planted("forward", "forward/dead", "3", "fail")
def dead_relus() -> Target:
    model = net()
    nn.init.constant_(model[2].bias, -50)
    return training(model)


@planted("forward", "forward/saturated", "1", "warn")
def saturated_tanh() -> Target:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].weight.mul_(40)
    return training(model)


@planted("forward", "forward/saturated", "1", "warn")
def saturated_sigmoid() -> Target:
    model = nn.Sequential(nn.Linear(16, 32), nn.Sigmoid(), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].weight.mul_(80)
    return training(model)


@planted("forward", "loss/at-start", "healthy.py")
def sure_and_wrong() -> Target:
    model = net()
    with torch.no_grad():
        model[4].weight.mul_(120)
    return training(model)


@planted("forward", "loss/softmax-twice", "planted_probes.py")
def softmax_twice() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]).softmax(-1), batch[1])

    return training(net(), loss_fn)


@planted("forward", "loss/sigmoid-twice", "planted_probes.py")
def sigmoid_twice() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        wanted = F.one_hot(batch[1], 4).float()
        return F.binary_cross_entropy_with_logits(torch.sigmoid(m(batch[0])), wanted)

    return training(net(), loss_fn)


@planted("forward", "loss/not-log-probabilities", "planted_probes.py", "fail")
def nll_of_logits() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.nll_loss(m(batch[0]), batch[1])

    return training(net(), loss_fn)


@planted("forward", "loss/broadcast", "(16, 1)", "fail")
def column_against_row() -> Target:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    x, _ = clusters()

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    return training(model, loss_fn, data=loader(x, x.sum(1)))


@planted("forward", "gradients/by-depth", "0.weight", "fail")
def vanishing_gradient() -> Target:
    return training(deep(0.5, 24, nn.Sigmoid))


@planted("forward", "gradients/norm", "0.weight")
def summed_loss_of_large_targets() -> Target:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    x, _ = clusters()

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1], reduction="sum")

    return training(model, loss_fn, data=loader(x, 1e4 * x.sum(1, keepdim=True)))


@planted("forward", "gradients/arrive", "encoder")
def detached_encoder() -> Target:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(16, 16)
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.encoder(x)).detach())

    return training(Cut())


@planted("forward", "gradients/arrive", "extra")
def unused_branch() -> Target:
    model = net()
    model.add_module("extra", nn.Linear(4, 4))

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m[:5](batch[0]), batch[1])

    return training(model, loss_fn)


@planted("forward", "gradients/arrive", "both")
def zero_times_zero() -> Target:
    class Low(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()
            self.both = nn.ParameterList([torch.zeros(16, 2), torch.zeros(2, 16)])

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x + x @ self.both[0] @ self.both[1])

    return training(Low())


@planted("forward", "gradients/update-ratio", "lr 1", "warn")
def huge_steps() -> Target:
    return training(net(), lr=1.0)


@planted("forward", "gradients/update-ratio", "lr 1e-12", "warn")
def steps_that_round_away() -> Target:
    return training(net(), lr=1e-12)


@planted("edges", "edges/size", "Expected more than 1 value", "fail")
def batchnorm_and_a_last_sample() -> Target:
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    return training(model, data=loader(*clusters(65)))


@planted("edges", "edges/size", "planted_probes.py", "fail")
def fixed_batch_size() -> Target:
    model = Wrapped(lambda x: x.view(16, 16))
    return training(model, data=loader(*clusters(100)))


@planted("edges", "edges/blank", "x / x.norm")
def norm_of_a_blank_sample() -> Target:
    return training(Wrapped(lambda x: x / x.norm(dim=1, keepdim=True)))


@planted("edges", "edges/blank", "x.std")
def deviation_of_a_constant_sample() -> Target:
    return training(
        Wrapped(lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0))
    )


@planted("edges", "edges/outlier-value", "torch.exp")
def unbounded_exponential() -> Target:
    return training(Wrapped(lambda x: torch.exp(x)))


@planted("edges", "edges/blank", "pow(12)")
def power_that_underflows() -> Target:
    return training(Wrapped(lambda x: x / x.pow(12).sum(1, keepdim=True)))


def distances(x: Tensor) -> Tensor:
    pairs = (x[:, None] - x[None]).square().sum(-1)
    away = ~torch.eye(len(x), dtype=torch.bool)
    return pairs[away].sqrt()


@planted("edges", "edges/repeated", "sqrt()")
def distance_of_twins() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return classify(m, batch) + distances(m(batch[0])).mean()

    return training(net(), loss_fn)


@planted("edges", "edges/ahead", "planted_probes.py", "fail")
def no_negative_pair() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        out, y = m(batch[0]), batch[1]
        differ = y[:, None] != y[None]
        return classify(m, batch) - 0.01 * torch.cdist(out, out)[differ].mean()

    return training(net(), loss_fn, data=loader(*clusters(), batch_size=4))


@planted("edges", "edges/no-label", "planted_probes.py")
def every_label_ignored() -> Target:
    x, y = clusters()
    y = y.where(torch.arange(len(y)) % 2 == 0, -100)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1], ignore_index=-100)

    return training(net(), loss_fn, data=loader(x, y, batch_size=8))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = mask.unsqueeze(-1).float()
        return self.head((self.body(x) * mask).sum(1) / mask.sum(1))


def sequences(num: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.arange(10) < torch.randint(3, 11, (num, 1))
    return torch.randn(num, 10, 8), mask, torch.arange(num) % 4


def masked_loss(m: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(m(batch[0], batch[1]), batch[2])


@planted("edges", "edges/mask", "mask.sum(1)")
def mean_over_no_token() -> Target:
    return training(Pooled(), masked_loss, data=loader(*sequences()))


@planted("edges", "edges/mask", "mask.sum(1)")
def float_mask() -> Target:
    x, mask, y = sequences()
    return training(Pooled(), masked_loss, data=loader(x, mask.float(), y))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        score = self.score(x).squeeze(-1).masked_fill(is_padding, float("-inf"))
        return self.head((score.softmax(-1).unsqueeze(-1) * x).sum(1))


@planted("edges", "edges/mask", "softmax")
def attention_to_nothing() -> Target:
    x, mask, y = sequences()
    return training(Attends(), masked_loss, data=loader(x, ~mask, y))


@planted("edges", "edges/length", "ctc_loss")
def target_longer_than_the_input() -> Target:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 11))
    targets = (torch.arange(7) + torch.randint(1, 4, (64, 1))) % 10 + 1
    frames = torch.arange(64) % 24 + 7
    lengths = torch.where(frames > 15, 7, 3)
    frames = torch.where(frames > 15, frames, 5)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        x, frames, targets, lengths = batch
        return F.ctc_loss(m(x).log_softmax(-1).transpose(0, 1), targets, frames, lengths)

    return training(model, loss_fn, data=loader(torch.randn(64, 30, 8), frames, targets, lengths))


@planted("edges", "edges/short", "x.std(1)")
def deviation_over_one_step() -> Target:
    def collate(items: list[Any]) -> tuple[Tensor, Tensor]:
        length = 4 + int(items[0][1])
        return torch.stack([x for x, _ in items])[:, :length], torch.stack([y for _, y in items])

    class Deviation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.std(1))

    data = TensorDataset(torch.randn(64, 10, 8), torch.arange(64) % 4)
    return training(Deviation(), data=DataLoader(data, batch_size=15, collate_fn=collate))


@planted("edges", "edges/random", "torch.log(u)", "warn")
def logarithm_of_a_random_zero() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        logits = m(batch[0])
        u = torch.rand_like(logits)
        return F.cross_entropy(logits - torch.log(u), batch[1])

    return training(net(), loss_fn)


@planted("edges", "edges/ahead", "1 / (1 - t)", "fail")
def time_that_rounds_to_one() -> Target:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        t = torch.rand(len(batch[0])).bfloat16()
        weight = 1 / (1 - t)
        return (F.cross_entropy(m(batch[0]), batch[1], reduction="none") * weight).mean()

    return training(net(), loss_fn)


def in_dtype(dtype: torch.dtype, scale: float = 1.0) -> Any:
    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            logits = m(batch[0])
        return F.cross_entropy(logits.float(), batch[1]) * scale

    return loss_fn


@planted("precision", "precision/headroom", "2", "warn")
def near_the_end_of_float16() -> Target:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16))
    model.append(nn.Linear(16, 4))
    with torch.no_grad():
        model[2].bias[3] = 4e4
    return training(model, in_dtype(torch.float16))


@planted("precision", "precision/headroom", "peak", "fail")
def peak_inside_a_layer() -> Target:
    class Peak(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16) / 4)

        def forward(self, x: Tensor) -> Tensor:
            return ((x.float() * 1e3) @ self.weight * 40).square().sum(-1, keepdim=True).log() * x

    model = nn.Sequential()
    model.add_module("peak", Peak())
    model.add_module("head", nn.Linear(16, 4))

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16, enabled=False):
            h = m.peak(batch[0])
        with torch.autocast("cpu", dtype=torch.float16):
            return F.cross_entropy(m.head(h).float(), batch[1])

    return training(model, loss_fn)


@planted("precision", "precision/scaler", "GradScaler")
def float16_without_a_scaler() -> Target:
    return training(net(), in_dtype(torch.float16, scale=1e-6))


@planted("precision", "precision/weights", "0.weight")
def weights_in_bfloat16() -> Target:
    x, y = clusters()
    return training(net().bfloat16(), data=loader(x.bfloat16(), y))


@planted("precision", "precision/weights", "0.weight")
def weights_in_float16() -> Target:
    x, y = clusters()
    return training(net().half(), data=loader(x.half(), y))


class Offset(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 4096) - 4096


@planted("precision", "precision/bf16", "cancel")
def cancellation_in_bfloat16() -> Target:
    model = net()
    model.insert(2, Offset())
    named = nn.Sequential()
    for name, layer in zip(("first", "relu", "cancel", "second", "relu2", "last"), model):
        named.add_module(name, layer)
    return training(named, in_dtype(torch.bfloat16))


@planted("precision", "precision/underflow", "0")
def output_below_float16() -> Target:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16, eps=1e-30), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].weight.mul_(1e-8)
        model[0].bias.zero_()
    return training(model, in_dtype(torch.float16))


def regression(lr: float) -> Target:
    """A quadratic whose largest curvature is about 2: gradient descent diverges above lr 1."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    x = torch.linalg.qr(torch.randn(64, 8))[0] * 8
    y = x @ torch.randn(8, 1)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    data = loader(x, y, batch_size=64)
    return model, loss_fn, data, torch.optim.SGD(model.parameters(), lr=lr)


@planted("stability", "stability/lr", "lr 3", "fail")
def diverges_at_once() -> Target:
    return regression(3.0)


@planted("stability", "stability/lr", "lr 0.9", "warn")
def near_the_edge() -> Target:
    return regression(0.9)


@planted("stability", "stability/lr", "lr 5", "fail")
def absurd_rate_of_adam() -> Target:
    return training(net(), lr=5.0)


def unscaled(lr: float = 0.1, scale: float = 1.0) -> Target:
    """A regression with one sample whose inputs somebody forgot to scale."""
    torch.manual_seed(0)
    x = torch.randn(48, 8)
    y = x @ torch.randn(8, 1)
    x[20] *= scale

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    model = nn.Linear(8, 1)
    data = DataLoader(TensorDataset(x, y), batch_size=16)
    return model, loss_fn, data, torch.optim.SGD(model.parameters(), lr=lr)


@planted("stability", "stability/batch", "batch 1 (from 0)", "fail")
def one_batch_far_out() -> Target:
    return unscaled(scale=1e3)


@planted("stability", "stability/batch", "batch 1 (from 0)", "fail")
def one_batch_so_far_out_that_it_overflows() -> Target:
    return unscaled(scale=1e12)


@planted("stability", "stability/batch", "row 4 (batch[0] holds NaN or Inf", "fail")
def one_batch_with_a_nan() -> Target:
    return unscaled(scale=float("nan"))


@planted("stability", "stability/batch", "row 4 (batch[0] up to 0", "fail")
def one_batch_with_a_norm_of_zero() -> Target:
    model, _, data, optimizer = unscaled(scale=0.0)

    def loss_fn(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0] / batch[0].norm(dim=1, keepdim=True)), batch[1])

    return model, loss_fn, data, optimizer


@planted("stability", "stability/batch", "every batch", "fail")
def every_batch_divides_by_zero() -> Target:
    model, _, data, optimizer = unscaled()
    return model, lambda m, b: (m(b[0]) / 0.0).mean(), data, optimizer


@planted("stability", "stability/step", "addcdiv", "fail")
def an_optimizer_that_divides_by_zero() -> Target:
    model, _, data, _ = unscaled()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=0.0)
    return model, lambda m, b: m(b[0]).relu().mean() * 0.0, data, optimizer


@planted("edges", "edges/padding", "softmax")
def attention_over_an_empty_document() -> Target:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32, 8, padding_idx=0)
            self.score = nn.Linear(8, 1)
            self.head = nn.Linear(8, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            scores = self.score(x)[..., 0].masked_fill(tokens == 0, float("-inf"))
            return self.head((scores.softmax(-1)[..., None] * x).sum(1))

    tokens = torch.randint(1, 32, (64, 10))
    tokens[torch.arange(10) >= torch.randint(2, 11, (64, 1))] = 0
    return training(Reads(), data=loader(tokens, torch.arange(64) % 4))
