"""From a stack to the user's line and the library's line under it."""

import json
import os
import sysconfig

import torch
import torch.nn.functional as F

from stayfinite.locate import frames
from stayfinite.locate.frames import Frame, current_place, place_from_traceback, place_of

USER = Frame(__file__, 3, "train")
TORCH = Frame(F.__file__, 10, "softmax")
MODULE = Frame(torch.nn.modules.module.__file__, 11, "_call_impl")
PACKAGE = Frame(os.path.join(sysconfig.get_path("purelib"), "somelib", "model.py"), 12, "forward")
STDLIB = Frame(json.__file__, 13, "loads")
OWN = Frame(frames.__file__, 14, "current_place")


def test_the_users_line_with_torchs_line_under_it():
    assert place_of([OWN, MODULE, TORCH, USER]) == frames.Place(USER, TORCH)


def test_a_library_between_torch_and_the_user_is_the_library_line():
    assert place_of([TORCH, PACKAGE, USER]) == frames.Place(USER, PACKAGE)


def test_machinery_and_our_own_frames_are_never_reported():
    assert place_of([OWN, MODULE, USER]) == frames.Place(USER, None)


def test_the_innermost_line_of_the_user_counts():
    outer = Frame(__file__, 99, "main")
    assert place_of([TORCH, USER, outer]).user == USER


def test_code_wholly_in_packages_is_reported_by_its_innermost_line():
    place = place_of([TORCH, PACKAGE, Frame(PACKAGE.file, 40, "fit"), STDLIB])
    assert place == frames.Place(PACKAGE, TORCH)


def test_nothing_but_torch_has_no_place():
    assert place_of([TORCH, MODULE]) == frames.Place(None, None)


def test_where_we_are_now():
    place = current_place()
    assert place.user.function == "test_where_we_are_now"
    assert place.user.source == "place = current_place()"


def test_code_from_a_string_is_the_users_without_source():
    scope = {"current_place": current_place}
    exec(compile("place = current_place()", "<notebook cell>", "exec"), scope)
    assert scope["place"].user.file == "<notebook cell>"
    assert scope["place"].user.source is None


def test_a_traceback_as_anomaly_mode_keeps_it():
    lines = [
        f'  File "{__file__}", line 3, in train\n    loss = softmax(x)\n',
        f'  File "{F.__file__}", line 10, in softmax\n    ret = input.softmax(dim)\n',
        "something else",
    ]
    assert place_from_traceback(lines) == frames.Place(USER, TORCH)


def test_a_path_with_spaces_and_quotes_and_a_function_with_brackets():
    lines = ['  File "/home/a b/it\'s.py", line 7, in <listcomp>\n']
    assert place_from_traceback(lines).user == Frame("/home/a b/it's.py", 7, "<listcomp>")
