"""The big table: faults x policies x ways of spreading a training over ranks, beside one rank.

    python -m tests.distributed.table [--world 8] [--kinds ddp,fsdp] [--faults loss] [--policies skip]

For each: the state of every rank is bit for bit that of the run without the bad batch (or, with the policy `raise`,
every rank has raised the same incident), and cause, operator and line are those of the same fault on one rank.
"""

import argparse
import importlib
import itertools
import json
import pathlib
import pickle
import sys
import tempfile
from dataclasses import dataclass

from tests.distributed import crew, training

from stayfinite.records import Incident

KINDS = ("ddp", "fsdp", "tp", "accumulation")
FAULTS = ("loss", "gradient", "data", "inf_loss", "moment")
POLICIES = ("skip", "rollback", "raise")


@dataclass
class Found:
    """What the ranks of one training have left."""

    ranks: list[dict]
    errors: str = ""

    @property
    def states(self) -> list:
        return [r["state"] for r in self.ranks]

    @property
    def reported(self) -> Incident | None:
        texts = [r.get("incidents", []) for r in self.ranks]
        is_one = len(texts[0]) == 1 and all(t == texts[0] for t in texts)
        return Incident.from_json(texts[0][0]) if is_one else None


def job_of(kind: str, **more) -> dict:
    """A window of two batches under `no_sync`, or each batch its own.

    Snapshots of the windows are taken often enough that none goes back before the first step: from four ranks on, DDP by
    itself rounds its first step otherwise than later ones (then it has ordered its buckets anew).
    """
    if kind == "accumulation":
        often = {"max_batches": 2}
        return {"kind": "ddp", "accumulate": 2, "form": "loop", "settings": often, **more}
    return {"kind": kind, "form": "loop", **more}


def _left_out_in_vain(kind: str, policy: str, left_out: list[int], incident: Incident) -> str:
    """No more than has to be: the step's own batches, or with `rollback` all since the snapshot; none
    where every step could be made again."""
    step = incident.event.step
    first = step - step % 2 if kind == "accumulation" else step
    if policy == "rollback":
        assert incident.action.restored_step is not None
        first = incident.action.restored_step
    last = step | 1 if kind == "accumulation" else step
    expected = [] if incident.action.kind == "rebuilt" else [*range(first, last + 1)]
    return "" if left_out == expected else f"{left_out} are left out, not {expected}"


class Table:
    """Runs trainings, those without a fault once each."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._plain: dict[str, Found] = {}
        self._alone: dict[str, Incident | None] = {}

    def run(self, scenario: str, world: int, **job) -> Found:
        with tempfile.TemporaryDirectory() as name:
            job = {"scenario": scenario, "world": world, "folder": name, "limit": 300, **job}
            code = crew.main(job)
            folder = pathlib.Path(name)
            reported = "\n".join(f.read_text()[-1500:] for f in sorted(folder.glob("rank*.err")))
            files = [folder / f"rank{r}.pkl" for r in range(world)]
            if code or not all(f.exists() for f in files):
                return Found([{"state": None}], f"exit code {code}\n{reported}")
            return Found([pickle.loads(f.read_bytes()) for f in files])

    def without(self, kind: str, left_out: list[int]) -> Found:
        key = json.dumps([kind, left_out])
        if key not in self._plain:
            self._plain[key] = self.run("plain", self.world, **job_of(kind, without=left_out))
        return self._plain[key]

    def on_one_rank(self, fault: str) -> Incident | None:
        if fault not in self._alone:
            found = self.run("guarded", 1, **job_of("plain", fault=fault, faulty=0))
            self._alone[fault] = found.reported
        return self._alone[fault]

    def check(self, kind: str, fault: str, policy: str) -> str:
        """What is wrong, or nothing."""
        faulty = 0 if kind == "tp" else self.world - 1
        job = job_of(kind, fault=fault, policy=policy, faulty=faulty)
        if kind == "accumulation" and fault == "moment":
            job["at"] = training.AT + 1  # behind a step, not in the middle of its window
        found = self.run("guarded", self.world, **job)
        if found.errors:
            return found.errors
        incident = found.reported
        if incident is None:
            return f"the ranks tell different stories, or none: {[len(r['incidents']) for r in found.ranks]}"
        return self._as_without(kind, fault, policy, found, incident) or self._as_alone(
            fault, incident
        )

    def _as_without(self, kind, fault, policy, found: Found, incident: Incident) -> str:
        if policy == "raise":
            raised = {r["raised"] for r in found.ranks}
            return "" if raised == {incident.id} else f"raised by some only: {raised}"
        left_out = found.ranks[0]["left_out"]
        wrong = _left_out_in_vain(kind, policy, left_out, incident)
        if wrong:
            return wrong
        expected = self.without(kind, left_out).states[0]
        wrong = [r for r, state in enumerate(found.states) if state != expected]
        return f"ranks {wrong} are not as without the bad batch" if wrong else ""

    def _as_alone(self, fault: str, incident: Incident) -> str:
        alone = self.on_one_rank(fault)
        if alone is None:
            return "one rank alone tells no story"
        for name in ("op", "file", "line"):
            here, there = getattr(incident.location, name), getattr(alone.location, name)
            if here != there:
                return f"{name} is {here}, on one rank {there}"
        here, there = incident.diagnosis.cause, alone.diagnosis.cause
        return f"the cause is {here}, on one rank {there}" if here != there else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=8)
    for name, values in (("kinds", KINDS), ("faults", FAULTS), ("policies", POLICIES)):
        parser.add_argument(f"--{name}", default=",".join(values))
    options = parser.parse_args()
    for name in crew._LONG:
        importlib.import_module(name)
    table, num, wrong = Table(options.world), 0, []
    parts = (options.kinds, options.faults, options.policies)
    for kind, fault, policy in itertools.product(*(p.split(",") for p in parts)):
        problem = table.check(kind, fault, policy)
        num += 1
        print(f"{kind:13}{fault:10}{policy:10}{problem or 'as on one rank'}", flush=True)
        wrong += [problem] if problem else []
    print(f"{num} trainings on {options.world} ranks, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
