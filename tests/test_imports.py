"""Data flows one way: a stage takes a record and returns a record, and stages never import each other."""

import subprocess
import sys

import pytest
from tests.import_graph import SRC as ROOT
from tests.import_graph import circles, graph, imports, modules

SRC = ROOT / "stayfinite"

BASE = {
    "plain",
    "records",
    "errors",
    "config",
    "codes",
    "numerics",
    "private",
    "devices",
    "putting_back",
    "parsing",
    "saying",
}
STAGES = {"detect", "locate", "diagnose", "recover", "checkpoint", "report"}
ALLOWED = {
    "plain": {"errors"},
    "records": {"errors", "incident_html", "plain"},
    "incident_html": set(),
    "errors": set(),
    "config": {"errors"},
    "codes": {"errors"},
    "private": set(),
    "putting_back": set(),
    "parsing": set(),
    "saying": set(),
    "devices": set(),
    "numerics": {"records", "errors", "devices"},
    **dict.fromkeys(STAGES - {"report"}, BASE),
    "report": BASE - {"numerics", "devices"},
    "patches": {"errors", "putting_back", "saying"},
    "sandbox": {"patches", "putting_back"},
    "foresee": BASE | {"locate", "runtime"},
    "runtime": BASE | STAGES - {"diagnose"} | {"patches"},
    "investigate": BASE | STAGES | {"patches", "sandbox", "runtime", "remedies", "lint"},
    "guard": BASE | {"patches", "recover", "report", "runtime", "investigate"},
    "preflight": BASE
    | {
        "sandbox",
        "patches",
        "runtime",
        "investigate",
        "foresee",
        "guard",
        "lint",
        "checkpoint",
        "detect",
        "diagnose",
        "locate",
        "recover",
        "report",
    },
    "ladder": BASE
    | {"sandbox", "patches", "runtime", "investigate", "preflight", "recover", "report"},
    "remedies": {"records", "errors", "codes", "parsing"},
    "lint": {"records", "errors", "codes", "remedies", "parsing"},
    "integrations": BASE | {"patches", "recover", "report", "runtime", "investigate"},
    "explain": {"errors", "codes", "lint", "preflight"},
    "demo": {"records", "errors", "numerics"},
    "cli": None,
    "__init__": None,
    "__main__": {"cli"},
}
NO_TORCH = {
    "plain",
    "records",
    "errors",
    "config",
    "codes",
    "report",
    "lint",
    "remedies",
    "explain",
}


def edges():
    for name, path in modules().items():
        stage = path.relative_to(SRC).with_suffix("").parts[0]
        for target in imports(name, path):
            yield path, stage, target.split(".")


def test_stages_import_only_downwards():
    wrong = []
    for path, stage, target in edges():
        assert stage in ALLOWED, f"{path}: stage {stage!r} is not in the table of this test"
        if target[0] != "stayfinite" or len(target) < 2 or ALLOWED[stage] is None:
            continue
        if target[1] != stage and target[1] not in ALLOWED[stage] and target[1] != "__version__":
            wrong.append(f"{path.relative_to(SRC)} imports {'.'.join(target)}")
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle():
    found = ["\n  ".join(["a circle:", *circle]) for circle in circles(graph())]
    assert not found, "\n".join(found)


def test_a_circle_shows_through_type_checking_functions_and_packages(tmp_path):
    sources = {
        "__init__": "",
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B\n",
        "b": "def make():\n    from . import room\n    return room\n",
        "room/__init__": "from .inner import thing\n",
        "room/inner": "from .. import a\n",
        "apart": "from .room import inner\nfrom .b import B\n",
    }
    for name, text in sources.items():
        path = tmp_path / "pkg" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert circles(graph(tmp_path)) == [["pkg.a", "pkg.b", "pkg.room", "pkg.room.inner"]]


def test_records_report_and_lint_do_not_know_torch():
    wrong = [
        f"{path.relative_to(SRC)} imports {target[0]}"
        for path, stage, target in edges()
        if stage in NO_TORCH and target[0] in {"torch", "numpy"}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import stayfinite", ["torch", "rich", "typer", "jinja2"]),
        ("import stayfinite.records, stayfinite.codes", ["torch", "rich"]),
        ("import stayfinite.cli", ["torch"]),
        ("import stayfinite.integrations.pytest_plugin", ["torch", "rich"]),
        ("import stayfinite.lint, stayfinite.lint.render", ["torch", "rich"]),
    ],
)
def test_light_imports_stay_light(code, absent):
    probe = f"{code}\nimport sys\nprint([m for m in {absent!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_export_exists():
    import stayfinite

    assert list(stayfinite.__all__) == sorted(stayfinite.__all__)
    for name in stayfinite.__all__:
        assert getattr(stayfinite, name) is not None
