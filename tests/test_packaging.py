"""What `pip install stayfinite` brings: built as for a release, installed into an empty environment, used there."""

import ast
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

import stayfinite

ROOT = pathlib.Path(__file__).parents[1]
pytest.importorskip("build")
pytest.importorskip("twine")

PROBE = """
import importlib.metadata as m, json, pathlib, stayfinite
home = pathlib.Path(stayfinite.__file__).parent
print(json.dumps({
    "home": str(home), "version": stayfinite.__version__, "metadata": m.version("stayfinite"),
    "typed": (home / "py.typed").exists(), "examples": sorted(p.name for p in (home / "examples").iterdir()),
    "templates": len(list((home / "report" / "templates").glob("*.jinja"))),
    "plugins": [e.value for e in m.entry_points(group="pytest11") if e.name == "stayfinite"],
}))
"""


def run(*command, cwd, **env):
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**plain, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist, and the wheel that is made from that sdist, as `python -m build` does."""
    home = tmp_path_factory.mktemp("packaging")
    source = home / "source"
    names = ("src", "examples", "setup.py", "MANIFEST.in", "pyproject.toml", "README.md", "LICENSE")
    for name in names:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    for left in source.rglob("*.egg-info"):
        shutil.rmtree(left)
    run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", home / "dist", source, cwd=home
    )
    return home / "dist"


def installed(archive, folder):
    """An environment with nothing of ours but what the archive brings; other packages are those of here."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (place,) = folder.glob("lib/python*/site-packages")
    (place / "others.pth").write_text("\n".join(site.getsitepackages()))
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, archive, cwd=folder)
    return python


@pytest.mark.slow
def test_the_archives_pass_the_index_checks_and_hold_what_is_needed(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    said = run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, cwd=built, NO_COLOR="1")  # fmt: skip
    assert said.count("PASSED") == 2
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "stayfinite").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if path.relative_to(ROOT / "src").as_posix() not in names
    ]
    assert missing == []
    assert not [n for n in names if n.startswith(("tests", "docs", "benchmarks", "clinic"))]
    with tarfile.open(sdist) as archive:
        assert any(n.endswith("/LICENSE") for n in archive.getnames())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_installed_archive_has_its_commands_data_and_types(built, tmp_path, kind):
    (archive,) = built.glob(kind)
    python = installed(archive, tmp_path / "env")
    seen = json.loads(run(python, "-c", PROBE, cwd=tmp_path))
    assert seen["home"].startswith(str(tmp_path / "env"))
    assert seen["version"] == seen["metadata"] == stayfinite.__version__
    assert seen["typed"] and "mmgcn" in seen["examples"]
    assert seen["templates"] == len(list((ROOT / "src/stayfinite/report/templates").iterdir()))
    assert seen["plugins"] == ["stayfinite.integrations.pytest_plugin"]
    command = python.parent / "stayfinite"
    assert run(command, "--version", cwd=tmp_path) == f"stayfinite {stayfinite.__version__}\n"
    assert "torch.log_softmax" in run(command, "explain", "SF101", cwd=tmp_path)


PACKAGE_OF = {"yaml": "pyyaml", "markupsafe": "jinja2"}
OPTIONAL = ("integrations/", "report/sinks/", "report/png.py")


def module_level_imports(path):
    """The packages that a module cannot be imported without."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def test_every_package_that_is_always_imported_is_a_dependency():

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    core = text.partition("dependencies = [")[2].partition("]")[0]
    needed = set(re.findall(r'"([a-z0-9]+)[><=]', core))
    home = ROOT / "src" / "stayfinite"
    wrong = [
        f"{path.relative_to(home)} imports {name}"
        for path in sorted(home.rglob("*.py"))
        if not path.relative_to(home).as_posix().startswith(OPTIONAL)
        for name in module_level_imports(path)
        if name not in {*sys.stdlib_module_names, "stayfinite"}
        if PACKAGE_OF.get(name, name) not in needed
    ]
    assert wrong == []
    assert {"torch", "numpy", "rich"} <= needed


def test_every_dependency_is_imported_somewhere():
    """By a statement, or by name where it is loaded only when it is needed."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    core = text.partition("dependencies = [")[2].partition("]")[0]
    needed = set(re.findall(r'"([a-z0-9]+)[><=]', core))
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src" / "stayfinite").rglob("*.py")
    )
    named = set(re.findall(r"^ *(?:import|from) (\w+)", source, re.M))
    named |= set(re.findall(r'import_module\(.*"(\w+)[.\w]*"\)', source))
    assert needed - {PACKAGE_OF.get(name, name) for name in named} == set()


def test_the_version_is_one():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{stayfinite.__version__}"' in text
    assert importlib.metadata.version("stayfinite") == stayfinite.__version__
