"""What `--fix` writes is executed: equal on healthy values, finite where the original is not."""

import functools
import pathlib
import runpy
import tempfile

import pytest
import torch

from stayfinite.lint import Settings, lint_paths

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
FIXED = sorted(p.parent.name for p in FIXTURES.glob("*/fixed.py"))


def repaired(code, tmp_path):
    path = tmp_path / "train.py"
    text, report = _repaired(code)
    path.write_text(text, encoding="utf-8")
    return path, report


@functools.cache
def _repaired(code):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "train.py"
        path.write_text((FIXTURES / code / "bad.py").read_text(encoding="utf-8"), encoding="utf-8")
        report = lint_paths([path], Settings(), fix=True)
        return path.read_text(encoding="utf-8"), report


def computed(path, arguments):
    """The value, and the gradients of what is differentiated."""
    space = runpy.run_path(str(path))
    given = space[arguments]()
    value = space["compute"](*given)
    leaves = [a for a in given if torch.is_tensor(a) and a.requires_grad]
    gradients = torch.autograd.grad(value.sum(), leaves) if leaves else ()
    return space, value.detach(), gradients


def is_finite(value, gradients):
    return all(bool(x.isfinite().all()) for x in (value, *gradients))


@pytest.mark.parametrize("code", FIXED)
def test_the_repair_is_the_one_on_file(code, tmp_path):
    path, report = repaired(code, tmp_path)
    assert report.num_fixed >= 1
    assert path.read_text() == (FIXTURES / code / "fixed.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", FIXED)
def test_a_second_repair_changes_nothing(code, tmp_path):
    path, _ = repaired(code, tmp_path)
    before = path.read_bytes()
    again = lint_paths([path], Settings(), fix=True)
    assert again.num_fixed == 0
    assert path.read_bytes() == before


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("code", FIXED)
def test_healthy_values_give_the_same(code, tmp_path):
    path, _ = repaired(code, tmp_path)
    _, old, old_gradients = computed(FIXTURES / code / "bad.py", "healthy")
    _, new, new_gradients = computed(path, "healthy")
    torch.testing.assert_close(new, old)
    torch.testing.assert_close(new_gradients, old_gradients)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("code", FIXED)
def test_the_failing_values_fail_before_and_not_after(code, tmp_path):
    path, _ = repaired(code, tmp_path)
    space, *old = computed(FIXTURES / code / "bad.py", "failing")
    _, *new = computed(path, "failing")
    has_failed = space.get("has_failed", lambda *made: not is_finite(*made))
    assert has_failed(*old)
    assert not has_failed(*new)
    assert is_finite(*new)


def test_line_ends_and_comments_stay(tmp_path):
    path = tmp_path / "train.py"
    text = "import torch\r\n# é\r\ny = torch.log(  torch.sigmoid(x)  )   # why\r\n"
    path.write_bytes(text.encode())
    lint_paths([path], fix=True)
    made = text.replace("torch.log(  torch.sigmoid(x)  )", "torch.nn.functional.logsigmoid(x)")
    assert path.read_bytes().decode() == made


def test_a_diff_writes_nothing(tmp_path):
    path = tmp_path / "train.py"
    text = "import torch\ny = torch.log(torch.sigmoid(x))\n"
    path.write_text(text)
    report = lint_paths([path], diff=True)
    assert path.read_text() == text
    assert "+y = torch.nn.functional.logsigmoid(x)" in report.diffs[0]
    assert report.exit_code == 1


def test_an_ignored_line_is_not_repaired(tmp_path):
    path = tmp_path / "train.py"
    text = "import torch\ny = torch.log(torch.sigmoid(x))  # stayfinite: ignore[SF101]\n"
    path.write_text(text)
    assert lint_paths([path], fix=True).num_fixed == 0
    assert path.read_text() == text


def test_a_floor_is_not_offered_where_a_value_may_be_a_plain_number(tmp_path):
    path = tmp_path / "train.py"
    text = (
        "import torch\n"
        "def scale(sigma, width):\n"
        "    return 1 / torch.sqrt(width**2 + sigma**2) / sigma.norm()\n"
    )
    path.write_text(text)
    report = lint_paths([path], Settings(pedantic=True), fix=True)
    assert {f.code for f in report.findings} == {"SF112", "SF121"}
    assert path.read_text() == text


def test_the_mode_of_a_file_stays(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\ny = torch.log(torch.sigmoid(x))\n")
    path.chmod(0o755)
    lint_paths([path], fix=True)
    assert path.stat().st_mode & 0o777 == 0o755
