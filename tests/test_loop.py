"""`for batch in guard(loader)` round loops of all kinds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launch import forked
from tests.loops import NAN, QUICK, Net, assert_same, body, data, everything, make
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from stayfinite import Guard


def trained(loop, batches, is_guarded, **options):
    """(what is left, steps of the incidents) of `loop(stream, model, optimizer)`."""
    model, optimizer = make(**options)
    if not is_guarded:
        loop(batches, model, optimizer)
        return everything(model, optimizer), []
    with Guard(model, optimizer, settings=QUICK) as guard:
        loop(guard(batches), model, optimizer)
    return everything(model, optimizer), [i.event.step for i in guard.incidents]


def simple(stream, model, optimizer):
    for x in stream:
        body(model, optimizer, x)


def enumerated(stream, model, optimizer):
    for _, x in enumerate(stream):
        body(model, optimizer, x)


def with_bar(stream, model, optimizer):
    for x in tqdm(stream, disable=True):
        body(model, optimizer, x)


def by_hand(stream, model, optimizer):
    stream = iter(stream)
    while True:
        x = next(stream, None)
        if x is None:
            break
        body(model, optimizer, x)


def zipped(stream, model, optimizer):
    for x, _ in zip(stream, iter(int, 1)):
        body(model, optimizer, x)


def clipped(stream, model, optimizer):
    for x in stream:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def zero_at_the_end(stream, model, optimizer):
    for x in stream:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def two_losses(stream, model, optimizer):
    for x in stream:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        (model(x) - 1).abs().mean().backward()
        optimizer.step()


def autograd_grad(stream, model, optimizer):
    """Gradients by hand, without `backward`."""
    for x in stream:
        params = list(model.parameters())
        for p, g in zip(params, torch.autograd.grad(model(x).pow(2).mean(), params)):
            p.grad = g
        optimizer.step()


def validating(stream, model, optimizer):
    held_out = DataLoader(TensorDataset(torch.ones(6, 2) * NAN), batch_size=2)
    for x in stream:
        body(model, optimizer, x)
        model.eval()
        with torch.no_grad():
            for (v,) in held_out:
                model(v)
        model.train()


def looking(stream, model, optimizer):
    """Looks at its loss itself."""
    for x in stream:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()


def with_closure(stream, model, optimizer):
    for x in stream:

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


LOOPS = [
    simple, enumerated, with_bar, by_hand, zipped, clipped, zero_at_the_end, two_losses, validating,
    with_closure, autograd_grad,
]  # fmt: skip


def test_a_loop_that_looks_at_its_loss_itself_is_reported_and_goes_on_as_it_would_alone():
    """Only what the bad forward has written into the statistics of the batch norm is put back."""
    found, steps = trained(looking, data(bad=[3]), True)
    wanted, _ = trained(looking, data(bad=[3]), False)
    assert steps == [3]
    kept = [
        i
        for i, name in enumerate(make()[0].state_dict())
        if "running" in name or "num_batches" in name
    ]
    assert len(kept) == 3
    rest = [i for i in range(len(wanted)) if i not in kept]
    assert_same([found[i] for i in rest], [wanted[i] for i in rest])


@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_bad_batch_leaves_no_trace(loop):
    found, steps = trained(loop, data(bad=[3]), True)
    wanted, _ = trained(loop, [x for i, x in enumerate(data()) if i != 3], False)
    assert steps == [3]
    assert_same(found, wanted)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_healthy_loop_is_the_plain_loop(loop):
    found, steps = trained(loop, data(), True)
    wanted, _ = trained(loop, data(), False)
    assert steps == []
    assert_same(found, wanted)


@pytest.mark.parametrize("loop", [simple, clipped, zero_at_the_end, with_closure])
def test_a_bad_gradient_leaves_no_trace(loop):
    found, steps = trained(loop, data(bad=[5], kind=77.0), True)
    wanted, _ = trained(loop, [x for i, x in enumerate(data()) if i != 5], False)
    assert steps == [5]
    assert_same(found, wanted)


@pytest.mark.parametrize("bad", [[0], [7], [0, 1], [6, 7], [2, 3, 4], [0, 7]])
def test_bad_batches_at_the_ends_and_in_a_row(bad):
    found, steps = trained(simple, data(bad=bad), True)
    wanted, _ = trained(simple, [x for i, x in enumerate(data()) if i not in bad], False)
    assert steps == bad
    assert_same(found, wanted)


def accumulating(every):
    def loop(stream, model, optimizer):
        optimizer.zero_grad()
        for i, x in enumerate(stream):
            (model(x).pow(2).mean() / every).backward()
            if (i + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()

    return loop


@pytest.mark.parametrize("kind", [-99.0, 77.0, NAN])
@pytest.mark.parametrize("bad", [4, 5, 6, 7])
def test_any_micro_batch_of_a_window(bad, kind):
    """The whole window is left out, and the bad one in it is named."""
    found, steps = trained(accumulating(4), data(bad=[bad], kind=kind, count=12), True)
    kept = [x for i, x in enumerate(data(count=12)) if not 4 <= i < 8]
    wanted, _ = trained(accumulating(4), kept, False)
    assert steps == [bad]
    assert_same(found, wanted)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_real_loader(num_workers):
    x = torch.cat(data(bad=[3]))
    loader = DataLoader(TensorDataset(x), batch_size=4, num_workers=num_workers)

    def loop(stream, model, optimizer):
        for (xb,) in stream:
            body(model, optimizer, xb)

    _, steps = trained(loop, loader, True)
    assert steps == [3]


def test_a_generator_of_batches():
    found, steps = trained(simple, (x for x in data(bad=[3])), True)
    wanted, _ = trained(simple, [x for i, x in enumerate(data()) if i != 3], False)
    assert steps == [3]
    assert_same(found, wanted)


def test_lbfgs():
    def run(batches, is_guarded):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

        def loop(stream):
            for x in stream:

                def closure(x=x):
                    optimizer.zero_grad()
                    loss = (
                        model(x) - torch.log(x.sum() * 0 + (-1.0 if x[0, 0] < -50 else 1.0))
                    ).pow(2)
                    loss = loss.mean()
                    loss.backward()
                    return loss

                optimizer.step(closure)

        if not is_guarded:
            loop(batches)
            return [p.detach() for p in model.parameters()], []
        with Guard(model, optimizer, settings=QUICK) as guard:
            loop(guard(batches))
        return [p.detach() for p in model.parameters()], [i.event.step for i in guard.incidents]

    found, steps = run(data(bad=[3]), True)
    wanted, _ = run([x for i, x in enumerate(data()) if i != 3], False)
    assert steps == [3]
    assert_same(found, wanted)


@settings(max_examples=25)
@given(
    bad=st.sets(st.integers(0, 11), max_size=6),
    kind=st.sampled_from([-99.0, 77.0, NAN, math.inf]),
    every=st.integers(1, 4),
    form=st.sampled_from(["step", "loader"]),
    clip=st.booleans(),
)
def test_any_pattern_of_bad_batches_leaves_no_trace(bad, kind, every, form, clip):
    """Whatever comes bad, in whatever order: the rest is trained as if alone."""
    every = 1 if form == "step" else every
    batches = data(bad=bad, kind=kind, count=12)
    lost = {w for w in range(0, 12, every) if bad & set(range(w, w + every))}
    kept = [x for i, x in enumerate(batches) if i - i % every not in lost]

    def plain(stream, model, optimizer):
        optimizer.zero_grad()
        for i, x in enumerate(stream):
            (model(x).pow(2).mean() / every).backward()
            if (i + 1) % every == 0:
                if clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()

    model, optimizer = make()
    with Guard(model, optimizer, clip_norm=0.1 if clip else None, settings=QUICK) as guard:
        if form == "loader":
            plain(guard(batches), model, optimizer)
        else:
            for x in batches:
                guard.step(lambda m, x: m(x).pow(2).mean(), x)
            optimizer.zero_grad()
    found = everything(model, optimizer)
    wanted, _ = trained(plain, kept, False)
    assert len(guard.incidents) == len(lost)
    assert_same(found, wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own
def test_a_compiled_model_is_named_as_if_it_were_not():
    torch.manual_seed(0)
    model = torch.compile(Net(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in data(bad=[2], kind=77.0, count=4):
            guard.step(lambda m, x: m(x).pow(2).mean(), x)
    (incident,) = guard.incidents
    assert (incident.event.step, incident.event.name) == (2, "fc.weight")
    assert (incident.location.op, incident.location.module) == ("SqrtBackward0", "")
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_look_at_a_batch_before_the_training_counts_no_step(tmp_path):
    (tmp_path / "train.py").write_text(PEEK)
    done = forked(["-m", "stayfinite", "run", "--run-dir", "run", "train.py"], tmp_path)
    assert "step 2 (epoch 0)" in done.err


PEEK = """
import torch
from torch.utils.data import DataLoader

data = torch.randn(20, 3)
data[9] = float("nan")
loader = DataLoader(data, batch_size=4)
print(next(iter(loader)).shape)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
