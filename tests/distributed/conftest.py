"""Ranks for the tests of this folder: one server that has imported torch forks them for every job."""

import json
import pathlib
import pickle
import subprocess
import sys
from dataclasses import dataclass

import pytest
from tests.launch import environment

from stayfinite.records import Incident

HERE = pathlib.Path(__file__).parent
LIMIT_SECONDS = 600


collect_ignore_glob = ["scripts/*"]
"""They are run, never imported: importing one would train."""


@dataclass
class Run:
    ranks: list[dict]
    errors: list[str]

    @property
    def incidents(self) -> list[Incident]:
        """Those of rank 0, once it is sure that every rank has the same."""
        texts = [r["incidents"] for r in self.ranks]
        assert all(t == texts[0] for t in texts), "the ranks tell different stories"
        return [Incident.from_json(t) for t in texts[0]]

    @property
    def state(self) -> list[bytes]:
        states = [r["state"] for r in self.ranks]
        assert all(s == states[0] for s in states), "the ranks have come apart"
        return states[0]


@pytest.fixture(scope="package")
def server():
    process = subprocess.Popen(
        [sys.executable, str(HERE / "crew.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=environment(),
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.wait(timeout=300)
    process.stdout.close()


@pytest.fixture(scope="package")
def crew(server, tmp_path_factory):
    known: dict[str, Run] = {}

    def run(scenario: str, world: int = 2, **job) -> Run:
        key = json.dumps([scenario, world, job], sort_keys=True)
        if scenario == "plain" and key in known:
            return known[key]
        folder = tmp_path_factory.mktemp(scenario)
        job = {"scenario": scenario, "world": world, "folder": str(folder), "kind": "ddp",
               "form": "loop", "limit": LIMIT_SECONDS} | job  # fmt: skip
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        errors = [(folder / f"rank{r}.err").read_text() for r in range(world)]
        reported = "\n".join(errors)
        assert code != 124, f"no end within {LIMIT_SECONDS} s: some rank waits for ever\n{reported}"
        assert code == 0, reported
        files = [folder / f"rank{r}.pkl" for r in range(world)]
        known[key] = Run([pickle.loads(f.read_bytes()) for f in files], errors)
        return known[key]

    return run
