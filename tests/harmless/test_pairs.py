"""Each script leaves the same behind, by itself and under `stayfinite run`."""

import pytest
from tests.harmless.pairs import SCRIPTS, Forking, Fresh, differences, run_pair

KINDS = ("plain", "guarded")


def scripts():
    """A script whose second line is `# slow` or `# alone` (an interpreter of its own, so slow, too)."""
    for path in sorted(SCRIPTS.glob("healthy/*.py")) + sorted(SCRIPTS.glob("bad_batch/*.py")):
        marks = path.read_text().splitlines()[1]
        is_slow = marks in ("# slow", "# alone")
        yield pytest.param(
            path,
            marks == "# alone",
            id=f"{path.parent.name}-{path.stem}",
            marks=[pytest.mark.slow] if is_slow else [],
        )


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    made = {kind: Forking(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}
    yield made
    for each in made.values():
        each.close()


@pytest.mark.parametrize(("script", "is_alone"), list(scripts()))
def test_a_script_leaves_the_same_behind_with_and_without_us(script, is_alone, servers, tmp_path):
    runners = {kind: Fresh(kind) for kind in KINDS} if is_alone else servers
    plain, guarded = run_pair(script, tmp_path, runners)
    assert differences(plain, guarded) == []
    assert plain.out, "a script that shows nothing shows no difference"
    is_bad = script.parent.name == "bad_batch"
    assert bool(guarded.incidents()) == is_bad, guarded.err
    assert "Traceback" not in guarded.err or "Traceback" in plain.err
