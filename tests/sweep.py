"""Sweeps over several axes: the suite runs a sample that covers every pair, `pytest --whole` all of it."""

import itertools

import pytest


def sweep(**axes):
    """A parametrization over the product of the axes.

    Each value of an axis meets each value of every other one in the sample; what is not in it is marked
    `whole` and left out, unless the option `--whole` is given.
    """
    sample = set(cover(*(range(len(list(axis))) for axis in axes.values())))
    cases = []
    for places in itertools.product(*(range(len(list(axis))) for axis in axes.values())):
        case = [list(axis)[i] for axis, i in zip(axes.values(), places)]
        marks = [] if places in sample else [pytest.mark.whole]
        cases.append(pytest.param(*case, marks=marks, id="-".join(map(_name, case))))
    return pytest.mark.parametrize(tuple(axes), cases)


def cover(*axes):
    """Few combinations in which every pair of values of two axes is found; the same ones every time."""
    cases = list(itertools.product(*axes))
    missing = {pair for case in cases for pair in _pairs(case)}
    while missing:
        best = max(cases, key=lambda case: len(missing & _pairs(case)))
        missing -= _pairs(best)
        yield best


def _pairs(case):
    return set(itertools.combinations(enumerate(case), 2)) if len(case) > 1 else {tuple(case)}


def _name(value):
    return value.__name__ if callable(value) else str(value)
