"""Runs scenarios on N processes each: one job a line in, one exit code a line out.

Importing torch and FSDP costs seconds, so this process does it once and forks the ranks of every job.
Each rank leaves its findings in a file. Past the time limit all ranks are killed and the code is 124: a
hang is a failure, never a wait.
"""

import importlib
import json
import os
import pathlib
import pickle
import signal
import sys
import time
import traceback


def main(job: dict) -> int:
    folder = pathlib.Path(job["folder"])
    pids = [fork(rank, folder, _leave_findings, rank, job, folder) for rank in range(job["world"])]
    codes = _wait(pids, time.monotonic() + job["limit"])
    return max(codes)


def fork(rank: int, folder: pathlib.Path, call, *args) -> int:
    """A process of its own for `call(*args)`, which says its exit code; what it prints goes to a file."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(folder / f"rank{rank}.err", "w") as err:
            os.dup2(err.fileno(), 2)
            os.dup2(err.fileno(), 1)
            code = call(*args)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def meet(rank: int, world: int, folder: pathlib.Path) -> None:
    """This process becomes one of the ranks, over gloo on the loopback."""
    import torch
    import torch.distributed as dist
    from tests import gloo_exit

    gloo_exit.avoid()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)


def _leave_findings(rank: int, job: dict, folder: pathlib.Path) -> int:
    found = _rank(rank, job, folder)
    (folder / f"rank{rank}.pkl").write_bytes(pickle.dumps(found))
    return 0


def _rank(rank: int, job: dict, folder: pathlib.Path) -> dict:
    import torch.distributed as dist

    home = importlib.import_module(f"tests.distributed.{job.get('module', 'training')}")
    meet(rank, job["world"], folder)
    try:
        return getattr(home, job["scenario"])(rank, job)
    finally:
        dist.destroy_process_group()


def _wait(pids: list[int], deadline: float) -> list[int]:
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status) & 0xFF
        has_failed = any(codes.values())
        if time.monotonic() > deadline or has_failed:
            # One rank is gone: the others would wait for it in their next collective.
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = 0 if has_failed else 124
        time.sleep(0.005)
    return list(codes.values())


_LONG = (
    "torch._dynamo", "torch.distributed.tensor", "stayfinite.guard", "stayfinite.runtime.script.run_script",
    "stayfinite.investigate.entry", "stayfinite.lint", "safetensors.torch", "tests.distributed.training",
    "tests.distributed.saving",
)  # fmt: skip


def serve() -> None:
    for name in _LONG:
        importlib.import_module(name)
    for line in sys.stdin:
        print(main(json.loads(line)), flush=True)


if __name__ == "__main__":
    serve()
