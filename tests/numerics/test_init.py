import pytest
import torch
from torch import nn

import stayfinite.numerics as sf
from stayfinite.errors import UsageError


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8, padding_idx=0)
        self.norm = nn.LayerNorm(8)
        self.batch = nn.BatchNorm1d(8)
        self.rms = sf.RMSNorm(8)
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, proj_size=3)
        self.gru = nn.GRUCell(8, 6)
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(8, 5)
        self.table = nn.Parameter(torch.full((4, 4), float("nan")))
        self.gain = nn.Parameter(torch.tensor(0.5))


@pytest.mark.parametrize("method", ["xavier", "small", "orthogonal"])
def test_everything_is_finite_and_small_afterwards(method):
    model = Everything()
    for p in model.parameters():
        if p.ndim:
            p.data.fill_(float("nan"))
    assert sf.finite_init_(model, method) is model
    for name, p in model.named_parameters():
        assert p.isfinite().all() and p.abs().max() <= 3, name
        if "bias" in name:
            assert not p.any(), name
    assert (model.norm.weight == 1).all() and (model.rms.weight == 1).all()
    assert not model.embed.weight[0].any() and model.embed.weight[1:].std() < 0.02
    assert model.gain.item() == 0.5


def test_recurrent_weights_are_orthogonal_gate_by_gate():
    cell = sf.finite_init_(nn.GRU(4, 6), "small")
    for gate in cell.weight_hh_l0.chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(6), atol=1e-5, rtol=0)
    assert cell.weight_ih_l0.std() < 0.02


def test_half_precision_is_initialized_too():
    layer = sf.finite_init_(nn.Linear(4, 4).half(), "orthogonal")
    assert layer.weight.dtype == torch.float16
    torch.testing.assert_close((layer.weight.float() @ layer.weight.float().T), torch.eye(4), atol=1e-2, rtol=0)  # fmt: skip


def test_leaves_that_nobody_trains_are_all_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].id_embedding = torch.rand(3, requires_grad=True)
    model.extras = [torch.rand(1), torch.rand(1, requires_grad=True)]
    model.table = {"a": torch.rand(1, requires_grad=True)}
    model.register_buffer("stat", torch.rand(2, requires_grad=True))
    model.result = model[0].weight * 2  # no leaf: an activation that was kept
    model.alias = [model[0].weight]  # a registered Parameter under a second name
    want = {"1.id_embedding", "extras[1]", "table['a']", "stat"}
    assert set(sf.unregistered_leaves(model)) == want
    with pytest.raises(UsageError) as error:
        sf.finite_init_(model)
    text = str(error.value)
    assert text.startswith("finite_init_: 4 problems with Sequential:\n  - ")
    assert all(name in text for name in want) and "wrap it in nn.Parameter(...)" in text


def test_what_cannot_be_initialized_is_named():
    model = nn.Module()
    model.scale = nn.Parameter(torch.tensor(float("nan")))
    with pytest.raises(UsageError, match="scale is not finite and has no known way"):
        sf.finite_init_(model)
    with pytest.raises(UsageError, match="weight has no shape yet; run one forward pass first"):
        sf.finite_init_(nn.LazyLinear(3))
    with pytest.raises(
        UsageError, match="`method` must be one of xavier, small, orthogonal, got 'he'"
    ):
        sf.finite_init_(nn.Linear(1, 1), "he")
    with pytest.raises(UsageError, match="`std` must be above 0, got 0"):
        sf.finite_init_(nn.Linear(1, 1), std=0)
