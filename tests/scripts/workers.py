import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        x = torch.randn(4, generator=generator)
        if i == 22:
            x[2] = float("inf")
        return {"signal": x, "meta": {"index": i}}


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Recordings(), batch_size=4, num_workers=2)
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch["signal"])  # HERE
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")
    print("done", f"{model[1].running_var.sum().item():.6f}")


if __name__ == "__main__":
    main()
