"""What five troubleshooting guides prescribe against NaN, beside what this project does: run for real.

    python -m benchmarks.guide_remedies [--json FILE]

Each experiment is a small training (or one step) done the guide's way and ours, on the same seed. The
page docs/REMEDIES_COMPARED.md has the figures and what follows from them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stayfinite import BudgetExceededError, Guard
from stayfinite.numerics import eps_for

Row = dict[str, Any]


def eps_in_half() -> list[Row]:
    """`log(sigmoid(x) + 1e-8)` in float16 (guides 000, 001, 003): the epsilon is 0 there."""
    x = torch.tensor([-30.0, -12.0, 2.0], dtype=torch.float16)
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "guide: log(sigmoid(x) + 1e-8)": lambda t: torch.log(torch.sigmoid(t) + 1e-8),
        "an epsilon that fits float16": lambda t: torch.log(torch.sigmoid(t) + eps_for(t)),
        "ours: logsigmoid(x)": F.logsigmoid,
    }
    rows = []
    for name, form in forms.items():
        leaf = x.clone().requires_grad_()
        value = form(leaf)
        (gradient,) = torch.autograd.grad(value.float().sum(), leaf)
        rows.append(
            {"way": name, "at -30": value[0].item(), "gradient at -30": gradient[0].item(),
             "wanted": "-30, gradient 1"}
        )  # fmt: skip
    return rows


def clamped_loss() -> list[Row]:
    """`clamp(loss, max=100)` (guide 003): no gradient where the loss is large, so it stays large."""
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "guide: clamp(loss, max=100)": lambda loss: loss.clamp(max=100.0),
        "ours: the loss as it is, clipped gradient": lambda loss: loss,
    }
    rows = []
    for name, change in ways.items():
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        with torch.no_grad():
            model.weight.fill_(20.0)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        x = torch.randn(64, 4)
        y = x.sum(1, keepdim=True)
        first = last = 0.0
        for step in range(200):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            change(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            first, last = (loss.item() if step == 0 else first), loss.item()
        rows.append({"way": name, "first loss": first, "loss after 200 steps": last})
    return rows


def zeroed_gradients() -> list[Row]:
    """Zero the gradients and step (guide 003's first code): momentum and decay move the weights."""
    rows = []
    for name in ("guide: zero the gradients, then step", "ours: no step"):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        x = torch.randn(64, 4)
        is_ours = name.startswith("ours")
        with redirect_stderr(StringIO()), Guard(model, optimizer) as guard:
            for i in range(60):
                if i == 10:
                    start = model.weight.detach().clone()
                batch = x if i < 10 else x * math.nan
                if is_ours:
                    guard.step(_square, batch)
                else:
                    _zeroing_step(model, optimizer, batch)
        moved = float((model.weight.detach() - start).norm() / start.norm())
        rows.append({"way": name, "weights moved in 50 bad steps": f"{moved:.1%}"})
    return rows


def _square(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - 1).square().mean()


def _zeroing_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    _square(model, x).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.isnan(norm):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
    optimizer.step()


def clip_before_check() -> list[Row]:
    """Clip, then ask `isnan(norm)` (guide 003): an infinite norm passes, and clipping makes NaN of it."""
    checks: dict[str, Callable[[Tensor], bool]] = {
        "guide's first code: isnan(norm)": lambda norm: bool(torch.isnan(norm)),
        "guide's second code: isnan or isinf": lambda n: bool(torch.isnan(n) or torch.isinf(n)),
    }
    rows = []
    for name, is_bad in checks.items():
        model, optimizer = _two_weights()
        model.weight.grad = torch.tensor([[math.inf, 1.0]])
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not is_bad(norm):
            optimizer.step()
        rows.append({"way": name, "norm": norm.item(), "weights": _shown(model)})
    model, optimizer = _two_weights()
    with redirect_stderr(StringIO()), Guard(model, optimizer, clip_norm=1.0) as guard:
        guard.step(lambda m, x: (m.weight * torch.tensor([1e38, 1.0])).square().sum(), None)
    rows.append({"way": "ours: the norm is looked at before the step", "norm": "inf",
                 "weights": _shown(model)})  # fmt: skip
    return rows


def _two_weights() -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(10.0)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _shown(model: nn.Linear) -> str:
    return ", ".join(f"{v:g}" for v in model.weight.detach().flatten().tolist())


def skipping_for_ever() -> list[Row]:
    """`continue` on every bad batch (guides 001, 003, 004): nobody counts."""
    rows = []
    for name in ("guide: skip and go on", "ours: skip, with a budget"):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            model.bias.fill_(math.inf)  # the state is lost: no batch can help
        made, end = 0, "ran to its end, and says nothing"
        if name.startswith("guide"):
            for _ in range(1000):
                made += 1
                loss = model(torch.ones(1, 2)).sum()
                if not torch.isfinite(loss):
                    continue
                loss.backward()
                optimizer.step()
        else:
            with redirect_stderr(StringIO()):
                guard = Guard(model, optimizer)
                try:
                    for _ in range(1000):
                        made += 1
                        guard.step(lambda m, x: m(x).sum(), torch.ones(1, 2))
                except BudgetExceededError as e:
                    end = str(e).partition("\n")[0]
                guard.close()
        rows.append({"way": name, "steps until somebody knows": made, "end": end})
    return rows


def low_beta() -> list[Row]:
    """`BETA = 0.4` (guide 001): below 0.5 the best beta-MI is that of the uniform assignment."""
    clusters = 10
    rows = []
    for beta in (0.6, 0.5, 0.4):
        uniform = torch.full((clusters,), 1 / clusters)
        sure = torch.eye(clusters)[0]
        score = {
            "uniform": ((uniform * uniform) ** beta / uniform).sum().log().item(),
            "sure": ((sure * sure) ** beta / uniform).sum().log().item(),
        }
        best = max(score, key=lambda k: round(score[k], 6))
        tie = math.isclose(score["uniform"], score["sure"], abs_tol=1e-6)
        rows.append({"way": f"beta {beta}", "uniform": round(score["uniform"], 3),
                     "one cluster each": round(score["sure"], 3),
                     "the best is": "either" if tie else best})  # fmt: skip
    return rows


def normalized_mse() -> list[Row]:
    """Normalize both latents before the MSE (guide 003): their length is learned no more."""
    rows = []
    for name in ("guide: MSE of normalized latents", "ours: MSE"):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        x = torch.randn(256, 8)
        target = x[:, :4] * 3
        for _ in range(400):
            out = model(x)
            pair = (F.normalize(out, dim=-1), F.normalize(target, dim=-1))
            loss = F.mse_loss(*(pair if name.startswith("guide") else (out, target)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = F.mse_loss(model(x), target) / target.square().mean()
        rows.append({"way": name, "error of the latents, relative": round(float(error), 3)})
    return rows


EXPERIMENTS: dict[str, Callable[[], list[Row]]] = {
    "eps 1e-8 in float16": eps_in_half,
    "a clamped loss": clamped_loss,
    "zeroed gradients, then a step": zeroed_gradients,
    "clip before the check": clip_before_check,
    "skipping for ever": skipping_for_ever,
    "beta 0.4": low_beta,
    "normalized latents": normalized_mse,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="also write the rows to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: run() for name, run in EXPERIMENTS.items()}
    for name, rows in found.items():
        print(f"\n{name}")
        for row in rows:
            print(
                "  "
                + "; ".join(f"{k}: {_text(v)}" if k != "way" else str(v) for k, v in row.items())
            )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2, default=str)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
