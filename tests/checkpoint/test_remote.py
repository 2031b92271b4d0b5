"""Checkpoints in stores: fsspec's memory, and a web server on this machine that serves ranges."""

import http.server
import json
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoint import samples

from stayfinite.checkpoint import diff, plan_quarantine, scan, scan_file
from stayfinite.checkpoint.limits import FileFault
from stayfinite.checkpoint.remote import RemoteFile, is_remote, remote_path
from stayfinite.errors import UsageError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory():
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield fs
    fs.store.clear()


def upload(fs, source, target):
    for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
        if path.is_file():
            name = f"/{target}/{path.relative_to(source) if source.is_dir() else path.name}"
            fs.pipe_file(name, path.read_bytes())


def verdicts(report):
    return {c.path.rpartition("/")[2]: c.verdict for c in report.checkpoints}


def test_a_run_in_a_store_has_the_same_report(memory, tmp_path):
    for step in (1, 2, 3):
        value = torch.rand(50, 50)
        value[3, 4] = float("nan") if step == 3 else 0.5
        torch.save({"step": step, "model": {"w": value}}, tmp_path / f"step_{step}.pt")
    upload(memory, tmp_path, "run")
    here, there = scan(tmp_path), scan("memory://run")
    assert verdicts(here) == verdicts(there) and there.exit_code() == 1
    assert there.last_good == "memory:///run/step_2.pt"
    assert [f.tensors for f in here.files] == [f.tensors for f in there.files]
    assert there.timelines[0].first_broken == ("model.w",)
    assert verdicts(scan("memory://run/*_1.pt")) == {"step_1.pt": "healthy"}


@pytest.mark.parametrize("kind", list(samples.WRITERS))
def test_every_format_can_be_read_from_a_store(memory, tmp_path, kind):
    writer, dtypes = samples.WRITERS[kind]
    tensor = samples.random_tensor(dtypes[0], (5, 6), torch.Generator().manual_seed(1))
    samples.poison(tensor, (2, 3), float("nan"))
    path = writer(tmp_path, {"w": tensor})
    upload(memory, path, "x")
    here = scan(path)
    there = scan("memory://x" if path.is_dir() else f"memory://x/{path.name}")
    assert there.verdict == here.verdict == "corrupt"
    found = [
        [(f.code, f.tensor, f.stats) for r in s.files for f in r.findings] for s in (here, there)
    ]
    assert found[0] == found[1]


def test_a_large_file_passes_through_little_memory(memory, tmp_path, monkeypatch):
    from stayfinite.checkpoint import remote

    monkeypatch.setattr(remote, "_BLOCK", 1 << 16)
    monkeypatch.setattr(remote, "_MAX_CACHED", 4 << 16)
    monkeypatch.setattr(RemoteFile, "block_bytes", 1 << 16)
    held = []
    drop_blocks = RemoteFile._let_go
    monkeypatch.setattr(
        RemoteFile, "_let_go", lambda self: (drop_blocks(self), held.append(len(self._blocks)))[0]
    )
    values = {f"w{i}": torch.rand(300, 300) for i in range(12)}
    values["w11"][299, 299] = float("inf")
    torch.save(values, tmp_path / "t.pt")
    upload(memory, tmp_path, "x")
    (only,) = scan_file("memory://x/t.pt").findings
    assert (only.tensor, only.stats.first_bad) == ("w11", (299, 299))
    assert len(held) > 20 and max(held) <= 16


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Python's own server does not know ranges."""

    asked: list[str] = []  # noqa: RUF012 - the test reads it

    def do_GET(self):
        header = self.headers.get("Range")
        path = self.translate_path(self.path)
        if header is None or not self.server.has_ranges:
            return super().do_GET()
        self.asked.append(header)
        first, _, last = header.removeprefix("bytes=").partition("-")
        data = Path(path).read_bytes()
        part = data[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("aiohttp")
    handler = partial(Ranges, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        served.has_ranges = True
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        Ranges.asked.clear()
        yield served
        served.shutdown()
        thread.join()


def test_over_http_in_ranges(server, tmp_path):
    big = torch.rand(3000, 1500)
    big[2999, 1499] = float("nan")
    save_file({"a": torch.rand(2500, 1500), "b": big}, tmp_path / "t.safetensors")
    report = scan_file(f"http://127.0.0.1:{server.server_port}/t.safetensors")
    (only,) = report.findings
    assert (only.tensor, only.stats.first_bad) == ("b", (2999, 1499))
    assert len(Ranges.asked) >= 4  # 33 MB in blocks of 8
    assert len(set(Ranges.asked)) == len(Ranges.asked), "a range was fetched twice"


def test_a_server_without_ranges_is_reported(server, tmp_path):
    server.has_ranges = False
    save_file({"a": torch.rand(3000, 1500)}, tmp_path / "t.safetensors")
    report = scan_file(f"http://127.0.0.1:{server.server_port}/t.safetensors")
    assert report.verdict == "unreadable" and "does not serve ranges" in report.findings[0].message


def test_what_is_not_there_is_wrong_usage(memory):
    with pytest.raises(UsageError, match="no such file or folder"):
        scan("memory://nothing/here.pt")
    with pytest.raises(UsageError):
        scan("nosuchstore://x")


def test_addresses_are_distinguished_from_paths():
    assert is_remote("s3://b/x") and is_remote("memory://x") and is_remote("hf://org/model")
    assert not is_remote("C:/x") and not is_remote("a/b.pt") and not is_remote("runs/x://y")


def test_hostile_files_stay_unexecuted_in_a_store(memory):
    memory.pipe_file("/x/evil.pkl", b"\x80\x02cos\nsystem\nU\x04trueR.")
    memory.pipe_file("/x/cut.pt", b"PK\x03\x04")
    memory.pipe_file("/x/empty.pt", b"")
    assert verdicts(scan("memory://x")) == {
        "evil.pkl": "hostile", "cut.pt": "unreadable", "empty.pt": "unreadable",
    }  # fmt: skip


def test_a_store_that_fails_is_a_finding(memory, tmp_path, monkeypatch):
    torch.save({"w": torch.rand(10)}, tmp_path / "t.pt")
    upload(memory, tmp_path, "x")

    def fail(self, path, start=None, end=None, **kwargs):
        raise TimeoutError("no answer")

    path = remote_path("memory://x/t.pt")
    monkeypatch.setattr(type(memory), "cat_file", fail)
    with (
        RemoteFile(path) as file,
        pytest.raises(FileFault, match="cannot be fetched: TimeoutError: no answer"),
    ):
        file.need(0, 10)


def test_an_index_and_its_shards_in_a_store(memory, tmp_path):
    folder = samples.write_sharded(tmp_path, {"a": torch.rand(3), "b": torch.rand(4)})
    upload(memory, folder, "m")
    (checkpoint,) = scan("memory://m").checkpoints
    assert (checkpoint.kind, checkpoint.verdict) == ("sharded", "healthy")
    index = {"weight_map": {"a": "gone.safetensors"}}
    memory.pipe_file("/m/model.safetensors.index.json", json.dumps(index).encode())
    (checkpoint,) = scan("memory://m").checkpoints
    assert "missing_file" in {f.code for f in checkpoint.findings}


def test_diff_between_a_store_and_this_machine(memory, tmp_path):
    torch.save({"w": torch.ones(4)}, tmp_path / "a.pt")
    upload(memory, tmp_path, "x")
    torch.save({"w": torch.full((4,), 1.5)}, tmp_path / "a.pt")
    (row,) = diff("memory://x/a.pt", tmp_path / "a.pt").tensors
    assert row.relative_change == 0.5


def test_nothing_in_a_store_is_moved(memory, tmp_path):
    memory.pipe_file("/x/evil.pkl", b"\x80\x02cos\nsystem\nU\x04trueR.")
    report = scan("memory://x")
    with pytest.raises(UsageError, match="only files on this machine"):
        plan_quarantine(report.checkpoints, tmp_path / "bad")
