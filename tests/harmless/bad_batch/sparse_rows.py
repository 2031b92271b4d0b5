"""An embedding with sparse gradients and its own optimizer beside a dense one."""
# slow

import os

import torch

torch.manual_seed(0)
table, head = torch.nn.Embedding(10, 3, sparse=True), torch.nn.Linear(3, 1)
sparse = torch.optim.SparseAdam(table.parameters(), lr=0.05)
dense = torch.optim.Adam(head.parameters(), lr=0.05)
numbers, weights = torch.randint(10, (24, 2)), torch.rand(24)
weights[11] = float("nan")
data = torch.utils.data.TensorDataset(numbers, weights)
for i, (n, w) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    sparse.zero_grad()
    dense.zero_grad()
    (w * head(table(n).mean(1)).squeeze(1).pow(2)).mean().backward()
    if not (os.environ.get("LEFT_OUT") and i == 2):
        sparse.step()
        dense.step()
print(table.weight.sum().item(), head.weight.tolist(), len(sparse.state), len(dense.state))
