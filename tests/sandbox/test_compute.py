"""A replay computes, and nothing it does is felt outside: by path, by thread, by state."""
# ruff: noqa: SIM115  (files are opened as scripts open them)

import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from os import remove as removed_by_name

import pytest
import torch

from stayfinite.patches import table
from stayfinite.sandbox import Refused, computing_only
from stayfinite.sandbox.compute import _RULES, _targets
from stayfinite.sandbox.imported_names import stamp


def sandbox_rows():
    """Patches of the sandbox; a guard that was imported by another test has some of its own."""
    return [row for row in table() if "sandbox" in row.switch]


@pytest.fixture
def users(tmp_path, monkeypatch):
    for name in ("keep.txt", "tree/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    return {
        str(p.relative_to(folder)): (p.read_bytes() if p.is_file() else None, p.stat().st_mode)
        for p in sorted(folder.rglob("*"))
    }


def originals():
    return {(id(t.owner), t.name): vars(t.owner).get(t.name) for t, _ in _targets(stamp())}


def test_every_original_is_the_very_same_object_afterwards():
    before, streams = originals(), (sys.stdout, sys.stderr, sys.stdin)
    own = [dict(getattr(s, "__dict__", {})) for s in streams]
    with computing_only():
        assert originals() != before
        assert (sys.stdout, sys.stderr, sys.stdin) == streams
        assert len(sandbox_rows()) > 100
    after = originals()
    assert all(after[k] is before[k] for k in before)
    assert after.keys() == before.keys()
    assert [dict(getattr(s, "__dict__", {})) for s in streams] == own
    assert not sandbox_rows()


def test_sets_that_name_functions_of_os_are_as_before():
    before = [set(s) for s in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)]
    with computing_only():
        assert os.stat in os.supports_dir_fd and os.utime in os.supports_follow_symlinks
    assert [
        set(s) for s in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)
    ] == before


def test_a_body_that_raises_leaves_nothing_behind():
    before = originals()
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), computing_only():
            os.environ["STAYFINITE_TEST"] = "1"
            raise error
    assert all(originals()[k] is v for k, v in before.items())
    assert "STAYFINITE_TEST" not in os.environ
    assert not sandbox_rows()


def test_nested_replays_share_files_and_report(users, capfd):
    before = contents(users)
    with computing_only() as outer:
        pathlib.Path("new.txt").write_text("1")
        os.environ["STAYFINITE_TEST"] = "outer"
        with computing_only() as inner:
            assert pathlib.Path("new.txt").read_text() == "1"
            pathlib.Path("new.txt").write_text("2")
            os.environ["STAYFINITE_TEST"] = "inner"
            torch.set_grad_enabled(False)
        assert inner is outer
        assert torch.is_grad_enabled()
        assert os.environ["STAYFINITE_TEST"] == "outer"
        print("still muted")
        assert pathlib.Path("new.txt").read_text() == "2"
    assert "STAYFINITE_TEST" not in os.environ
    assert contents(users) == before
    assert capfd.readouterr().out == ""


def test_two_threads_each_in_a_replay_of_their_own(users):
    before, errors = contents(users), []
    original = os.remove
    meet = threading.Barrier(2, timeout=300)

    def replay(name):
        try:
            for i in range(20):
                meet.wait()
                with computing_only():
                    pathlib.Path("same.txt").write_text(name)
                    if i % 2:
                        meet.wait()
                    assert pathlib.Path("same.txt").read_text() == name
                    removed_by_name("keep.txt")
                    assert not os.path.exists("keep.txt")
        except BaseException as error:
            errors.append(error)
            meet.abort()

    threads = [threading.Thread(target=replay, args=(n,)) for n in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert os.remove is original and removed_by_name is original
    assert contents(users) == before
    assert not sandbox_rows()


def test_another_thread_is_never_touched(users, capfd):
    """It prints, warns, logs, writes and reads all the time; nothing of it is lost or muted."""
    stop, counts, errors = threading.Event(), {"n": 0}, []

    def work():
        try:
            log = open(users / "log.txt", "w")
            while not stop.is_set() or counts["n"] < 200:
                n = counts["n"] = counts["n"] + 1
                print(f"line {n}")
                log.write(f"{n}\n")
                (users / "other.txt").write_text(str(n))
                assert (users / "other.txt").read_text() == str(n)
                assert os.getcwd() == str(users)
                shutil.copy2(users / "keep.txt", users / "copy.txt")
                os.chmod(users / "copy.txt", 0o600 + n % 8)
                shutil.copystat(users / "copy.txt", users / "other.txt")
                assert (users / "other.txt").stat().st_mode & 0o777 == 0o600 + n % 8
                os.remove(users / "copy.txt")
                helper = threading.Thread(target=time.sleep, args=(0,))
                helper.start()
                helper.join()
            log.close()
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    for i in range(200):
        with computing_only():
            print("muted")
            (users / "mine.txt").write_text(str(i))
            os.chdir("tree")
            os.remove(users / "keep.txt")
    stop.set()
    worker.join()
    assert errors == []
    assert capfd.readouterr().out == "".join(f"line {n}\n" for n in range(1, counts["n"] + 1))
    assert (users / "log.txt").read_text() == "".join(f"{n}\n" for n in range(1, counts["n"] + 1))
    assert not (users / "mine.txt").exists()


def test_a_loop_that_tries_for_ever_is_ended():
    expected = r"the replay was ended: .*a subprocess \(date\)"
    with pytest.raises(Refused, match=expected), computing_only():
        while True:
            try:
                subprocess.run(["date"], check=True)
                break
            except Exception:
                time.sleep(60)
    with pytest.raises(Refused, match="waited too often"), computing_only():
        while True:
            time.sleep(60)


def test_variables_that_another_thread_sets_meanwhile_stay(monkeypatch):
    monkeypatch.setenv("STAYFINITE_KEPT", "old")
    monkeypatch.delenv("STAYFINITE_OTHER", raising=False)
    inside, done = threading.Event(), threading.Event()

    def other():
        inside.wait()
        os.environ["STAYFINITE_OTHER"] = "set"
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with computing_only():
        os.environ["STAYFINITE_KEPT"] = "new"
        os.environ.update(STAYFINITE_NEW="new")
        del os.environ["STAYFINITE_NEW"]
        inside.set()
        done.wait()
    thread.join()
    assert os.environ["STAYFINITE_KEPT"] == "old" and "STAYFINITE_NEW" not in os.environ
    assert os.environ.pop("STAYFINITE_OTHER") == "set"


def test_no_audit_hook_is_installed():
    code = (
        "import sys\n"
        "def no(*a): raise SystemExit('an audit hook')\n"
        "sys.addaudithook = no\n"
        "import torch\n"
        "from stayfinite.sandbox import computing_only\n"
        "with computing_only(): open('x.txt', 'w').close()\n"
        "print([m for m in ('sqlite3', 'tqdm', 'rich', 'tensorboard', 'http.client') if m in sys.modules])\n"
    )
    env = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2] / "src")}
    plain = subprocess.run(
        [sys.executable, "-c", code.replace("from", "0 #").replace("with", "0 #")],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == plain.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_another_thread_forks_is_free(users):
    inside, done, result = threading.Event(), threading.Event(), []

    def other():
        inside.wait()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            state = f"{len(sandbox_rows())} {os.path.exists('mine.txt')}"
            (users / "child.txt").write_text("real")
            os.write(write, state.encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        result.append(os.read(read, 100))
        os.close(read)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with computing_only():
        pathlib.Path("mine.txt").write_text("x")
        inside.set()
        done.wait(600)
        assert pathlib.Path("mine.txt").read_text() == "x"
    thread.join()
    assert result == [b"0 False"]
    assert (users / "child.txt").read_text() == "real"


def test_the_numbers_are_those_of_the_training():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    x = torch.randn(3, 4)

    def gradients():
        model.zero_grad()
        model(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients()
    with computing_only():
        replayed = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, replayed))


def test_every_rule_names_something_that_exists():
    """A name that a new version of a package has lost would protect nothing, silently."""
    version_specific = {
        "_NormalAccessor",
        "_StringGlobber",
        "_TemporaryFileCloser.cleanup",
        "startfile",
        "_builtin_open",
    }
    optional = {"loguru._logger", "wandb.sdk.wandb_run"}
    missing = []
    for rule in _RULES:
        if any(name in rule.path for name in version_specific) or rule.module in optional:
            continue
        owner = importlib.import_module(rule.module)
        for part in rule.path.split("."):
            owner = getattr(owner, part, None)
        if owner is None:
            missing.append(f"{rule.module}.{rule.path}")
    assert missing == []


def test_a_tracker_gets_nothing(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path))
    writer.add_scalar("loss", 1.0, 0)
    writer.flush()
    (events,) = tmp_path.iterdir()
    size = events.stat().st_size
    with computing_only():
        writer.add_scalar("loss", 2.0, 1)
        writer.flush()
        writer.close()
    writer.flush()
    assert events.stat().st_size == size
    writer.add_scalar("loss", 3.0, 1)
    writer.close()
    assert events.stat().st_size > size
