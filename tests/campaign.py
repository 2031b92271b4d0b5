"""Random faults, seeded: kind x place x step x precision x policy x form.

    python -m tests.campaign --count 500 --seed 0

Each training has one fault. Afterwards nothing in its state may be non-finite, the fault must have
been noticed at its own step, and, where the policy leaves the learning rate alone and cuts no
samples, the final state must be that of a run that never saw the batches in the ledger, bit for bit.
"""

import argparse
import contextlib
import io
import random
import sys
import time
from dataclasses import dataclass

import torch
from tests.faults.training import (
    NUM_BATCHES,
    PLACES,
    PRECISIONS,
    VALUES,
    Fault,
    batches,
    loop,
    loss_of,
    make,
)

from stayfinite import Guard, Policy, Rung, Settings

POLICIES = {
    "skip": Policy(),
    "rollback": Policy(name="rollback"),
    "rollback lr": Policy(name="rollback", lr_factor=0.5),
    "rollback next": Policy(name="rollback", skip_next=1),
    "ladder": Policy.ladder(Rung("skip", 1), Rung("rollback", 2), Rung("stop")),
    "sanitize": Policy(name="sanitize"),
    "sanitize replace": Policy(name="sanitize", sanitizer="replace"),
}
FORMS = ("step", "loader")


@dataclass(frozen=True)
class Case:
    """One training of the campaign."""

    fault: Fault
    policy: str
    form: str
    max_batches: int
    """Steps between two snapshots at the most."""

    def __str__(self):
        f = self.fault
        return f"{f.value} in {f.place} at {f.at}, {f.precision}, {self.policy}, {self.form}, {self.max_batches}"


def draw(rng):
    fault = Fault(
        place=rng.choice(PLACES), value=rng.choice(list(VALUES)), precision=rng.choice(PRECISIONS),
        at=rng.randrange(NUM_BATCHES),
    )  # fmt: skip
    return Case(fault, rng.choice(list(POLICIES)), rng.choice(FORMS), rng.choice((1, 2, 3, 4, 256)))


def remembered(model, optimizer, scaler):
    """All that a training leaves behind, by name."""
    found = {f"model {k}": v.clone() for k, v in model.state_dict().items()}
    for name, p in model.named_parameters():
        for key, value in optimizer.state.get(p, {}).items():
            found[f"moment {name} {key}"] = value.clone() if torch.is_tensor(value) else value
    found["lr"] = [g["lr"] for g in optimizer.param_groups]
    found["scaler"] = scaler.state_dict() if scaler is not None else None
    found["rng"] = torch.get_rng_state()
    return found


def same(a, b):
    if torch.is_tensor(a) and torch.is_tensor(b):
        return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    return a == b


def run(case):
    """What is wrong with this case, in words; empty when all is well."""
    fault = case.fault
    model, optimizer, scaler = make(fault)
    settings = Settings(diagnose=False, budget=1e-9, max_batches=case.max_batches)
    data = batches(fault)
    guard = Guard(model, optimizer, scaler=scaler, policy=POLICIES[case.policy], settings=settings)
    with contextlib.redirect_stderr(io.StringIO()), guard:
        if case.form == "step":
            for batch in data:
                guard.step(loss_of, batch)
        else:
            loop(guard(data), model, optimizer, scaler)
    found = remembered(model, optimizer, scaler)
    wrong = [
        f"{k} is not finite"
        for k, v in found.items()
        if torch.is_tensor(v) and v.is_floating_point() and not torch.isfinite(v).all()
    ]
    steps = [i.event.step for i in guard.incidents]
    if steps != [fault.at]:
        wrong.append(f"noticed at {steps}")
    kinds = {e.kind for e in guard.ledger}
    if case.policy != "rollback lr" and "sanitized" not in kinds:
        wrong += differences(found, fault, set(guard.ledger.steps()))
    return wrong


def differences(found, fault, left_out):
    model, optimizer, scaler = make(fault)
    loop([b for i, b in enumerate(batches(fault)) if i not in left_out], model, optimizer, scaler)
    wanted = remembered(model, optimizer, scaler)
    keys = sorted(set(found) | set(wanted))
    return [f"{k} differs" for k in keys if not same(found.get(k), wanted.get(k))]


def campaign(count, seed):
    """(number run, [(case, what is wrong)])."""
    rng = random.Random(seed)
    bad = []
    for _ in range(count):
        case = draw(rng)
        try:
            wrong = run(case)
        except Exception as e:
            wrong = [f"{type(e).__name__}: {e}"]
        if wrong:
            bad.append((case, wrong))
    return count, bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    count, bad = campaign(options.count, options.seed)
    for case, wrong in bad:
        print(f"{case}: {'; '.join(wrong[:4])}")
    print(f"{count} faults, {len(bad)} wrong, {time.perf_counter() - start:.1f} s")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
