"""The page, the Markdown and the JSON as text: complete, small, and safe to show."""

import html.parser
import json
import linecache
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from tests.report.runs import EVIL, EVIL_ATTRIBUTE, incident, write_run
from typer.testing import CliRunner

from stayfinite.cli import report as report_command
from stayfinite.errors import UsageError
from stayfinite.report.html import incident_page, render_html, source_context, unified_diff
from stayfinite.report.journal import Journal
from stayfinite.report.markdown import render_markdown
from stayfinite.report.model import load_run
from stayfinite.report.sources import collect_sources
from stayfinite.report.store import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a<i>run"
    write_run(folder)
    return folder


@pytest.fixture(scope="module")
def page(run):
    return render_html(load_run(run))


class Elements(html.parser.HTMLParser):
    """Which elements there are, with their attributes, and the text outside of scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text, self._stack = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._stack.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def test_nothing_that_is_shown_becomes_markup(page):
    elements = Elements(page)
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == 2, "the data and the program, nothing else"
    assert "img" not in tags and "b<" not in tags
    assert not any(a.startswith("on") for _, attributes in elements.found for a in attributes)
    shown = "".join(elements.text)
    for text in (EVIL, EVIL_ATTRIBUTE, "model<b>.py", "# </script><b>bold</b>", "a<i>run"):
        assert text in shown, f"{text} is to be seen as it is"


def test_the_figures_cannot_end_their_element(page):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert not set("<>&") & set(data)
    figures = json.loads(data)
    assert [p["name"] for p in figures["plots"][:4]] == ["loss", "grad_norm", "lr", "scale"]
    loss = figures["plots"][0]["series"][0]
    assert len(loss["x"]) == 400 and loss["bad"] == {"150": "nan", "300": "nan"}
    assert [i["step"] for i in figures["incidents"]] == [150, 300]


def test_the_page_needs_no_other_file(page):
    elements = Elements(page)
    for tag, attributes in elements.found:
        for name in ("src", "href", "data", "action", "srcset"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, f"{tag} {name}={value}"
    css = "".join(re.findall(r"<style>(.*?)</style>", page, re.S))
    assert "url(" not in css and "@import" not in css
    assert "default-src 'none'" in page


def test_every_part_of_the_story_is_there(page):
    for text in (
        "log_of_zero", "93 %", "aten.log", "born here", "seen here", "this line kept finite",
        "proved", "refuted", "nonfinite", "-    return -torch.log(q).mean()",
        "+    return -torch.log_softmax(p, -1).mean()", "Skipped steps", "Checkpoints", "2 bad tensors",
        "Warnings", "the loss is 9", "Environment", 'class="hist"', 'class="hit"', "The same again at", "Rows of the batch",
    ):  # fmt: skip
        assert text in page, text


def test_every_link_has_its_target(page):
    elements = Elements(page)
    ids = [a["id"] for _, a in elements.found if "id" in a]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for tag, a in elements.found if tag == "a"}
    assert len(targets) >= 7 and targets <= set(ids)


def test_the_same_incident_hundreds_of_times_is_reported_once(tmp_path):
    write_run(tmp_path / "many", num_steps=301, bad=tuple(range(301)))
    page = render_html(load_run(tmp_path / "many"))
    assert page.count('<article class="incident"') == 1
    assert len(page) < 1_500_000


def test_a_typical_run_is_small(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for step in range(50_000):
        journal.append(
            (step, 0, 2.0 / (step + 1), 1.0 + step % 97, (0.1 / (step + 1),), 65536.0, True)
        )
    journal.close()
    page = render_html(load_run(tmp_path))
    assert 50_000 < len(page) < 1_500_000
    assert "Every value that was recorded is finite" in page


def test_the_line_alone_when_the_file_has_changed(tmp_path):
    found = incident(3, tmp_path)
    link = found.location.chain[0]
    shown = source_context(link, collect_sources(found))
    assert [n for n, _, _ in shown] == list(range(2, 11))
    assert [text for _, text, is_hit in shown if is_hit] == [f"    {link.source}"]
    (tmp_path / "model<b>.py").write_text("something else\n" * 20)
    linecache.checkcache()
    assert source_context(link, collect_sources(found)) == [(6, link.source, True)]
    (tmp_path / "model<b>.py").unlink()
    linecache.checkcache()
    assert source_context(link, collect_sources(found)) == [(6, link.source, True)]


def test_no_file_that_an_incident_names_is_opened(tmp_path):
    """The lines come from what was stored beside the incident, never from the reader's disk."""
    saved = RunFolder(tmp_path / "run", say=lambda i: None).save(incident(3, tmp_path / "src"))
    home = Path(saved.path)
    assert "    q = p.clamp(min=0)" in render_html(load_run(home))
    secret = tmp_path / "key"
    secret.write_text("import torch\n\n\nSECRET\nSECRET\n" + saved.location.source + "\nSECRET\n")
    plain = json.loads((home / "incident.json").read_text())
    text = json.dumps(plain).replace(json.dumps(saved.location.file), json.dumps(str(secret)))
    (home / "incident.json").write_text(text)
    view = load_run(home)
    assert str(secret) in view.incidents[0].location.file
    assert "SECRET" not in render_html(view) + render_markdown(view)


def test_pipes_in_an_incident_do_not_hang(tmp_path):
    saved = RunFolder(tmp_path / "run", say=lambda i: None).save(incident(3, tmp_path / "src"))
    home = Path(saved.path)
    (home / "sources.json").unlink()
    os.mkfifo(home / "sources.json")
    assert "log_of_zero" in render_html(load_run(home))
    (home / "incident.json").unlink()
    os.mkfifo(home / "incident.json")
    with pytest.raises(UsageError, match="is no incident: not a regular file"):
        load_run(home)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"kind": "stayfinite.incident", "id": ' + "9" * 5000 + "}", "{}", "\x00"],
)
def test_a_damaged_incident_is_reported_in_words(tmp_path, text):
    (tmp_path / "incident.json").write_text(text)
    with pytest.raises(UsageError):
        load_run(tmp_path)


def test_the_diff_is_one_that_patch_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = incident(3, tmp_path)
    fix = found.diagnosis.fixes[0]
    diff = "\n".join(line for _, line in unified_diff(fix, collect_sources(found))) + "\n"
    done = subprocess.run(["patch", "-p1"], input=diff, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "    return -torch.log_softmax(p, -1).mean()\n" in (tmp_path / "model<b>.py").read_text()


def test_an_incident_alone_is_a_page_too(tmp_path):
    page = incident_page(incident(5, tmp_path))
    assert "log_of_zero" in page and '"x":[0,1,2,3,4,5]' in page


def test_markdown_keeps_names_as_text(run):
    text = render_markdown(load_run(run))
    outside = re.sub(r"```.*?```", "", text, flags=re.S)
    outside = re.sub(r"`[^`\n]*`", "", outside).replace("\\<", "")
    assert "<script" not in outside and "<img" not in outside
    assert "### Step 150: the loss is nan" in text
    assert "**Why: log\\_of\\_zero** (93 %)" in text
    assert "| this line kept finite | finite |  |" in text
    assert "+    return -torch.log_softmax(p, -1).mean()" in text


def invoke(*args):
    app = typer.Typer()
    report_command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["report", *map(str, args)])


def test_the_command_writes_beside_the_run(run):
    done = invoke(run)
    assert done.exit_code == 0 and done.stdout.strip() == str(run / "report.html")
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_without_matplotlib_the_page_is_written_all_the_same(run, tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("stayfinite.report.png.import_module", missing)
    done = invoke(run, "-o", tmp_path / "a.html", "--png", tmp_path / "png")
    assert done.exit_code == 0, done.output
    assert "pip install 'stayfinite[plots]'; the page is written without them" in done.output
    assert (tmp_path / "a.html").read_text().startswith("<!")


def test_json_has_everything_and_no_bare_nan(run):
    done = invoke(run, "--format", "json", "-o", "-")

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    data = json.loads(done.stdout, parse_constant=refuse)
    assert data["kind"] == "stayfinite.report" and data["facts"]["skipped"] == "2"
    assert data["nonfinite"][0] == {"first": 150, "last": 150, "steps": 1, "in": ["loss"]}
    assert [i["id"] for i in data["incidents"]] == ["step000150-abc0", "step000300-abc0"]


def test_markdown_to_a_file_and_plots(run, tmp_path):
    pytest.importorskip("matplotlib")
    done = invoke(run, "--format", "md", "-o", tmp_path / "a.md", "--png", tmp_path / "png")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.md").read_text().startswith("## a&lt;i&gt;run")
    names = sorted(p.name for p in (tmp_path / "png").iterdir())
    assert names == [
        "grad_norm.png",
        "loss.png",
        "lr.png",
        "ms.png",
        "scale.png",
        "update_ratio.png",
    ]
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in (tmp_path / "png").iterdir())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nowhere",), "no such run: nowhere"),
        ((".", "--format", "pdf"), "--format must be one of html, md, json, got 'pdf'"),
        ((".", "--map", "x"), "field=key"),
    ],
)
def test_wrong_usage_is_reported_and_exits_with_2(args, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = invoke(*args)
    assert done.exit_code == 2
    assert words in re.sub(r"[\s│]+", " ", done.output)


def test_incidents_that_cannot_be_read_are_named(tmp_path):
    write_run(tmp_path / "r", num_steps=160)
    (tmp_path / "r" / "incidents" / "step000150-abc0" / "incident.json").write_text("{")
    view = load_run(tmp_path / "r")
    assert view.incidents == [] and "not an incident" in view.problems[0]
    render_html(view)


def test_the_script_s_own_counters_stand_beside_the_step_and_no_operator_is_made_up(run):
    view = load_run(run)
    reported = view.incidents[0]
    event = replace(reported.event, counters={"step": 76, "epoch": 1})
    where = replace(reported.location, op=None, chain=())
    view.incidents = [replace(reported, event=event, location=where)]
    for text in (render_html(view), render_markdown(view)):
        assert "in the script step = 76, epoch = 1" in text
        assert "born in" not in text.lower() and "operator is not known" in text
