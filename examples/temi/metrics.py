"""How well a clustering agrees with labels that it never saw."""

import torch
from torch import Tensor


def confusion(predicted: Tensor, labels: Tensor, num: int) -> Tensor:
    return torch.bincount(labels * num + predicted, minlength=num * num).view(num, num)


def accuracy(predicted: Tensor, labels: Tensor, num: int) -> float:
    """Under the best one-to-one match of clusters and classes, by dynamic programming."""
    counts = confusion(predicted, labels, num).tolist()
    best = {0: 0}  # which clusters are taken (as bits) -> most samples matched so far
    for row in counts:
        nxt: dict[int, int] = {}
        for taken, matched in best.items():
            for cluster, count in enumerate(row):
                if not taken >> cluster & 1:
                    key = taken | 1 << cluster
                    nxt[key] = max(nxt.get(key, 0), matched + count)
        best = nxt
    return max(best.values()) / len(labels)


def nmi(predicted: Tensor, labels: Tensor, num: int) -> float:
    """Mutual information over the mean of the two entropies: 0 is unrelated, 1 is the same."""
    joint = confusion(predicted, labels, num).double() / len(labels)
    rows, columns = joint.sum(1), joint.sum(0)
    entropy = torch.special.entr
    entropies = (entropy(rows).sum() + entropy(columns).sum()).item()
    shared = entropies - entropy(joint).sum().item()
    return 2 * shared / entropies if entropies > 0 else 0.0
