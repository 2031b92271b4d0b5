"""The body around the current line, up to where it stands."""

import ast
import sys

from stayfinite.investigate.body import scenes_of_frame
from stayfinite.investigate.body.home import calls_at, homes_of


def lines(home):
    return [ast.unparse(s).splitlines()[0] for s in home.statements]


def here():
    return scenes_of_frame(sys._getframe(1))[0]


def test_the_innermost_loop_comes_first():
    for _ in range(1):
        a = 1
        for _k in [1]:
            print(a)
            scene = here()
    homes = homes_of(scene)
    assert lines(homes[0]) == ["print(a)", "scene = here()"]
    assert lines(homes[1]) == ["a = 1", "for _k in [1]:"]
    assert homes[2].arguments == () and not homes[2].is_loop


def test_the_branch_that_was_taken_stands_without_its_condition():
    for n in range(2):
        if n == 0:
            a = 1
        else:
            a = 2
            with open(__file__):
                b = a
                scene = here()
                a = 3
            a = b
    assert lines(homes_of(scene)[0]) == ["a = 2", "with open(__file__):"]
    opened = homes_of(scene)[0].statements[1]
    assert [ast.unparse(s) for s in opened.body] == ["b = a", "scene = here()"]


def test_a_condition_that_names_a_value_is_kept():
    for _ in range(1):
        if (n := 3) > 2:
            scene = here()
    assert n == 3 and lines(homes_of(scene)[0])[0] == "(n := 3) > 2"


def test_no_handler_can_catch_what_ends_a_replay():
    for _ in range(1):
        try:
            a = 1
            scene = here()
        except ValueError:
            a = 2
    assert a == 1 and lines(homes_of(scene)[0]) == ["a = 1", "scene = here()"]


def test_the_current_statement_can_be_replaced():
    for _ in range(1):
        a = 1
        scene = here()
    assert a == 1 and lines(homes_of(scene, [ast.Pass()])[0]) == ["a = 1", "pass"]


def test_the_running_call_is_found():
    scene = [here()][0]
    assert ast.unparse(calls_at(scene)[0]) == "here()"
