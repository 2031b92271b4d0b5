"""`stayfinite fix`: shows an incident's change as a diff with its proof, and writes it on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ..errors import UsageError
from .newest_run import HOME, has_run, newest_run, with_incidents, with_journal
from .plain import plain_errors, printable

if TYPE_CHECKING:
    from ..records import Fix, Incident
    from .fix_files import Target

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `fix` to the command line."""
    app.command(name="fix", short_help="Show or apply a proved fix as a diff.")(fix_command)


def fix_command(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN|INCIDENT",
            help="A run's folder, or one incident's. Default: the newest run in stayfinite-runs.",
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the proved change; keeps a copy of the old file.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore the file from before --apply.")
    ] = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also show changes that were not proved; they are never written."
        ),
    ] = False,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="The file to change, if it is not below this folder. Can be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the changes as JSON.")] = False,
) -> None:
    """Show the fix of an incident as a diff of your own source, proved by running it.

    Reads and writes only files below this folder or named with --file, since an incident may come
    from somebody else.

    Exit code: 0 a proved change is shown, written or undone, 1 there is none or it was not written,
    2 wrong usage.
    """
    with plain_errors("files are written whole or not at all"):
        if apply and undo:
            raise UsageError("--apply and --undo exclude each other")
        if path is None and has_run(with_journal) and not has_run(with_incidents):
            _end_without_incident(f"no run in {HOME}/ has an incident")
        if path is None:
            path = newest_run(with_incidents)
            typer.echo(printable(f"the newest run with an incident: {path}"), err=True)
        if with_journal(path) and not with_incidents(path):
            _end_without_incident(f"{path} has no incident")
        incidents = read_incidents(path)
        chosen = [(i, f) for i in incidents for f in wanted(i, every)]
        proved = [(i, f) for i, f in chosen if f.status == "proved"]
        written = _write(proved, list(file or []), undo) if apply or undo else None
        if as_json:
            typer.echo(_json(chosen, written))
        else:
            if not undo:
                _show(incidents, chosen)
            _print(chosen, written, path)
        has_failed = written is not None and any(not t.is_done for t in written)
        raise typer.Exit(0 if proved and not has_failed else 1)


def _end_without_incident(what: str) -> NoReturn:
    typer.echo(printable(f"{what}: there is nothing to repair"))
    raise typer.Exit(1)


def read_incidents(path: Path) -> list[Incident]:
    """The incidents of a run, or the one that was named; repeats are left out."""
    from ..report.reading import is_regular, read_incident

    if path.name == "incident.json" or is_regular(path / "incident.json"):
        return [read_incident(path)[0]]
    folder = path / "incidents" if (path / "incidents").is_dir() else path
    if not folder.is_dir():
        what = "is neither a run's folder nor an incident" if path.exists() else "does not exist"
        raise UsageError(f"{path} {what}{_what_to_type()}")
    found = [
        read_incident(p)[0] for p in sorted(folder.iterdir()) if is_regular(p / "incident.json")
    ]
    if not found:
        raise UsageError(f"{path} holds no incident{_what_to_type()}")
    return [i for i in found if i.same_as is None]


def _what_to_type() -> str:
    """The newest run of this folder that has incidents, if there is one."""
    try:
        return f"\ntry: stayfinite fix {newest_run(with_incidents)}"
    except UsageError:
        return "\ntry: stayfinite run train.py"


def wanted(incident: Incident, every: bool) -> list[Fix]:
    """The changes to show: proved ones, or all that are a diff."""
    fixes = [f for f in incident.diagnosis.fixes if f.diff]
    return [f for f in fixes if every or f.status == "proved"]


def _write(proved: list[tuple[Incident, Fix]], named: list[Path], is_undo: bool) -> list[Target]:
    from .fix_files import change_files

    first = {(i.id, f.file): f for i, f in reversed(proved)}  # others would repair the same failure
    return change_files([f for _, f in proved if f in first.values()], named, Path.cwd(), is_undo)


def _show(incidents: list[Incident], chosen: list[tuple[Incident, Fix]]) -> None:
    """Each incident with its changes; incidents with the same changes, or none and the same place, follow the first."""
    from ..report.text import headline

    groups: dict[object, list[Incident]] = {}
    for incident in incidents:
        diffs = tuple(f.diff for i, f in chosen if i is incident)
        groups.setdefault(diffs or _kind(incident), []).append(incident)
    for incident, *others in groups.values():
        mine = [f for i, f in chosen if i is incident]
        typer.echo(printable(headline(incident)))
        if others:
            what = "the same change is for" if mine else "the same happened at"
            typer.echo(f"  {what} {_steps([i.event.step for i in others])}")
        for fix in mine:
            _show_one(incident, fix)
        if not any(f.status == "proved" for f in mine):
            typer.echo("  no diff was proved for it")
            _show_words(incident)
        typer.echo("")


def _kind(incident: Incident) -> tuple[object, ...]:
    where, event = incident.location, incident.event
    return (incident.diagnosis.cause, where.file, where.line, event.phase, event.symptom)


def _steps(steps: list[int], limit: int = 6) -> str:
    """
    >>> _steps([7]), _steps([7, 45, 76], limit=2)
    ('step 7', 'steps 7, 45 and 1 more')
    """
    few = ", ".join(map(str, steps[:limit]))
    more = f" and {len(steps) - limit} more" if len(steps) > limit else ""
    return f"step{'s' * (len(steps) > 1)} {few}{more}"


def _print(chosen: list[tuple[Incident, Fix]], written: list[Target] | None, path: Path) -> None:
    """What was written, or how to write it."""
    for target in written or []:
        typer.echo(printable(target.message))
    if written is None and any(f.status == "proved" for _, f in chosen):
        typer.echo(printable(f"to write it: stayfinite fix {path} --apply"))


def _show_one(incident: Incident, fix: Fix) -> None:
    from ..report.fixes import proof_words

    typer.echo(printable(f"\n{fix.title}  [{fix.status}]\n  {fix.why}\n"))
    typer.echo(printable(fix.diff or ""))
    if fix.proof is not None:
        lead = "proof: exactly this diff was run; " if fix.status == "proved" else ""
        typer.echo(printable(f"{lead}{proof_words(fix.proof, incident.event.step)}"))


def _show_words(incident: Incident) -> None:
    """A setting that was proved and whose line was not found, or what is worth a try."""
    from ..report.fixes import advice, first_fix, proof_words
    from ..report.text import short_path

    first = first_fix(incident)
    if first is not None:
        typer.echo(printable(f"  change this by hand: {first.title}  [proved]"))
        if first.proof is not None:
            seen = proof_words(first.proof, incident.event.step)
            typer.echo(printable(f"  proof: exactly this value was run; {seen}"))
        return
    others = [f for f in advice(incident) if not f.title.startswith("and ")]
    if not others and incident.path:
        typer.echo(printable(f"  what is known: {short_path(incident.path)}/incident.txt"))
    for fix in others[:3]:
        typer.echo(printable(f"  try: {fix.title.removeprefix('or ')}  [{fix.status}]"))


def _json(chosen: list[tuple[Incident, Fix]], written: list[Target] | None) -> str:
    from ..plain import to_plain

    fixes: list[dict[str, Any]] = [{"incident": i.id, **to_plain(f)} for i, f in chosen]
    made = None
    if written is not None:
        made = [{"file": t.path, "is_done": t.is_done, "message": t.message} for t in written]
    return json.dumps({"fixes": fixes, "written": made}, indent=2, allow_nan=False)
