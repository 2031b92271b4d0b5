"""A graph network in half precision that sums the messages of all neighbors. Ordinary nodes have a
handful; one graph has a hub with thousands, and the running sum leaves the range of float16."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class SumConv(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.message = nn.Linear(dim, dim)
        self.update = nn.Linear(2 * dim, dim)

    def gather(self, x, msg, dst):
        out = torch.zeros_like(x)
        out.index_add_(0, dst, msg)  # <- born here
        return torch.log1p(out)

    def forward(self, x, edge_index):
        src, dst = edge_index
        msg = F.relu(self.message(x))[src]
        return self.update(torch.cat([x, self.gather(x, msg, dst)], dim=-1))


class SumConvFp32(SumConv):
    def gather(self, x, msg, dst):
        out = torch.zeros(x.shape, dtype=torch.float32)
        out = out.index_add(0, dst, msg.float())
        return torch.log1p(out).to(x.dtype)


class NodeClassifier(nn.Module):
    def __init__(self, conv: type[SumConv], dim: int = 8) -> None:
        super().__init__()
        self.conv = conv(dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, x, edge_index):
        return self.head(F.relu(self.conv(x, edge_index)))


def loss_fn(model, graph):
    logits = model(graph["x"], graph["edge_index"])
    return F.cross_entropy(logits.float(), graph["y"])


def _graph(num_edges: int, has_hub: bool):
    src = torch.randint(0, 40, (num_edges,))
    dst = torch.zeros_like(src) if has_hub else torch.randint(0, 40, (num_edges,))
    x = torch.randn(40, 8).half() * 30
    return {"x": x, "edge_index": torch.stack([src, dst]), "y": torch.randint(0, 3, (40,))}


def _case(seed: int, conv: type[SumConv]) -> Case:
    torch.manual_seed(seed)
    graphs = [_graph(200, False) for _ in range(9)]
    graphs[5] = _graph(12000, True)
    model = NodeClassifier(conv).half()
    return Case(model, torch.optim.SGD(model.parameters(), lr=1e-3), graphs, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, SumConv)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, SumConvFp32)


TRUTH = Truth(
    step=5,
    phase="forward",
    op="aten.index_add_",
    module="conv",
    line="<marker>",
    cause="low_precision_overflow",
    split="held_out",
)
