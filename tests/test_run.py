"""Unmodified scripts under `stayfinite run`: what people really write, each with its own failure."""

import json
import math
import pathlib
import re
from dataclasses import dataclass

import pytest
from tests.launch import Done, alone

from stayfinite import Incident

SCRIPTS = pathlib.Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Script:
    """A script and what must be found out about it. The line of the birth says `# HERE`."""

    name: str
    steps: tuple[int, ...]
    """The step of each incident."""
    op: str | None
    module: str | None
    phase: str
    args: tuple[str, ...] = ()
    symptom: str = "loss"
    label: str | None = None
    """For values that no operator made: where they came in."""
    left_out: tuple[int, ...] | None = None
    """Batches that a run must do without to come to the same end; None: the steps themselves."""
    mark: str = "# HERE"
    home: str | None = None
    """The file with the mark, where it is not the script."""
    code: int = 0
    plain_code: int = 0
    num_healthy: int | None = None
    """Lines before the failure, where the plain run does not show it by printing nan or inf."""
    keyword: str = "done"

    @property
    def id(self) -> str:
        return " ".join([self.name, *self.args])

    @property
    def line(self) -> int:
        text = (SCRIPTS / (self.home or self.name)).read_text(encoding="utf-8")
        (number,) = [i for i, t in enumerate(text.splitlines(), 1) if t.endswith(self.mark)]
        return number

    def command(self) -> list[str]:
        if self.name.startswith("parcel"):
            return ["-m", self.name.removesuffix(".py").replace("/", "."), *self.args]
        return [str(SCRIPTS / self.name), *self.args]


WITH_LOADER = [
    Script("plain_for.py", (2, 7), "aten.log", "", "forward"),
    Script("enumerate_loop.py", (3,), "aten.div", "encoder.pool", "forward"),
    Script("tqdm_bar.py", (4,), "aten._softmax", "", "forward"),
    Script("zip_loaders.py", (3,), None, None, "data", label="batch batch[1][0]"),
    Script("while_next.py", (3,), "aten.sqrt", None, "loss", left_out=()),
    Script("iterable.py", (4,), "SqrtBackward0", "", "backward", symptom="gradient"),
    Script("workers.py", (5,), None, None, "data", label="batch batch['signal']"),
    Script("dataclass_batch.py", (2,), "aten.log", None, "loss"),
    Script(
        "accumulate.py", (13,), "aten.log", "", "forward",
        args=("loss",), left_out=(12, 13, 14, 15), mark="# HERE loss",
    ),
    Script(
        "accumulate.py", (13,), "SqrtBackward0", "", "backward", symptom="gradient",
        args=("gradient",), left_out=(12, 13, 14, 15), mark="# HERE gradient",
    ),
    Script("gan.py", (3,), "aten.log", None, "loss", plain_code=1),
    Script("lbfgs.py", (2,), "aten.log", None, "loss"),
    Script("centered_loss.py", (2,), "aten.log", "criterion", "forward"),
    Script("many_models.py", (3,), "aten.div", "decoder", "forward"),
    Script("masters.py", (6,), "aten.div", "gate", "forward"),
    Script("checkpointed.py", (3,), "aten.div", "blocks.0", "forward", args=("plain",)),
    Script("checkpointed.py", (3,), "aten.div", "blocks.0", "forward", args=("reentrant",)),
    Script("validation.py", (6, 14), None, None, "data", label="batch batch[1]"),
    Script(
        "exits.py", (2,), None, None, "data", args=("3",), label="batch batch[0]",
        code=3, plain_code=3, keyword="leaving",
    ),
    Script(
        "exits.py", (2,), None, None, "data", args=("goodbye",), label="batch batch[0]",
        code=1, plain_code=1, keyword="leaving",
    ),
    Script(
        "arguments.py", (1,), None, None, "data", label="batch batch[0]",
        args=("--policy", "raise", "--run-dir", "x", "-m", "y", "--budget", "3", "--", "a", "-b"),
    ),
    Script("clipping.py", (3,), "PowBackward0", "", "backward", symptom="gradient"),
    Script(
        "amp_scheduler.py", (4,), "AddmmBackward0", "2", "backward", symptom="gradient",
        num_healthy=4,
    ),
    Script("epoch_scheduler.py", (3, 7, 11), None, None, "data", label="batch batch[0]"),
    Script("saves.py", (1,), "aten.mul", None, "loss", args=("model",)),
    Script(
        "parcel/inner/train.py", (3,), "aten.acosh", "", "forward",
        args=("--run-dir", "z"), home="parcel/net.py",
    ),
]  # fmt: skip
COMPILED = [
    Script("compiled.py", (4,), "aten.log", "", "forward", args=(backend,))
    for backend in ("eager", "aot_eager")
]
WITHOUT_LOADER = [
    Script("full_batch.py", (7,), "aten.div", None, "loss"),
    Script("slices.py", (4,), "aten.div", "", "forward"),
    Script(
        "corrupting_step.py",
        tuple(range(59, 63)),
        "aten.div",
        None,
        "optimizer",
        symptom="parameter",
    ),
    Script("agent.py", (0, 11), "aten.log", None, "loss"),
]


LEFT = [
    Script("leaves.py", (3,), "aten.log1p", None, "loss", args=(how,), code=code)
    for how, code in (("exit", 3), ("break", 0), ("late", 0), ("raise", 1), ("count", 0))
]


def folder_of(script: Script, tmp_path: pathlib.Path) -> pathlib.Path:
    return SCRIPTS if script.name.startswith("parcel") else tmp_path


def guarded(script: Script, run_dir: pathlib.Path) -> list[str]:
    options = ["--no-diagnose", "--run-dir", str(run_dir)]
    return ["-m", "stayfinite", "run", *options, *script.command()]


def incidents_in(run_dir: pathlib.Path) -> list[Incident]:
    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    found = []
    for path in run_dir.glob("incidents/*/incident.json"):
        text = path.read_text(encoding="utf-8")
        json.loads(text, parse_constant=refuse)
        found.append(Incident.from_json(text))
        assert (path.parent / "incident.txt").read_text(encoding="utf-8").startswith("stayfinite:")
    return sorted(found, key=lambda i: i.event.step)


def assert_found(script: Script, found: list[Incident]) -> None:
    assert tuple(i.event.step for i in found) == script.steps
    for incident in found:
        event, location = incident.event, incident.location
        assert (event.phase, event.symptom) == (script.phase, script.symptom)
        assert location.is_reproduced, location.note
        assert (location.op, location.module) == (script.op, script.module)
        assert location.file == str(SCRIPTS / (script.home or script.name))
        assert location.line == script.line
        assert location.source.endswith(script.mark)
        if script.label is not None:
            assert location.chain[0].label == script.label
        assert incident.action.kind == ("none" if is_left_by_script(script) else "skipped")


def is_left_by_script(script: Script) -> bool:
    """Whether the loop looks at its loss, and does not come to its backward."""
    return script.name == "own_check.py" or script.args == ("break",)


def is_finite_line(line: str) -> bool:
    return not re.search(r"\b(nan|inf)\b", line)


def assert_output(script: Script, plain: str, found: str) -> None:
    """As the plain run's up to the failure; what follows is finite but for the failing step itself,
    which the loop may print again while it is looked at."""
    plain_lines, lines = plain.splitlines(), found.splitlines()
    healthy = script.num_healthy
    if healthy is None:
        healthy = next(i for i, t in enumerate(plain_lines) if not is_finite_line(t))
    assert lines[:healthy] == plain_lines[:healthy]
    assert sum(not is_finite_line(t) for t in lines) <= 2 * len(script.steps)
    assert lines[-1].startswith(script.keyword)
    assert is_finite_line(lines[-1])


def last_numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?\d+\.\d+", text.splitlines()[-1])]


@dataclass(frozen=True)
class Pair:
    """A script run plainly and under the guard."""

    plain: Done
    done: Done
    found: list[Incident]


@pytest.fixture(scope="module")
def both(nursery, tmp_path_factory):
    """Each script once, however many tests look at it."""
    known = {}

    def run(script: Script) -> Pair:
        if script.id not in known:
            tmp_path = tmp_path_factory.mktemp("script")
            cwd = folder_of(script, tmp_path)
            plain = nursery.run(script.command(), cwd)
            done = nursery.run(guarded(script, tmp_path / "run"), cwd)
            known[script.id] = Pair(plain, done, incidents_in(tmp_path / "run"))
        return known[script.id]

    return run


@pytest.mark.parametrize("script", WITH_LOADER, ids=lambda s: s.id)
def test_script_is_caught_located_and_goes_on(script, both):
    pair = both(script)
    assert pair.plain.code == script.plain_code
    assert pair.done.code == script.code, pair.done.err
    assert_found(script, pair.found)
    assert_output(script, pair.plain.out, pair.done.out)
    count = len(script.steps)
    assert f"stayfinite: {count} incident{'s' if count > 1 else ''} in " in pair.done.err


@pytest.mark.parametrize("script", [s for s in WITH_LOADER if s.left_out != ()], ids=lambda s: s.id)
def test_script_ends_as_if_the_bad_batch_had_never_come(script, both, nursery, tmp_path):
    pair = both(script)
    steps = script.left_out if script.left_out is not None else script.steps
    tool = [str(SCRIPTS / "without.py"), ",".join(map(str, steps))]
    wanted = nursery.run([*tool, *script.command()], folder_of(script, tmp_path))
    assert pair.done.out.splitlines()[-1] == wanted.out.splitlines()[-1]
    assert pair.done.code == wanted.code


@pytest.mark.parametrize("script", LEFT, ids=lambda s: s.id)
def test_a_loop_that_is_left_after_the_bad_step_is_explained(script, nursery, tmp_path):
    plain = nursery.run(script.command(), tmp_path)
    command = ["-m", "stayfinite", "run", "--run-dir", str(tmp_path / "run"), *script.command()]
    done = nursery.run(command, tmp_path)
    assert (done.code, done.out) == (plain.code, plain.out) and plain.code == script.code
    found = incidents_in(tmp_path / "run")
    assert_found(script, found)
    assert found[0].diagnosis.cause == "domain_error"
    assert {e.outcome for e in found[0].diagnosis.experiments} == {"finite"}
    assert "1 incident in 4 steps" in done.err


@pytest.mark.parametrize("kind", ["tensor", "number"])
def test_a_script_that_leaves_a_bad_batch_out_by_itself_is_left_alone_and_gets_a_reason(
    kind, nursery, tmp_path
):
    script = Script("own_check.py", (3,), "aten.log1p", None, "loss", args=(kind,))
    plain = nursery.run(script.command(), tmp_path)
    done = nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    assert (done.code, done.out) == (plain.code, plain.out)
    (incident,) = incidents_in(tmp_path / "run")
    assert_found(script, [incident])
    assert incident.action.kind == "none" and "does not train on it" in incident.action.detail


def test_a_step_that_cannot_be_replayed_unfelt_is_left_out_all_the_same(nursery, tmp_path):
    """It draws from a generator of its own and takes its batches apart."""
    script = Script("takes_apart.py", (9,), None, None, "loss", left_out=(8, 9, 10, 11))
    done = nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    (incident,) = incidents_in(tmp_path / "run")
    assert incident.event.step in (8, 9, 10, 11) and not incident.location.is_reproduced
    assert "--replay full" in incident.location.note
    tool = [str(SCRIPTS / "without.py"), "8,9,10,11"]
    wanted = nursery.run([*tool, *script.command()], tmp_path)
    assert done.out.splitlines()[-1] == wanted.out.splitlines()[-1]


def test_a_loop_over_a_range_makes_as_many_turns_as_it_says(nursery, tmp_path):
    script = Script("range_next.py", (2, 8, 14), "aten.log1p", None, "loss", args=("15",))
    done = nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    assert_found(script, incidents_in(tmp_path / "run"))
    *rows, last = done.out.splitlines()
    assert [int(t.split()[0]) for t in rows] == list(range(15))
    assert [i for i, t in enumerate(rows) if not is_finite_line(t)] == [2, 8, 14]
    assert last.startswith("done 15 True") and is_finite_line(last)


def test_parts_of_a_batch_that_are_drawn_into_a_list(nursery, tmp_path):
    script = Script("gathers.py", (6,), "aten.log", None, "loss")
    plain = nursery.run(script.command(), tmp_path)
    done = nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    assert_found(script, incidents_in(tmp_path / "run"))
    lines = done.out.splitlines()
    assert [t.split()[:3] for t in lines[:5]] == [[str(i), "3", "3"] for i in range(5)]
    assert lines[:3] == plain.out.splitlines()[:3]
    assert lines[5].startswith("done 5") and is_finite_line(lines[5])


def test_batches_that_cycle_keeps_come_again_with_the_others(nursery, tmp_path):
    script = Script("zip_cycle.py", (3, 5), "aten.log", None, "loss")
    plain = nursery.run(script.command(), tmp_path)
    done = nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    assert_found(script, incidents_in(tmp_path / "run"))
    assert_output(script, plain.out, done.out)


@pytest.mark.slow
@pytest.mark.parametrize("script", COMPILED, ids=lambda s: s.id)
def test_compiled_model(script, nursery, tmp_path):
    plain = nursery.run(script.command(), tmp_path)
    done = nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    assert (plain.code, done.code) == (0, 0), done.err
    assert_found(script, incidents_in(tmp_path / "run"))
    assert_output(script, plain.out, done.out)
    tool = [str(SCRIPTS / "without.py"), "4"]
    wanted = nursery.run([*tool, *script.command()], tmp_path)
    # The replay may leave the compiler with other guards: the last bits may differ, no more.
    assert last_numbers(done.out) == pytest.approx(last_numbers(wanted.out), abs=2e-5)


@pytest.mark.parametrize("script", WITHOUT_LOADER, ids=lambda s: s.id)
def test_loop_without_a_loader(script, both):
    pair = both(script)
    assert (pair.plain.code, pair.done.code) == (0, 0), pair.done.err
    assert_found(script, pair.found)
    assert_output(script, pair.plain.out, pair.done.out)


def test_random_batches_without_a_loader(nursery, tmp_path):
    """The next iteration has numbers of its own, or it would fail for ever; a skipped step moves no schedule."""
    script = Script("random_batches.py", (), "aten.log", None, "loss")
    done = nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    found = incidents_in(tmp_path / "run")
    assert 2 <= len(found) <= 8
    assert_found(
        Script("random_batches.py", tuple(i.event.step for i in found), "aten.log", None, "loss"),
        found,
    )
    *lines, last = done.out.splitlines()
    rate = 0.01
    for line in lines:
        loss, shown = (float(word) for word in line.split())
        # Behind a bad step the schedule has moved too, until the loop's next step begins.
        assert shown == pytest.approx(rate * 0.9, abs=1e-6)
        rate *= 0.9 if math.isfinite(loss) else 1.0
    assert is_finite_line(last)


@pytest.mark.parametrize("how", ["tensor", "number"])
def test_script_that_raises_by_itself_keeps_its_word_and_is_explained(how, nursery, tmp_path):
    script = Script("own_raise.py", (3,), "aten.log1p", None, "loss", args=(how,))
    plain = nursery.run(script.command(), tmp_path)
    done = nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    assert (plain.code, done.code) == (1, 1)
    assert done.out == plain.out
    assert done.err.count("ValueError: loss is nan in step 3\n") == 1
    (incident,) = incidents_in(tmp_path / "run")
    assert (incident.event.step, incident.event.symptom) == (3, "loss")


def test_a_loop_does_not_count_what_was_run_again(nursery, tmp_path):
    """Its index, its own counter and its trainer's decide when it steps and when it stops."""
    script = Script("counted.py", (7,), "aten.div", None, "loss")
    plain = nursery.run(script.command(), tmp_path)
    command = [a for a in guarded(script, tmp_path / "run") if a != "--no-diagnose"]
    done = nursery.run(command, tmp_path)
    (incident,) = incidents_in(tmp_path / "run")
    assert_found(script, [incident])
    assert incident.diagnosis.experiments  # several iterations were run again

    def counts(text):
        return [line.split()[:4] for line in text.splitlines()]

    assert counts(done.out) == counts(plain.out)
    assert is_finite_line(done.out.splitlines()[-1])


def test_a_state_that_the_last_step_corrupted_is_reported(nursery, tmp_path):
    """Nobody asks for another batch after it."""
    text = (
        (SCRIPTS / "corrupting_step.py")
        .read_text(encoding="utf-8")
        .replace("range(63)", "range(60)")
    )
    (tmp_path / "short.py").write_text(text, encoding="utf-8")
    command = ["-m", "stayfinite", "run", "--no-diagnose", "--run-dir", str(tmp_path / "run")]
    done = nursery.run([*command, str(tmp_path / "short.py")], tmp_path)
    assert done.code == 0
    (incident,) = incidents_in(tmp_path / "run")
    assert (incident.event.step, incident.event.symptom) == (59, "parameter")
    assert incident.diagnosis.cause != "hardware_or_nondeterminism"


def test_saved_checkpoints_stay_finite(nursery, tmp_path):
    """Also the one that is written right after the bad step, before the loop asks for more."""
    import torch

    script = next(s for s in WITH_LOADER if s.name == "saves.py")
    nursery.run(guarded(script, tmp_path / "run"), tmp_path)
    files = sorted(tmp_path.glob("model-*.pt"))
    assert len(files) >= 5
    for path in files:
        saved = torch.load(path, weights_only=True)
        tensors = saved["model"] | {
            f"{i}:{k}": v for i, s in saved["optimizer"]["state"].items() for k, v in s.items()
        }
        bad = [name for name, t in tensors.items() if not torch.isfinite(t).all()]
        assert not bad, f"{path.name}: {bad}"


def test_policy_raise_stops_the_script(nursery, tmp_path):
    command = ["-m", "stayfinite", "run", "--no-diagnose", "--policy", "raise", "--run-dir", "r"]
    done = nursery.run([*command, str(SCRIPTS / "plain_for.py")], tmp_path)
    assert done.code == 1
    (incident,) = incidents_in(tmp_path / "r")
    assert incident.action.kind == "raised"
    assert "Traceback" not in done.err
    expected = "stayfinite: step 2: the loss is nan, born in aten.log at "
    assert any(line.startswith(expected) for line in done.err.splitlines())
    assert "done" not in done.out


def test_too_many_skips_stop_the_script(nursery, tmp_path):
    command = ["-m", "stayfinite", "run", "--no-diagnose", "--max-skips", "1", "--run-dir", "r"]
    done = nursery.run([*command, str(SCRIPTS / "all_bad.py")], tmp_path)
    assert done.code == 1
    assert [i.action.kind for i in incidents_in(tmp_path / "r")] == ["skipped", "stopped"]
    lines = done.err.splitlines()
    at = lines.index(
        "stayfinite: 2 steps in a row were skipped (limit 1); the training cannot go on by skipping"
    )
    assert lines[at + 1].startswith("  where: step 1: the loss is nan")
    assert lines[at + 2] == (
        "  try: fix the cause, or let it go back and slow down: the policy rollback:6:lr=0.2 returns "
        "to the last snapshot with a fifth of the learning rate"
    )


def test_incidents_go_to_a_folder_named_after_the_script(nursery, tmp_path):
    done = nursery.run(
        ["-m", "stayfinite", "run", "--no-diagnose", str(SCRIPTS / "zip_loaders.py")], tmp_path
    )
    assert done.code == 0
    (folder,) = (tmp_path / "stayfinite-runs").iterdir()
    assert re.fullmatch(r"zip_loaders-\d{8}-\d{6}", folder.name)
    assert len(incidents_in(folder)) == 1
    assert done.err.splitlines()[-2:] == [
        f"stayfinite: details in stayfinite-runs/{folder.name}",
        f"stayfinite: next: stayfinite report stayfinite-runs/{folder.name}",
    ]


def test_the_incident_is_reported_once_in_full_and_then_in_one_line(both):
    done = both(next(s for s in WITH_LOADER if s.name == "epoch_scheduler.py")).done
    lines = done.err.splitlines()
    assert (
        sum(bool(re.match(r"stayfinite: step 3 \(epoch 0[^)]*\): the loss is ", t)) for t in lines)
        == 1
    )
    assert sum(t.endswith("(as before)") for t in lines) == 2
    for heading in ("where", "chain, from birth to symptom", "values", "this step"):
        assert lines.count(heading) == 1
    assert "\x1b" not in done.err, "colors where there is no terminal"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["raises.py", "not_python.py", pytest.param("raises_in_torch.py", marks=pytest.mark.whole)],
)
def test_a_script_that_fails_by_itself_fails_the_same_way(name, tmp_path):
    """A fresh interpreter each: the traceback is the plain run's, to the letter."""
    path = str(SCRIPTS / name)
    plain = alone([path], tmp_path)
    done = alone(["-m", "stayfinite", "run", path], tmp_path)
    assert plain.code == 1
    assert done == plain
    assert not list(tmp_path.glob("stayfinite-runs/*/incidents"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "workers.py",
        "parcel/inner/train.py",
        *(
            pytest.param(n, marks=pytest.mark.whole)
            for n in ("plain_for.py", "accumulate.py loss", "gan.py")
        ),
    ],
)
def test_the_same_in_a_fresh_interpreter(name, tmp_path):
    """Nothing hangs on torch having been imported before."""
    script = next(s for s in WITH_LOADER if s.id.startswith(name))
    cwd = folder_of(script, tmp_path)
    done = alone(guarded(script, tmp_path / "run"), cwd)
    assert done.code == script.code, done.err
    assert_found(script, incidents_in(tmp_path / "run"))
    assert is_finite_line(done.out.splitlines()[-1])
