"""Knowledge distillation with a hand-written KL divergence."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def kl_divergence(student_logits, teacher_logits, temperature):
    p = F.softmax(teacher_logits / temperature, dim=1)
    q = F.softmax(student_logits / temperature, dim=1)
    return (p * (p.log() - q.log())).sum(1).mean()


teacher = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 5))
with torch.no_grad():
    teacher[2].weight.mul_(12)
student = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
x = torch.randn(512, 10)
x[200] *= 30
loader = DataLoader(TensorDataset(x), batch_size=32)
for epoch in range(6):
    epoch_loss = 0.0
    for (batch,) in loader:
        with torch.no_grad():
            t = teacher(batch)
        loss = kl_divergence(student(batch), t, 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    print(f"epoch {epoch}: {epoch_loss / len(loader):.4f}")
print(f"final loss {epoch_loss / len(loader):.4f}")
