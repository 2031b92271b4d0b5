"""Treats layers of `torch.nn` as the operations they perform."""

from __future__ import annotations

import ast

from .module import Module

__all__ = ["operation_of_layer"]

_LAYERS = {
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "LogSigmoid": "logsigmoid",
    "Tanh": "tanh",
    "ReLU": "relu",
    "ReLU6": "clamp",
    "Softplus": "softplus",
    "Linear": "linear",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "Embedding": "embedding",
    "BCELoss": "binary_cross_entropy",
    "CTCLoss": "ctc_loss_module",
    "KLDivLoss": "kl_div",
    "CrossEntropyLoss": "cross_entropy_module",
    "CosineSimilarity": "cosine_similarity",
    "Dropout": "dropout",
    "Identity": "dropout",
    "Flatten": "flatten",
    "LayerNorm": "layer_norm",
    "MultiheadAttention": "multihead_attention",
    "Sequential": "sequential",
}


def operation_of_layer(module: Module, node: ast.Call) -> str | None:
    """The operation of a layer that this call makes; of a Sequential, its last.

    >>> tree = ast.parse("from torch import nn; nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())")
    >>> operation_of_layer(Module(tree), tree.body[1].value)
    'sigmoid'
    """
    full = module.resolve(node.func)
    if not full.startswith("torch.nn.") and not full.startswith("torch.nn.modules"):
        return None
    name = full.rpartition(".")[2]
    made = _LAYERS.get(name)
    if made != "sequential":
        return made
    parts = [arg for arg in node.args if isinstance(arg, ast.Call)]
    for part in reversed(parts):
        last = operation_of_layer(module, part)
        if last not in ("dropout", "flatten"):
            return last or "sequential"
    return "sequential"
