"""The rules of the environment group, each from the facts to at most one finding."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..records import Finding, failed, warned
from .facts import Facts, bytes_text

__all__ = ["KNOWN_BAD", "RULES", "KnownBad", "release"]

Rule = Callable[[Facts], "Finding | None"]
_GROUP = "environment"


def release(version: str) -> tuple[int, int, int]:
    """The numbers of a version; what follows them is dropped.

    >>> release("2.13.0+cpu"), release("0.21")
    ((2, 13, 0), (0, 21, 0))
    """
    numbers = [int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:3]]
    a, b, c = [*numbers, 0, 0, 0][:3]
    return a, b, c


@dataclass(frozen=True)
class KnownBad:
    """Versions that are known to give wrong numbers together."""

    first: tuple[int, int, int]
    """The first torch release that has it."""
    fixed: tuple[int, int, int]
    """The first torch release without it; (99, 0, 0) while there is none."""
    applies: Callable[[Facts], bool]
    what: str
    action: str
    source: str


def _on_cudnn_attention(f: Facts) -> bool:
    return f.is_cudnn_sdp and f.has_attention


KNOWN_BAD = (
    KnownBad(
        (2, 5, 0), (2, 5, 1), _on_cudnn_attention,
        "cuDNN attention, the default of torch 2.5.0, gives NaN gradients",
        "torch.backends.cuda.enable_cudnn_sdp(False), or torch 2.5.1",
        "pytorch/pytorch#138649",
    ),
    KnownBad(
        (2, 11, 0), (99, 0, 0),
        lambda f: _on_cudnn_attention(f) and (f.capability or (0, 0))[0] == 9,
        "cuDNN attention with a mask gives NaN in the gradient of the query when the sequence "
        "length is 64 more than a multiple of 128",
        "torch.backends.cuda.enable_cudnn_sdp(False)",
        "pytorch/pytorch#196678",
    ),
    KnownBad(
        (2, 6, 0), (99, 0, 0),
        lambda f: _on_cudnn_attention(f) and 91100 <= (f.cudnn or 0) < 91400,
        "cuDNN 9.11 to 9.13 chooses kernels that fail for attention with dropout",
        "cuDNN 9.14 or newer, or torch.backends.cuda.enable_cudnn_sdp(False)",
        "pytorch/pytorch#163903",
    ),
)  # fmt: skip


def _known_bad(f: Facts) -> Finding | None:
    for bad in KNOWN_BAD:
        if bad.first <= release(f.torch) < bad.fixed and bad.applies(f):
            return failed(
                _GROUP, "environment/known-bad", f"torch {f.torch}: {bad.what}", bad.action,
                subject=f"torch {f.torch}", why=bad.source, weight=8,
            )  # fmt: skip
    return None


def _vision(f: Facts) -> Finding | None:
    """torchvision 0.(N+15) belongs to torch 2.N (the table in torchvision's README)."""
    version = f.versions.get("torchvision")
    major, minor, _ = release(f.torch)
    if version is None or major != 2 or release(version)[:2] == (0, minor + 15):
        return None
    return failed(
        _GROUP, "environment/versions",
        f"torchvision {version} was built for another torch than {f.torch}",
        f"pip install 'torchvision==0.{minor + 15}.*'",
        subject=f"torchvision {version}", why="compatibility table of pytorch/vision", weight=6,
    )  # fmt: skip


def _audio(f: Facts) -> Finding | None:
    """From 2.11 on torchaudio works with every later torch (docs.pytorch.org/audio)."""
    version = f.versions.get("torchaudio")
    if version is None or release(version)[:2] == release(f.torch)[:2]:
        return None
    if release(f.torch) >= release(version) >= (2, 11, 0):
        return None
    major, minor, _ = release(f.torch)
    return failed(
        _GROUP, "environment/versions",
        f"torchaudio {version} was built for another torch than {f.torch}",
        f"pip install 'torchaudio=={min((major, minor), (2, 11))[0]}.{min((major, minor), (2, 11))[1]}.*'",
        subject=f"torchaudio {version}", why="compatibility matrix of torchaudio", weight=6,
    )  # fmt: skip


def _python(f: Facts) -> Finding | None:
    if release(f.python) < (3, 13, 0) or release(f.torch) >= (2, 6, 0):
        return None
    return failed(
        _GROUP, "environment/versions", f"torch {f.torch} does not support Python {f.python}",
        "torch 2.6 or newer, or Python 3.12", subject=f"Python {f.python}",
        why="support matrix of torch releases",
    )  # fmt: skip


def _idle_gpu(f: Facts) -> Finding | None:
    if not f.has_idle_gpu:
        return None
    return warned(
        _GROUP, "environment/device", f"a GPU is there, but the model is on {f.model_device}",
        "model.to('cuda') before the optimizer is made", subject="model",
    )  # fmt: skip


def _dtype(f: Facts) -> Finding | None:
    if f.default_dtype in ("float16", "bfloat16"):
        return failed(
            _GROUP, "environment/dtype", f"the default dtype is {f.default_dtype}",
            "torch.set_default_dtype(torch.float32), and autocast for the parts that may be half",
            subject="torch.set_default_dtype", weight=6,
            why="parameters, moments and losses made without a dtype are half precision then",
        )  # fmt: skip
    if f.default_dtype == "float64":
        return warned(
            _GROUP, "environment/dtype", "the default dtype is float64",
            "torch.set_default_dtype(torch.float32), unless the precision is wanted",
            subject="torch.set_default_dtype",
        )  # fmt: skip
    return None


def _autocast_dtype(f: Facts) -> Finding | None:
    if f.autocast_dtype != "bfloat16" or f.capability is None or f.capability[0] >= 8:
        return None
    return warned(
        _GROUP, "environment/dtype",
        f"bfloat16 autocast on {f.device_name} (compute capability "
        f"{f.capability[0]}.{f.capability[1]}), which only emulates it",
        "autocast(dtype=torch.float16) with a GradScaler", subject="autocast",
        why="bfloat16 arithmetic needs compute capability 8.0 (CUDA programming guide)",
    )  # fmt: skip


def _autocast_left_on(f: Facts) -> Finding | None:
    if not f.is_autocast_on:
        return None
    return warned(
        _GROUP, "environment/dtype", "autocast is on outside of any `with` block",
        "enter autocast with `with torch.autocast(…):` round forward and loss only",
        subject="autocast", why="backward under autocast is not recommended (torch.amp docs)",
    )  # fmt: skip


def _anomaly(f: Facts) -> Finding | None:
    if not f.is_anomaly:
        return None
    return warned(
        _GROUP, "environment/anomaly", "anomaly mode is on: every step pays for it",
        "remove torch.autograd.set_detect_anomaly(True); `stayfinite run` finds the operator",
        subject="torch.autograd.set_detect_anomaly", weight=3,
    )  # fmt: skip


def _grad_mode(f: Facts) -> Finding | None:
    if f.is_grad_enabled and not f.is_inference:
        return None
    what = "inference mode is on" if f.is_inference else "gradients are switched off globally"
    return failed(
        _GROUP, "environment/grad-mode", f"{what}: nothing will be learned",
        "remove torch.set_grad_enabled(False), or use `with torch.no_grad():` round evaluation",
        subject="torch.set_grad_enabled", weight=9,
    )  # fmt: skip


def _determinism(f: Facts) -> Finding | None:
    if not f.is_deterministic:
        return None
    if f.model_device == "cuda" and "CUBLAS_WORKSPACE_CONFIG" not in f.environment:
        return failed(
            _GROUP, "environment/determinism",
            "deterministic algorithms are asked for without CUBLAS_WORKSPACE_CONFIG",
            "export CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python starts",
            subject="CUBLAS_WORKSPACE_CONFIG", why="cuBLAS raises at the first product otherwise",
        )  # fmt: skip
    if f.cudnn_benchmark:
        return warned(
            _GROUP, "environment/determinism",
            "deterministic algorithms together with cudnn.benchmark",
            "torch.backends.cudnn.benchmark = False", subject="torch.backends.cudnn.benchmark",
            why="the benchmark may choose another kernel in every run",
        )  # fmt: skip
    return None


def _benchmark(f: Facts) -> Finding | None:
    if not (f.cudnn_benchmark and f.has_varying_shapes and f.model_device == "cuda"):
        return None
    return warned(
        _GROUP, "environment/benchmark", "cudnn.benchmark is on and the batches differ in shape",
        "torch.backends.cudnn.benchmark = False", subject="torch.backends.cudnn.benchmark",
        why="every new shape is benchmarked again",
    )  # fmt: skip


def _tf32(f: Facts) -> Finding | None:
    if f.matmul_precision == "medium":
        return warned(
            _GROUP, "environment/tf32", "float32 products may be computed in bfloat16 (medium)",
            'torch.set_float32_matmul_precision("high")',
            subject="torch.set_float32_matmul_precision", why="7 bits of mantissa instead of 10",
        )  # fmt: skip
    if f.has_fp16_accumulation:
        return warned(
            _GROUP, "environment/tf32", "products of float16 are summed in float16",
            "torch.backends.cuda.matmul.allow_fp16_accumulation = False",
            subject="torch.backends.cuda.matmul.allow_fp16_accumulation", weight=4,
            why="a sum above 65504 overflows although the result would fit float32",
        )  # fmt: skip
    return None


_SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver",
    "TORCH_COMPILE_DEBUG": "the compiler writes its traces",
}


def _switches(f: Facts) -> Finding | None:
    on = {k: v for k, v in f.environment.items() if k in _SWITCHES and v not in ("0", "")}
    for name, value in on.items():
        return warned(
            _GROUP, "environment/debug-switches", f"{name}={value}: {_SWITCHES[name]}",
            f"unset {name}", subject=name,
        )  # fmt: skip
    return None


def _threads(f: Facts) -> Finding | None:
    if f.num_threads <= f.num_cpus:
        return None
    return warned(
        _GROUP, "environment/threads", f"{f.num_threads} threads on {f.num_cpus} cores",
        f"torch.set_num_threads({f.num_cpus})", subject="torch.set_num_threads",
    )  # fmt: skip


def _shm(f: Facts) -> Finding | None:
    if not f.num_workers or f.free_shm_bytes is None or f.free_shm_bytes >= 64 << 20:
        return None
    return warned(
        _GROUP, "environment/shared-memory",
        f"{bytes_text(f.free_shm_bytes)} of shared memory for {f.num_workers} loader workers",
        "start the container with --shm-size=2g (or --ipc=host)", subject="/dev/shm",
        why="batches travel through it; a full one kills the worker with a bus error", weight=3,
    )  # fmt: skip


def _memory(f: Facts) -> Finding | None:
    if f.needed_bytes <= f.free_bytes:
        return None
    return failed(
        _GROUP, "environment/memory",
        f"weights, gradients and two moments take {bytes_text(f.needed_bytes)}, "
        f"{bytes_text(f.free_bytes)} are free on {f.model_device}",
        "a smaller model, sharding (FSDP), or an optimizer with less state", subject="memory",
        weight=6,
    )  # fmt: skip


def _disk(f: Facts) -> Finding | None:
    checkpoint = 3 * f.parameter_bytes
    if f.free_disk_bytes >= 2 * checkpoint + 1e9:
        return None
    return warned(
        _GROUP, "environment/disk",
        f"{bytes_text(f.free_disk_bytes)} free; one checkpoint takes about {bytes_text(checkpoint)}",
        "free space, or save elsewhere", subject="disk",
        why="a checkpoint that is cut off may replace the last good one",
    )  # fmt: skip


RULES: dict[str, tuple[Rule, ...]] = {
    "versions": (_vision, _audio, _python),
    "known-bad": (_known_bad,),
    "device": (_idle_gpu,),
    "dtype": (_dtype, _autocast_dtype, _autocast_left_on),
    "anomaly": (_anomaly,),
    "grad-mode": (_grad_mode,),
    "determinism": (_determinism,),
    "tf32": (_tf32,),
    "benchmark": (_benchmark,),
    "debug-switches": (_switches,),
    "threads": (_threads,),
    "shared-memory": (_shm,),
    "memory": (_memory,),
    "disk": (_disk,),
}
