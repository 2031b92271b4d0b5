"""The page of a code, for the terminal, for programs and for the documentation.

>>> from stayfinite.explain import page_of
>>> page_of("SF104").sections[0].heading
'Fails when'
"""

from __future__ import annotations

from .page import Page, Section, find_code, page_of
from .render import as_json, as_markdown, as_text, listing

__all__ = [
    "Page",
    "Section",
    "as_json",
    "as_markdown",
    "as_text",
    "find_code",
    "listing",
    "page_of",
]
