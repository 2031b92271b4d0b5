"""Data flows one way: a stage takes a record and returns a record, and stages never import each other."""

import ast
import pathlib
import subprocess
import sys

import pytest

SRC = pathlib.Path(__file__).parents[1] / "src" / "stayfinite"

BASE = {"records", "errors", "config", "codes", "numerics"}
STAGES = {"detect", "locate", "diagnose", "recover", "checkpoint", "report"}
ALLOWED = {
    "records": {"errors"},
    "errors": set(),
    "config": {"errors"},
    "codes": {"errors"},
    "numerics": {"records", "errors"},
    **{stage: BASE for stage in STAGES - {"report"}},
    "report": BASE - {"numerics"},
    "patches": {"errors"},
    "sandbox": {"patches"},
    "runtime": BASE | STAGES - {"diagnose"} | {"patches"},
    "investigate": BASE | STAGES | {"patches", "sandbox", "runtime"},
    "guard": BASE | {"patches", "recover", "report", "runtime", "investigate"},
    "preflight": BASE
    | {"sandbox", "patches", "runtime", "investigate", "guard", "checkpoint", "locate", "recover", "report"},
    "ladder": BASE | {"sandbox", "runtime", "investigate", "preflight", "recover", "report"},
    "remedies": {"records", "errors", "codes"},
    "lint": {"records", "errors", "codes", "remedies"},
    "integrations": BASE | {"guard", "runtime"},
    "demo": {"records", "errors", "numerics"},
    "cli": None,
    "__init__": None,
    "__main__": {"cli"},
}
NO_TORCH = {"records", "errors", "config", "codes", "report", "lint", "remedies"}


def edges():
    for path in SRC.rglob("*.py"):
        parts = path.relative_to(SRC).with_suffix("").parts
        stage = parts[0]
        package = ["stayfinite", *parts[:-1]]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield path, stage, alias.name.split(".")
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                full = base + (node.module.split(".") if node.module else [])
                if full == ["stayfinite"]:
                    for alias in node.names:
                        yield path, stage, [*full, alias.name]
                else:
                    yield path, stage, full


def test_stages_import_only_downwards():
    wrong = []
    for path, stage, target in edges():
        assert stage in ALLOWED, f"{path}: stage {stage!r} is not in the table of this test"
        if target[0] != "stayfinite" or len(target) < 2 or ALLOWED[stage] is None:
            continue
        if target[1] != stage and target[1] not in ALLOWED[stage] and target[1] != "__version__":
            wrong.append(f"{path.relative_to(SRC)} imports {'.'.join(target)}")
    assert not wrong, "\n".join(wrong)


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
        ("import stayfinite", ["torch", "rich", "typer", "libcst", "jinja2"]),
        ("import stayfinite.records, stayfinite.codes", ["torch", "rich"]),
        ("import stayfinite.cli", ["torch"]),
        ("import stayfinite.lint, stayfinite.lint.render", ["torch", "rich", "libcst"]),
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
