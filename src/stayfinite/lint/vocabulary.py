"""Groups of operation names that are treated alike."""

from __future__ import annotations

__all__ = ["BOOLEAN", "LAYERS", "LOSSES", "MAKES", "PASSES_ON", "SAVES_RESULT"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PASSES_ON = _words(
    """
    view reshape squeeze unsqueeze flatten unflatten transpose permute expand expand_as repeat
    repeat_interleave contiguous clone cuda cpu gather index_select narrow select chunk split
    unbind movedim roll flip tile broadcast_to view_as type_as t T mT diagonal diag
    masked_select take take_along_dim dropout pin_memory requires_grad_ rearrange tril triu sort
    topk cat concat stack vstack hstack split_with_sizes swapdims ravel detach_ squeeze_
    unsqueeze_ as_tensor pad all_gather all_reduce cummax cummin median quantile avg_pool2d
    adaptive_avg_pool2d interpolate nan_to_num
    """
)
"""The facts of the operand hold for the result."""
LAYERS = _words(
    """
    linear conv1d conv2d conv3d matmul mm bmm addmm baddbmm einsum embedding
    """
)
"""Results of any magnitude and sign."""
MAKES = _words(
    """
    arange linspace logspace ones zeros full eye ones_like zeros_like full_like randperm tensor
    rand randn randint rand_like randn_like tril_indices hann_window hamming_window
    """
)
"""Tensors that do not depend on data."""
BOOLEAN = _words(
    """
    isnan isinf isfinite eq ne lt le gt ge bool logical_and logical_or logical_not isin any all
    one_hot bernoulli
    """
)
"""Results that are true or false."""
LOSSES = _words(
    """
    mse_loss l1_loss smooth_l1_loss huber_loss cross_entropy nll_loss binary_cross_entropy
    binary_cross_entropy_with_logits
    """
)
"""Losses that average over their elements by default."""
SAVES_RESULT = _words("exp sigmoid tanh softmax log_softmax sqrt rsqrt")
"""Operations whose backward uses their result, so that changing it in place is an error."""
