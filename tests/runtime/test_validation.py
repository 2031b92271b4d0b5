"""Looking at what an evaluation has made must not cost more than the evaluation."""

from stayfinite.runtime.loop import validation
from stayfinite.runtime.loop.validation import _made_in_loop

SOURCE = """
for x in data:
    total = x
for y in data:
    seen.append(y)
"""


def test_a_file_is_parsed_once_for_all_of_its_loops(tmp_path, monkeypatch):
    parsed = []
    parse = validation.parsed
    monkeypatch.setattr(validation, "parsed", lambda text: parsed.append(text) or parse(text))
    file = tmp_path / "evaluation.py"
    file.write_text(SOURCE)
    assert _made_in_loop(str(file), 2) == ("total",)
    assert _made_in_loop(str(file), 4) == ("seen",)
    assert parsed == [SOURCE]
