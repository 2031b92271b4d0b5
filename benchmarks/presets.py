"""Do the presets rescue the five broken examples? Each is trained with its preset, and compared with
its repaired twin.

    python -m benchmarks.presets [NAME ...] [--preset conservative] [--seeds 1] [--json FILE]

Where the figure stays below 90 % of the repaired one's, `stayfinite check` runs with the preset's
settings and must name a line or a tensor: what is left is a matter of the code. About 6 minutes on one
core for all.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from stayfinite.preflight.config.presets import PRESETS, write_preset

EXAMPLES = Path(__file__).parents[1] / "examples"
ENOUGH = 0.9
METRICS = {
    "mmgcn": r"recall@20 ([\d.]+) \(popularity",
    "temi": r"accuracy ([\d.]+)  NMI",
    "restran_mhc": r"plate accuracy ([\d.]+)",
    "mmdit_dlm": r"masked words restored: ([\d.]+)",
    "lstm_market": r"balanced accuracy ([\d.]+) \(chance",
}


@dataclass(frozen=True)
class Row:
    """One example under one preset."""

    name: str
    preset: str
    seed: int
    metric: float
    fixed: float
    code: tuple[str, ...] = ()
    """What `check` says that no setting repairs, where the preset alone is not enough."""

    @property
    def is_rescued(self) -> bool:
        return self.metric >= ENOUGH * self.fixed


def trained(script: Path, folder: Path, *args: str) -> float:
    """The last figure that it prints."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(script), *args], cwd=folder, capture_output=True, text=True
    )
    found = re.findall(METRICS[script.parent.name], done.stdout)
    return float(found[-1]) if found else 0.0


def left_to_do(script: Path, folder: Path, config: Path) -> tuple[str, ...]:
    """What `check` finds with the preset's settings in place."""
    done = subprocess.run(
        [sys.executable, "-m", "stayfinite", "check", "--json", str(script), "--config", str(config)],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    findings = json.loads(done.stdout)["findings"]
    fails = [f for f in findings if f["status"] == "fail"]
    return tuple(dict.fromkeys(f"{f['subject']}: {f['action']}" for f in fails))


def row(name: str, preset: str, seed: int, fixed: float, room: Path) -> Row:
    """Train it, and look for what is left where that was not enough."""
    folder = room / f"{name}-{preset}-{seed}"
    folder.mkdir()
    source = folder / "config.yaml"
    source.write_text((EXAMPLES / name / "config.yaml").read_text(encoding="utf-8"))
    config, _ = write_preset(source, preset)
    script = EXAMPLES / name / "train.py"
    args = ["--config", str(config), *(["--seed", str(seed)] if seed else [])]
    found = Row(name, preset, seed, trained(script, folder, *args), fixed)
    if found.is_rescued:
        return found
    return Row(**{**asdict(found), "code": left_to_do(script, folder, config)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(METRICS), metavar="NAME")
    parser.add_argument("--preset", action="append", choices=PRESETS)
    parser.add_argument("--seeds", type=int, default=1, help="0 is the example's own, then 1, 2, …")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        for name in args.names or sorted(METRICS):
            for seed in range(args.seeds):
                given = ["--seed", str(seed)] if seed else []
                script = EXAMPLES / name / "train_fixed.py"
                fixed = trained(script, room / f"{name}-fixed-{seed}", *given)
                for preset in args.preset or PRESETS:
                    found = row(name, preset, seed, fixed, room)
                    rows.append(found)
                    share = f"{found.metric / fixed:.0%}" if fixed else "-"
                    print(
                        f"{name:12} {preset:17} seed {seed}: {found.metric:.3f} of {fixed:.3f} ({share})",
                        flush=True,
                    )
                    for line in found.code:
                        print(f"{'':13}needs as well: {line}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(r) for r in rows], indent=2))


if __name__ == "__main__":
    main()
