"""Files: which are read, what cannot be read, settings, several processes."""

import pytest

from stayfinite import UsageError
from stayfinite.lint import Settings, codes_at, collect, lint_paths, read_settings

BAD = "import torch\ny = torch.log(torch.sigmoid(x))\n"
MILD = "import torch\ndef sample(mu, logvar):\n    return mu + torch.exp(logvar)\n"


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_name(path.name + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_folders_are_walked_and_caches_left_out(tmp_path):
    write(tmp_path, a=BAD, sub__b=BAD)
    write(tmp_path / ".venv", c=BAD)
    write(tmp_path / "node_modules", d=BAD)
    (tmp_path / "notes.txt").write_text(BAD)
    assert [p.name for p in collect([tmp_path])] == ["a.py", "b.py"]
    assert len(collect([tmp_path, tmp_path / "a.py"])) == 2


def test_excluded_paths_are_left_out_unless_they_are_named(tmp_path):
    write(tmp_path, a=BAD, sub__b=BAD)
    assert [p.name for p in collect([tmp_path], ["sub"])] == ["a.py"]
    assert [p.name for p in collect([tmp_path / "sub" / "b.py"], ["sub"])] == ["b.py"]


def test_a_path_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder"):
        lint_paths([tmp_path / "nothing"])


def test_a_file_that_cannot_be_parsed_does_not_stop_the_others(tmp_path):
    write(tmp_path, a="import torch\nprint 'old'\n", b=BAD)
    (tmp_path / "c.py").write_bytes(b"import torch\n\xff\xfe")
    report = lint_paths([tmp_path])
    assert [f.code for f in report.findings] == ["SF101"]
    assert [u.path[-4:] for u in report.unreadable] == ["a.py", "c.py"]
    assert "line 2" in report.unreadable[0].reason


def test_several_processes_find_the_same(tmp_path):
    write(tmp_path, **{f"m{i}": BAD for i in range(60)})
    one, two = (lint_paths([tmp_path], jobs=j).findings for j in (1, 2))
    assert one == two and len(one) == 60


def test_select_ignore_and_pedantic(tmp_path):
    write(tmp_path, a=BAD, b=MILD)

    def found(**settings):
        return [f.code for f in lint_paths([tmp_path], Settings(**settings)).findings]

    assert found() == ["SF101"]
    assert found(pedantic=True) == ["SF101", "SF105"]
    assert found(select=frozenset({"SF105"})) == ["SF105"]
    assert found(pedantic=True, ignore=frozenset({"SF10"})) == []


def test_settings_come_from_pyproject(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.stayfinite.lint]\npedantic = true\nignore = ["SF101"]\nexclude = ["old"]\n'
    )
    (tmp_path / "sub").mkdir()
    settings = read_settings(tmp_path / "sub", ignore=["SF102"])
    assert settings.pedantic and settings.exclude == ("old",)
    assert settings.ignore == {"SF101", "SF102"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("selct = []", "unknown keys selct"),
        ('select = "SF101"', "`select` must be a list of texts, got 'SF101'"),
        ("pedantic = 1", "`pedantic` must be true or false, got 1"),
        ('ignore = ["SF999"]', "unknown code 'SF999'"),
        ("ignore = [", "pyproject.toml"),
    ],
)
def test_bad_settings_are_rejected_in_words(tmp_path, table, message):
    (tmp_path / "pyproject.toml").write_text(f"[tool.stayfinite.lint]\n{table}\n")
    with pytest.raises(UsageError) as caught:
        read_settings(tmp_path)
    assert message in str(caught.value)


def test_codes_at_a_line_never_raise(tmp_path):
    write(tmp_path, a=BAD + MILD, broken="import torch\n(")
    path = tmp_path / "a.py"
    assert [f.code for f in codes_at(path, 2)] == ["SF101"]
    assert [f.code for f in codes_at(str(path), 5)] == ["SF105"]
    assert codes_at(path, 1) == ()
    assert codes_at(tmp_path / "broken.py", 2) == ()
    assert codes_at(tmp_path / "gone.py", 1) == ()
    assert codes_at("<stdin>", 1) == ()
    assert codes_at(None, 1) == ()


def test_codes_at_a_line_see_a_changed_file(tmp_path):
    write(tmp_path, a=BAD)
    path = tmp_path / "a.py"
    assert codes_at(path, 2)
    path.write_text("import torch\ny = 1\n")
    assert codes_at(path, 2) == ()


def test_deep_nesting_is_reported_not_raised(tmp_path):
    write(tmp_path, a="import torch\ny = " + "+".join(["x"] * 20000) + "\n")
    report = lint_paths([tmp_path])
    assert len(report.unreadable) <= 1 and not report.findings
