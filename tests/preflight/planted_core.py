"""Defects in the environment and in figures: what each check must find, and where.

Each entry gives the findings of one group, the check that must warn or fail, and a text that must be
in its subject: the package, the setting, the key, the feature or the sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.preflight.healthy import classify, clusters, loader
from torch import Tensor, nn
from torch.nn import functional as F

from stayfinite.preflight.environment.facts import Facts
from stayfinite.preflight.environment.group import judge
from stayfinite.preflight.probes import Subject
from stayfinite.preflight.records import Finding
from stayfinite.preflight.runner.check import check
from stayfinite.preflight.runner.groups import Book, conduct, drive, load_groups


@dataclass(frozen=True)
class Planted:
    name: str
    group: str
    find: Callable[[], list[Finding]]
    check: str
    where: str
    status: str


PLANTED: list[Planted] = []


def plant(
    name: str, group: str, find: Callable[[], Any], check: str, where: str, status: str
) -> None:
    assert all((p.group, p.name) != (group, name) for p in PLANTED), name
    PLANTED.append(Planted(name, group, find, f"{group}/{check}", where, status))


def of_build(group: str, build: Callable[[], Any]) -> Callable[[], list[Finding]]:
    return lambda: list(check(build, only=[group]).of_group(group))


H100 = {"model_device": "cuda", "is_cudnn_sdp": True, "has_attention": True, "capability": (9, 0)}


def environment(name: str, check: str, where: str, status: str, **facts: Any) -> None:
    plant(name, "environment", lambda: judge(Facts(**facts)), check, where, status)


def versions(**packages: str) -> dict[str, Any]:
    return {"torch": packages["torch"], "versions": packages}


environment("torchvision of another torch", "versions", "torchvision 0.20.1", "fail",
            **versions(torch="2.6.0", torchvision="0.20.1"))  # fmt: skip
environment("torchaudio of another torch", "versions", "torchaudio 2.5.0", "fail",
            **versions(torch="2.6.0+cu124", torchaudio="2.5.0"))  # fmt: skip
environment("Python too new", "versions", "Python 3.13.1", "fail",
            python="3.13.1", **versions(torch="2.5.1"))  # fmt: skip
environment("cuDNN attention of 2.5.0", "known-bad", "torch 2.5.0", "fail",
            **{**H100, **versions(torch="2.5.0")})  # fmt: skip
environment("cuDNN attention on an H100", "known-bad", "torch 2.12.0", "fail",
            **{**H100, **versions(torch="2.12.0")})  # fmt: skip
environment("cuDNN 9.12", "known-bad", "torch 2.8.0", "fail", cudnn=91200,
            **{**H100, "capability": (8, 0), **versions(torch="2.8.0")})  # fmt: skip
environment("idle GPU", "device", "model", "warn", has_idle_gpu=True)
environment("half by default", "dtype", "set_default_dtype", "fail", default_dtype="float16")
environment("double by default", "dtype", "set_default_dtype", "warn", default_dtype="float64")
environment("bfloat16 on a V100", "dtype", "autocast", "warn",
            model_device="cuda", capability=(7, 0), autocast_dtype="bfloat16")  # fmt: skip
environment("autocast left on", "dtype", "autocast", "warn", is_autocast_on=True)
environment("anomaly mode", "anomaly", "set_detect_anomaly", "warn", is_anomaly=True)
environment("no gradients", "grad-mode", "set_grad_enabled", "fail", is_grad_enabled=False)
environment("inference mode", "grad-mode", "set_grad_enabled", "fail", is_inference=True)
environment("no workspace config", "determinism", "CUBLAS_WORKSPACE_CONFIG", "fail",
            is_deterministic=True, model_device="cuda")  # fmt: skip
environment("deterministic benchmark", "determinism", "cudnn.benchmark", "warn",
            is_deterministic=True, cudnn_benchmark=True)  # fmt: skip
environment("benchmark of every shape", "benchmark", "cudnn.benchmark", "warn",
            cudnn_benchmark=True, has_varying_shapes=True, model_device="cuda")  # fmt: skip
environment("bfloat16 products", "tf32", "set_float32_matmul_precision", "warn",
            matmul_precision="medium")  # fmt: skip
environment("float16 sums", "tf32", "allow_fp16_accumulation", "warn", has_fp16_accumulation=True)
environment("blocking launches", "debug-switches", "CUDA_LAUNCH_BLOCKING", "warn",
            environment={"CUDA_LAUNCH_BLOCKING": "1"})  # fmt: skip
environment("too many threads", "threads", "set_num_threads", "warn", num_threads=64, num_cpus=8)
environment("small shared memory", "shared-memory", "/dev/shm", "warn",
            num_workers=4, free_shm_bytes=1 << 20)  # fmt: skip
environment("too little memory", "memory", "memory", "fail", needed_bytes=80e9, free_bytes=24e9)
environment("full disk", "disk", "disk", "warn", free_disk_bytes=1e8, parameter_bytes=4e8)


def held(name: str, check: str, where: str, status: str, build: Callable[[], Any]) -> None:
    plant(name, "config", of_build("config", build), check, where, status)


def small(optimizer: Callable[[Any], Any], **more: Any) -> Callable[[], dict[str, Any]]:
    """A small classifier with this optimizer."""

    def build() -> dict[str, Any]:
        torch.manual_seed(0)
        x, y = clusters()
        model = more.get("model", lambda: nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)))()
        made = optimizer(model.parameters())
        rest = {k: v(made) if callable(v) and k == "scheduler" else v for k, v in more.items()}
        rest.pop("model", None)
        batch_size = rest.pop("batch_size", 16)
        rest.setdefault("loss_fn", classify)
        return {"model": model, "loader": loader(x, y, batch_size=batch_size),
                "optimizer": made, **rest}  # fmt: skip

    return build


def adam(lr: float = 1e-3, **more: Any) -> Callable[[Any], Any]:
    return lambda params: torch.optim.Adam(params, lr=lr, **more)


def sgd(lr: float = 0.05, **more: Any) -> Callable[[Any], Any]:
    return lambda params: torch.optim.SGD(params, lr=lr, **more)


class Lion(torch.optim.SGD):
    """Lion by its name and by its steps of one size."""


def attentive() -> nn.Module:
    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.MultiheadAttention(16, 2, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x.unsqueeze(1)
            return self.head(self.mix(x, x, x)[0].squeeze(1))

    return Attentive()


def with_layer(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(16, 8), make(), nn.Linear(8, 4))


class RmsNorm(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = 0.001

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) / self.temperature


class FocalLoss(nn.Module):
    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        logp = F.log_softmax(logits, -1).gather(1, y[:, None])
        return -((1 - logp.exp()).clamp(min=1e-6) ** self.gamma * logp).mean()


class SinkhornLoss(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y)


def by(criterion: nn.Module) -> Callable[[Any, Any], Tensor]:
    return lambda model, batch: criterion(model(batch[0]), batch[1])


def in_half(dtype: torch.dtype) -> Callable[[Any, Any], Tensor]:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return classify(model, batch)

    return loss


def half_parameters() -> dict[str, Any]:
    torch.manual_seed(0)
    x, y = clusters()
    model = nn.Linear(16, 4).half()
    return {"model": model, "loss_fn": lambda m, b: F.cross_entropy(m(b[0].half()).float(), b[1]),
            "loader": loader(x, y), "optimizer": torch.optim.Adam(model.parameters(), lr=1e-4)}  # fmt: skip


def scaler(**more: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **more)


def schedule(formula: Callable[[int], float]) -> Callable[[Any], Any]:
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, formula)


def steep(model: nn.Module, batch: Any) -> Tensor:
    return classify(model, batch) * 1e6


held("Adam at 0.5", "lr", "Adam lr", "fail", small(adam(0.5)))
held("Adam at 0.05", "lr", "Adam lr", "warn", small(adam(0.05)))
held("a rate of NaN", "lr", "SGD lr", "fail", small(sgd(float("nan"))))
held("a rate of 1e-12", "lr", "SGD lr", "warn", small(sgd(1e-12)))
held("SGD at 20", "lr", "SGD lr", "fail", small(sgd(20.0)))
held("SGD at 2", "lr", "SGD lr", "warn", small(sgd(2.0)))
held("one group at 0.3", "lr", "Adam group 1 lr", "fail", small(
    lambda ps: torch.optim.Adam([{"params": p, "lr": lr} for p, lr in zip(ps, (1e-3, 0.3, 1e-3, 1e-3))])
))  # fmt: skip
held("no warmup", "lr", "Adam lr", "warn", small(adam(2e-3), model=attentive))
held("Lion as if it were Adam", "lr", "Lion lr", "warn", small(lambda ps: Lion(ps, lr=0.01)))
held("one cycle to 0.9", "lr", "Adam lr", "fail", small(
    adam(1e-3), scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.9, total_steps=100)
))  # fmt: skip
held("clip at 1e6", "clip", "clip_grad_norm_", "warn", small(adam(), clip_norm=1e6))
held("clip at 0", "clip", "clip_grad_norm_", "fail", small(adam(), clip_norm=0.0))
held("every step is clipped", "clip-reached", "clip_grad_norm_", "warn",
     small(adam(), clip_norm=1.0, loss_fn=steep))  # fmt: skip
held("beta1 of 0.99", "beta1", "betas[0]", "warn", small(adam(betas=(0.99, 0.999))))
held("beta2 of 0.5", "beta2", "betas[1]", "warn", small(adam(betas=(0.9, 0.5))))
held("Adam without epsilon", "adam-eps", "Adam eps", "fail", small(adam(eps=0.0)))
held("Adam's epsilon in half", "adam-eps", "Adam eps", "fail", half_parameters)
held("decay of 0.5 as L2", "weight-decay", "weight_decay", "warn", small(adam(weight_decay=0.5)))
held("momentum of 0.999", "momentum", "SGD momentum", "warn", small(sgd(momentum=0.999)))
held("momentum of 1", "momentum", "SGD momentum", "fail", small(sgd(momentum=1.0)))
held("RMSNorm at 1e-20", "norm-eps", "1.eps", "warn",
     small(adam(), model=with_layer(lambda: RmsNorm(1e-20))))  # fmt: skip
held("LayerNorm without epsilon", "norm-eps", "1.eps", "fail",
     small(adam(), model=with_layer(lambda: nn.LayerNorm(8, eps=0.0))))  # fmt: skip
held("batch norm over 2", "batch-norm", "1 batch size", "warn",
     small(adam(), model=with_layer(lambda: nn.BatchNorm1d(8)), batch_size=2))  # fmt: skip
held("batch norm that forgets", "bn-momentum", "1.momentum", "warn",
     small(adam(), model=with_layer(lambda: nn.BatchNorm1d(8, momentum=1.0))))  # fmt: skip
held("dropout of everything", "dropout", "1.p", "fail",
     small(adam(), model=with_layer(lambda: nn.Dropout(1.0))))  # fmt: skip
held("temperature of 0.001", "temperature", "1.temperature", "warn",
     small(adam(), model=with_layer(Cosine)))  # fmt: skip
held("gamma of 8", "focal-gamma", "FocalLoss.gamma", "warn",
     small(adam(), loss_fn=by(FocalLoss(8.0))))  # fmt: skip
held("gamma of 0.5", "focal-gamma-root", "FocalLoss.gamma", "warn",
     small(adam(), loss_fn=by(FocalLoss(0.5))))  # fmt: skip
held("smoothing of 0.6", "label-smoothing", "CrossEntropyLoss", "warn",
     small(adam(), loss_fn=by(nn.CrossEntropyLoss(label_smoothing=0.6))))  # fmt: skip
held("Sinkhorn at 0.001", "sinkhorn", "SinkhornLoss.eps", "warn",
     small(adam(), loss_fn=by(SinkhornLoss(0.001))))  # fmt: skip
held("a scale that grows every step", "growth-interval", "GradScaler growth_interval", "warn",
     small(adam(), scaler=scaler(growth_interval=1)))  # fmt: skip
held("a scale of 2^30", "init-scale", "GradScaler init_scale", "warn",
     small(adam(), scaler=scaler(init_scale=2.0**30)))  # fmt: skip
held("growth by 16", "growth-factor", "GradScaler growth_factor", "warn",
     small(adam(), scaler=scaler(growth_factor=16.0)))  # fmt: skip
held("backoff by 1 %", "backoff-factor", "GradScaler backoff_factor", "warn",
     small(adam(), scaler=scaler(backoff_factor=0.99)))  # fmt: skip
held("float16 without a scaler", "grad-scaler", "GradScaler", "warn",
     small(adam(), loss_fn=in_half(torch.float16)))  # fmt: skip
held("bfloat16 with a scaler", "grad-scaler", "GradScaler", "warn",
     small(adam(), loss_fn=in_half(torch.bfloat16), scaler=scaler()))  # fmt: skip
held("a schedule that becomes NaN", "schedule", "LambdaLR", "fail",
     small(adam(), scheduler=schedule(lambda s: 1.0 if s < 50 else float("nan"))))  # fmt: skip
held("a schedule that goes below 0", "schedule", "LambdaLR", "fail",
     small(adam(), scheduler=schedule(lambda s: 1.0 - s)))  # fmt: skip
held("a schedule that divides by 0", "schedule", "LambdaLR", "fail",
     small(adam(), scheduler=schedule(lambda s: 1.0 / (s - 70) ** 2)))  # fmt: skip


def written(name: str, check: str, where: str, status: str, **values: Any) -> None:
    def find() -> list[Finding]:
        book = Book()
        subject = Subject(models={}, config=values, config_path="run.yaml")
        drive(conduct(subject, load_groups(["config"]), book), lambda p: None)
        return book.findings

    plant(name, "config", find, check, where, status)


def differs() -> list[Finding]:
    report = check(
        small(adam(5e-4)), only=["config"], config={"optim.lr": 1e-4}, config_path="c.py"
    )
    return list(report.findings)


plant("the file says another rate", "config", differs, "differs", "c.py: optim.lr", "warn")
written("Adam at 0.5 in the file", "lr", "run.yaml: optim.lr", "fail",
        **{"optim.name": "adamw", "optim.lr": 0.5})  # fmt: skip
written("clip of -1 in the file", "clip", "run.yaml: train.max_grad_norm", "fail",
        **{"train.max_grad_norm": -1.0})  # fmt: skip
written("beta2 of 1 in the file", "beta2", "run.yaml: optim.betas.1", "fail",
        **{"optim.betas.0": 0.9, "optim.betas.1": 1.0})  # fmt: skip
written("warmup longer than the run", "warmup", "run.yaml: warmup_steps", "warn",
        warmup_steps=5000, max_steps=1000)  # fmt: skip
written("warmup of three runs", "warmup", "run.yaml: warmup_ratio", "fail", warmup_ratio=3.0)
written("teacher at 0.004", "temperature", "run.yaml: TEACHER_TEMP", "warn", TEACHER_TEMP=0.004)
written(
    "epsilon in half", "eps", "run.yaml: loss.eps", "warn", **{"loss.eps": 1e-8, "use_amp": True}
)
written("RMSNorm epsilon in the file", "norm-eps", "run.yaml: model.norm.eps", "warn",
        **{"model.norm.eps": 1e-20})  # fmt: skip
written("negative mixup", "mixup", "run.yaml: mixup_alpha", "fail", mixup_alpha=-0.2)
written("an average that never moves", "ema", "run.yaml: ema_decay", "fail", ema_decay=1.0)
written("no accumulation at all", "accumulation", "run.yaml: grad_accum_steps", "fail",
        grad_accum_steps=0)  # fmt: skip
written("batches of none", "batch-size", "run.yaml: batch_size", "fail", batch_size=0)
