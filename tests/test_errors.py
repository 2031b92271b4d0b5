"""The exception tree is the one drawn in its docstring."""

import re

import pytest

from stayfinite import errors
from stayfinite.records import Event, Incident

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_the_drawing_is_the_tree():
    lines = errors.__doc__.split("\n\n", 1)[1].strip().splitlines()
    parents = {}
    path = []
    for line in lines:
        match = re.match(r"^([│├└─ ]*)(\w+)(?:\s+\(also (\w+)\))?", line)
        depth = len(match[1]) // 4
        path[depth:] = [match[2]]
        parents[match[2]] = (path[depth - 1] if depth else "Exception", match[3])
    assert set(parents) == set(errors.__all__)
    for name, (parent, also) in parents.items():
        cls = getattr(errors, name)
        bases = {b.__name__ for b in cls.__mro__[1:]}
        assert parent in bases
        assert also is None or also in bases


def test_everything_is_a_stayfinite_error():
    assert all(issubclass(c, errors.StayfiniteError) for c in CLASSES)


@pytest.mark.parametrize("cls", [errors.NonFiniteError, errors.BudgetExceededError])
def test_errors_carry_the_incident(cls):
    incident = Incident(id="a", event=Event(step=0, phase="loss"))
    error = cls("what happened", incident)
    assert error.incident is incident
    assert str(error) == "what happened"
    assert cls("alone").incident is None


def test_a_missing_extra_names_the_line_to_type():
    error = errors.MissingExtraError("reading YAML", "yaml")
    assert str(error) == "reading YAML needs an optional package: pip install 'stayfinite[yaml]'"
    assert isinstance(error, ImportError)
