"""Ranks that are killed, throw, stop or end early, seeded: nobody hangs, nothing corrupt is saved.

    python -m tests.campaign_ranks --count 200 --seed 0

Each training has two to four gloo ranks (DDP, FSDP2 or tensor parallel) and one bad batch, so that there is an
investigation. Something happens to one rank at a random moment: before a step, in the forward of a step or of a
replay, as it is about to say something to the others about the failure, or as it asks whether they have seen it too. It is killed, throws an error of the
training's own, throws one of ours, misses a message, is stopped for a while, or ends early. Afterwards all ranks must end, and
there must not be 30 s in which nobody works (by the ranks' processor time: on a busy machine work takes long, a hang takes none); the error shown is the training's or torch's, never ours; every checkpoint that `last_good` names is
finite; and where all ranks went on, their weights are the same.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from tests.distributed import crew, training

import stayfinite.investigate.entry  # the forked ranks need not import it one by one
from stayfinite import Guard
from stayfinite.checkpoint import scan
from stayfinite.runtime.ranks import agreement as ranks
from stayfinite.runtime.ranks.side_groups import SideGroup, SideGroupError

LIMIT = 30.0
RANK_SECONDS = 4.0
STOPPED = 6.0
OURS = str(pathlib.Path(stayfinite.__file__).parent) + os.sep
EVENTS = ("kill", "kill", "throw", "our error", "miss", "stop", "end early", "nothing")
PHASES = ("step", "forward", "talk", "asked")


class OwnError(Exception):
    """What the training itself raises."""


@dataclass(frozen=True)
class Case:
    """One training of the campaign."""

    world: int
    kind: str
    form: str
    fault: str
    faulty: int
    event: str
    phase: str
    count: int
    """At which step, forward or talk it happens."""
    victim: int

    def __str__(self):
        where = f"{self.phase} {self.count} of rank {self.victim}"
        return (
            f"{self.event} at {where}, {self.world} ranks, {self.kind}, {self.form}, {self.fault}"
        )


def draw(rng: random.Random) -> Case:
    kind = rng.choice(("ddp", "fsdp", "fsdp", "tp"))
    # torch itself cannot split the net's 8 columns over three ranks
    world = rng.choice((2, 2, 4) if kind == "tp" else (2, 2, 3, 4))
    phase = rng.choice(PHASES)
    event = rng.choice(EVENTS)
    if event in ("our error", "miss") and (phase != "asked" or event == "our error"):
        phase = "talk"
    if phase == "asked":  # with gradients that all ranks have alike
        kind, event = "ddp", rng.choice(("kill", "stop", "miss"))
    if event == "end early":
        phase = "step"
    # A failure that is soon explained has few of them.
    most = {
        "step": training.NUM_BATCHES,
        "forward": rng.choice((8, 24)),
        "talk": rng.choice((4, 12, 40)),
        "asked": 1,
    }[phase]
    return Case(
        world=world, kind=kind, form=rng.choice(("loop", "step")),
        fault=rng.choice(("loss", "gradient", "inf_loss", "data")), faulty=rng.randrange(world),
        event=event, phase=phase, count=rng.randrange(most), victim=rng.randrange(world),
    )  # fmt: skip


# -- in a rank --------------------------------------------------------------------------------------


class Event:
    """Happens once, at its moment."""

    def __init__(self, case: Case, rank: int, folder: pathlib.Path) -> None:
        self.case, self.folder = case, folder
        self.is_mine = rank == case.victim and case.event != "nothing"
        self.seen = dict.fromkeys(PHASES, 0)

    def at(self, phase: str) -> bool:
        """Whether the loop is to end here, or a message to be lost."""
        number, self.seen[phase] = self.seen[phase], self.seen[phase] + 1
        if not self.is_mine or phase != self.case.phase or number != self.case.count:
            return False
        (self.folder / "happened").write_text(str(time.time()))
        if self.case.event == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.case.event == "stop":
            (self.folder / "stopped").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.case.event == "throw":
            raise OwnError("the training has raised this")
        elif self.case.event == "our error":
            raise ZeroDivisionError("thrown into ours")
        return self.case.event in ("end early", "miss")


def _watch_talk(event: Event) -> None:
    for name in ("gather", "broadcast"):
        original = getattr(SideGroup, name)

        def talk(self, *args, original=original):
            is_missed = event.at("talk")
            reported = original(self, *args)
            if is_missed:
                raise SideGroupError("it was lost")
            return reported

        setattr(SideGroup, name, talk)


def _watch_question(event: Event) -> None:
    original = ranks.is_seen_by_all
    ranks.is_seen_by_all = lambda *args: False if event.at("asked") else original(*args)


def _train(rank: int, case: Case, folder: pathlib.Path) -> dict:
    event = Event(case, rank, folder)
    if case.phase == "talk":
        _watch_talk(event)
    if case.phase == "asked":
        _watch_question(event)
    model = training.make(case.kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.RATE)
    settings = {"budget": 1e-6, "rank_seconds": RANK_SECONDS, "diagnose_seconds": 3.0}
    guard = Guard(model, optimizer, settings=settings)
    data = training.batches(
        training.data_rank(case.kind, rank), case.fault, 0 if case.kind == "tp" else case.faulty
    )

    def loss_of(model, batch):
        event.at("forward")
        return training.loss_of(model, batch)

    def save(i: int) -> None:
        state = {k: getattr(v, "_local_tensor", v) for k, v in model.state_dict().items()}
        torch.save(state, folder / f"rank{rank}" / f"step_{i}.pt")

    (folder / f"rank{rank}").mkdir()
    for i, batch in enumerate(data if case.form == "step" else guard(data)):
        if event.at("step"):
            break
        if case.form == "step":
            guard.step(loss_of, batch)
        else:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        if i % 2:
            save(i)
    guard.close()
    local = [getattr(p, "_local_tensor", p) for p in model.parameters()]
    return {
        "is_whole": case.kind == "ddp",
        "weights": [t.detach().sum().item() for t in local],
        "incidents": len(guard.incidents),
        "actions": [i.action.kind for i in guard.incidents],
    }


def _rank(rank: int, case: Case, folder: pathlib.Path) -> int:
    found: dict = {}
    code = 0
    try:
        crew.meet(rank, case.world, folder)
        found = _train(rank, case, folder)
        dist.destroy_process_group()
    except BaseException as error:
        code = 1
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        kind = type(error)
        is_ours = last.startswith(OURS) or kind.__module__.startswith("stayfinite")
        found = {"error": f"{kind.__name__}: {error}", "is_ours": is_ours}
        traceback.print_exc()
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    return code


# -- around them ------------------------------------------------------------------------------------


@dataclass
class Result:
    """What came of one case."""

    wrong: str = ""
    has_happened: bool = False
    seconds: float = 0.0
    """From the event to the end of the last rank."""
    idle: float = 0.0
    """Of these, in which no rank worked."""


class Idle:
    """How long none of some processes has worked or wanted to, in spans of a second or more."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._at = self._worked = 0.0
        self._num_looks = self._num_ready = 0

    def note(self, pids: set[int]) -> None:
        found = [_at_work(pid) for pid in pids]
        self._num_looks += 1
        self._num_ready += any(is_ready for _, is_ready in found)
        now = time.monotonic()
        if now - self._at < 1:
            return
        worked = sum(seconds for seconds, _ in found)
        span = now - self._at if self._at else 0.0
        # Less than two percent of the time is what waiting itself takes; an ended rank takes its share with it. On a
        # busy machine one that is ready to work may get no more.
        if abs(worked - self._worked) < 0.02 * span and self._num_ready < self._num_looks / 2:
            self.seconds += span
        self._at, self._worked = now, worked
        self._num_looks = self._num_ready = 0


def _at_work(pid: int) -> tuple[float, bool]:
    """Its processor seconds, and whether its first thread works or is ready to."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, False
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] == "R"


def _wait(pids: list[int], folder: pathlib.Path, limit: float) -> tuple[float, float, bool]:
    """When the last one ended, how long nobody worked, and whether one had to be killed."""
    left, started, idle = set(pids), time.time(), Idle()
    happened, stopped = folder / "happened", folder / "stopped"
    is_going_on = False
    since = 0.0
    while left:
        for pid in list(left):
            if os.waitpid(pid, os.WNOHANG)[0]:
                left.discard(pid)
        now = time.time()
        if happened.exists():
            since = now - happened.stat().st_mtime
            idle.note(left)
        if stopped.exists() and not is_going_on and since > STOPPED:
            is_going_on = True
            os.kill(int(stopped.read_text()), signal.SIGCONT)
        most = limit + (STOPPED if stopped.exists() else 0)
        if idle.seconds > most or now - started > 16 * limit:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return since, idle.seconds, True
        time.sleep(0.02)
    return since, idle.seconds, False


def run(case: Case, folder: pathlib.Path, limit: float = LIMIT) -> Result:
    pids = [crew.fork(rank, folder, _rank, rank, case, folder) for rank in range(case.world)]
    seconds, idle, is_hanging = _wait(pids, folder, limit)
    result = Result(has_happened=(folder / "happened").exists(), seconds=seconds, idle=idle)
    if is_hanging:
        result.wrong = "some rank hangs"
        return result
    files = {r: folder / f"rank{r}.json" for r in range(case.world)}
    found = {r: json.loads(f.read_text()) for r, f in files.items() if f.exists()}
    result.wrong = _judged(case, found, result.has_happened) or _saved(folder)
    return result


def _judged(case: Case, found: dict, has_happened: bool) -> str:
    errors = {r: f["error"] for r, f in found.items() if "error" in f}
    if any(f.get("is_ours") for f in found.values()):
        return f"an error of ours is shown: {errors}"
    expects_error = has_happened and case.event in ("kill", "throw", "end early")
    if errors and not expects_error:
        return f"the training has ended: {errors}"
    is_own = expects_error and case.event == "throw" and case.phase == "step"
    if is_own and not errors.get(case.victim, "").startswith("OwnError"):
        return f"the training's own error is not shown: {errors}"
    if not errors and len(found) == case.world:
        if case.kind == "ddp" and len({tuple(f["weights"]) for f in found.values()}) > 1:
            return "the ranks have come apart"
        if len({tuple(f["actions"]) for f in found.values()}) > 1:
            return f"the ranks have decided differently: {found}"
    return ""


def _saved(folder: pathlib.Path) -> str:
    for place in folder.glob("rank?"):
        good = scan([str(place)]).last_good
        if good is None:
            continue
        for name, tensor in torch.load(good, weights_only=True).items():
            if not torch.isfinite(tensor).all():
                return f"{good} is called good, and {name} is not finite"
    return ""


def campaign(count: int, seed: int, limit: float = LIMIT, is_loud: bool = False) -> list[str]:
    """The cases that went wrong, each with its story."""
    rng = random.Random(seed)
    wrong, happened, longest, idle = [], 0, 0.0, 0.0
    for number in range(count):
        case = draw(rng)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            result = run(case, folder, limit)
            happened += result.has_happened
            longest, idle = max(longest, result.seconds), max(idle, result.idle)
            if is_loud:
                how = f"{result.seconds:.1f} s ({result.idle:.1f} idle) {result.wrong or 'fine'}"
                print(f"{number}: {case}: {how}", flush=True)
            if result.wrong:
                reported = "\n".join(
                    f.read_text()[-3000:] for f in sorted(folder.glob("rank*.err"))
                )
                wrong.append(
                    f"{number}: {case}: {result.wrong}\n{json.dumps(asdict(case))}\n{reported}"
                )
    print(f"{count} trainings, something happened in {happened}, {len(wrong)} wrong, ", end="")
    print(f"at most {longest:.1f} s until the last rank had ended, {idle:.1f} s of them idle")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="one case, as it is printed when it goes wrong")
    options = parser.parse_args()
    if options.case:
        with tempfile.TemporaryDirectory() as name:
            print(run(Case(**json.loads(options.case)), pathlib.Path(name)))
            for file in sorted(pathlib.Path(name).glob("rank*.err")):
                print(f"--- {file.name}\n{file.read_text()}")
        return 0
    wrong = campaign(options.count, options.seed, is_loud=True)
    for text in wrong:
        print("\n" + text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
