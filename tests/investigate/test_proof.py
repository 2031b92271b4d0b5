"""A fix is a diff that was run: in replays only, the training and its threads never see it."""

import textwrap
import threading

import pytest
import torch
from tests.launch import forked
from torch import nn

from stayfinite import Guard
from stayfinite.investigate.replays.changed_source import ChangedSource, NotRunnable, text_of_file


def entropy(model, x):
    p = torch.softmax(model(x), dim=1)
    return -(p * torch.log(p)).sum(1).mean()


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.w


def batches():
    return [torch.tensor([[1.0, 2.0, 3.0], [0.1, 0.2, 0.3]]) * k for k in (1, 2, 3, 2000)]


def incident_of(loss_fn, values):
    model = Scores()
    with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3)) as guard:
        for value in values:
            guard.step(loss_fn, value)
    return guard.incidents[0]


def test_a_guarded_step_gets_a_diff_with_its_proof():
    fix = incident_of(entropy, batches()).diagnosis.fixes[0]
    assert (fix.status, fix.remedy) == ("proved", "log_space")
    assert "+    logits = model(x)\n" in fix.diff and fix.diff.startswith("--- a/")
    assert fix.proof.is_step_finite and fix.proof.num_healthy == 3 and fix.proof.num_after == 4
    assert fix.proof.largest_change < 1e-5


def in_a_loop():
    model = Scores()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer) as guard:
        for x in guard(batches()):
            optimizer.zero_grad()
            p = torch.softmax(model(x), dim=1)
            loss = -(p * torch.log(p)).sum(1).mean()
            loss.backward()
            optimizer.step()
    return guard.incidents[0]


def test_a_loop_gets_the_same():
    fix = in_a_loop().diagnosis.fixes[0]
    assert (fix.status, fix.remedy) == ("proved", "log_space")
    assert fix.proof.num_healthy == 3


def test_the_functions_are_as_they_were_afterwards():
    before = entropy.__code__
    incident_of(entropy, batches())
    assert entropy.__code__ is before


def test_another_thread_goes_on_with_the_old_source():
    file = entropy.__code__.co_filename
    text = text_of_file(file)
    changed = text.replace(
        "    p = torch.softmax(model(x), dim=1)\n    return", "    return 7\n    return", 1
    )
    change = ChangedSource(file, text, changed)
    seen = []
    old = entropy.__code__
    with change.installed():
        here = entropy(None, None)
        other = threading.Thread(target=lambda: seen.append(entropy(Scores(), torch.ones(1, 3))))
        other.start()
        other.join()
    assert here == 7
    assert entropy.__code__ is old
    torch.testing.assert_close(seen[0].item(), 1.0986, atol=1e-3, rtol=0)


def test_a_text_that_does_not_compile_is_no_candidate():
    with pytest.raises(NotRunnable):
        ChangedSource("train.py", "x = 1\n", "x = (\n")


def test_a_change_that_alters_healthy_steps_is_refuted():
    def shifted(model, x):
        e = torch.exp(model(x))
        return torch.log1p(e).mean()

    values = [torch.ones(2, 3), torch.full((2, 3), 2.0), torch.full((2, 3), 95.0)]
    found = incident_of(shifted, values).diagnosis.fixes
    refuted = [f for f in found if f.status == "refuted" and f.proof]
    assert any(f.proof.note.startswith("it changes the loss of healthy steps") for f in refuted)
    assert found[0].status == "proved" and found[0].remedy == "bound_exp"


SCRIPT = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            z = x * self.w
            return z / z.norm(dim=1, keepdim=True)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        x = torch.ones(2, 3) * (step != 4)
        loss = (model(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("sum", model.w.sum().item())
"""


def command(folder, *arguments):
    return forked(["-m", "stayfinite", *arguments], folder)


def test_a_script_without_a_loader_is_repaired_by_its_own_diff(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    ran = command(tmp_path, "run", "--run-dir", "out", "train.py")
    assert "[proved]" in ran.err, ran.err
    made = command(tmp_path, "fix", "out", "--apply")
    assert made.code == 0, made.out + made.err
    assert (tmp_path / "train.py.before-fix").exists()
    plain = forked(["train.py"], tmp_path)
    assert plain.code == 0, plain.err
    assert "nan" not in plain.out
    back = command(tmp_path, "fix", "out", "--undo")
    assert back.code == 0
    assert (tmp_path / "train.py").read_text() == textwrap.dedent(SCRIPT)
