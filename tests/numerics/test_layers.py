import pytest
import torch
import torch.nn.functional as F

import stayfinite.numerics as sf
from stayfinite.errors import UsageError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("eps", [0.0, 1e-20, 1e-6])
def test_rms_norm_of_a_zero_row(dtype, eps):
    x = torch.zeros(2, 8, dtype=dtype, requires_grad=True)
    layer = sf.RMSNorm(8, eps=eps)
    layer(x).sum().backward()
    assert x.grad.isfinite().all() and layer.weight.grad.isfinite().all()


def test_rms_norm_is_that_of_torch():
    x = torch.randn(5, 8)
    torch.testing.assert_close(sf.RMSNorm(8)(x), F.rms_norm(x, (8,), eps=1e-6))
    small = x * 1e-4  # where eps counts
    torch.testing.assert_close(sf.RMSNorm(8)(small), F.rms_norm(small, (8,), eps=1e-6))
    assert sf.RMSNorm(8, is_affine=False).weight is None
    assert repr(sf.RMSNorm(8)) == "RMSNorm(8, eps=1e-06, is_affine=True)"
    with pytest.raises(UsageError, match="`eps` must be a finite number of at least 0, got -1"):
        sf.RMSNorm(8, eps=-1)


@pytest.mark.parametrize("scale", [0.1, 10.0, 1e4, 1e30])
def test_sinkhorn_is_doubly_stochastic_at_any_magnitude(scale):
    torch.manual_seed(0)
    p = sf.LogSinkhorn(200 if scale < 100 else 20)(torch.randn(4, 4) * scale)
    assert p.isfinite().all() and (p >= 0).all()
    torch.testing.assert_close(p.sum(-2), torch.ones(4), atol=1e-3, rtol=0)
    if scale < 100:  # for larger ones the rows converge too slowly
        torch.testing.assert_close(p.sum(-1), torch.ones(4), atol=1e-3, rtol=0)


def test_sinkhorn_needs_an_iteration():
    with pytest.raises(UsageError, match="`num_iterations` must be at least 1, got 0"):
        sf.LogSinkhorn(0)
    with pytest.raises(UsageError, match="`num_iterations` must be at least 1, got 0"):
        sf.log_sinkhorn(torch.ones(2, 2), 0)


def test_the_temperature_never_reaches_its_floor_whatever_the_optimizer_does():
    layer = sf.BoundedTemperature(0.1, floor=0.04)
    assert layer.value().item() == pytest.approx(0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e6)
    for sign in (1, -1):
        for _ in range(5):
            optimizer.zero_grad()
            (sign * layer.value()).backward()
            optimizer.step()
            assert (
                layer.value().item() >= 0.04 * (1 - 1e-6) and layer(torch.ones(2)).isfinite().all()
            )
    half = torch.full((2,), 6e4, dtype=torch.float16)
    assert layer(half).dtype == torch.float16 and layer(half).isfinite().all()
    assert not list(sf.BoundedTemperature(is_learned=False).parameters())
    with pytest.raises(UsageError, match=r"got initial=0.01 and floor=0.05"):
        sf.BoundedTemperature(0.01)


LAYERS = [(sf.SafeBatchNorm1d, (6, 3)), (sf.SafeBatchNorm1d, (6, 3, 2)), (sf.SafeBatchNorm2d, (4, 3, 2, 2)), (sf.SafeBatchNorm3d, (4, 3, 2, 2, 2))]  # fmt: skip


@pytest.mark.parametrize(("layer_type", "shape"), LAYERS)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_is_that_of_torch(layer_type, shape, momentum):
    usual_type = getattr(torch.nn, layer_type.__name__.removeprefix("Safe"))
    ours, usual = layer_type(3, momentum=momentum), usual_type(3, momentum=momentum)
    for _ in range(3):
        x = torch.randn(shape)
        torch.testing.assert_close(ours(x), usual(x))
    for a, b in zip(ours.state_dict().values(), usual.state_dict().values()):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours.eval()(x), usual.eval()(x))


def test_a_batch_of_one_uses_the_running_statistics_and_leaves_them():
    layer = sf.SafeBatchNorm1d(3)
    layer(torch.randn(64, 3) * 4 + 1)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    x = torch.randn(1, 3, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    torch.testing.assert_close(out, layer.eval()(x))
    assert x.grad.isfinite().all()
    for k, v in layer.state_dict().items():
        assert torch.equal(v, before[k])


def test_a_batch_of_one_without_statistics_is_the_bias():
    layer = sf.SafeBatchNorm1d(3, track_running_stats=False)
    assert layer(torch.randn(1, 3)).tolist() == [[0.0] * 3]


def test_only_the_bad_channel_is_left_as_it_was():
    layer = sf.SafeBatchNorm1d(2)
    x = torch.randn(8, 2)
    x[0, 0] = float("inf")
    out = layer(x)
    assert layer.running_mean[0] == 0 and layer.running_mean[1] != 0
    assert layer.running_var.isfinite().all()
    assert out[:, 1].isfinite().all() and not out[:, 0].isfinite().all()


def test_the_wrong_number_of_dimensions_is_named():
    with pytest.raises(UsageError, match=r"expected an input with 4 dimensions, got \(2, 3\)"):
        sf.SafeBatchNorm2d(3)(torch.ones(2, 3))


def test_layers_survive_saving_and_half():
    for layer in (sf.RMSNorm(4), sf.BoundedTemperature(), sf.SafeBatchNorm1d(4), sf.LogSinkhorn()):
        copy = type(layer)(*([4] if not isinstance(layer, (sf.BoundedTemperature, sf.LogSinkhorn)) else []))  # fmt: skip
        copy.load_state_dict(layer.state_dict())
        assert copy.half()(torch.randn(4, 4).half()).isfinite().all()
