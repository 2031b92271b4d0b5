"""Loops put in order: a constant loss scale replaced by a GradScaler, clipping moved before the step."""

import ast

import pytest

from stayfinite.remedies import Source, apply, at, scaled_loss, step_left_to_scaler

HEAD = "import torch\n\nSCALE = 1024.0\n"
LOOP = """
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x in data:
    loss = model(x).mean()
    (loss * SCALE).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= SCALE
    opt.step()
"""


def product(text):
    source = Source(text)
    scale = next(n for n in ast.walk(source.tree) if isinstance(n, ast.Name) and n.id == "SCALE"
                 and isinstance(source.parent(n), ast.BinOp))  # fmt: skip
    return scaled_loss(source, scale.lineno, scale)


def changed(text):
    remedy = product(text).with_scaler("cpu")
    return None if remedy is None else apply(text, [remedy])[0]


def test_every_place_that_knows_the_scale_is_rewritten():
    after = changed(HEAD + LOOP)
    ast.parse(after)
    body = after[after.index("for x in data") :].splitlines()
    assert body[2:] == [
        "    scaler.scale(loss).backward()",
        "    scaler.unscale_(opt)",
        "    scaler.step(opt)",
        "    scaler.update()",
    ]
    assert 'lr=0.1)\nscaler = torch.amp.GradScaler("cpu")\n' in after


def test_a_loss_that_is_scaled_before_its_backward_keeps_its_name():
    text = HEAD + LOOP.replace(
        "(loss * SCALE).backward()", "big = SCALE * loss\n    big.backward()"
    )
    assert "    big = scaler.scale(loss)\n    big.backward()\n" in changed(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    opt.step()", "    print(SCALE)\n    opt.step()"),  # something else goes by it
        ("    opt.step()", "    opt.step()\n    opt.step()"),
        ("opt = torch.optim.SGD(model.parameters(), lr=0.1)\n", ""),  # made somewhere else
        ("            p.grad /= SCALE", "            p.grad /= SCALE\n            p.grad.clamp_(-1, 1)"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_left_alone(old, new):
    assert old in LOOP
    assert changed(HEAD + LOOP.replace(old, new)) is None


def test_the_same_text_with_a_number_is_what_the_scaler_comes_to():
    text = product(HEAD + LOOP).with_number(256.0)
    assert "(loss * 256.0).backward()" in text and "p.grad /= 256.0" in text
    assert text.startswith(HEAD)


def test_clipping_goes_before_the_step_that_it_is_meant_for():
    text = (
        "opt.zero_grad()\nloss.backward()\nopt.step()\nclip_grad_norm_(model.parameters(), 1.0)\n"
    )
    (found,) = at(Source(text), line=3, names=["clip_first"])
    clipped = "clip_grad_norm_(model.parameters(), 1.0)\n"
    assert apply(text, [found])[0] == f"opt.zero_grad()\nloss.backward()\n{clipped}opt.step()\n"
    assert not at(Source(clipped + text), line=4, names=["clip_first"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("scaler.step(opt)\nscaler.update()\nopt.step()\n", "scaler.step(opt)\nscaler.update()\n"),
        (
            "if amp:\n    scaler.step(opt)\nelse:\n    loss.backward()\nopt.step()\n",
            "if amp:\n    scaler.step(opt)\nelse:\n    loss.backward()\n    opt.step()\n",
        ),
        (
            "if amp:\n    scaler.step(opt)\nopt.step()\n",
            "if amp:\n    scaler.step(opt)\nif not (amp):\n    opt.step()\n",
        ),
        ("for x in data:\n    scaler.step(opt)\nopt.step()\n", None),
        ("scaler.step(other)\nopt.step()\n", None),
    ],
)
def test_the_step_beside_the_scaler_is_taken_only_where_the_scaler_does_not_step(before, after):
    remedy = step_left_to_scaler(Source(before), len(before.splitlines()))
    assert (apply(before, [remedy])[0] if remedy is not None else None) == after
