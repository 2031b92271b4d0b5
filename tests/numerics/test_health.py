"""Every dtype, layout and kind of tensor has an answer, and it is the brute-force answer."""

import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from stayfinite.numerics.health import FiniteFlag, badness, dense_parts, is_finite, stats

CPU = torch.device("cpu")
NAN, INF = math.nan, math.inf
PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FLOAT8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
                 "float8_e8m0fnu")
    if hasattr(torch, name)
)  # fmt: skip
HAS_INF = (torch.float8_e5m2,)
"""The only fp8 format with infinities; the others have NaN alone."""
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def flagged(*tensors):
    flag = FiniteFlag(CPU)
    flag.fold(tensors)
    return flag.read()


def flagged_readonly(*tensors):
    flag = FiniteFlag(CPU)
    flag.fold_readonly(tensors)
    return flag.read()


def assert_judged(tensor, is_ok, is_near_the_limit=False):
    """All the ways to ask agree; near the dtype's limit the read-only flag may say "look closer"."""
    assert is_finite(tensor) is is_ok
    assert bool(badness(tensor)) is not is_ok
    assert stats(tensor).is_finite is is_ok
    assert flagged(tensor) is not is_ok
    assert flagged_readonly(tensor) is not is_ok or is_near_the_limit


def with_value(value, dtype, size=70, at=33):
    x = torch.linspace(0.5, 2.0, size)
    x[at] = value
    return x.to(dtype)


# -- dtypes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 1, 7, 8, 33, 68, 69])
def test_one_bad_value_anywhere_is_seen(dtype, value, at):
    x = with_value(value, dtype, at=at)
    assert_judged(x, False)
    found = badness(x)
    assert (found.has_nan, found.has_posinf, found.has_neginf) == (
        math.isnan(value),
        value == INF,
        value == -INF,
    )
    assert stats(x).first_bad == (at,)


@pytest.mark.parametrize("dtype", PLAIN)
def test_the_largest_and_the_smallest_finite_values_are_finite(dtype):
    info = torch.finfo(dtype)
    edges = torch.tensor([info.max, info.min, info.tiny, info.smallest_normal, 0.0], dtype=dtype)
    assert_judged(edges, True, is_near_the_limit=True)
    assert stats(edges).headroom_bits == 0.0


@pytest.mark.parametrize("dtype", FLOAT8)
def test_fp8(dtype):
    assert_judged(torch.linspace(0.5, 2.0, 9).to(dtype), True)
    assert_judged(with_value(NAN, dtype), False)
    assert stats(with_value(NAN, dtype)).num_nan == 1


@pytest.mark.parametrize("dtype", HAS_INF)
@pytest.mark.parametrize("value", [INF, -INF])
def test_fp8_with_infinities(dtype, value):
    assert_judged(with_value(value, dtype), False)
    assert badness(with_value(value, dtype)).has_inf


@pytest.mark.parametrize("dtype", FLOAT8)
def test_fp8_headroom_is_that_of_its_own_format(dtype):
    found = stats(torch.ones(3).to(dtype))
    assert found.headroom_bits == pytest.approx(math.log2(torch.finfo(dtype).max))
    assert found.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no fp4")
def test_fp4_has_nothing_that_could_be_bad():
    x = torch.tensor([0x77, 0x00], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert_judged(x, True)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("part", ["real", "imag"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex(dtype, part, value):
    pair = {"real": 1.0, "imag": 1.0} | {part: value}
    half = torch.complex64 if dtype == torch.complex32 else dtype
    x = torch.complex(torch.tensor([0.5, pair["real"]]), torch.tensor([2.0, pair["imag"]]))
    assert_judged(x.to(half).to(dtype), False)
    assert_judged(torch.ones(3).to(half).to(dtype), True)
    assert_judged(x.to(half).conj(), False)


def test_complex_first_bad_is_an_index_of_the_tensor_itself():
    x = torch.zeros(2, 3, dtype=torch.complex64)
    x[1, 2] = complex(0, INF)
    assert stats(x).first_bad == (1, 2)
    assert stats(x).num_posinf == 1


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_and_bools_are_finite_and_have_a_range(dtype):
    x = torch.tensor([0, 1, 1]).to(dtype)
    assert_judged(x, True)
    found = stats(x)
    assert (found.min, found.max, found.num_zero, found.mean) == (0.0, 1.0, 1, 2 / 3)
    assert found.headroom_bits is None


# -- layouts ----------------------------------------------------------------------------------


def sparse_csr(x):
    return x.to_sparse_csr()


LAYOUTS = {
    "coo": lambda x: x.to_sparse(),
    "coo, not coalesced": lambda x: torch.sparse_coo_tensor([[0, 0], [1, 1]], x[0, :2], (3, 3)),
    "csr": sparse_csr,
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
    "bsc": lambda x: x.to_sparse_bsc((1, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [1.0, NAN, INF, -INF])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse(layout, value):
    x = torch.eye(3)
    x[0, 1] = value
    x = LAYOUTS[layout](x)
    assert_judged(x, math.isfinite(value))
    assert stats(x).shape == (3, 3)


@pytest.mark.parametrize("value", [1.0, NAN, INF, -INF])
def test_views_see_their_own_part_only(value):
    base = torch.ones(6, 6)
    base[2, 3] = value
    is_ok = math.isfinite(value)
    for view in (
        base.T,
        base[::2, 1::2],
        base[2],
        base[:, 3],
        base[2:4, 3:5],
        base.as_strided((2, 2), (1, 6), 15),
    ):
        assert_judged(view, is_ok)
    assert_judged(base[:2], True)
    assert_judged(base[3:], True)
    assert_judged(base[:, ::3][:, :1], True)


@pytest.mark.parametrize("value", [1.0, NAN])
def test_expanded_memory_is_looked_at_and_left_alone(value):
    base = torch.tensor([[1.0], [value]])
    expanded = base.expand(2, 5)
    assert_judged(expanded, math.isfinite(value))
    assert torch.equal(base, torch.tensor([[1.0], [value]])) or math.isnan(value)
    assert stats(expanded).num_nan == (5 if math.isnan(value) else 0)


def test_channels_last_and_negative_bit():
    x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    x[1, 2, 3, 0] = NAN
    assert_judged(x, False)
    assert stats(x).first_bad == (1, 2, 3, 0)
    lazy = torch.complex(torch.ones(2), torch.tensor([1.0, -INF])).conj().imag
    assert lazy.is_neg()
    assert_judged(lazy, False)
    assert badness(lazy).has_posinf


# -- kinds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*PLAIN, *FLOAT8, *COMPLEX, *WHOLE])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_empty(dtype):
    x = torch.empty(0, 3, dtype=dtype)
    assert_judged(x, True)
    found = stats(x)
    assert (found.shape, found.num_elements, found.min) == ((0, 3), 0, None)


@pytest.mark.parametrize("dtype", [*PLAIN, *FLOAT8, torch.complex64, torch.int64])
def test_meta(dtype):
    x = torch.empty(4, 2, dtype=dtype, device="meta")
    assert_judged(x, True)
    assert (stats(x).shape, stats(x).device, stats(x).num_elements) == ((4, 2), "meta", 8)


@pytest.mark.parametrize("value", [1.0, NAN, INF, -INF])
def test_zero_dim(value):
    assert_judged(torch.tensor(value), math.isfinite(value))
    assert stats(torch.tensor(value)).first_bad == (None if math.isfinite(value) else ())


@pytest.mark.parametrize("value", [1.0, NAN])
def test_leaves_results_and_parameters_that_require_grad(value):
    leaf = torch.full((3,), value, requires_grad=True)
    for x in (leaf, leaf * 2, torch.nn.Parameter(leaf.detach().clone())):
        before = x._version
        assert_judged(x, math.isfinite(value))
        assert x._version == before
        assert x.requires_grad


@pytest.mark.parametrize("value", [1.0, INF])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested(value, layout):
    parts = [torch.ones(2, 3), torch.full((4, 3), value)]
    x = torch.nested.nested_tensor(parts, layout=layout)
    is_ok = math.isfinite(value)
    assert is_finite(x) is is_ok
    assert flagged(x) is not is_ok
    assert bool(badness(x)) is not is_ok


@pytest.fixture(scope="module")
def mesh():
    from torch.distributed import destroy_process_group
    from torch.distributed.device_mesh import init_device_mesh

    given_names = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    kept = {k: os.environ.get(k) for k in given_names}
    os.environ.update(given_names)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    destroy_process_group()
    for name, value in kept.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.mark.parametrize("value", [1.0, NAN, INF, -INF])
def test_dtensor(value, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x = torch.ones(4, 3)
    x[2, 1] = value
    for placement in (Shard(0), Shard(1), Replicate()):
        assert_judged(distribute_tensor(x, mesh, [placement]), math.isfinite(value))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_finite():
    x = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    assert_judged(x, True)


def test_tensor_subclasses():
    class Named(torch.Tensor):
        pass

    assert_judged(torch.tensor([1.0, NAN]).as_subclass(Named), False)
    assert_judged(torch.ones(3).as_subclass(Named), True)


# -- statistics -------------------------------------------------------------------------------


def test_all_figures():
    x = torch.tensor([[1.0, -3.0, 0.0], [NAN, INF, -INF]])
    x[0, 2] = -0.0
    found = stats(x)
    assert (found.shape, found.dtype, found.device) == ((2, 3), "float32", "cpu")
    assert (found.num_nan, found.num_posinf, found.num_neginf, found.num_zero) == (1, 1, 1, 1)
    assert (found.min, found.max, found.abs_max) == (-3.0, 1.0, 3.0)
    assert found.mean == pytest.approx(-2 / 3)
    assert found.headroom_bits == pytest.approx(math.log2(torch.finfo(torch.float32).max / 3))
    assert found.first_bad == (1, 0)


def test_nothing_finite_has_no_range():
    found = stats(torch.tensor([NAN, INF]))
    assert (found.min, found.max, found.mean, found.abs_max, found.headroom_bits) == (None,) * 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_subnormals_are_counted(dtype):
    tiny = torch.finfo(dtype).tiny
    x = torch.tensor([tiny, tiny / 2, -tiny / 2, 0.0, 1.0], dtype=dtype)
    assert stats(x).num_subnormal == 2


def test_the_mean_does_not_overflow():
    x = torch.full((1000,), 60000.0, dtype=torch.float16)
    assert stats(x).mean == pytest.approx(60000.0, rel=1e-3)


def test_zero_has_no_headroom_to_speak_of():
    assert stats(torch.zeros(3)).headroom_bits is None


# -- against brute force ----------------------------------------------------------------------

VALUES = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e-42, 65504.0, 1e30, NAN, INF, -INF])


@settings(max_examples=120)
@given(
    st.lists(VALUES, min_size=1, max_size=40),
    st.sampled_from(PLAIN),
    st.integers(1, 3),
    st.booleans(),
)
def test_brute_force(values, dtype, step, is_reversed):
    x = torch.tensor(values, dtype=torch.float64).to(dtype)[::step]
    x = x.flip(0) if is_reversed else x
    plain = x.to(torch.float64).tolist()
    found = stats(x)
    assert found.num_nan == sum(map(math.isnan, plain))
    assert found.num_posinf == plain.count(INF)
    assert found.num_neginf == plain.count(-INF)
    assert found.num_zero == plain.count(0.0)
    finite = [v for v in plain if math.isfinite(v)]
    assert (found.min, found.max) == ((min(finite), max(finite)) if finite else (None, None))
    bad = [i for i, v in enumerate(plain) if not math.isfinite(v)]
    assert found.first_bad == ((bad[0],) if bad else None)
    assert_judged(x, not bad, is_near_the_limit=not bad)


# -- the flag ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_readonly_flag_is_not_fooled_by_cancellation(dtype, value):
    """+inf and -inf in different tensors, and huge values beside a bad one."""
    big = torch.finfo(dtype).max
    pair = [torch.tensor([value, 1.0], dtype=dtype), torch.tensor([-value, big], dtype=dtype)]
    assert flagged_readonly(*pair, torch.ones(3, dtype=torch.float16))


class Calls(TorchDispatchMode):
    """Which operators ran, and which of them make the host wait for a device."""

    SYNC = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.split("::")[-1])
        return func(*args, **(kwargs or {}))

    @property
    def syncs(self):
        return [n for n in self.names if n in self.SYNC]


def test_folding_never_waits_for_the_device():
    tensors = [
        torch.ones(3),
        torch.ones(3, dtype=torch.float16),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.float64),
        torch.ones(2, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
        torch.ones(4, requires_grad=True),
        torch.ones(2, 1).expand(2, 3),
        torch.ones(3).to(torch.float8_e5m2),
        torch.tensor([NAN]),
        None,
    ]
    flag = FiniteFlag(CPU)
    with Calls() as calls:
        flag.fold(tensors)
        flag.fold_readonly([t for t in tensors if t is not None])
    assert calls.names, "nothing was counted"
    assert calls.syncs == []
    assert flag.read()
    with Calls() as calls:
        flag.value.item()
    assert calls.syncs, "the count would not have seen a sync"


def test_many_tensors_of_one_kind_are_one_call():
    grads = [torch.ones(3) for _ in range(50)]
    flag = FiniteFlag(CPU)
    with Calls() as calls:
        flag.fold(grads)
    assert calls.names == ["_amp_foreach_non_finite_check_and_unscale_"]


def bits(t):
    return t.contiguous().view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", PLAIN)
def test_folding_leaves_every_bit_as_it_was(dtype):
    info = torch.finfo(dtype)
    x = torch.tensor(
        [0.0, -0.0, info.tiny, info.tiny / 4, -info.tiny / 2, info.max, info.min, 1 / 3, INF, -INF],
        dtype=dtype,
    )
    before, version = bits(x), x._version
    assert flagged(x)
    assert bits(x) == before
    assert flagged_readonly(x)
    assert bits(x) == before
    assert version == 0


def test_nan_payloads_survive():
    """A NaN may carry a message; a check must not rewrite it."""
    x = torch.tensor([0x7FC01234, 0x7FA00001 | 0x00400000], dtype=torch.int32).view(torch.float32)
    before = bits(x)
    assert flagged(x)
    assert bits(x) == before


def test_the_flag_stays_up_until_it_is_reset():
    flag = FiniteFlag(CPU)
    flag.fold([torch.tensor([NAN])])
    flag.fold([torch.ones(3)])
    assert flag.read()
    flag.reset()
    flag.fold([torch.ones(3)])
    assert not flag.read()


def test_dense_parts_of_a_view_share_its_memory():
    x = torch.ones(3, 4)[:, 1]
    (part,) = dense_parts(x)
    assert part.data_ptr() == x.data_ptr()
