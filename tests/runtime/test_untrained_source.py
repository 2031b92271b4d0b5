"""The search for weights that no optimizer trains: it must not cost more than the steps around it."""

import sys

import torch

from stayfinite.runtime.warn import untrained_source
from stayfinite.runtime.warn.untrained_source import weight_variables


def with_gradient(*shape):
    made = torch.ones(*shape, requires_grad=True)
    made.sum().backward()
    return made


def test_a_file_is_parsed_once_and_only_for_tensors_that_are_not_known(monkeypatch):
    parsed = []
    parse = untrained_source.parsed
    monkeypatch.setattr(
        untrained_source, "parsed", lambda text, file: parsed.append(file) or parse(text, file)
    )
    trained, first, second = with_gradient(3, 3), with_gradient(3, 3), with_gradient(3, 3)
    x = torch.ones(2, 3)
    x @ trained @ first @ second
    frame = sys._getframe()
    known = [id(t) for t in (trained, first, second)]
    assert list(weight_variables(frame, known)) == []
    assert parsed.count(__file__) == 0
    found = [name for name, _ in weight_variables(frame, known[:1])]
    assert found == ["first", "second"]
    assert parsed.count(__file__) == 1
