"""Sets of operator names with special treatment in the analysis."""

from __future__ import annotations

__all__ = ["CREATES", "FILLS", "MOVES", "ONLY_SHAPES", "RANDOM", "TAKES_ITEMS", "WITH_ANY_NUMBER"]

CREATES = {
    "zeros_like", "new_zeros", "zero", "ones_like", "new_ones", "full_like", "new_full", "fill", "empty_like",
    "new_empty", "new_empty_strided", "zeros", "ones", "full", "empty", "empty_strided", "scalar_tensor", "arange",
    "clone", "alias", "lift_fresh", "lift_fresh_copy", "detach", "contiguous", "set_", "resize",
}  # fmt: skip
"""They only make or copy memory: no verdict is given on them."""
ONLY_SHAPES = {
    "transpose",
    "t",
    "squeeze",
    "unsqueeze",
    "swapaxes",
    "swapdims",
    "as_strided",
    "detach",
}
"""In place they change how memory is looked at, and nothing in it."""
FILLS = {
    "copy",
    "fill",
    "zero",
    "uniform",
    "normal",
    "bernoulli",
    "exponential",
    "random",
    "log_normal",
    "geometric",
}
"""In place they read nothing of what they overwrite."""
MOVES = {
    "clone", "_to_copy", "cat", "stack", "index", "gather", "index_select", "scatter", "index_put", "_index_put_impl",
    "index_copy", "slice_scatter", "select_scatter", "masked_fill", "where", "repeat", "flip", "copy", "masked_scatter",
    "constant_pad_nd", "roll", "view_copy", "contiguous", "_unsafe_view", "index_fill",
}  # fmt: skip
"""They pass memory on that nobody has written yet: only who computes with it reads it."""
WITH_ANY_NUMBER = {
    "sum", "mean", "amax", "amin", "max", "min", "var", "std", "var_mean", "mse_loss", "l1_loss", "nll_loss_forward",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "smooth_l1_loss", "cat", "stack", "index", "clone",
    "_to_copy", "copy", "masked_select", "index_select", "_softmax", "_log_softmax", "embedding", "zeros_like",
    "ones_like", "mse_loss_backward", "nll_loss_backward", "index_put", "linalg_vector_norm", "count_nonzero",
    "any", "all", "huber_loss", "sort", "full_like", "new_zeros", "zeros", "_index_put_impl", "index_add",
    "native_layer_norm",
}  # fmt: skip
"""Models that hold when the number of elements changes with the data."""
TAKES_ITEMS = {"add", "sub", "rsub", "mul", "div", "clamp", "clamp_min"}
RANDOM = {
    "rand", "rand_like", "randn", "randn_like", "uniform", "normal", "bernoulli", "exponential", "randint", "random",
    "randint_like", "randperm", "multinomial", "native_dropout", "log_normal", "cauchy", "geometric", "poisson",
    "binomial", "dropout", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "empty", "empty_like",
    "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize", "set",
}  # fmt: skip
