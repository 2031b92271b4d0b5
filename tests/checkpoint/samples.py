"""Checkpoints of every format, written by the libraries that own the format."""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

FLOATS = ("float64", "float32", "float16", "bfloat16")
EIGHT_BIT = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
COMPLEX = ("complex64", "complex128", "complex32")
NUMPY_DTYPES = ("float64", "float32", "float16", "complex64", "complex128")


def random_tensor(dtype: str, shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """Ordinary values, none of them zero, all of them representable."""
    values = torch.rand(shape, generator=rng) + 0.5
    if dtype.startswith("complex"):
        values = torch.complex(values, values + 0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 announces itself as experimental
        return values.to(getattr(torch, dtype))


def poison(tensor: torch.Tensor, index: tuple[int, ...], value: float) -> None:
    """Write one NaN or Inf; 8-bit floats are written through their bytes."""
    if tensor.dtype.is_complex:
        torch.view_as_real(tensor)[(*index, 1)] = value
    elif tensor.dtype.itemsize == 1:
        octet = torch.tensor(value).to(tensor.dtype).view(torch.uint8)
        tensor.view(torch.uint8)[index] = octet
    else:
        tensor[index] = value


def write_torch(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    torch.save({"model": tensors, "step": 7}, path / "file.pt")
    return path / "file.pt"


def write_legacy(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    target = path / "file.pth"
    torch.save({"model": tensors, "step": 7}, target, _use_new_zipfile_serialization=False)
    return target


def write_plain_pickle(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    (path / "file.pkl").write_bytes(pickle.dumps({"model": tensors}))
    return path / "file.pkl"


def write_torchscript(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in tensors.items():
                self.register_buffer(name, tensor)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Holder()).save(str(path / "file.jit"))
    return path / "file.jit"


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    dense = {k: v.contiguous() for k, v in tensors.items()}
    safetensors.torch.save_file(dense, path / "file.safetensors")
    return path / "file.safetensors"


def write_sharded(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder = path / "sharded"
    folder.mkdir()
    weight_map = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        shard = f"model-{i:05d}-of-{len(tensors):05d}.safetensors"
        safetensors.torch.save_file({name: tensor.contiguous()}, folder / shard)
        weight_map[name] = shard
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_dcp(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": tensors, "step": 7}, checkpoint_id=str(path / "dcp"), no_dist=True)
    return path / "dcp"


def write_deepspeed(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """The layout of ZeRO stage 1: 16-bit module in one file, master weights and moments in another."""
    folder = path / "global_step10"
    folder.mkdir()
    torch.save({"module": tensors, "global_steps": 10}, folder / "mp_rank_00_model_states.pt")
    flat = torch.ones(8)
    base = {
        "state": {0: {"exp_avg": flat * 0.1, "exp_avg_sq": flat * 0.01}},
        "param_groups": [{"lr": 1e-3}],
    }
    zero = {
        "single_partition_of_fp32_groups": [flat],
        "base_optimizer_state": base,
        "zero_stage": 1,
    }
    target = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": zero}, target)
    return folder


def write_gguf(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """By hand, as the format says; tests/checkpoint/test_formats.py compares with its own package."""
    kinds = {"float32": 0, "float16": 1, "float64": 28, "bfloat16": 30}

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    facts = text("general.name") + struct.pack("<I", 8) + text("sample")
    facts += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    facts += text("ids") + struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3)
    facts += text("general.alignment") + struct.pack("<II", 4, 64)
    heads, data = b"", b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        dims = tuple(reversed(tensor.shape))
        kind = kinds[str(tensor.dtype).removeprefix("torch.")]
        heads += text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        heads += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 64)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 4) + facts + heads
    target = path / "file.gguf"
    target.write_bytes(head + bytes(-len(head) % 64) + data)
    return target


def write_npy(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    first = next(iter(tensors.values()))
    np.save(path / "file.npy", first.numpy())
    return path / "file.npy"


def write_npz(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    np.savez(path / "file.npz", **{k: v.numpy() for k, v in tensors.items()})
    return path / "file.npz"


def write_npz_compressed(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    np.savez_compressed(path / "packed.npz", **{k: v.numpy() for k, v in tensors.items()})
    return path / "packed.npz"


def write_numpy_pickle(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    arrays = {k: v.numpy() for k, v in tensors.items()}
    (path / "arrays.pkl").write_bytes(pickle.dumps(arrays, protocol=len(tensors) % 4 + 2))
    return path / "arrays.pkl"


WRITERS = {
    "torch": (write_torch, (*FLOATS, *EIGHT_BIT, *COMPLEX)),
    "legacy": (write_legacy, (*FLOATS, "complex64", "complex128")),
    "pickle": (write_plain_pickle, (*FLOATS, "complex64")),
    "torchscript": (write_torchscript, (*FLOATS, "complex64")),
    "safetensors": (write_safetensors, (*FLOATS, "float8_e4m3fn", "float8_e5m2", "complex64")),
    "sharded": (write_sharded, ("float32", "bfloat16")),
    "dcp": (write_dcp, (*FLOATS, "float8_e5m2")),
    "deepspeed": (write_deepspeed, ("float16", "bfloat16")),
    "gguf": (write_gguf, FLOATS),
    "npy": (write_npy, NUMPY_DTYPES),
    "npz": (write_npz, NUMPY_DTYPES),
    "npz_compressed": (write_npz_compressed, NUMPY_DTYPES),
    "numpy_pickle": (write_numpy_pickle, NUMPY_DTYPES),
}
KEEPS_STRIDES = ("torch", "legacy", "pickle", "torchscript")
COMBINATIONS = [(kind, dtype) for kind, (_, dtypes) in WRITERS.items() for dtype in dtypes]
