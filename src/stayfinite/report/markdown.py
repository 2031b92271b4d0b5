"""The report as Markdown."""

from __future__ import annotations

import re

from .html import _groups, templates
from .model import RunView

__all__ = ["render_markdown"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]|#~])")
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""Line breaks of all kinds, and terminal control characters."""


def render_markdown(view: RunView) -> str:
    """A report short enough for an issue; names and source lines are escaped."""
    env = templates().overlay(autoescape=False, trim_blocks=True, lstrip_blocks=True)
    env.filters = {**env.filters, "md": escape, "code": code, "fence": fence}
    text = env.get_template("report.md.jinja").render(view=view, groups=_groups(view.incidents))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escape(text: object) -> str:
    r"""Escape text for Markdown and HTML.

    >>> print(escape("<b>*x*</b> & y"))
    &lt;b&gt;\*x\*&lt;/b&gt; &amp; y
    """
    plain = _BREAKS.sub(" ", str(text)).replace("&", "&amp;")
    return _SPECIAL.sub(r"\\\1", plain.replace("<", "&lt;").replace(">", "&gt;"))


def code(text: object) -> str:
    """A code span with enough backticks.

    >>> code("a`b|c")
    '``a`b\\\\|c``'
    """
    plain = _BREAKS.sub(" ", str(text)).replace("|", "\\|")
    ticks = "`" * (max((len(t) for t in re.findall(r"`+", plain)), default=0) + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def fence(text: object, language: str = "") -> str:
    """A code block with enough backticks."""
    plain = "\n".join(_BREAKS.sub(" ", line) for line in str(text).split("\n"))
    ticks = "`" * max(3, max((len(t) for t in re.findall(r"`+", plain)), default=0) + 1)
    return f"{ticks}{language}\n{plain}\n{ticks}"
