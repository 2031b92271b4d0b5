"""`python -m clinic`: every case under stayfinite in both forms, the score, and the tools beside it.

    python -m clinic [NAME ...] [--quick]

NAME picks cases by name or cause; --quick leaves out the other tools, the twins and the controls.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable

import torch

from clinic.form import SPLITS, Entry, all_cases, all_controls
from clinic.measure import FORMS, Score, run
from clinic.peers import PeerScore, debug_underflow_overflow, detect_anomaly, torchlens

BARS = {"noticed": 1.0, "op": 0.97, "line": 0.97, "cause": 0.92}
FIX_BAR = 0.75
NOT_TRYABLE = {"hardware_or_nondeterminism"}


def main(arguments: list[str]) -> int:
    """Exit code 0 when every bar is reached and nothing gave a false alarm."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    names = [a for a in arguments if not a.startswith("-")]
    is_quick = "--quick" in arguments
    entries = [
        e for e in all_cases() if not names or any(n in e.name or n == e.truth.cause for n in names)
    ]
    scores = _table(entries)
    _confusion(scores)
    is_good = _totals(scores)
    if not is_quick:
        _peers(entries)
        if not names:
            is_good = _silence(entries) and is_good
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    return 0 if is_good else 1


def _table(entries: Iterable[Entry]) -> list[Score]:
    print(
        f"{'case':<38} {'split':<8} {'form':<4} {'step op line cause fix':<23} {'s':>5}  cause found"
    )
    scores = []
    for entry in entries:
        for form in FORMS:
            s = run(entry, form)
            scores.append(s)
            marks = [s.noticed, s.op, s.line, s.cause, s.has_proved_fix]
            shown = "   ".join("+" if m else "." for m in marks)
            found = s.incident.diagnosis.cause if s.incident else "nothing noticed"
            wrong = "" if s.cause else f"   (truth: {entry.truth.cause})"
            print(
                f"{entry.name:<38} {entry.truth.split:<8} {form:<4} {shown:<23} {s.seconds:>5.2f}  "
                f"{found}{wrong}{'   ' + s.error if s.error else ''}",
                flush=True,
            )
    return scores


def _confusion(scores: list[Score]) -> None:
    """Only what is off the diagonal: the rest is in the totals."""
    print("\nconfusion (truth -> found, where they differ)")
    for split in SPLITS:
        off = Counter(
            (s.entry.truth.cause, s.incident.diagnosis.cause if s.incident else None)
            for s in scores
            if s.entry.truth.split == split and not s.cause
        )
        lines = [f"{truth} -> {found}: {n}" for (truth, found), n in off.most_common()]
        print(f"  {split:<9} " + ("; ".join(lines) or "none"))


def _totals(scores: list[Score]) -> bool:
    print("\nstayfinite" + "".join(f"{k:>16}" for k in (*BARS, "proved fix")) + "   seconds (max)")
    is_good = True
    for split in SPLITS:
        part = [s for s in scores if s.entry.truth.split == split]
        if not part:
            continue
        cells = []
        for key, bar in BARS.items():
            right = sum(getattr(s, key) for s in part)
            is_good = is_good and right >= bar * len(part)
            cells.append(f"{right}/{len(part)} {right / len(part):.0%}")
        tried = [s for s in part if s.entry.truth.cause not in NOT_TRYABLE]
        fixed = sum(s.has_proved_fix for s in tried)
        is_good = is_good and fixed >= FIX_BAR * len(tried)
        cells.append(f"{fixed}/{len(tried)} {fixed / max(1, len(tried)):.0%}")
        times = sorted(s.seconds for s in part)
        print(
            f"{split:<10}"
            + "".join(f"{c:>16}" for c in cells)
            + f"   {times[len(times) // 2]:.2f} ({times[-1]:.2f})"
        )
    return is_good


def _peers(entries: list[Entry]) -> None:
    tools = {
        "detect_anomaly": detect_anomaly,
        "DebugUnderflowOverflow": debug_underflow_overflow,
        "torchlens find_nan": torchlens,
    }
    print("\nthe same cases under other tools (right at the true step)")
    for name, tool in tools.items():
        found: list[PeerScore | None] = [tool(e) for e in entries]
        known = [f for f in found if f is not None]
        if not known:
            print(f"  {name:<24} left out: it is not installed")
            continue
        cells = [f"noticed {_share(known, 'noticed')}"]
        cells += [
            f"{key} {_share(known, key)}"
            for key in ("op", "line", "module")
            if any(getattr(f, key) is not None for f in known)
        ]
        print(f"  {name:<24} {'   '.join(cells)}   cause: it does not say")


def _share(found: list[PeerScore], key: str) -> str:
    right = sum(bool(getattr(f, key)) for f in found)
    return f"{right}/{len(found)} {right / len(found):.0%}"


def _silence(entries: list[Entry]) -> bool:
    """Fixed twins and healthy controls must not raise an incident."""
    alarms = []
    total = 0
    for fixed, group in ((True, entries), (False, all_controls())):
        for entry in group:
            for form in FORMS:
                total += 1
                s = run(entry, form, fixed=fixed)
                if s.num_incidents or s.error:
                    alarms.append(f"{entry.name} ({form}){': ' + s.error if s.error else ''}")
    print(f"\nfalse alarms on fixed twins and controls: {len(alarms)} of {total} runs")
    for alarm in alarms:
        print(f"  {alarm}")
    return not alarms


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
