"""Tables of codes in the docs, written from the code's own source: `python -m tests.docs.tables`.

<!-- codes: init -->      the checks of these groups, or `scan`
| check | ...             is made anew
<!-- end -->
"""

import pathlib
import re

from tests.docs.blocks import DOCS

from stayfinite import codes

_TABLE = re.compile(r"<!-- codes: (?P<what>[\w ]+) -->\n(?P<rows>.*?)<!-- end -->", re.S)
_ORDER = ("healthy", "corrupt", "suspicious", "unreadable", "hostile")


def pages() -> list[pathlib.Path]:
    return [p for p in sorted(DOCS.rglob("*.md")) if _TABLE.search(p.read_text(encoding="utf-8"))]


def with_tables(text: str) -> str:
    """The text with every marked table as the source has it."""
    return _TABLE.sub(
        lambda m: f"<!-- codes: {m['what']} -->\n{_rows(m['what'])}<!-- end -->", text
    )


def _rows(what: str) -> str:
    if what == "scan":
        found = sorted(codes.all_codes("scan"), key=lambda c: _ORDER.index(c.detail("Verdict")))
        cells = [(c.detail("Verdict"), f"{c.definition}. {c.detail('Found when')}") for c in found]
        head = ("code", "verdict", "meaning")
    else:
        groups = what.split()
        found = [c for c in codes.all_codes("check") if c.name.partition("/")[0] in groups]
        cells = [(c.definition, c.detail("Warns or fails when")) for c in found]
        head = ("check", "what is wanted", "warns or fails when")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += [f"| `{c.name}` | {a} | {b} |" for c, (a, b) in zip(found, cells)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
