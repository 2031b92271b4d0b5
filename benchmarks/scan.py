"""How fast `stayfinite scan` is: against what people do today, and against the limit of the memory.

    python -m benchmarks.scan [--gigabytes 1.6] [--rounds 9] [--shape llama|gpt2|both]

A checkpoint is written to a temporary folder and lies in the page cache: `--shape llama` has the
layers of TinyLlama (few large tensors), `--shape gpt2` those of GPT-2 small with Adam moments (hundreds
of small ones, where each costs a little on top of its bytes). Three ways to look at it are timed in turn, round after round, so that whatever else
the machine does hits all of them:

  usual   torch.load, then isnan(tensor).any() for every tensor
  scan    stayfinite.checkpoint.scan_file
  limit   sum() over the same bytes, freshly mapped, in large blocks

Processor time is given beside: on a machine that is busy with other work the clock says little.

The peak of private (anonymous) memory is taken in a process that does nothing but scan.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

BLOCK = 8 << 20
TARGETS = {"usual": 10.0, "limit": 1.25, "memory_mb": 300.0}


def llama_shapes(gigabytes: float) -> dict[str, tuple[int, ...]]:
    """Layers as TinyLlama has them (width 2048, no biases), weights only: few, large tensors."""
    width, inner, vocabulary = 2048, 5632, 32000
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, width)}
    shapes["lm_head.weight"] = (vocabulary, width)
    layer = 0
    while 4 * sum(torch.Size(s).numel() for s in shapes.values()) < gigabytes * 1e9:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            rows = 256 if name[0] in "kv" else width
            shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (rows, width)
        for name in ("gate_proj", "up_proj"):
            shapes[f"model.layers.{layer}.mlp.{name}.weight"] = (inner, width)
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (width, inner)
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (width,)
        shapes[f"model.layers.{layer}.post_attention_layernorm.weight"] = (width,)
        layer += 1
    return shapes


def gpt2_shapes(gigabytes: float) -> dict[str, tuple[int, ...]]:
    """Layers as GPT-2 small has them (width 768, biases): many small tensors, the hard case."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (50257, 768), "wpe.weight": (1024, 768)}
    layer = 0
    while 4 * sum(torch.Size(s).numel() for s in shapes.values()) < gigabytes * 1e9:
        for name, rows, columns in (("attn.c_attn", 768, 2304), ("attn.c_proj", 768, 768)):
            shapes[f"h.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"h.{layer}.{name}.bias"] = (columns,)
        for name, rows, columns in (("mlp.c_fc", 768, 3072), ("mlp.c_proj", 3072, 768)):
            shapes[f"h.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"h.{layer}.{name}.bias"] = (columns,)
        for name in ("ln_1", "ln_2"):
            shapes[f"h.{layer}.{name}.weight"] = shapes[f"h.{layer}.{name}.bias"] = (768,)
        layer += 1
    return shapes


def make_checkpoint(path: Path, gigabytes: float, shape: str = "llama") -> int:
    """A checkpoint of this size; returns the number of tensors. GPT-2 comes with Adam moments."""
    if shape == "llama":
        model = {n: torch.randn(s) * 0.02 for n, s in llama_shapes(gigabytes).items()}
        torch.save({"model": model, "step": 100}, path)
        return len(model)
    model = {n: torch.randn(s) * 0.02 for n, s in gpt2_shapes(gigabytes / 3).items()}
    state = {
        i: {"step": torch.tensor(100.0), "exp_avg": w * 0.01, "exp_avg_sq": w.square()}
        for i, w in enumerate(model.values())
    }
    groups = [{"lr": 6e-4, "betas": (0.9, 0.95), "params": list(range(len(model)))}]
    optimizer = {"state": state, "param_groups": groups}
    torch.save({"model": model, "optimizer": optimizer, "step": 100}, path)
    return 4 * len(model)


def usual(path: Path) -> bool:
    """What a script does."""
    state = torch.load(path, weights_only=True)
    tensors = [*state["model"].values()]
    moments = state.get("optimizer", {}).get("state", {})
    tensors += [t for entry in moments.values() for t in entry.values()]
    return any(bool(torch.isnan(t).any()) for t in tensors)


def limit(path: Path) -> float:
    """The bytes, mapped and added up."""
    fd = os.open(path, os.O_RDONLY)
    mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
    os.close(fd)
    flat = torch.frombuffer(mapping, dtype=torch.float32, count=len(mapping) // 4)
    total = sum(float(torch.sum(flat[i : i + BLOCK])) for i in range(0, flat.numel(), BLOCK))
    return total


def scan(path: Path) -> str:
    from stayfinite.checkpoint import scan_file

    verdict = scan_file(path).verdict
    assert verdict == "healthy", verdict
    return verdict


def peak_private_mb(path: Path) -> tuple[float, float]:
    """Anonymous memory before and at the peak of a scan, in a process of its own."""
    code = (
        "import sys, threading, time\n"
        "from stayfinite.checkpoint import scan_file\n"
        "def anon():\n"
        "    return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('RssAnon'))\n"
        "before = anon(); peak = [before]; stop = threading.Event()\n"
        "def watch():\n"
        "    while not stop.wait(0.002): peak[0] = max(peak[0], anon())\n"
        "t = threading.Thread(target=watch); t.start()\n"
        "scan_file(sys.argv[1]); peak[0] = max(peak[0], anon()); stop.set(); t.join()\n"
        "print(before / 1000, peak[0] / 1000)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    before, peak = out.stdout.split()
    return float(before), float(peak)


def run(gigabytes: float = 1.6, rounds: int = 9, shape: str = "llama") -> dict[str, Any]:
    """Time all three, interleaved; medians, ratios and the peak of private memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        num_tensors = make_checkpoint(path, gigabytes, shape)
        ways = {"usual": usual, "scan": scan, "limit": limit}
        times: dict[str, list[float]] = {name: [] for name in ways}
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for i in range(rounds + 1):
            for name, way in ways.items():
                begin, used = time.perf_counter(), time.process_time()
                way(path)
                if i:  # the first round fills the page cache
                    times[name].append(time.perf_counter() - begin)
                    spent[name].append(time.process_time() - used)
        memory = peak_private_mb(path)
        size = path.stat().st_size
    middle = {name: statistics.median(t) for name, t in times.items()}
    best = {name: min(t) for name, t in times.items()}
    return {
        "gigabytes": size / 1e9,
        "num_tensors": num_tensors,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "median_s": middle,
        "best_s": best,
        "processor_s": {name: statistics.median(t) for name, t in spent.items()},
        "times_the_limit_processor": statistics.median(
            s / b for s, b in zip(spent["scan"], spent["limit"])
        ),
        "times_faster_than_usual": middle["usual"] / middle["scan"],
        "times_the_limit": statistics.median(s / b for s, b in zip(times["scan"], times["limit"])),
        "times_the_limit_best": best["scan"] / best["limit"],
        "private_mb_before": memory[0],
        "private_mb_peak": memory[1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of the checkpoint scan.")
    parser.add_argument("--gigabytes", type=float, default=1.6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shape", choices=("llama", "gpt2", "both"), default="both")
    options = parser.parse_args()
    shapes = ("llama", "gpt2") if options.shape == "both" else (options.shape,)
    met = [show(options.gigabytes, options.rounds, shape) for shape in shapes]
    return 0 if all(met) else 1


def show(gigabytes: float, rounds: int, shape: str) -> bool:
    """One shape in words; whether every target is met."""
    r = run(gigabytes, rounds, shape)
    print(f"{shape}, the machine's load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"{r['gigabytes']:.2f} GB, {r['num_tensors']} tensors, {r['threads']} threads, {r['rounds']} rounds"
    )
    for name, seconds in r["median_s"].items():
        print(
            f"  {name:<6} {seconds * 1e3:8.1f} ms (median), best {r['best_s'][name] * 1e3:.1f} ms, "
            f"processor {r['processor_s'][name] * 1e3:.1f} ms"
        )
    rows = [
        ("faster than torch.load + isnan", r["times_faster_than_usual"], ">=", TARGETS["usual"]),
        ("time over the limit (sum)", r["times_the_limit"], "<=", TARGETS["limit"]),
        ("peak private memory, MB", r["private_mb_peak"], "<=", TARGETS["memory_mb"]),
    ]
    is_met = True
    for label, value, sign, target in rows:
        ok = value >= target if sign == ">=" else value <= target
        is_met &= ok
        print(f"  {label}: {value:.2f} (target {sign} {target:g}) {'met' if ok else 'MISSED'}")
    best, used = r["times_the_limit_best"], r["times_the_limit_processor"]
    print(f"  the same of the best rounds: {best:.2f}; of processor time: {used:.2f}")
    return is_met


if __name__ == "__main__":
    sys.exit(main())
