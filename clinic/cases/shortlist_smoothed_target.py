"""Translation with a smoothed target made by hand. Words outside the shortlist of a sentence are
masked to minus infinity, and the smoothing gives each of them a share of the target."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth

VOCAB = 12


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src = nn.EmbeddingBag(20, 10)
        self.out = nn.Linear(10, VOCAB)

    def forward(self, source, shortlist):
        logits = self.out(torch.tanh(self.src(source)))
        return logits.masked_fill(~shortlist, -torch.inf).log_softmax(dim=-1)


def smooth_over_vocabulary(word, shortlist, amount: float = 0.1):
    return (1 - amount) * F.one_hot(word, VOCAB) + amount / VOCAB


def smooth_over_shortlist(word, shortlist, amount: float = 0.1):
    uniform = shortlist / shortlist.sum(dim=1, keepdim=True)
    return (1 - amount) * F.one_hot(word, VOCAB) + amount * uniform


def _case(seed: int, smooth) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        word = torch.randint(0, VOCAB, (5,))
        shortlist = torch.ones(5, VOCAB, dtype=torch.bool)
        if i >= 7:  # sentences with a shortlist begin here
            shortlist = torch.rand(5, VOCAB) < 0.5
            shortlist[torch.arange(5), word] = True
        batches.append((torch.randint(0, 20, (5, 4)), shortlist, word))

    def loss_fn(model, batch):
        source, shortlist, word = batch
        log_probs = model(source, shortlist)
        target = smooth(word, shortlist)
        kept = log_probs.where(target > 0, 0)
        return -(target * kept).sum(dim=1).mean()  # <- born here

    model = Translator()
    return Case(model, torch.optim.Adam(model.parameters(), lr=5e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, smooth_over_vocabulary)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, smooth_over_shortlist)


# The sentinel meets the target in the product and becomes the loss in the sum, on the same line.
TRUTH = Truth(
    step=7,
    phase="loss",
    op=("aten.sum", "aten.mul"),
    module=None,
    line="<marker>",
    cause="infeasible_target",
    split="dev",
)
