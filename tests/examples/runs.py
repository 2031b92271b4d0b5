"""The three runs of an example: as it is, under stayfinite, and repaired."""

from pathlib import Path

from tests.launch import forked

from stayfinite.records import Incident

EXAMPLES = Path(__file__).parents[2] / "examples"


def python(folder, *command, code=0):
    done = forked([*map(str, command)], folder)
    assert done.code == code, done.err[-2000:]
    return done


def run(folder, *command):
    folder.mkdir()
    return python(folder, *command)


def three_runs(name, epochs, base):
    """The outputs by kind of run, each in its folder below `base`."""
    data = ("--data-dir", base / "data")
    broken = (EXAMPLES / name / "train.py", "--epochs", epochs, *data)
    guarded = ("-m", "stayfinite", "run", "--run-dir", "run", *broken)
    return {
        "plain": run(base / "plain", *broken),
        "guarded": run(base / "guarded", *guarded),
        "fixed": run(base / "fixed", EXAMPLES / name / "train_fixed.py", *data),
    }


def incidents_of(base):
    paths = sorted((base / "guarded" / "run" / "incidents").glob("*/incident.json"))
    return [Incident.from_json(path.read_text()) for path in paths]
