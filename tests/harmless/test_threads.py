"""A thread trains another model meanwhile: neither training feels the other, or us."""

import contextlib
import io
import threading

import pytest
import torch

from stayfinite import Guard, Settings
from stayfinite.investigate.entry import investigate
from stayfinite.recover.policy import Policy
from stayfinite.runtime.script.run_script import ScriptRun

NUM_STEPS = 12
BAD = 5


class Training:
    """Small, and without random numbers: two threads share torch's generator."""

    def __init__(self, seed, bad=None):
        made = torch.Generator().manual_seed(seed)
        self.batches = [torch.randn(4, 3, generator=made) for _ in range(NUM_STEPS)]
        if bad is not None:
            self.batches[bad] = self.batches[bad] * float("nan")
        self.model = torch.nn.Linear(3, 1)
        with torch.no_grad():
            self.model.weight.fill_(0.5)
            self.model.bias.zero_()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

    def loop(self, batches):
        for x in batches:
            self.optimizer.zero_grad()
            (self.model(x) - 1).pow(2).mean().backward()
            self.optimizer.step()

    def weights(self):
        return [p.detach().numpy().tobytes() for p in self.model.parameters()]


def alone(seed, left_out=None):
    training = Training(seed)
    training.loop([x for i, x in enumerate(training.batches) if i != left_out])
    return training.weights()


def side_by_side(protected_loop):
    """(weights of the protected training, weights of the thread's)."""
    mine, other = Training(1, BAD), Training(2)
    barrier = threading.Barrier(2)

    def train():
        barrier.wait()
        for _ in range(5):
            other.__init__(2)
            other.loop(other.batches)

    thread = threading.Thread(target=train)
    thread.start()
    barrier.wait()
    with contextlib.redirect_stderr(io.StringIO()):
        protected_loop(mine)
    thread.join(600)
    assert not thread.is_alive()
    return mine.weights(), other.weights()


def under_guard(training):
    with Guard(training.model, training.optimizer, settings=Settings(diagnose=False)) as guard:
        training.loop(guard(training.batches))


def check(repetitions, tmp_path):
    wanted = alone(1, BAD), alone(2)
    for i in range(repetitions):
        assert side_by_side(under_guard) == wanted

        def as_script(training, folder=tmp_path / str(i)):
            run = ScriptRun(Settings(diagnose=False), Policy(), folder, investigate)
            data = torch.utils.data.DataLoader(training.batches, batch_size=None)
            run.run_call(lambda: again(training, data))

        assert side_by_side(as_script) == wanted


def again(training, data):
    """A script makes its optimizer while it is watched."""
    training.optimizer = torch.optim.Adam(training.model.parameters(), lr=0.05)
    training.loop(data)


def test_two_trainings_side_by_side_end_as_each_alone(tmp_path):
    check(5, tmp_path)


@pytest.mark.whole
def test_two_trainings_side_by_side_end_as_each_alone_fifty_times(tmp_path):
    check(50, tmp_path)


def test_an_optimizer_that_another_thread_trains_with_is_let_alone(tmp_path):
    """It was made in the script's own thread, before the other one began."""
    mine, other = Training(1, BAD), Training(2)
    run = ScriptRun(Settings(), Policy(), tmp_path, investigate)
    is_over, has_begun = threading.Event(), threading.Event()

    def train():
        while not is_over.is_set():
            other.loop(other.batches)
            has_begun.set()

    def script():
        other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.05)
        mine.optimizer = torch.optim.Adam(mine.model.parameters(), lr=0.05)
        thread = threading.Thread(target=train)
        thread.start()
        has_begun.wait()
        mine.loop(torch.utils.data.DataLoader(mine.batches, batch_size=None))
        is_over.set()
        thread.join()
        return list(run.engine.state.optimizers)

    with contextlib.redirect_stderr(io.StringIO()):
        watched = run.run_call(script)
    assert watched == [mine.optimizer]
    assert mine.weights() == alone(1, BAD)
