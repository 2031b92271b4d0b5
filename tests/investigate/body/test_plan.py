"""One run of a body: the lines it shows, what it begins with, what it leaves behind."""

import dataclasses
import sys
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from stayfinite.investigate.body import Body, scenes_of_frame, scenes_of_traceback


class Places(TorchDispatchMode):
    """Where in this file each operator is called from."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        stack = [f for f in traceback.extract_stack() if f.filename == __file__]
        self.found.append((str(func), [(f.name, f.lineno) for f in stack[:-1]][-1:]))
        return func(*args, **(kwargs or {}))


def test_the_lines_of_a_replay_are_those_of_the_source(setting):
    model, _, loader = setting

    def compute(x):
        print("effect")
        return model(x)

    with Places() as plain:
        for x, _ in loader:
            loss = compute(x).mean()
            scene = scenes_of_frame(sys._getframe())[0]
            break
    with Places() as again:
        Body.of(scene).run()
    assert loss.requires_grad and len(plain.found) > 3
    assert again.found == plain.found


def test_a_step_that_raised_is_replayed_from_its_traceback(setting):
    model, _, loader = setting
    num = 0
    try:
        for x, y in loader:
            num += 1
            out = model(x)
            loss = F.mse_loss(out, y)
            if num == 2:
                raise ValueError("the loss is bad")
    except ValueError as error:
        scene = scenes_of_traceback(error.__traceback__)[0]
    body = Body.of(scene)
    torch.manual_seed(5)
    made = body.made(body.run())
    torch.manual_seed(5)
    assert any(torch.equal(t, F.mse_loss(model(x), y)) for t in made)
    assert num == 2 and loss.requires_grad


def test_a_call_that_raised_is_made_again(setting):
    model, _, loader = setting

    def checked(x):
        CHECKED.append(1)
        value = model(x).mean()
        if value < 100:
            raise ValueError("too small")
        return value

    try:
        for x, _ in loader:
            checked(x)
    except ValueError as error:
        scenes = scenes_of_traceback(error.__traceback__)
    body = Body.of(scenes[1], scenes[2:])
    with pytest.raises(ValueError, match="too small"):
        body.run()
    assert len(CHECKED) == 1


CHECKED = []


def test_each_run_begins_anew(setting):
    model, _, loader = setting
    parts = [1.0]
    for x, _ in loader:
        parts = [*parts, 2.0]
        values = []
        values.append(model(x).mean())
        loss = values[0] * len(values)
        scene = scenes_of_frame(sys._getframe())[0]
        break
    body = Body.of(scene)
    first, second = body.run(), body.run()
    assert len(first["values"]) == len(second["values"]) == 1 and first["values"] is not values
    assert body.made(first)[0] is not loss


def test_where_nothing_is_computed_there_is_no_body(setting):
    for _ in range(1):
        scene = scenes_of_frame(sys._getframe())[0]
    assert Body.of(scene) is None


def test_a_loss_that_was_made_elsewhere_is_no_body(setting):
    model, _, _ = setting

    def go_backward(loss):
        loss = loss / 2
        found.append(scenes_of_frame(sys._getframe())[0])
        loss.backward()

    found = []
    go_backward(model(torch.ones(2, 4)).mean())
    scene = found[0]
    late = dataclasses.replace(scene, line=scene.line + 1, column=None)
    assert Body.of(late) is None


def _drawn_anew(model, optimizer, generator, count):
    for _ in range(1):
        x = torch.randn(6, 4)
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        return sys._getframe()


def _drawn_from_a_generator(model, optimizer, generator, count):
    for _ in range(1):
        x = torch.randn(6, 4, generator=generator)
        loss = model(x).mean()
        loss.backward()
        return sys._getframe()


def _by_the_loops_own_variable(model, optimizer, generator, count):
    for i in range(1, 2):
        loss = model(torch.randn(6, 4)).mean() / i
        loss.backward()
        return sys._getframe()


def _from_a_list(model, optimizer, generator, count):
    for x in [torch.ones(6, 4)]:
        loss = model(x).mean()
        loss.backward()
        return sys._getframe()


def _counted(model, optimizer, generator, count):
    while True:
        count += 1
        loss = model(torch.randn(6, 4)).mean() / count
        loss.backward()
        return sys._getframe()


@pytest.mark.parametrize(
    ("training", "is_of_one"),
    [
        (_drawn_anew, False),
        (_drawn_from_a_generator, True),
        (_by_the_loops_own_variable, True),
        (_from_a_list, True),
        (_counted, True),
    ],
)
def test_what_only_one_iteration_has_is_reported(model, training, is_of_one):
    """Without a loader the batches of earlier steps are gone: only what draws the same again is the same."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scene = scenes_of_frame(training(model, optimizer, torch.Generator(), 0))[0]
    body = Body.of(scene, (), lambda obj: obj is optimizer)
    assert body.is_of_one_iteration == is_of_one


def test_a_loop_of_plain_tensor_methods_is_computed_again():
    torch.manual_seed(0)
    x, w = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True)
    for _ in range(2):
        out = x.mm(w).clamp(min=0)
        loss = (out - 1).pow(2).sum()
        scene = scenes_of_frame(sys._getframe())[0]
        loss.backward()
    made = Body.of(scene.moved(scene.line + 1, -1)).run()
    assert torch.equal(made["loss"], loss) and made["loss"] is not loss


def test_a_loss_from_before_the_body_is_not_computed_again():
    w = torch.ones(2, requires_grad=True)
    whole = w.pow(2).sum()
    for count in (1, 2):
        loss = whole / count
        scene = scenes_of_frame(sys._getframe())[0]
        loss.backward(retain_graph=True)
    bodies = [Body.of(scene.moved(scene.line + 1, -1))]
    assert all(b is None or not b.home.is_loop for b in bodies)


class WithAnUnusedBranch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = torch.nn.Linear(4, 1)
        self.is_split = False

    def forward(self, x):
        if self.is_split:
            out = self.heads[0](x)  # a Linear has no parts: nobody knows what this calls
        else:
            out = self.heads(x)
        return out.mean()


def test_a_branch_that_a_setting_rules_out_does_not_keep_the_rest_from_running(setting):
    _, _, loader = setting
    model = WithAnUnusedBranch()
    for x, _ in loader:
        loss = model(x)
        scene = scenes_of_frame(sys._getframe())[0]
        break
    body = Body.of(scene)
    assert any(torch.equal(t, loss) and t is not loss for t in body.made(body.run()))
    model.is_split = True
    with pytest.raises(RuntimeError, match="not taken before"):
        body.run()
