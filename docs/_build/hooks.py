"""Pages that are made from the code while the site is built: one for every code, and the commands."""

from __future__ import annotations

import html
import posixpath
import re
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from stayfinite import codes
from stayfinite.cli.app import app
from stayfinite.explain import as_markdown, page_of

TITLES = {
    "cause": ("Causes", "Every incident carries one of these in `incident.diagnosis.cause`. How one is found and proved: [Causes and proofs](../../DIAGNOSIS.md)."),
    "lint": ("Lint", "Unsafe source, found without running it: [stayfinite lint](../../lint/README.md)."),
    "scan": ("Scan", "What can be wrong with a checkpoint or a data file: [stayfinite scan](../../SCAN.md)."),
    "check": ("Check", "What is looked at before a run: [stayfinite check](../../CHECK.md). A check is shown without its group in that group's table."),
}  # fmt: skip


_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+((?:examples|tests|clinic|benchmarks|src)/[^)#]*)[^)]*\)"
)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """What is linked in the repository beside docs/ is no page here: it is named instead."""

    def named(link: re.Match[str]) -> str:
        text, path = link[1], link[2]
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(named, markdown)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages; nothing is written into docs/."""
    pages = {"reference/cli.md": commands(), "codes/index.md": overview()}
    for kind in codes.KINDS:
        pages[f"codes/{kind}/index.md"] = index(kind)
    for code in codes.all_codes():
        pages[address(code.name)] = code_page(code.name)
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def address(name: str) -> str:
    return f"codes/{codes.lookup(name).kind}/{name}.md"


def code_page(name: str) -> str:
    home = posixpath.dirname(address(name))
    kind = codes.lookup(name).kind
    up = (
        posixpath.relpath("codes/index.md", home),
        posixpath.relpath(f"codes/{kind}/index.md", home),
    )
    way = f"[Codes]({up[0]}) › [{TITLES[kind][0]}]({up[1]})\n\n"
    text = as_markdown(page_of(name), lambda other: posixpath.relpath(address(other), home))
    return text.replace("\n\n", f"\n\n{way}", 1)


def overview() -> str:
    lines = [
        "# Codes\n",
        "Whatever stayfinite finds has a code, and every code has a page. The same page is in the terminal:\n",
    ]
    lines.append(
        "```\nstayfinite explain fully_masked_row\nstayfinite explain            # lists all\n```\n"
    )
    for kind, (title, text) in TITLES.items():
        count = len(codes.all_codes(kind))
        lines.append(f"- [{title}]({kind}/index.md), {count}: {text.replace('../../', '../')}")
    return "\n".join(lines) + "\n"  # fmt: skip


def index(kind: codes.Kind) -> str:
    title, text = TITLES[kind]
    lines = [f"# {title}\n", f"{text}\n"]
    group = ""
    for code in codes.all_codes(kind):
        new = code.name.partition("/")[0] if "/" in code.name else "all"
        if new != group:
            group = new
            heading = f"\n## {group}\n\n" if group != "all" else ""
            lines.append(f"{heading}| code | |\n|---|---|")
        meaning = code.definition.replace("|", "\\|").replace("*", "\\*")
        lines.append(f"| [`{code.name}`]({code.name}.md) | {meaning} |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Every command with its arguments and options, read from the command line itself."""
    root: Any = typer.main.get_command(app)
    parts = [
        "# Commands\n",
        "Exit codes: 0 clean, 1 something was found, 2 wrong usage; `run` passes the script's own on.\n",
    ]
    for name, command in root.commands.items():
        parts.append(f"## stayfinite {name}\n")
        parts.append(" ".join((command.help or "").split("\b")[0].split()) + "\n")
        with command.context_class(command, info_name=f"stayfinite {name}") as context:
            usage = command.get_usage(context).removeprefix("Usage: ")
            parts.append(f"```\n{usage}\n```\n")
            parts.append(options(command, context))
    return "\n".join(parts)  # fmt: skip


def options(command: Any, context: Any) -> str:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        names, text = (_html(" ".join(part.split())) for part in record)
        rows.append(f"| <code>{names}</code> | {text} |")
    return "| option | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else ""


def _html(text: str) -> str:
    """Plain text for a cell of a table; `code` stays code."""
    pieces = html.escape(text).replace("|", "&#124;").replace("*", "&#42;").split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))
