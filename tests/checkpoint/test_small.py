"""Tensors that are read together give the figures that each gives by itself."""

import math
import random

import pytest
import torch
from safetensors.torch import save_file

from stayfinite.checkpoint import scan_file, small

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def make(seed):
    rnd = random.Random(seed)
    tensors = {}
    for i in range(120):
        dtype = rnd.choice(DTYPES)
        size = rnd.choice(((), (1,), (3,), (4, 5), (256,), (257,), (40, 40), (0,)))
        tensor = (torch.rand(size, generator=torch.Generator().manual_seed(i)) - 0.3).to(dtype)
        if tensor.numel() and rnd.random() < 0.15:
            at = rnd.randrange(tensor.numel())
            tensor.view(-1)[at] = rnd.choice((math.nan, math.inf, -math.inf))
        if tensor.numel() and rnd.random() < 0.1:
            tensor.fill_(torch.finfo(dtype).tiny / 8)
        tensors[f"layer.{i}.{rnd.choice(('weight', 'bias', 'running_var'))}"] = tensor
    return tensors


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_the_same_figures_together_and_alone(tmp_path, monkeypatch, seed, suffix):
    path = tmp_path / f"t.{suffix}"
    (torch.save if suffix == "pt" else save_file)(make(seed), path)
    together = scan_file(path)
    monkeypatch.setattr(small, "_MAX_BYTES", -1)
    alone = scan_file(path)
    assert together.tensors == alone.tensors
    assert together.findings == alone.findings
    assert together.scanned_bytes == alone.scanned_bytes


def test_views_of_one_storage_are_read_together_too(tmp_path):
    whole = torch.arange(100.0)
    whole[57] = math.nan
    parts = {f"part.{i}": whole[i * 10 : i * 10 + 10] for i in range(10)}
    torch.save(parts, tmp_path / "t.pt")
    (only,) = scan_file(tmp_path / "t.pt").findings
    assert (only.tensor, only.stats.first_bad) == ("part.5", (7,))


def test_many_small_tensors_take_one_pass(tmp_path, monkeypatch):
    """A call for each of them would make a hundred thousand biases slow."""
    calls = []
    monkeypatch.setattr(small, "_one_by_one", lambda flat, spans: calls.extend(spans) or ([], []))
    save_file({f"b{i}": torch.rand(8) for i in range(2000)}, tmp_path / "t.safetensors")
    assert len(scan_file(tmp_path / "t.safetensors").tensors) == 2000 and calls == []
