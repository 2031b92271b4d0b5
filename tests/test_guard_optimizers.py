"""Optimizers as people have them: hand-written ones, several at once, copies in another precision."""

import copy

import pytest
import torch
from tests.guards import BAD, GOOD, NAN, QUICK, linear, sgd, squares
from torch import nn
from torch.optim import Optimizer

from stayfinite import Guard, UsageError


class SignDescent(Optimizer):
    """Written by hand, with a counter beside its state."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.num_steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


def test_a_hand_written_optimizer_is_the_only_one_there_is():
    model = linear()
    optimizer = SignDescent(model.parameters(), lr=0.02)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard([GOOD, BAD, GOOD]):
            optimizer.zero_grad()
            squares(model, x).backward()
            optimizer.step()
    assert list(guard.state.optimizers) == [optimizer]
    assert [i.event.lr for i in guard.incidents] == [(0.02,)]
    assert optimizer.num_steps == 2


# -- several optimizers -------------------------------------------------------------------------


class Gan:
    """A generator and a critic; `corrupted` says whose part of a bad batch is bad."""

    def __init__(self, corrupted="critic", **options):
        torch.manual_seed(0)
        self.corrupted = corrupted
        self.generator, self.critic = (
            nn.Linear(2, 3),
            nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)),
        )
        self.optimizers = [
            torch.optim.Adam(self.generator.parameters(), lr=0.01),
            torch.optim.SGD(self.critic.parameters(), lr=0.01, momentum=0.9),
        ]
        models = {"generator": self.generator, "critic": self.critic}
        self.guard = Guard(models, self.optimizers, settings=QUICK, **options)

    def run(self, batches):
        by_generator, by_critic = self.optimizers
        with self.guard as guard:
            for real, factor in guard(batches):
                fake = self.generator(torch.ones(4, 2))
                loss = (self.critic(fake.detach()) - self.critic(real)).mean()
                by_critic.zero_grad()
                (loss * (factor if self.corrupted == "critic" else 1.0)).backward()
                by_critic.step()
                loss = -self.critic(fake).mean()
                by_generator.zero_grad()
                (loss * (factor if self.corrupted == "generator" else 1.0)).backward()
                by_generator.step()
        return self.tensors()

    def tensors(self):
        moments = [
            t
            for o in self.optimizers
            for entries in o.state.values()
            for t in entries.values()
            if isinstance(t, torch.Tensor)
        ]
        return [*self.generator.parameters(), *self.critic.parameters(), *moments]


def batches_of(num, bad=()):
    torch.manual_seed(1)
    return [(torch.randn(4, 3), NAN if i in bad else 1.0) for i in range(num)]


@pytest.mark.parametrize("policy", ["skip", "rollback"])
@pytest.mark.parametrize("corrupted", ["critic", "generator"])
def test_a_bad_batch_moves_neither_of_two_optimizers(corrupted, policy):
    """With the generator's loss bad the critic has moved already, and goes back."""
    batches = batches_of(6, bad=[3])
    gan = Gan(corrupted, policy=policy)
    ended = gan.run(batches)
    wanted = Gan(corrupted).run([b for i, b in enumerate(batches) if i != 3])
    assert [i.event.step for i in gan.guard.incidents] == [3]
    assert len(ended) == len(wanted)
    if policy == "skip":
        assert all(torch.equal(a, b) for a, b in zip(ended, wanted))
    else:
        assert gan.guard.incidents[0].action.kind == "rolled_back"
        assert all(torch.isfinite(t).all() for t in ended)


def test_a_tuple_of_optimizers_is_watched_as_a_list_is():
    model, other = linear(), linear()
    with Guard({"a": model, "b": other}, (sgd(model), sgd(other)), settings=QUICK) as guard:
        assert len(guard.state.optimizers) == 2


def test_guard_step_with_several_optimizers_says_what_to_do():
    gan = Gan()
    with gan.guard, pytest.raises(UsageError) as caught:
        gan.guard.step(lambda model, x: model(x).sum(), GOOD)
    assert str(caught.value) == (
        "guard.step drives one optimizer and its scheduler, and here there are 2 optimizers; "
        "use `for batch in guard(loader):` and let the loop make its own steps"
    )


def test_several_schedulers_go_back_with_their_optimizers():
    def train(batches):
        gan = Gan()
        schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in gan.optimizers]
        gan.guard.close()
        models = {"generator": gan.generator, "critic": gan.critic}
        gan.guard = Guard(models, gan.optimizers, schedulers, settings=QUICK)
        loop = gan.guard(batches)
        by_generator, by_critic = gan.optimizers
        for real, factor in loop:
            for optimizer in gan.optimizers:
                optimizer.zero_grad()
            (gan.critic(gan.generator(torch.ones(4, 2)) - real).mean() * factor).backward()
            for part in (by_critic, by_generator, *schedulers):
                part.step()
        with pytest.raises(UsageError, match="here there are 2 optimizers"):
            gan.guard.step(squares, GOOD)
        gan.guard.close()
        return [s.last_epoch for s in schedulers], gan.guard.state.lrs()

    assert train(batches_of(4, bad=[2])) == train(batches_of(3)) == ([3, 3], (0.00125, 0.00125))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "`optimizer` must be a torch optimizer or a list of them, got none"),
        (["adam"], "`optimizer[0]` must be a torch optimizer, got str"),
        (
            lambda: [sgd(nn.Linear(3, 3)), sgd(nn.Linear(4, 4))],
            "the optimizers move 4 parameters and Linear has 2, but they share none; build the "
            "optimizer from this model's .parameters() (after any copy, .to() or wrapping)",
        ),
    ],
)
def test_a_wrong_list_of_optimizers(given, words):
    with pytest.raises(UsageError) as caught:
        Guard(linear(), given() if callable(given) else given)
    assert str(caught.value) == words


# -- copies in float32 ----------------------------------------------------------------------------


def train_with_masters(batches):
    model = linear().half()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(batches):
            model.zero_grad()
            squares(model, x.half()).backward()
            for master, p in zip(masters, model.parameters()):
                master.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters()):
                    p.copy_(master)
    moments = [entry["momentum_buffer"] for entry in optimizer.state.values()]
    return guard, [*model.parameters(), *masters, *moments]


def test_a_skipped_step_leaves_model_and_masters_as_they_were():
    guard, ended = train_with_masters([GOOD, GOOD, BAD, GOOD])
    (incident,) = guard.incidents
    assert (incident.event.step, incident.event.phase) == (2, "data")
    _, wanted = train_with_masters([GOOD] * 3)
    assert all(torch.equal(a, b) for a, b in zip(ended, wanted))


def test_guard_step_cannot_fill_the_masters():
    model = linear().half()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    guard = Guard(model, torch.optim.SGD(masters, lr=0.1))
    with (
        guard,
        pytest.raises(UsageError, match="moves copies of the model's parameters, which only"),
    ):
        guard.step(squares, GOOD)


def test_a_copy_in_the_same_precision_is_a_mistake():
    model = linear()
    with pytest.raises(UsageError, match="but they share none"):
        Guard(model, sgd(copy.deepcopy(model)))


def test_copies_that_do_not_match_are_refused_and_the_rule_is_reported():
    model = linear().half()
    with pytest.raises(UsageError) as caught:
        Guard(model, torch.optim.SGD([model.weight.detach().float().requires_grad_()], lr=0.1))
    assert str(caught.value) == (
        "the optimizer moves 1 parameters and Linear has 2, but they share none; build the optimizer "
        "from this model's .parameters() (after any copy, .to() or wrapping), or from one float32 "
        "copy of the same shape for each parameter that is trained"
    )


class Rebinding(Optimizer):
    """Puts a new tensor into its state with every step, and divides by a norm that may be zero."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["v"] = 0.5 * state.get("v", torch.zeros_like(p)) + p.grad
            if "extra" not in state and p.grad.sum() == 0:
                state["extra"] = 1.0
            p.sub_(0.1 * p.grad / p.grad.pow(2).sum().sqrt())


@pytest.mark.parametrize("form", ["step", "loop"])
def test_state_that_an_optimizer_puts_anew_goes_back_as_well(form):
    batches = [torch.full((2, 2), 0.5 + i) for i in range(6)]

    def run(batches):
        torch.manual_seed(0)
        model = nn.Linear(2, 1, bias=False)
        optimizer = Rebinding(model.parameters())
        with Guard(model, optimizer, settings=QUICK) as guard:
            if form == "step":
                for x in batches:
                    guard.step(squares, x)
            else:
                for x in guard(batches):
                    optimizer.zero_grad()
                    squares(model, x).backward()
                    optimizer.step()
        (state,) = optimizer.state.values()
        return guard, model.weight.detach().clone(), state

    guard, weight, state = run([*batches[:3], torch.zeros(2, 2), *batches[3:]])
    assert [(i.event.step, i.event.phase) for i in guard.incidents] == [(3, "optimizer")]
    _, wanted, kept = run(batches)
    assert torch.equal(weight, wanted)
    assert state.keys() == kept.keys() == {"v"} and torch.equal(state["v"], kept["v"])


def test_of_two_optimizers_the_one_that_did_it_is_named():
    torch.manual_seed(0)
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
    model = nn.Sequential(first, second)
    optimizers = [torch.optim.AdamW(first.parameters(), lr=0.01), Rebinding(second.parameters())]
    with Guard(model, optimizers) as guard:
        for x in guard([torch.full((2, 2), v) for v in (1.0, 2.0, 0.0, 3.0)]):
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(x).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
    (incident,) = guard.incidents
    assert (incident.event.step, incident.event.name) == (2, "1.weight")
    assert incident.diagnosis.cause == "optimizer_denominator"
    assert incident.diagnosis.summary.startswith("Rebinding divides by exactly zero")
    assert not any("eps=" in fix.title for fix in incident.diagnosis.fixes)


def bad_once(step):
    return float("nan") if step == 3 else 1.0


@pytest.mark.parametrize("form", ["step", "loop"])
def test_a_rate_that_is_bad_once_is_left_behind(form):
    model = linear()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, bad_once)
    with Guard(model, optimizer, scheduler if form == "step" else None, settings=QUICK) as guard:
        if form == "step":
            for _ in range(8):
                guard.step(squares, GOOD)
        else:
            for x in guard([GOOD] * 8):
                optimizer.zero_grad()
                squares(model, x).backward()
                optimizer.step()
                scheduler.step()
    assert [i.event.step for i in guard.incidents] == [3]
    assert scheduler.last_epoch == 8 and optimizer.param_groups[0]["lr"] == 0.1
