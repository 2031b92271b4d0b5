"""The init group: planted defects by name, and look-alikes that must stay silent."""

import pytest
import torch
from tests.preflight.planted_probes import assert_found, of_group
from torch import nn

from stayfinite.preflight.init.group import _marked_memory, init
from stayfinite.preflight.layers import roles
from stayfinite.preflight.layers_leaves import reachable_leaves, user_variables
from stayfinite.preflight.probes import Subject


@pytest.mark.slow
@pytest.mark.parametrize("defect", of_group("init"))
def test_planted_defect_is_named(defect):
    assert_found(defect)


def findings(model, **more):
    """What init says of a model without any step."""
    checks = init(Subject(models={"": model}, **more))
    try:
        next(checks)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a probe was asked for without a batch")


def problems(model, **more):
    return [(f.check, f.subject) for f in findings(model, **more) if f.is_problem]


def test_infinite_mask_in_a_buffer_is_no_problem():
    model = nn.Linear(4, 4)
    model.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
    assert problems(model) == []


def test_weights_of_zero_are_gates():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    nn.init.zeros_(model[1].weight)
    assert problems(model) == []


def test_padding_row_of_an_embedding_and_layer_scale_are_no_problem():
    model = nn.Module()
    model.words = nn.Embedding(10, 4, padding_idx=0)
    model.gamma = nn.Parameter(torch.full((4,), 1e-6))
    assert problems(model) == []


def test_meta_parameter_is_named():
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    assert ("init/finite", "weight") in problems(model)


def test_rebuilding_leaves_torch_as_it_was():
    before = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    with _marked_memory():
        assert torch.empty(3).isnan().all()
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.are_deterministic_algorithms_enabled() == before[1]


def test_target_that_builds_only_once_is_judged_by_its_values():
    def rebuild():
        raise RuntimeError("the port is taken")

    found = findings(nn.Linear(4, 4), rebuild=rebuild)
    assert [f.value for f in found if f.check == "init/unwritten"] == [
        "no parameter looks like unwritten memory"
    ]


def test_many_findings_of_one_check_are_cut_short():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(9)])
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(float("nan"))
    found = [f for f in findings(model) if f.check == "init/finite"]
    assert len(found) == 5
    assert found[-1].value.endswith("(and 4 more like it)")


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (nn.Linear(6, 3), 6),
        (nn.Conv2d(4, 8, 3), 36),
        (nn.Conv2d(4, 8, 3, groups=2), 18),
        (nn.ConvTranspose2d(4, 8, 2, stride=2), 4),
        (nn.LSTM(5, 7), 5),
    ],
)
def test_fan_in(layer, fan_in):
    first = next(r for r in roles(Subject(models={"": layer})) if r.kind == "matrix")
    assert first.fan_in == fan_in


def test_leaves_are_found_in_every_corner():
    leaf = torch.rand(1, requires_grad=True)

    class Holder:
        def __init__(self):
            self.parts = {"a": (leaf,)}

        def loss(self, model, batch):
            return leaf

    holder = Holder()
    assert list(reachable_leaves({"loss_fn": holder.loss})) == ["loss_fn: self.parts['a'][0]"]
    assert list(reachable_leaves({"f": lambda: leaf})) == ["f: leaf"]
    assert reachable_leaves({"x": torch.rand(1), "n": None, "s": "text"}) == {}
    assert user_variables()["leaf"] is leaf


def test_a_tensor_that_the_steps_have_left_a_gradient_on_is_named_without_a_batch():
    model = nn.Linear(4, 4)
    model.table = torch.rand((20, 4), requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (untried,) = [
        f for f in findings(model, optimizers=[optimizer]) if f.check == "init/unregistered"
    ]
    assert untried.status == "skip"  # nobody knows
    model(model.table).sum().backward()
    assert problems(model, optimizers=[optimizer]) == [("init/unregistered", "table")]
