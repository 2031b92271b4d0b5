"""Formats beyond torch.save and safetensors, written by the packages that own them where we have them."""

import math
import struct
import warnings

import pytest
import torch
from tests.checkpoint.hostile import call
from tests.checkpoint.samples import write_gguf, write_legacy, write_torch

from stayfinite.checkpoint import scan, scan_file


def findings(path):
    return [
        (f.code, f.tensor, f.stats.first_bad if f.stats else None) for f in scan_file(path).findings
    ]


def export(path, model, example):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(model, (example,)), str(path))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 4)
        self.bn = torch.nn.BatchNorm1d(4)
        self.shift = torch.arange(3.0)

    def forward(self, x):
        return self.bn(self.fc(x + self.shift))


def test_an_exported_program(tmp_path):
    model = Model().eval()
    export(tmp_path / "a.pt2", model, torch.rand(2, 3))
    report = scan_file(tmp_path / "a.pt2")
    assert (report.format, report.verdict) == ("pt2", "healthy")
    assert {"fc.weight", "bn.running_var", "constants.shift"} <= {t.name for t in report.tensors}
    with torch.no_grad():
        model.fc.weight[2, 1] = math.nan
    export(tmp_path / "a.pt2", model, torch.rand(2, 3))
    assert findings(tmp_path / "a.pt2") == [("nonfinite_tensor", "fc.weight", (2, 1))]


def test_a_pickle_inside_an_exported_program_is_not_run(tmp_path):
    import zipfile

    from tests.checkpoint.hostile import torch_zip

    export(tmp_path / "a.pt2", Model().eval(), torch.rand(2, 3))
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive:
        parts = {n: archive.read(n) for n in archive.namelist()}
    inner = next(n for n in parts if n.endswith(".pt"))
    parts[inner] = torch_zip(call("os", "system", "true"))
    with zipfile.ZipFile(tmp_path / "a.pt2", "w") as archive:
        for name, raw in parts.items():
            archive.writestr(name, raw)
    assert scan_file(tmp_path / "a.pt2").verdict == "hostile"


def test_gguf_by_its_own_package(tmp_path):
    gguf = pytest.importorskip("gguf", reason="needs gguf: pip install gguf")
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 256)).astype(np.float32)
    path = tmp_path / "model.gguf"

    def write(scale):
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_uint32("llama.block_count", 1)
        writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
        writer.add_tensor("token_embd.weight", weight)
        writer.add_tensor("norm.weight", weight[0].astype(np.float16))
        for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1):
            packed = gguf.quants.quantize(weight, kind)
            if scale is not None and kind.name == "Q8_0":
                packed.reshape(-1, 34)[5, :2] = np.frombuffer(struct.pack("<e", scale), np.uint8)
            writer.add_tensor(f"blk.0.{kind.name}", packed, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    write(None)
    report = scan_file(path)
    assert (report.format, report.verdict) == ("gguf", "healthy")
    shapes = {t.name: t.stats.shape for t in report.tensors}
    assert shapes["token_embd.weight"] == (8, 256) and shapes["norm.weight"] == (256,)
    assert shapes["blk.0.Q4_1.minima of its Q4_1 blocks"] == (64,)
    write(math.nan)
    assert findings(path) == [("nonfinite_tensor", "blk.0.Q8_0.scales of its Q8_0 blocks", (5,))]


def test_the_table_of_quantized_types_is_that_of_the_package():
    gguf = pytest.importorskip("gguf", reason="needs gguf: pip install gguf")
    from stayfinite.checkpoint.readers.gguf import _PACKED

    for number, packed in _PACKED.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (
            packed.title,
            (packed.elements, packed.num_bytes),
        )


def test_gguf_that_lies(tmp_path):
    path = write_gguf(tmp_path, {"w": torch.rand(4, 4)})
    raw = path.read_bytes()
    for changed in (
        raw[:-100],
        raw[:30],
        raw[:4] + b"\x09" + raw[5:],
        raw[:8] + b"\xff" * 8 + raw[16:],
    ):
        path.write_bytes(changed)
        assert scan_file(path).verdict == "unreadable"


def test_a_fsdp_run_saved_by_rank(tmp_path):
    """One file for each rank, as many trainers write local state dicts."""
    for rank in (0, 1):
        shard = torch.rand(10)
        if rank:
            shard[4] = math.inf
        torch.save({"flat_param": shard}, tmp_path / f"model_rank_{rank}.pt")
    report = scan(tmp_path)
    assert sorted(c.verdict for c in report.checkpoints) == ["corrupt", "healthy"]


@pytest.mark.parametrize("prefix", ["", "bf16_"])
def test_a_zero_folder_with_shards_of_each_rank(tmp_path, prefix):
    folder = tmp_path / "global_step20"
    folder.mkdir()
    torch.save({"module": {"w": torch.rand(4).bfloat16()}, "global_steps": 20},
               folder / "mp_rank_00_model_states.pt")  # fmt: skip
    for rank in (0, 1):
        flat = torch.rand(16)
        if rank:
            flat[9] = math.nan
        zero = {"fp32_flat_groups": [flat], "zero_stage": 3, "partition_count": 2}
        name = f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": zero}, folder / name)
    (tmp_path / "latest").write_text("global_step20")
    (checkpoint,) = scan(tmp_path).checkpoints
    assert (checkpoint.kind, checkpoint.step, checkpoint.verdict) == ("deepspeed", 20, "corrupt")
    bad = [f for r in checkpoint.files for f in r.findings]
    assert [(f.role, f.stats.first_bad) for f in bad] == [("weights", (9,))]


def test_a_sharded_bin_checkpoint(tmp_path):
    import json

    names = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    for name, file in names.items():
        torch.save({name: torch.rand(3)}, tmp_path / file)
    index = {"metadata": {}, "weight_map": names}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (checkpoint,) = scan(tmp_path).checkpoints
    assert (checkpoint.kind, checkpoint.verdict, len(checkpoint.files)) == ("sharded", "healthy", 2)
    torch.save({"other": torch.rand(3)}, tmp_path / names["b"])
    (checkpoint,) = scan(tmp_path).checkpoints
    assert {f.code for f in checkpoint.findings} == {"missing_tensor"}


def test_a_file_in_an_unknown_version_is_reported(tmp_path):
    for writer in (write_torch, write_legacy):
        path = writer(tmp_path, {"w": torch.rand(2)})
        path.write_bytes(b"\x00" * 100)
        assert scan_file(path).verdict == "unreadable"
