"""`stayfinite explain CODE`: what a code means, how it is proved, what to do."""

from __future__ import annotations

import json
import shutil
from typing import Annotated

import typer

from .plain import plain_errors

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `explain` to the command line."""
    app.command("explain", short_help="Explain a code and what to do about it.")(explain)


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE", help="log_of_zero, SF101, edges/blank, ...; none lists all."
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="List only: cause, lint, scan or check.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the page, or the list, as JSON.")
    ] = False,
) -> None:
    """The page of one code: a cause, or a finding of lint, scan or check; without a code, a list."""
    with plain_errors("nothing was written"):
        from ..errors import UsageError
        from ..explain import as_json as page_json
        from ..explain import as_text, page_of

        if code is None:
            typer.echo(_list(kind, as_json), nl=False)
            return
        if kind is not None:
            raise UsageError("`--kind` is for the list; leave it out, or leave the code out")
        page = page_of(code)
        width = min(max(shutil.get_terminal_size((88, 24)).columns, 40), 100)
        typer.echo(page_json(page) if as_json else as_text(page, width), nl=False)


def _list(kind: str | None, as_json: bool) -> str:
    from ..codes import KINDS, all_codes
    from ..errors import UsageError
    from ..explain import listing

    chosen = next((k for k in KINDS if k == kind), None)
    if kind is not None and chosen is None:
        raise UsageError(f"`--kind` must be one of {', '.join(KINDS)}, got {kind!r}")
    if as_json:
        rows = [
            {"code": c.name, "kind": c.kind, "definition": c.definition} for c in all_codes(chosen)
        ]
        return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    return listing(chosen)
