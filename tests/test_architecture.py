"""The architecture in the docs is the one in the source."""

import ast
import pathlib
import re

from tests.import_graph import SRC, graph, rooms

DOC = (pathlib.Path(__file__).parents[1] / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")


def drawn(found):
    """Rooms with what they import, the lowest first."""
    order = sorted(found.items(), key=lambda item: (len(item[1]), item[0]))
    wide = max(map(len, found))
    return "\n".join(
        f"{room:<{wide}}  {' '.join(sorted(others))}".rstrip() for room, others in order
    )


def test_the_list_of_who_imports_whom_is_read_from_the_source():
    shown = DOC.partition("### Who imports whom")[2].split("```")[1].strip("\n")
    assert shown == drawn(rooms(graph())), f"paste this into the docs:\n{drawn(rooms(graph()))}"


def test_every_room_is_described():
    table = DOC.partition("| folder or file |")[2].partition("\n\n")[0]
    missing = [
        room
        for room in rooms(graph())
        if f"`{room}/`" not in table and f"`{room}.py`" not in table and room != "__main__"
    ]
    assert not missing


def test_every_file_that_the_docs_name_exists():
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", DOC))
    root = SRC.parent
    homes = (SRC / "stayfinite", SRC / "stayfinite/investigate", root)
    short = {"experiments/__init__.py", "readers/__init__.py", "sinks/__init__.py"}
    missing = [n for n in named - short if not any((home / n).exists() for home in homes)]
    assert not missing


def test_no_file_is_longer_than_400_lines_and_no_function_than_60():
    found = []
    for path in (SRC / "stayfinite").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if (num := text.count("\n")) > 400:
            found.append(f"{path.name}: {num} lines")
        found += [
            f"{path.name}:{node.lineno} {node.name}: {num} lines"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if (num := node.end_lineno - node.lineno + 1) > 60
        ]
    assert not found, "\n".join(found)
