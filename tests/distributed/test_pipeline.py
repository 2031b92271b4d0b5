"""A model cut into stages (`torch.distributed.pipelining`): found on the stage where it began."""

import pathlib

import pytest

pytestmark = pytest.mark.slow
SOURCE = pathlib.Path(__file__).with_name("pipeline.py").read_text().splitlines()


@pytest.mark.parametrize(
    ("fault", "rank", "op", "schedule", "has_loader"),
    [("first", 0, "aten.sqrt", "gpipe", True), ("last", 1, "aten.log", "1f1b", False)],
)
def test_the_stage_where_it_began_is_named_and_the_diff_is_run_by_all(
    crew, fault, rank, op, schedule, has_loader
):
    job = {"module": "pipeline", "schedule": schedule, "has_loader": has_loader}
    run = crew("staged", **job, fault=fault, is_watched=True)
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank, incident.location.op) == (4, rank, op)
    assert f"# fault: {fault}" in SOURCE[incident.location.line - 1]
    fix = incident.diagnosis.fixes[0]
    assert fix.status == "proved" and fix.diff
    assert "run by all ranks together" in fix.proof.note
    rest = crew("staged", **job, without=[4])
    assert [r["state"] for r in run.ranks] == [r["state"] for r in rest.ranks]


def test_a_healthy_pipeline_is_bit_for_bit_the_plain_one(crew):
    job = {"module": "pipeline", "schedule": "gpipe"}
    run, plain = crew("staged", **job, is_watched=True), crew("staged", **job)
    assert run.incidents == []
    assert [r["state"] for r in run.ranks] == [r["state"] for r in plain.ranks]
