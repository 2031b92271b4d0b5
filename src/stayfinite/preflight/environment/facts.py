"""Gathers the facts that the environment group judges."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...devices import device_memory, device_name, has_accelerator
from ...runtime.batches import named_tensors
from ...runtime.saved_state import free_memory
from ..probes import Subject

__all__ = ["Facts", "bytes_text", "free_host_memory", "gather"]

_PACKAGES = (
    "torch",
    "torchvision",
    "torchaudio",
    "numpy",
    "lightning",
    "transformers",
    "accelerate",
)
_SWITCHES = (
    "CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_COMPILE_DEBUG",
    "PYTORCH_JIT", "CUBLAS_WORKSPACE_CONFIG", "TORCH_DISTRIBUTED_DEBUG", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The process, as far as it matters. The defaults are those of a healthy machine."""

    python: str = platform.python_version()
    torch: str = torch.__version__
    versions: dict[str, str] = field(default_factory=lambda: {"torch": torch.__version__})
    cudnn: int | None = None
    model_device: str = "cpu"
    has_model: bool = True
    """False where the machine is looked at before there is a training."""
    device_name: str = ""
    capability: tuple[int, int] | None = None
    """Of the GPU that the model is on."""
    has_idle_gpu: bool = False
    """A GPU is there, and no model is on it."""
    autocast_dtype: str | None = None
    is_autocast_on: bool = False
    """Outside of any region of the training's own."""
    default_dtype: str = "float32"
    is_anomaly: bool = False
    is_grad_enabled: bool = True
    is_inference: bool = False
    is_deterministic: bool = False
    cudnn_benchmark: bool = False
    matmul_precision: str = "highest"
    has_fp16_accumulation: bool = False
    is_cudnn_sdp: bool = False
    has_attention: bool = False
    has_varying_shapes: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    num_threads: int = 1
    num_cpus: int = 1
    num_workers: int = 0
    free_shm_bytes: float | None = None
    needed_bytes: float = 0.0
    free_bytes: float = 16e9
    free_disk_bytes: float = 100e9
    parameter_bytes: float = 0.0


def gather(subject: Subject) -> Facts:
    """The facts of this process."""
    params = [p for _, p in subject.parameters()]
    size = float(sum(p.numel() * p.element_size() for p in params))
    on_gpu = subject.device == "cuda"
    workers = [getattr(loader, "num_workers", 0) for loader in subject.loaders]
    return Facts(
        versions=_versions(),
        cudnn=torch.backends.cudnn.version() if on_gpu else None,
        model_device=subject.device,
        has_model=bool(subject.models),
        device_name=device_name(subject.device),
        capability=torch.cuda.get_device_capability() if on_gpu else None,
        has_idle_gpu=subject.device == "cpu" and has_accelerator(),
        autocast_dtype=subject.autocast_dtype,
        is_autocast_on=torch.is_autocast_enabled(subject.device),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        is_anomaly=torch.is_anomaly_enabled(),
        is_grad_enabled=torch.is_grad_enabled(),
        is_inference=torch.is_inference_mode_enabled(),
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        matmul_precision=torch.get_float32_matmul_precision(),
        has_fp16_accumulation=_fp16_accumulation(),
        is_cudnn_sdp=on_gpu and torch.backends.cuda.cudnn_sdp_enabled(),
        has_attention=has_attention(subject),
        has_varying_shapes=_varying(subject.batches),
        environment={k: os.environ[k] for k in _SWITCHES if os.environ.get(k)},
        num_threads=torch.get_num_threads(),
        num_cpus=os.cpu_count() or 1,
        num_workers=max([w for w in workers if isinstance(w, int)], default=0),
        free_shm_bytes=_free_shm(),
        needed_bytes=4 * size,
        free_bytes=device_memory(subject.device) or free_host_memory(),
        free_disk_bytes=float(shutil.disk_usage(Path.cwd()).free),
        parameter_bytes=size,
    )


def bytes_text(size: float) -> str:
    """A size in the unit that fits.

    >>> bytes_text(2.5e9), bytes_text(28000)
    ('2.5 GB', '28 kB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


def has_attention(subject: Subject) -> bool:
    """Whether a module of the training attends, by the names of the classes."""
    return any("attention" in type(m).__name__.lower() for _, m in subject.modules())


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**found, "torch": torch.__version__}


def _fp16_accumulation() -> bool:
    flags: Any = torch.backends.cuda.matmul
    return bool(getattr(flags, "allow_fp16_accumulation", False))


def _varying(batches: list[Any]) -> bool:
    """Whether batches differ in more than the number of samples."""
    shapes = {tuple(tuple(t.shape[1:]) for _, t in named_tensors(b)) for b in batches}
    return len(shapes) > 1


def free_host_memory() -> float:
    """Memory that a process can have; what the system only caches counts."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return free_memory()


def _free_shm() -> float | None:
    try:
        return float(shutil.disk_usage("/dev/shm").free)
    except OSError:
        return None
