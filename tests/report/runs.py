"""Runs to look at: written by the real journal and the real store, with hostile names in them."""

import math
import pathlib
from dataclasses import replace

from stayfinite.records import (
    Action,
    Diagnosis,
    Event,
    Experiment,
    Fix,
    Incident,
    Link,
    Location,
    Operand,
    Proof,
    StepRecord,
    TensorStats,
)
from stayfinite.report.journal import Journal
from stayfinite.report.store import RunFolder

NAN = math.nan
EVIL = "<script>window.hacked=1</script>"
EVIL_ATTRIBUTE = "\"><img src=x onerror='window.hacked=2'>"
PROOF = Proof(is_step_finite=True, num_healthy=3, largest_change=0.0, num_after=6)
SOURCE = """import torch


def loss_of(p):
    q = p.clamp(min=0)
    return -torch.log(q).mean()  # </script><b>bold</b>


def train():
    pass
"""


def incident(step: int, folder: pathlib.Path, name: str = "encoder.0") -> Incident:
    """A whole story: a birth in a real file, a chain, experiments, fixes."""
    file = folder / "model<b>.py"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(SOURCE)
    stats = TensorStats(
        shape=(4, 8), dtype="float32", num_elements=32, num_zero=3, min=0.0, max=1.0, mean=0.4,
        abs_max=1.0, headroom_bits=128.0, histogram=(3, 0, 5, 9, 11, 4),
    )  # fmt: skip
    bad = replace(stats, num_neginf=3, first_bad=(0, 1), min=-5.0)
    source = SOURCE.splitlines()[5].strip()
    place = {"module": name, "file": str(file), "line": 6, "source": source, "function": "loss_of"}
    birth = Link(
        op="aten.log", role="birth", inputs=(Operand(name="self", stats=stats, label=EVIL),),
        outputs=(Operand(name="result", stats=bad),), facts={"zeros": 3.0}, **place,
    )  # fmt: skip
    end = Link(
        op="aten.mean", role="symptom", outputs=(Operand(name="result", stats=bad),), **place
    )
    fix = Fix(
        title="take the logarithm of a softmax as one", why="log of an exact zero is -inf",
        status="proved", proof=PROOF, file=str(file), line=6, before=source,
        after="return -torch.log_softmax(p, -1).mean()", experiment="line",
    )  # fmt: skip
    return Incident(
        id=f"step{step:06d}-abc{step % 10}",
        event=Event(step=step, phase="forward", value=NAN, loss=NAN, lr=(0.1,), grad_norm=NAN),
        location=Location(op="aten.log", chain=(birth, end), **place),
        diagnosis=Diagnosis(
            cause="log_of_zero", confidence=0.93, summary=f"3 of 32 are exactly 0 {EVIL}",
            evidence=("the smallest input is 0", EVIL_ATTRIBUTE),
            experiments=(
                Experiment(name="line", changed="this line kept finite", outcome="finite"),
                Experiment(name="lr", changed="a tenth of the learning rate", outcome="nonfinite"),
            ),
            fixes=(fix, replace(fix, title="lower the learning rate", status="refuted", after=None)),
            samples=(1, 3),
        ),
        action=Action(kind="skipped", detail="the step was not applied"),
        history=tuple(StepRecord(step=s, loss=2.0 / (s + 1), lr=(0.1,)) for s in range(5)),
        environment={"python": "3.11", "gpu": EVIL},
        created="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def row(step: int, loss: float, applied: bool = True, **extras: object) -> tuple[object, ...]:
    base = (step, step // 100, loss, 1.0 + step % 7, (0.1 / (1 + step),), 65536.0, applied)
    return (*base, extras) if extras else base


def write_run(
    folder: pathlib.Path, num_steps: int = 400, bad: tuple[int, ...] = (150, 300)
) -> None:
    """A finished run with incidents at `bad`."""
    store = RunFolder(folder, say=lambda incident: None)
    journal = Journal(folder / "journal.jsonl", about={"script": f"train{EVIL}.py", "torch": "2.x"})
    for step in range(num_steps):
        if step in bad:
            saved = store.save(incident(step, folder / "src", name=f"encoder.{EVIL}"))
            journal.append(row(step, NAN, applied=False, flags=["incident"]))
            journal.event(
                "incident", step=step, id=saved.id, text=f"step {step}: the loss is nan {EVIL}",
                cause="log_of_zero", symptom="loss", op="aten.log", module=EVIL, action="skipped",
            )  # fmt: skip
        else:
            parts = {"text": 1.5 / (step + 1), EVIL: 0.5 / (step + 1)}
            journal.append(row(step, 2.0 / (step + 1), parts=parts))
        if step % 50 == 20:
            names = {"names": ["embed", EVIL], "dtypes": ["float32", "float16"]}
            journal.event(
                "layers", step=step, weight=[2.0, 40.0 * step], grad=[0.1, 0.2],
                update=[1e-3, 2e-3], grad_norm=0.22, **(names if step == 20 else {}),
            )  # fmt: skip
    journal.event("warning", step=33, about="spike", text=f"the loss is 9 {EVIL}")
    journal.event("checkpoint", step=100, path=f"a/{EVIL}.pt", status="good", detail="")
    journal.event("checkpoint", step=200, path="b.pt", status="refused", detail="2 bad tensors")
    journal.close()
