"""Reading the source of a loop must not cost more than the loop."""

from stayfinite.runtime.loop import loop_source
from stayfinite.runtime.loop.loop_source import made_in_loop

SOURCE = """
for x in data:
    total = x
for y in data:
    seen.append(y)
"""


def test_a_file_is_parsed_once_for_all_of_its_loops(tmp_path, monkeypatch):
    parsed = []
    parse = loop_source.parsed
    monkeypatch.setattr(loop_source, "parsed", lambda text: parsed.append(text) or parse(text))
    file = tmp_path / "evaluation.py"
    file.write_text(SOURCE)
    assert made_in_loop(str(file), 2) == ("total",)
    assert made_in_loop(str(file), 4) == ("seen",)
    assert parsed == [SOURCE]
