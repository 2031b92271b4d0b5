"""The example notebook and some cells more, in a real Jupyter kernel."""

import re
from pathlib import Path

import pytest

from stayfinite import Incident
from stayfinite.incident_html import incident_html
from stayfinite.records import Diagnosis, Event, Fix, Location

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PATCHES = """
from stayfinite.patches.manager import table
print("patched:", [r.name for r in table()])
"""
LOOP = """
import _thread
for x, near, y in loader:
    optimizer.zero_grad()
    loss = (model(x.mean(1)).squeeze(-1) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
MORE = {
    "after": PATCHES,
    "healthy": f"%%stayfinite\n{LOOP}",
    "stopped": f"%%stayfinite\n{LOOP}    _thread.interrupt_main()\n",
    "after the stop": PATCHES,
    "raised": f"%%stayfinite --policy raise --no-diagnose\n{LOOP}".replace(
        "loss.backward()", "(loss / 0).backward()  # RAISED"
    ),
    "after the error": PATCHES,
    "wrong": "%%stayfinite --colour red\n1",
    "value": "%%stayfinite\n6 * 7",
    "unloaded": "%unload_ext stayfinite\n%reload_ext stayfinite",
}


@pytest.fixture(scope="module")
def cells():
    """All outputs of each cell, as one text."""
    book = nbformat.read(ROOT / "examples" / "notebook.ipynb", 4)
    names = [f"example {i}" for i in range(len(book.cells))]
    for name, source in MORE.items():
        names.append(name)
        book.cells.append(nbformat.v4.new_code_cell(source, id=f"more-{len(names)}"))
    client = nbclient.NotebookClient(book, timeout=900, kernel_name="python3", allow_errors=True)
    client.execute()
    return {name: cell.get("outputs", []) for name, cell in zip(names, book.cells)}


def text_of(outputs):
    parts = []
    for each in outputs:
        data = each.get("data", {})
        parts += [each.get("text", ""), data.get("text/plain", ""), *each.get("traceback", [])]
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))


def html_of(outputs):
    return "\n".join(o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {}))


def test_the_cell_shows_its_incident_and_goes_on(cells):
    shown = html_of(cells["example 4"])
    assert "born in <code>aten.div</code>, line 4 of the cell" in shown
    assert "<code>zero_denominator</code>" in shown
    assert "the loss is nan" in shown
    assert "ipykernel" not in shown.partition("<details>")[0]
    assert "finite: True" in text_of(cells["example 4"])
    assert "1 incident in this cell" in text_of(cells["example 4"])


def test_a_guard_reports_inline_and_an_incident_shows_itself(cells):
    assert "7 steps applied, 1 incident: zero_denominator 1x" in html_of(cells["example 6"])
    assert "aten.div" in text_of(cells["example 6"])
    assert "pooled = " in html_of(cells["example 8"])


def test_a_healthy_cell_shows_nothing(cells):
    assert cells["healthy"] == []


@pytest.mark.parametrize("name", ["after", "after the stop", "after the error"])
def test_nothing_stays_patched(cells, name):
    assert "patched: []" in text_of(cells[name])


def test_a_stopped_cell_ends_as_any_other(cells):
    assert "KeyboardInterrupt" in text_of(cells["stopped"])


def test_the_policy_raise_ends_the_cell(cells):
    text = text_of(cells["raised"])
    assert "NonFiniteError" in text
    assert "aten.div" in html_of(cells["raised"])


def test_a_wrong_option_is_named(cells):
    assert "unknown option '--colour'; usage: %%stayfinite" in text_of(cells["wrong"])


def test_the_last_value_is_shown_as_ever(cells):
    assert "42" in text_of(cells["value"])


def test_the_extension_can_be_loaded_again(cells):
    assert "Error" not in text_of(cells["unloaded"])


def test_the_cells_of_the_page_are_those_of_the_example():
    page = (ROOT / "docs" / "NOTEBOOKS.md").read_text(encoding="utf-8")
    book = nbformat.read(ROOT / "examples" / "notebook.ipynb", 4)
    sources = {c.source.strip() for c in book.cells}
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert blocks and all(b.strip() in sources for b in blocks)


def test_what_an_incident_holds_is_text_never_markup():
    evil = "<script>alert(1)</script>"
    fix = Fix(title=evil, why=evil, before=evil, after=evil)
    incident = Incident(
        id="a",
        event=Event(step=1, phase="loss", name=evil, message=evil),
        location=Location(op=evil, module=evil, file=f"/x/{evil}.py", line=1, source=evil),
        diagnosis=Diagnosis(cause=evil, summary=evil, fixes=(fix,)),
    )
    shown = incident._repr_html_()
    assert shown == incident_html(incident)
    assert "<script" not in shown
