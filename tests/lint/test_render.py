"""The formats: text for people, JSON, SARIF and GitHub's commands for programs."""

import json

from stayfinite.codes import all_codes
from stayfinite.lint import Report, Unreadable, check_source
from stayfinite.lint.render import as_github, as_json, as_text, summary
from stayfinite.lint.sarif import as_sarif

TEXT = "import torch\nloss = -torch.log(torch.sigmoid(score)).mean()\n"


def report(path="train.py"):
    return Report(
        findings=tuple(check_source(TEXT, path)),
        unreadable=(Unreadable(path="old.py", reason="line 3: invalid syntax"),),
        num_files=2,
        num_lines=5,
        duration_ms=1200,
    )


def test_text_has_the_place_the_line_and_what_to_write():
    assert as_text(report()) == (
        "train.py:2:9: SF101 the sigmoid underflows to 0 (or saturates at 1) and its log is -inf\n"
        "    loss = -torch.log(torch.sigmoid(score)).mean()\n"
        "    try: log_softmax(x) or logsigmoid(x); log(1 - sigmoid(x)) is logsigmoid(-x)  [--fix]\n"
    )


def test_the_summary_counts():
    assert (
        summary(report())
        == "1 found in 1 of 2 files, 5 lines (1.2 s), 1 with a repair (--fix); more: stayfinite explain SF101"
    )


def test_json_has_everything():
    data = json.loads(as_json(report()))
    (finding,) = data["findings"]
    assert (finding["code"], finding["line"], finding["column"]) == ("SF101", 2, 9)
    assert (finding["end_line"], finding["end_column"], finding["tier"]) == (2, 40, "default")
    assert data["unreadable"] == [{"path": "old.py", "reason": "line 3: invalid syntax"}]


def test_github_commands_escape_what_they_must():
    (line,) = as_github(report("a,b:c%.py")).splitlines()
    assert line.startswith("::warning file=a%2Cb%3Ac%25.py,line=2,col=9,endLine=2,endColumn=40,")
    assert "title=SF101::the sigmoid underflows" in line


def test_sarif_has_what_a_code_host_needs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    data = json.loads(as_sarif(report(str(tmp_path / "a b" / "train.py"))))
    assert data["version"] == "2.1.0" and data["$schema"].endswith("sarif-2.1.0.json")
    (run,) = data["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == [c.name for c in all_codes("lint")]
    assert all(r["shortDescription"]["text"] and r["help"]["text"] for r in rules)
    (result,) = run["results"]
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "SF101"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b/train.py"
    assert place["region"]["startLine"] == 2 and place["region"]["startColumn"] == 9
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_a_fingerprint_does_not_change_when_lines_move():
    moved = Report(findings=tuple(check_source("\n\n" + TEXT, "train.py")))
    first, second = (json.loads(as_sarif(r))["runs"][0]["results"][0] for r in (report(), moved))
    assert first["partialFingerprints"] == second["partialFingerprints"]
    assert first["locations"] != second["locations"]
