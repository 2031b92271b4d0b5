"""SARIF 2.1.0, the format of code hosts for the findings of a tool."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..codes import all_codes
from .check import ADVICE
from .records import Finding, Report

__all__ = ["as_sarif"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(report: Report) -> str:
    """One run with its rules, results and files that could not be read."""
    codes = all_codes("lint")
    index = {code.name: i for i, code in enumerate(codes)}
    run = {
        "tool": {
            "driver": {
                "name": "stayfinite",
                "rules": [_rule(code.name, code.definition) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(f, index[f.code]) for f in report.findings],
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {
                        "level": "warning",
                        "message": {"text": f"{u.path} could not be read: {u.reason}"},
                    }
                    for u in report.unreadable
                ],
            }
        ],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(name: str, definition: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": definition},
        "fullDescription": {"text": definition},
        "help": {"text": f"try: {ADVICE[name]}", "markdown": f"try: {ADVICE[name]}"},
        "properties": {"tags": ["numerics", "pytorch"]},
    }


def _result(f: Finding, index: int) -> dict[str, Any]:
    return {
        "ruleId": f.code,
        "ruleIndex": index,
        "level": "warning" if f.is_default else "note",
        "message": {"text": f"{f.message}. try: {f.advice}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(f.path), "uriBaseId": "%SRCROOT%"},
                    "region": {
                        "startLine": f.line,
                        "startColumn": f.column,
                        "endLine": f.end_line,
                        "endColumn": f.end_column,
                        "snippet": {"text": f.source},
                    },
                }
            }
        ],
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(f)},
    }


def _uri(path: str) -> str:
    """The path relative to the working folder if possible, because hosts match paths of the repository."""
    here = Path(path)
    if here.is_absolute() and here.is_relative_to(Path.cwd()):
        here = here.relative_to(Path.cwd())
    return quote(here.as_posix())


def _fingerprint(f: Finding) -> str:
    """A fingerprint of a line of code that does not depend on its position."""
    return hashlib.sha256(f"{f.code}:{f.path}:{f.source}".encode()).hexdigest()[:32]
