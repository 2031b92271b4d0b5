"""Where a value was born: the backward slice on small graphs, each with one right answer."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stayfinite.locate.modules import name_modules
from stayfinite.locate.slice import find_origin, to_location
from stayfinite.locate.trace import OpTrace, SourceRef

NAN, INF = math.nan, math.inf


def located(body, model=None, **batch):
    """Run `body(**batch)` traced; the location of what is bad in what it returns."""
    sources = [SourceRef("batch", name, t) for name, t in batch.items()]
    roots = {"": model} if model is not None else {}
    for root in roots.values():
        sources += [SourceRef("parameter", n, p) for n, p in root.named_parameters()]
        sources += [SourceRef("buffer", n, b) for n, b in root.named_buffers()]
    trace = OpTrace(sources, name_modules(roots))
    with trace:
        symptoms = body(**batch)
    trace.is_paused = True
    symptoms = symptoms if isinstance(symptoms, (list, tuple)) else [symptoms]
    origin = find_origin(trace, [s.detach() for s in symptoms])
    return to_location(origin) if origin is not None else None


def birth(location):
    (link,) = [c for c in location.chain if c.role == "birth"]
    return link


def roles(location):
    return [(c.op, c.role) for c in location.chain]


# -- plain births -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "op"),
    [
        (lambda x: torch.log(x - x), "aten.log"),
        (lambda x: torch.sqrt(-x), "aten.sqrt"),
        (lambda x: x / (x - x), "aten.div"),
        (lambda x: torch.exp(x * 1000), "aten.exp"),
        (lambda x: torch.reciprocal(x - x), "aten.reciprocal"),
        (lambda x: torch.acos(x * 3), "aten.acos"),
        (lambda x: x.pow(400.0), "aten.pow"),
        (lambda x: (x * 1e30) @ (x * 1e30).T, "aten.mm"),
        (lambda x: torch.empty(0).mean() + x, "aten.mean"),
        (lambda x: x[:1, :1].std(), "aten.std"),
        (lambda x: (x * 1e20).half(), "aten._to_copy"),
    ],
)
@pytest.mark.filterwarnings("ignore:std")
def test_the_operator_that_made_it(body, op):
    location = located(lambda x: body(x).sum(), x=torch.full((3, 3), 2.0))
    assert location.op == op
    assert location.file == __file__
    assert birth(location).inputs[0].stats.is_finite


def test_carriers_are_not_blamed():
    def body(x):
        a = torch.log(x - 2)
        b = a * 3 + 1
        c = b.reshape(-1).unsqueeze(0).expand(2, -1)
        return c.sum()

    location = located(body, x=torch.full((4,), 2.0))
    assert roles(location)[0] == ("aten.log", "birth")
    assert roles(location)[-1] == ("aten.sum", "symptom")
    assert all(role == "carrier" for _, role in roles(location)[1:-1])


def test_a_nan_born_of_an_inf_has_both_links():
    def body(x):
        huge = torch.exp(x * 1000)
        return (huge - huge).sum()

    location = located(body, x=torch.ones(2))
    assert location.op == "aten.exp", "who made the Inf is the origin"
    assert [op for op, _ in roles(location)][:2] == ["aten.exp", "aten.sub"]


def test_two_births_the_first_is_the_origin():
    def body(x):
        one = torch.log(-x)
        two = torch.sqrt(-x)
        return two.sum() + one.sum()

    location = located(body, x=torch.ones(2))
    assert location.op == "aten.log"


def test_a_birth_that_does_not_reach_the_symptom_is_not_blamed():
    def body(x):
        torch.log(x - x)  # thrown away
        return torch.sqrt(-x).sum()

    assert located(body, x=torch.ones(2)).op == "aten.sqrt"


def test_nothing_bad_has_no_origin():
    assert located(lambda x: x.sum(), x=torch.ones(2)) is None


# -- sentinels: infinities on purpose ------------------------------------------------------------


def masked(x, is_hidden):
    scores = x.masked_fill(is_hidden, -INF)
    return F.softmax(scores, -1)


def test_a_fully_masked_row_is_the_softmax_not_the_mask():
    hidden = torch.tensor([[True, False], [True, True]])
    location = located(lambda x, hidden: masked(x, hidden).sum(), x=torch.ones(2, 2), hidden=hidden)
    assert location.op == "aten._softmax"
    assert birth(location).facts["rows_all_neginf"] == 1
    assert ("aten.masked_fill", "sentinel") in roles(location)


def test_a_benign_mask_beside_a_real_fault():
    def body(x, hidden):
        weights = masked(x, hidden)
        return (weights * torch.log(x - x)).sum()

    location = located(
        body, x=torch.ones(2, 2), hidden=torch.tensor([[True, False], [False, True]])
    )
    assert location.op == "aten.log"


def test_a_benign_causal_mask_beside_a_nan_in_the_same_scores():
    def body(x):
        scores = torch.sqrt(-x) + torch.full((3, 3), -INF).triu(1)
        return F.softmax(scores, -1).sum()

    assert located(body, x=torch.ones(3, 3)).op == "aten.sqrt"


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.masked_fill(x > 0, -INF),
        lambda x: torch.where(x > 0, -INF, x),
        lambda x: x + torch.full_like(x, -INF),
        lambda x: x.clone().fill_(-INF),
        lambda x: x + torch.tensor(-INF),
        lambda x: F.pad(x, (0, 1), value=-INF)[:, 2:],
    ],
)
def test_any_way_to_write_a_mask_is_a_sentinel(make):
    location = located(lambda x: F.softmax(make(x), -1).sum(), x=torch.ones(2, 2))
    assert location.op == "aten._softmax"


def test_an_infinite_buffer_by_design_is_not_blamed():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.full((3, 3), -INF).triu(1))

        def forward(self, x):
            return F.softmax(torch.sqrt(x) + self.mask, -1)

    model = Attention()
    location = located(lambda x: model(x).sum(), model, x=-torch.ones(3, 3))
    assert location.op == "aten.sqrt"


class Biased(nn.Module):
    def __init__(self, kind, value):
        super().__init__()
        bias = torch.tensor([0.0, 0.0, value])
        if kind == "parameter":
            self.bias = nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias)

    def forward(self, x):
        return F.log_softmax(x + self.bias, -1)


@pytest.mark.parametrize(
    ("kind", "value"), [("parameter", INF), ("parameter", -INF), ("buffer", INF)]
)
def test_an_infinity_that_is_no_mask_is_the_origin_though_a_softmax_follows(kind, value):
    model = Biased(kind, value)
    location = located(lambda x: model(x).sum(), model, x=torch.zeros(2, 3))
    assert location.chain[0].label == f"{kind} bias"
    assert location.op is None and location.module == ""


def test_a_buffer_of_minus_infinity_that_a_softmax_takes_is_a_mask():
    """The masked class is the target: its use is to blame, not the mask."""
    model = Biased("buffer", -INF)
    target = torch.tensor([2, 0])
    location = located(lambda x: F.nll_loss(model(x), target), model, x=torch.zeros(2, 3))
    assert (location.op, location.chain[0].role) == ("aten.nll_loss_forward", "carrier")


def test_plus_infinity_in_the_batch_is_no_mask_either():
    scores = torch.tensor([[0.0, INF], [0.0, 1.0]])
    location = located(lambda x: F.softmax(x * 1.0, -1).sum(), x=scores)
    assert location.chain[0].label == "batch x"


def test_a_written_infinity_that_nothing_masks_is_reported_at_its_use():
    def body(x):
        return (x * INF).sum()

    location = located(body, x=torch.ones(2))
    assert location.source == "return (x * INF).sum()"
    assert ("aten.mul", "sentinel") in roles(location)


# -- sources -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_the_batch_is_the_source(value):
    x = torch.ones(2, 2)
    x[1, 0] = value

    def body(x):
        return (x * 2).sum()

    location = located(body, x=x)
    assert (location.op, location.module) == (None, None)
    assert location.chain[0].label == "batch x"
    assert location.chain[0].outputs[0].stats.first_bad == (1, 0)
    assert location.source == "return (x * 2).sum()"


def test_a_view_of_the_batch_is_still_the_batch():
    x = torch.ones(4, 2)
    x[3, 1] = NAN
    location = located(lambda x: x[2:].T.reshape(-1).exp().sum(), x=x)
    assert location.chain[0].label == "batch x"


def test_a_nan_in_the_batch_that_is_masked_before_use_is_not_the_origin():
    x = torch.tensor([1.0, NAN, -4.0])

    def body(x):
        known = torch.nan_to_num(x)
        return torch.sqrt(known).sum()

    assert located(body, x=x).op == "aten.sqrt"


def test_a_parameter_is_the_source():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with torch.no_grad():
        model[1].weight[0, 1] = NAN
    location = located(lambda x: model(x).sum(), model, x=torch.ones(3, 2))
    assert location.chain[0].label == "parameter 1.weight"
    assert location.module == "1"


# -- memory: in place, views, overwriting --------------------------------------------------------


def test_an_in_place_birth():
    def body(x):
        y = x.clone()
        y.log_()
        return y.sum()

    location = located(body, x=-torch.ones(2))
    assert location.op == "aten.log_"
    assert birth(location).inputs[0].stats.max == -1.0, "the values before they were overwritten"


def test_a_bad_write_into_a_slice_reaches_the_whole():
    def body(x):
        y = torch.zeros(4, 2)
        y[2:3].copy_(torch.log(x[:1] - x[:1]))
        return y.sum()

    assert located(body, x=torch.ones(1, 2)).op == "aten.log"


def test_a_bad_value_that_was_overwritten_is_not_blamed():
    def body(x):
        y = torch.log(x - x)
        y.copy_(x)
        return torch.sqrt(-y).sum()

    assert located(body, x=torch.ones(2)).op == "aten.sqrt"


def test_two_halves_of_one_memory_are_told_apart():
    def body(x):
        y = torch.zeros(2, 3)
        y[0] = torch.log(x - x)
        y[1] = torch.sqrt(-x)
        return y[1].sum()

    assert located(body, x=torch.ones(3)).op == "aten.sqrt"


def test_a_view_made_before_the_bad_write():
    def body(x):
        y = torch.ones(2, 2)
        flat = y.view(-1)
        y.div_(x - x)
        return flat.sum()

    assert located(body, x=torch.ones(2, 2)).op == "aten.div_"


def test_an_out_argument():
    def body(x):
        y = torch.empty(2)
        torch.log(x - x, out=y)
        return y.sum()

    assert located(body, x=torch.ones(2)).op == "aten.log"


def test_foreach_operators():
    def body(x):
        pair = [x.clone(), x.clone()]
        torch._foreach_div_(pair, [torch.ones(2), x - x])
        return pair[1].sum()

    assert located(body, x=torch.ones(2)).op == "aten._foreach_div_"


def test_uninitialized_memory_that_is_read():
    def body(x):
        memory = torch.empty(3)
        memory.view(torch.int32).fill_(0x7FC00000)  # what was lying there: a NaN
        return (memory + x).sum()

    location = located(body, x=torch.ones(3))
    assert location.op == "aten.empty"
    assert location.source == "memory = torch.empty(3)"


# -- backward ------------------------------------------------------------------------------------


def gradient_of(body, x):
    def both(x):
        leaf = x.clone().requires_grad_()
        body(leaf).backward()
        return leaf.grad

    return located(both, x=x)


def test_sqrt_at_zero():
    def body(x):
        return torch.sqrt(x).sum()

    location = gradient_of(body, torch.zeros(2))
    assert location.op == "SqrtBackward0"
    assert birth(location).direction == "backward"
    assert birth(location).kernel == "aten.div"
    assert location.source == "return torch.sqrt(x).sum()"


def test_where_that_hides_a_log_of_zero():
    """The forward's -inf was discarded; what brought it back is the incident."""

    def body(x):
        return torch.where(x > 0, torch.log(x), 0.0).sum()

    location = gradient_of(body, torch.tensor([1.0, 0.0]))
    assert location.op == "LogBackward0"
    assert location.source == "return torch.where(x > 0, torch.log(x), 0.0).sum()"


def test_norm_at_zero_through_a_masked_loss():
    def body(x):
        return (torch.sqrt(x * x) * 0).sum()

    location = gradient_of(body, torch.zeros(2))
    assert location.op == "SqrtBackward0"


def test_a_forward_birth_is_the_origin_of_a_bad_gradient():
    def body(x):
        return (torch.exp(x * 1000) * x).sum()

    assert gradient_of(body, torch.ones(1)).op == "aten.exp"


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad - grad)


def test_a_hand_written_backward():
    def body(x):
        y = Halved.apply(x)
        return y.sum()

    location = gradient_of(body, torch.ones(2))
    assert location.op == "HalvedBackward"
    assert location.source == "return grad / (grad - grad)"
    assert location.library_source == "y = Halved.apply(x)"


def test_a_gradient_hook():
    def body(x):
        y = x * 2
        y.register_hook(lambda g: g / (g - g))
        return y.sum()

    location = gradient_of(body, torch.ones(2))
    assert location.file == __file__
    assert birth(location).direction == "backward"


def test_the_module_of_a_backward_operator():
    class Root(nn.Module):
        def forward(self, x):
            return torch.sqrt(x)

    model = nn.Sequential(nn.Identity(), Root())

    def body(x):
        leaf = x.clone().requires_grad_()
        model(leaf).sum().backward()
        return leaf.grad

    location = located(body, model, x=torch.zeros(2))
    assert (location.op, location.module) == ("SqrtBackward0", "1")


# -- optimizers ----------------------------------------------------------------------------------


def test_a_birth_in_the_optimizer_has_that_direction_and_the_users_line():
    weight = nn.Parameter(torch.ones(2))

    def body(x):
        optimizer = torch.optim.Adam([weight], lr=0.1, eps=0.0, foreach=False)
        weight.grad = torch.zeros(2)
        trace.direction = "optimizer"
        optimizer.step()
        return weight

    trace = OpTrace([SourceRef("parameter", "w", weight)], {})
    with trace:
        symptom = body(None)
    trace.is_paused = True
    location = to_location(find_origin(trace, [symptom.detach()]))
    assert birth(location).direction == "optimizer"
    assert location.source == "optimizer.step()"
    assert location.op.startswith("aten.addcdiv")
    assert location.library_file.endswith("adam.py")


# -- modules -------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, is_bad):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.is_bad = is_bad

    def forward(self, x):
        x = self.fc(x)
        if self.is_bad:
            x = F.relu(x) / (x - x)
        return x


def test_module_paths_are_dotted_and_without_wrappers():
    model = nn.ModuleDict({"layers": nn.ModuleList([Block(False), Block(True)])})

    def body(x):
        for layer in model["layers"]:
            x = layer(x)
        return x.sum()

    location = located(body, model, x=torch.ones(1, 2))
    assert (location.op, location.module) == ("aten.div", "layers.1")
    assert birth(location).module_type == "Block"
    assert location.function == "forward"


def test_library_line_under_the_users_line():
    model = nn.LayerNorm(2)
    location = located(lambda x: model(torch.log(x)).sum(), model, x=-torch.ones(2, 2))
    assert location.op == "aten.log"
    assert location.module is None, "the logarithm was taken outside the model"
    location = located(lambda x: F.gaussian_nll_loss(x, x, x - x, eps=0.0), x=torch.ones(2))
    assert location.file == __file__
    assert location.library_file.endswith("functional.py")
    assert location.library_source


def test_a_module_that_raises_does_not_stay_on_the_stack():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("mine")

    model = nn.ModuleDict({"a": Broken(), "b": Block(True)})

    def body(x):
        with pytest.raises(RuntimeError):
            model["a"](x)
        return torch.log(x - x).sum()

    assert located(body, model, x=torch.ones(1, 2)).module is None


# -- length and cost -----------------------------------------------------------------------------


def test_a_chain_is_short_enough_to_read():
    def body(x):
        x = torch.log(x - x)
        for _ in range(1200):
            x = x + 1
        return x.sum()

    location = located(body, x=torch.ones(2))
    assert location.op == "aten.log"
    assert 2 <= len(location.chain) <= 12
    left_out = [link.num_left_out for link in location.chain]
    assert left_out[-3] > 0 and sum(left_out) == left_out[-3]  # and the text says how many
    assert location.chain[0].role == "birth"
    assert location.chain[-1].op == "aten.sum"


def test_the_trace_leaves_nothing_behind():
    before = torch.is_anomaly_enabled()
    with OpTrace([], {}):
        assert torch.is_anomaly_enabled()
    assert torch.is_anomaly_enabled() is before
    assert not nn.modules.module._global_forward_hooks
    with pytest.raises(KeyError), OpTrace([], {}):
        raise KeyError
    assert torch.is_anomaly_enabled() is before
    assert not nn.modules.module._global_forward_pre_hooks


def test_a_traced_step_computes_the_same_bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    x = torch.randn(8, 3)

    def grads(is_traced):
        torch.manual_seed(1)
        model.zero_grad()
        model[1].reset_running_stats()
        trace = OpTrace([], name_modules({"": model}))
        if is_traced:
            with trace:
                model(x).pow(2).mean().backward()
        else:
            model(x).pow(2).mean().backward()
        return [p.grad.clone() for p in model.parameters()] + [model[1].running_var.clone()]

    assert all(torch.equal(a, b) for a, b in zip(grads(False), grads(True)))
