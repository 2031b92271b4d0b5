"""Fold after fold in one process: how much memory it has, by itself and under `stayfinite run`.

    python -m tests.harmless.folds [--folds 50] [--bad]

Each fold makes a model of 4 MB, an optimizer, a schedule and a loader with a generator of its own. Ends with 1 if the
second half of the guarded folds takes a tenth more than the first, and the plain ones do not.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
FOLDS = """
import os, sys, torch
num_folds, is_bad = int(sys.argv[1]), sys.argv[2] == "bad"
def fold(i):
    torch.manual_seed(i)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1000), torch.nn.BatchNorm1d(1000), torch.nn.Linear(1000, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = torch.randn(16, 1024)
    if is_bad and i % 5 == 4:
        data[9] = float("nan")
    made = torch.Generator().manual_seed(i)
    for x in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=made):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    schedule.step()
for i in range(num_folds):
    fold(i)
    pages = int(open("/proc/self/statm").read().split()[1])
    print(round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1), flush=True)
"""


def megabytes(num_folds, is_bad, is_guarded):
    """After each fold."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "folds.py"
        script.write_text(FOLDS)
        before = ["-m", "stayfinite", "run"] if is_guarded else []
        own = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *before, script.name, str(num_folds), "bad" if is_bad else "healthy"],
            cwd=folder, env=own, text=True, check=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    return [float(line) for line in done.stdout.split()]


def growth(found):
    """By how much the highest of the second half is above that of the first: after a single fold, its memory may still be
    there or not.
    """
    half = len(found) // 2
    return max(found[half:]) - max(found[:half])


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folds", type=int, default=50)
    options.add_argument("--bad", action="store_true", help="a bad batch in every fifth fold")
    given = options.parse_args()
    plain, guarded = (megabytes(given.folds, given.bad, g) for g in (False, True))
    print("fold   plain  guarded   (MB)")
    for i, (one, other) in enumerate(zip(plain, guarded)):
        print(f"{i:4d} {one:7.1f} {other:8.1f}")
    print(
        f"second half above the first: plain {growth(plain):+.1f}, guarded {growth(guarded):+.1f}"
    )
    sys.exit(growth(guarded) > max(growth(plain), 0) + 0.1 * guarded[0])


if __name__ == "__main__":
    main()
