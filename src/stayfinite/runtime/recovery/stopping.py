"""When a run must end because its first steps all fail, and what it says when it ends."""

from __future__ import annotations

from pathlib import Path

from ...records import Incident
from ...recover.policy import Outlook, Policy
from ...report.text import headline, short_path
from ..ranks.agreement import Ranks

__all__ = ["PATIENCE", "FirstSteps", "budget_message", "give_up_message", "outlook_message"]

PATIENCE = 12
"""An adaptive policy stops after this many bad steps in a row that it could not explain, or at the start of a run."""


class FirstSteps:
    """The bad steps of a run that has not applied any: if they all fail, the code fails and not a batch."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, incident: Incident, ranks: Ranks) -> Outlook | None:
        """Count an incident before the first applied step; returns why the run should stop, if it should.

        Bad samples can fill the start of a data set, so they are no reason, and neither is a failure at a new place.
        """
        self._count += 1
        is_new = incident.same_as is None or incident.event.kind != "nonfinite"
        is_data = incident.event.phase == "data"
        if self._count <= PATIENCE or ranks.any(is_new or is_data):
            return None
        return Outlook(reason=f"not one of the first {self._count} steps could be applied")


def outlook_message(
    incident: Incident, outlook: Outlook, policy: Policy, last_healthy: Path | None
) -> str:
    """For a run that leaving batches out cannot help."""
    lines = [f"stopped: {outlook.reason}, so leaving batches out cannot help"]
    lines.append(f"  where: {headline(incident)}")
    diff = next((f for f in incident.diagnosis.fixes if f.status == "proved" and f.diff), None)
    if diff is not None and diff.experiment is None:
        lines.append(f"  try: {diff.title} (the diff above)")
    elif outlook.change:
        again = "; --policy heal goes on with it by itself" * (policy.name == "auto")
        lines.append(f"  try: {outlook.change} ({outlook.proof}){again}")
    else:
        cause = incident.diagnosis.cause
        page = f" (stayfinite explain {cause})" if cause else ""
        then = ", then resume from the last healthy state" if last_healthy is not None else ""
        lines.append(f"  try: fix the cause{page}{then}")
    if last_healthy is not None:
        lines.append(f"  last healthy state: {short_path(str(last_healthy))}")
    return "\n".join(lines)


def budget_message(incident: Incident, reason: str, policy: Policy) -> str:
    """For a run whose budget of skips or rollbacks is used up."""
    kinds = {r.kind for r in policy.steps()}
    activity = "rolling back" if "rollback" in kinds else "skipping"
    reason = f"{reason}; the training cannot go on by {activity}"
    return give_up_message(incident, reason, policy)


def give_up_message(incident: Incident, reason: str, policy: Policy) -> str:
    """For any other reason."""
    return f"{reason}\n  where: {headline(incident)}\n  try: {_advice(policy)}"


def _advice(policy: Policy) -> str:
    if policy.name in ("auto", "skip"):
        return (
            "fix the cause, or let it go back and slow down: the policy rollback:6:lr=0.2 returns "
            "to the last snapshot with a fifth of the learning rate"
        )
    return "fix the cause, or roll back to the last good checkpoint"
