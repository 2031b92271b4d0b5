"""Few-shot classification with prototypical networks. The support set is drawn at random over all
classes, so that now and then a class has no example and its prototype is the mean of no row."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth

NUM_CLASSES = 4


class ProtoNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(60, 8))

    def prototypes(self, z, label):
        return torch.stack([z[label == c].mean(dim=0) for c in range(NUM_CLASSES)])  # <- born here

    def forward(self, support, label, query):
        protos = self.prototypes(self.encoder(support), label)
        return -torch.cdist(self.encoder(query), protos)


class ProtoNetCounted(ProtoNet):
    def prototypes(self, z, label):
        member = F.one_hot(label, NUM_CLASSES).to(z.dtype)
        return member.T @ z / member.sum(dim=0).clamp(min=1).unsqueeze(1)


def loss_fn(model, episode):
    logits = model(episode["support"], episode["support_label"], episode["query"])
    return F.cross_entropy(logits, episode["query_label"])


def _case(seed: int, net: type[ProtoNet]) -> Case:
    torch.manual_seed(seed)
    episodes = []
    for _ in range(30):
        label, query_label = torch.randint(0, NUM_CLASSES, (2, 14))
        noise = torch.randn(2, 14, 1, 12)
        support = noise[0] + label.view(-1, 1, 1)
        query = noise[1] + query_label.view(-1, 1, 1)
        episodes.append(
            {
                "support": support,
                "support_label": label,
                "query": query,
                "query_label": query_label,
            }
        )
    model = net()
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), episodes, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, ProtoNet)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, ProtoNetCounted)


TRUTH = Truth(
    step=4,
    phase="forward",
    op="aten.mean",
    module="",
    line="<marker>",
    cause="empty_reduction",
    split="held_out",
)
