"""The site builds without a warning and without the network, and has a page for every code."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from stayfinite import codes

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.slow
pytest.importorskip("mkdocs")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_every_code_has_a_page_that_says_what_the_terminal_says(site):
    for code in codes.all_codes():
        page = site / "codes" / code.kind / f"{code.name}.html"
        text = re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
        for _, said in code.details:
            first = re.split(r"[`<>&'\"*]", said)[0].strip()
            assert first in text, f"{code.name}: {first}"


def test_the_reference_has_every_public_name_and_every_command(site):
    import stayfinite
    from stayfinite.cli.app import app

    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    missing = [n for n in stayfinite.__all__ if n != "__version__" and f">{n}<" not in python]
    assert missing == []
    commands = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    names = [c.name or c.callback.__name__ for c in app.registered_commands]
    assert len(names) > 10
    assert [n for n in names if f">stayfinite {n}<" not in commands] == []


def test_no_page_loads_anything_from_elsewhere(site):
    loaded = re.compile(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"?(https?:)?//", re.I)
    pages = list(site.rglob("*.html"))
    assert len(pages) > 250
    assert [p.name for p in pages if loaded.search(p.read_text(encoding="utf-8"))] == []
