"""The same under autocast, torch.compile, vmap and DTensor, and without a look at the device."""

import pytest
import torch
from tests.numerics.cases import CASES, ELEMENTWISE, edge_values, leaves, value_and_grads
from torch.utils._python_dispatch import TorchDispatchMode

# torch.compile instantiates a Function and imports torch.jit, and warns about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
SYNCS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "item")


class CountSyncs(TorchDispatchMode):
    """Counts the operators that copy a number from the device to the host."""

    def __init__(self):
        super().__init__()
        self.num_syncs = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num_syncs += func.overloadpacket.__name__ in SYNCS
        return func(*args, **(kwargs or {}))


def test_the_counter_counts():
    with CountSyncs() as mode:
        bool(torch.ones(()) > 0)
        torch.ones(()).item()
    assert mode.num_syncs == 2


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_host_sync_in_forward_or_backward(case):
    inputs = leaves([x.float() for x in case.sample()])
    with CountSyncs() as mode:
        value_and_grads(case.fn, inputs)
    assert mode.num_syncs == 0


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_autocast_changes_nothing_beyond_its_own_rounding(case, half):
    torch.manual_seed(0)
    inputs = [x.float() for x in case.sample()]
    plain = value_and_grads(case.fn, leaves(inputs))
    with torch.autocast("cpu", dtype=half):
        cast = value_and_grads(case.fn, leaves(inputs))
        extreme = value_and_grads(case.fn, leaves(case.failing()))
    torch.testing.assert_close(cast[0].float(), plain[0], rtol=2e-2, atol=2e-2)
    for a, b in zip(cast[1], plain[1]):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)
    assert extreme[0].isfinite().all() and all(g.isfinite().all() for g in extreme[1])


@pytest.mark.parametrize("case", [c for c in CASES if c.can_vmap], ids=str)
def test_vmap_equals_a_loop(case):
    stacked = [torch.stack(xs).float() for xs in zip(*(case.sample() for _ in range(3)))]
    got = torch.vmap(case.fn)(*stacked)
    want = torch.stack([case.fn(*(x[i] for x in stacked)) for i in range(3)])
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.can_vmap and c.num_trained is None], ids=str
)
def test_vmap_of_the_gradient_equals_a_loop(case):
    stacked = [torch.stack(xs).float() for xs in zip(*(case.sample() for _ in range(2)))]
    gradient = torch.func.grad(lambda *xs: case.fn(*xs).sum())
    got = torch.vmap(gradient)(*stacked)
    want = torch.stack([gradient(*(x[i] for x in stacked)) for i in range(2)])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_what_has_no_vmap_is_said():
    """F.ctc_loss has no batching rule; batch norm writes into its buffers."""
    assert [c.name for c in CASES if not c.can_vmap] == ["ctc_loss", "SafeBatchNorm1d"]


def compiled_equals_eager(cases):
    """All of them in one graph: what is compiled costs by the graph."""

    def values(inputs):
        return [case.fn(*xs) for case, xs in zip(cases, inputs)]

    def with_grads(fn, inputs):
        outs = fn(inputs)
        weights = [torch.arange(out.numel()).double().cos().view(out.shape) for out in outs]
        total = sum((out * w.to(out.dtype)).sum() for out, w in zip(outs, weights))
        flat = [x for xs in inputs for x in xs]
        return outs, torch.autograd.grad(total, flat, allow_unused=True, materialize_grads=True)

    torch._dynamo.reset()
    compiled = torch.compile(values, fullgraph=True, backend="aot_eager")
    ordinary = [[x.float() for x in case.sample()] for case in cases]
    want = with_grads(values, [leaves(xs) for xs in ordinary])
    got = with_grads(compiled, [leaves(xs) for xs in ordinary])
    for case, a, b in zip(cases, got[0], want[0]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, c=case: f"{c}: {m}")
    for a, b in zip(got[1], want[1]):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    outs, grads = with_grads(compiled, [leaves(case.failing()) for case in cases])
    assert [str(c) for c, out in zip(cases, outs) if not out.isfinite().all()] == []
    assert all(g.isfinite().all() for g in grads)


FEW = {"safe_log", "masked_softmax", "stable_attention"}
MANY = [c for c in CASES if c.can_compile and c.name not in FEW]


def test_a_few_compile_as_one_graph():
    compiled_equals_eager([c for c in CASES if c.name in FEW])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4))
def test_all_compile_as_one_graph(first):
    compiled_equals_eager(MANY[first::4])


def test_what_does_not_compile_is_said():
    """The kernel of F.ctc_loss has an output whose shape depends on the data."""
    assert [c.name for c in CASES if not c.can_compile] == ["ctc_loss"]


@pytest.mark.slow
@pytest.mark.xdist_group("inductor")
def test_inductor_keeps_the_promise_at_the_edges():
    """All unary functions in one graph, because each graph takes the C++ compiler ten seconds."""
    unary = [c for c in ELEMENTWISE if len(c.sample()) == 1]

    def all_of_them(x):
        return torch.stack([c.fn(x) for c in unary])

    torch._dynamo.reset()
    compiled = torch.compile(all_of_them, fullgraph=True, dynamic=False)
    edges = torch.tensor(edge_values(torch.float32))
    value, (grad,) = value_and_grads(compiled, leaves([edges]))
    for case, row in zip(unary, value):
        assert row.isfinite().all(), case
    assert grad.isfinite().all()
    ordinary = torch.linspace(0.05, 0.95, len(edges))
    got = value_and_grads(compiled, leaves([ordinary]))
    want = value_and_grads(all_of_them, leaves([ordinary]))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.xdist_group("inductor")
def test_inductor_on_reductions_and_losses():
    names = ["safe_norm", "safe_std", "masked_softmax", "masked_mean", "focal_loss", "dice_loss"]
    cases = [c for c in CASES if c.name in names]

    def many(x):
        return sum(c.fn(x).sum() for c in cases)

    torch._dynamo.reset()
    compiled = torch.compile(many, fullgraph=True, dynamic=False)
    for x in (torch.rand(3, 4) + 0.1, torch.zeros(3, 4), torch.full((3, 4), -200.0)):
        got, want = value_and_grads(compiled, leaves([x])), value_and_grads(many, leaves([x]))
        assert got[0].isfinite() and got[1][0].isfinite().all()
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    store = tmp_path_factory.mktemp("mesh") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")
        yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("case", ELEMENTWISE, ids=str)
def test_elementwise_functions_take_dtensors(case, mesh):
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    inputs = [x.float() for x in case.sample()]
    sharded = [distribute_tensor(x, mesh, [Shard(0)]).requires_grad_() for x in inputs]
    out = case.fn(*sharded)
    assert isinstance(out, DTensor)
    out.sum().backward()
    plain = leaves(inputs)
    want = case.fn(*plain)
    want.sum().backward()
    torch.testing.assert_close(out.full_tensor(), want)
    for a, b in zip(sharded, plain):
        torch.testing.assert_close(a.grad.full_tensor(), b.grad)
