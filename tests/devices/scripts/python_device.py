"""A device made in Python: its tensors live in the host's memory, and nobody outside can tell.

Like Apple's MPS it has no float64, and like a new vendor's it has neither pinned memory nor events. What
runs on it is counted: kernels, and reads by the host.
"""
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


class Backend:
    """What torch looks for in `torch.pydev`."""

    generator = torch.Generator()
    num_reads = 0

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def get_rng_state(self, device=None):
        return self.generator.get_state()

    def set_rng_state(self, state, device=None):
        self.generator.set_state(state)

    def manual_seed_all(self, seed):
        self.generator.manual_seed(seed)

    def _is_in_bad_fork(self):
        return False

    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]


backend = Backend()
_setup_privateuseone_for_python_backend("pydev", backend_module=backend)
DEVICE = torch.device("pydev:0")


class OnDevice(torch.Tensor):
    """A tensor of the device; `host` is where its values lie."""

    @staticmethod
    def __new__(cls, host):
        return torch.Tensor._make_wrapper_subclass(
            cls, host.shape, host.stride(), host.storage_offset(), dtype=host.dtype, device=DEVICE,
            requires_grad=False,
        )

    def __init__(self, host):
        if host.dtype is torch.float64:
            raise TypeError("Cannot convert a tensor to float64: this device has none")
        self.host = host

    def __repr__(self, **kwargs):
        return f"OnDevice({self.host})"

    def tolist(self):
        """Torch refuses it for subclasses, which the tensors of a real device are not."""
        backend.num_reads += 1
        return self.host.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


kernels = []


def run(function, args, kwargs):
    name = str(function)
    wanted = kwargs.get("device")
    kwargs = dict(kwargs)
    if wanted is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    if name == "aten._local_scalar_dense.default":
        backend.num_reads += 1
        return args[0].host.item()
    if wanted is not None and torch.device(wanted).type == "cpu":
        backend.num_reads += 1  # a copy to the host that is waited for
    stays = wanted is None or torch.device(wanted).type == "pydev"
    if name.startswith("aten.copy_") and not isinstance(args[0], OnDevice):
        backend.num_reads += not kwargs.get("non_blocking", len(args) > 2 and args[2])
        args[0].copy_(args[1].host)
        return args[0]
    known = {}

    def unwrap(t):
        if isinstance(t, OnDevice):
            known[id(t.host)] = t
            return t.host
        return t

    host_args, host_kwargs = tree_map(unwrap, args), tree_map(unwrap, kwargs)
    if function._schema.name not in ("aten::detach", "aten::view", "aten::t", "aten::alias"):
        kernels.append(function._schema.name)
    made = function(*host_args, **host_kwargs)

    def wrap(t):
        if not isinstance(t, torch.Tensor) or not stays:
            return t
        return known.get(id(t)) if id(t) in known else OnDevice(t)

    made = tree_map(wrap, made)
    if stays and wanted is None and not name.startswith(("aten._foreach", "aten._amp", "aten._fused")):
        return return_and_correct_aliasing(function, args, kwargs, made)
    return made


class Factories(torch.utils._python_dispatch.TorchDispatchMode):
    """Tensors that are made on the device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "pydev":
            return run(function, args, kwargs)
        return function(*args, **kwargs)
