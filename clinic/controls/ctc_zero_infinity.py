"""Speech recognition with `CTCLoss(zero_infinity=True)` and a few transcripts too long for their audio."""

import torch
from torch import nn

from clinic.form import Case

NUM_SYMBOLS = 6


class Recognizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 12, batch_first=True)
        self.out = nn.Linear(12, NUM_SYMBOLS)
        self.ctc = nn.CTCLoss(zero_infinity=True)

    def forward(self, audio, transcript, lengths):
        hidden, _ = self.rnn(audio)
        log_probability = self.out(hidden).log_softmax(-1).transpose(0, 1)
        num_frames = torch.full((len(audio),), audio.shape[1])
        return self.ctc(log_probability, transcript, num_frames, lengths)


def loss_fn(model, batch):
    return model(*batch)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = []
    for index in range(10):
        lengths = torch.tensor([2, 3, 7 if index % 3 == 1 else 3])
        transcript = torch.randint(1, NUM_SYMBOLS, (3, 7))
        batches.append((torch.randn(3, 6, 4), transcript, lengths))
    model = Recognizer()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=batches,
        loss_fn=loss_fn,
    )
