"""Recall@K and NDCG@K over all clips that a user has not watched yet, and the popularity baseline."""

from __future__ import annotations

import math

import torch
from data import ITEMS, USERS, Interactions


def ranking_metrics(scores: torch.Tensor, known: Interactions, k: int) -> tuple[float, float]:
    """Mean Recall@k and NDCG@k of `scores` [users, items]."""
    scores = scores.float().clone()
    users, items = known.train.unbind(1)
    scores[users, items] = -math.inf
    top = scores.topk(k, dim=1).indices.tolist()
    recalls, gains = [], []
    for user, wanted in enumerate(known.test):
        hits = [item in wanted for item in top[user]]
        recalls.append(sum(hits) / len(wanted))
        gain = sum(1 / math.log2(rank + 2) for rank, hit in enumerate(hits) if hit)
        best = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(wanted))))
        gains.append(gain / best)
    return sum(recalls) / USERS, sum(gains) / USERS


def popularity_scores(known: Interactions) -> torch.Tensor:
    """What recommending the most watched clips to everybody scores."""
    counts = torch.bincount(known.train[:, 1], minlength=ITEMS).float()
    return counts.expand(USERS, ITEMS)
