"""A scene is what a running function sees; taking it leaves nothing behind."""

import gc
import sys
import weakref

import pytest
import torch

from stayfinite.investigate.body import scenes_of_frame, scenes_of_traceback

LEVEL = "module"


class Thing:
    pass


def test_the_innermost_frame_comes_first():
    def inner():
        return scenes_of_frame(sys._getframe())

    scenes = inner()
    assert [s.function for s in scenes[:2]] == ["inner", "test_the_innermost_frame_comes_first"]
    assert scenes[0].file == __file__ and scenes[0].is_function and not scenes[0].is_over
    assert not any("pluggy" in s.file or "_pytest" in s.file for s in scenes)


def test_variables_are_those_of_the_function_over_those_of_the_module():
    LEVEL = "function"
    scene = scenes_of_frame(sys._getframe())[0]
    assert scene.variables["LEVEL"] == LEVEL and scene.variables["Thing"] is Thing
    assert scene.module_globals["LEVEL"] == "module"


def test_closure_variables_are_among_them():
    outside = 3

    def inner():
        return outside, scenes_of_frame(sys._getframe())[0]

    assert inner()[1].local_variables["outside"] == 3


def test_a_deleted_variable_is_not_kept_alive():
    thing = Thing()
    gone = weakref.ref(thing)
    scenes = scenes_of_frame(sys._getframe())
    scenes.clear()
    del thing
    gc.collect()
    assert gone() is None


def test_what_locals_gave_the_function_stays_as_it_was():
    thing = Thing()
    mine = locals()
    scenes_of_frame(sys._getframe())
    assert mine["thing"] is thing


def test_frames_of_torch_are_left_out():
    seen = []

    def look(gradient):
        seen.extend(scenes_of_frame(sys._getframe()))

    x = torch.ones(2, requires_grad=True)
    x.register_hook(look)
    x.sum().backward()
    assert [s.function for s in seen[:2]] == ["look", "test_frames_of_torch_are_left_out"]


def test_an_exception_shows_where_each_function_stood():
    def inner():
        raise KeyError("here")

    with pytest.raises(KeyError) as caught:
        inner()
    scenes = scenes_of_traceback(caught.value.__traceback__)
    assert [s.function for s in scenes] == [
        "inner",
        "test_an_exception_shows_where_each_function_stood",
    ]
    assert all(s.is_over for s in scenes) and scenes[0].line == scenes[0].code.co_firstlineno + 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="columns are known from Python 3.11 on")
def test_the_column_tells_statements_on_one_line_apart():
    a = scenes_of_frame(sys._getframe())[0]; b = scenes_of_frame(sys._getframe())[0]  # fmt: skip  # noqa: E702
    assert a.line == b.line and a.column < b.column
