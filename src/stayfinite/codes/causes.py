"""The causes of an incident: what each looks like, how it is proved, what to try."""

from __future__ import annotations

from .registry import register

register(
    "low_precision_overflow",
    "cause",
    "a finite result is beyond the range of the fp16/bf16 arithmetic it is computed in",
    {
        "Looks like": "an Inf in a `float16` result whose inputs are finite: raw attention scores, a sum over many neighbors, a cast of a large feature.",
        "Proof": "the same step in `float32` is finite (experiment `higher_precision`).",
        "Try": "run that part in `float32` or `bfloat16`; scale before the product; normalize the inputs.",
    },
    related=("SF151", "precision/fp16", "precision/headroom"),
)

register(
    "low_precision_underflow",
    "cause",
    "an epsilon or a small quantity rounds to zero in half precision and is then divided by or logged",
    {
        "Looks like": "a division by, or a logarithm of, an exact zero in `float16` or `bfloat16`, often behind an epsilon such as `1e-8`, which `float16` rounds to zero.",
        "Proof": "the same step in `float32` is finite; where it is not, the zero is real and the cause is `zero_denominator` or `log_of_zero`.",
        "Try": "`stayfinite.numerics.eps_for(x)`, or `.float()` before the operation.",
    },
    related=("SF152", "precision/underflow", "config/eps"),
)

register(
    "log_of_zero",
    "cause",
    "the logarithm of a probability or density that has saturated or underflowed to exactly zero",
    {
        "Looks like": "-inf out of `log`, `log1p`, `logit` or `xlogy` at an argument that is exactly zero (or saturated to one).",
        "Proof": "the step is finite when this line's result is kept finite (experiment `patched_operator`).",
        "Try": "`log_softmax`, `logsigmoid`, `logsumexp`; `safe_log`, `log_mixture`, `log1mexp`.",
    },
    related=("SF101", "SF102", "SF103", "SF107", "SF126", "SF136"),
)

register(
    "domain_error",
    "cause",
    "a function outside its domain (log or sqrt of a negative number)",
    {
        "Looks like": "NaN out of `log`, `sqrt`, `pow`, `acos`, `atanh`, ... whose finite argument is outside of the domain.",
        "Proof": "the step is finite when this line's result is kept finite (experiment `patched_operator`).",
        "Try": "`safe_sqrt`, `safe_log`, `safe_pow`, `safe_acos`; softplus for what must be positive; the centered variance instead of E[x^2] - E[x]^2.",
    },
    related=("SF107", "SF122", "SF123", "SF125", "SF126"),
)

register(
    "zero_denominator",
    "cause",
    "a division by exactly zero (degree, norm, count, weight sum)",
    {
        "Looks like": "NaN or Inf out of a division whose denominator is exactly zero, a normalization with eps=0, or class weights that sum to zero.",
        "Proof": "the step is finite when this line's result is kept finite (experiment `patched_operator`).",
        "Try": "`safe_div`, `.clamp(min=1)` for counts, `safe_normalize`, `safe_std`.",
    },
    related=("SF111", "SF112", "SF113", "SF114", "SF164", "edges/blank"),
)

register(
    "empty_reduction",
    "cause",
    "a mean, variance or averaged loss over no element, or a sample variance over one",
    {
        "Looks like": "NaN out of `mean`, `var`, `std` or a loss, over an empty selection, ignored targets only, or a single row.",
        "Proof": "the step is finite when this line's result is kept finite (experiment `patched_operator`).",
        "Try": "`masked_mean`, `masked_cross_entropy`, `safe_std`, `drop_last=True`.",
    },
    related=("SF132", "SF133", "SF134", "edges/no-label", "edges/size"),
)

register(
    "singular_gradient",
    "cause",
    "the forward value is finite, the derivative there is infinite or undefined (sqrt'(0), pow, acos'(1))",
    {
        "Looks like": "a finite forward and an Inf or NaN in `SqrtBackward0`, `PowBackward0`, `AcosBackward0`, `StdBackward0`, ... at a pole of the derivative.",
        "Proof": "the step is finite when this line's result is kept finite (experiment `patched_operator`), and no mask zeroed the incoming gradient (otherwise the cause is `masked_branch_leak`).",
        "Try": "`safe_sqrt`, `safe_norm`, `safe_acos`, `safe_pow`; the squared form.",
    },
    related=("SF121", "SF122", "SF123"),
)

register(
    "masked_branch_leak",
    "cause",
    "a non-finite value or derivative that a mask or `where` discards comes back in the backward as 0 * inf",
    {
        "Looks like": "a finite loss and a NaN gradient; the gradient at the bad places is exactly zero because `where`, a mask, a clamp or a selection discarded the value.",
        "Proof": "the report names the operator that put the zero there; the step is finite when this line's result is kept finite (experiment `patched_operator`).",
        "Try": "mask before the operation: the double `where`.",
    },
    related=("SF124",),
)

register(
    "fully_masked_row",
    "cause",
    "softmax or logsumexp over a row whose entries are all -inf",
    {
        "Looks like": "NaN out of softmax, log_softmax, logsumexp or attention, in rows in which every entry is -inf.",
        "Proof": "the fully masked rows are counted; the step is finite when this line's result is kept finite (experiment `patched_operator`).",
        "Try": "`masked_softmax`, `masked_log_softmax`, `stable_attention`, or a finite mask.",
    },
    related=("SF131", "edges/mask"),
)

register(
    "exp_overflow",
    "cause",
    "an unbounded exponential (log-variance, temperature, Sinkhorn, softmax without max subtraction) overflows fp32",
    {
        "Looks like": "an Inf out of `exp`, `expm1`, `cosh`, ... in `float32` while the weights are ordinary.",
        "Proof": "the report shows the largest argument and the largest that the dtype allows; the step is finite when this line's result is kept finite (experiment `patched_operator`).",
        "Try": "log space, `safe_exp`, `bound`, `BoundedTemperature`, `log_sinkhorn`, `info_nce`.",
    },
    related=("SF104", "SF105", "SF106", "edges/outlier"),
)

register(
    "infeasible_target",
    "cause",
    "the target has probability zero by construction (CTC target too long, smoothing mass on masked classes)",
    {
        "Looks like": "an infinite CTC loss, or an infinite loss that can be traced to a class masked on purpose.",
        "Proof": 'the chain of the report begins with the mask ("written on purpose").',
        "Try": "`stayfinite.numerics.ctc_loss`, `masked_cross_entropy`.",
    },
    related=("SF135", "SF137", "edges/length"),
)

register(
    "degenerate_linalg",
    "cause",
    "the backward of a matrix decomposition at repeated or zero eigen/singular values",
    {
        "Looks like": "NaN or Inf in the backward of `eigh`, `svd`, `qr`, `cholesky`, `inv`, ....",
        "Proof": "the step is finite when this line's result is kept finite (experiment `patched_operator`).",
        "Try": "a small growing diagonal, eigenvalues instead of eigenvectors, `float64`.",
    },
    related=("SF141", "edges/repeated"),
)

register(
    "bad_input_data",
    "cause",
    "the stored sample is itself NaN, Inf or absurdly large",
    {
        "Looks like": "the NaN came in with the batch, and the data set stores it; or the values are finite but a hundred million times larger than usual.",
        "Proof": "the samples are fetched again from the data set and are bad there; the step is finite without those rows (experiment `without_rows`).",
        "Try": "clean, mask or drop the samples (the report has their indices).",
    },
    related=("data/finite", "data/range", "data/outliers"),
)

register(
    "bad_preprocessing",
    "cause",
    "the sample was finite; the data pipeline made it non-finite",
    {
        "Looks like": "the NaN came in with the batch, but what the data set stores is finite.",
        "Proof": "the samples are fetched again, and the line of the transform or collate function that makes them bad is named; the step is finite without those rows (experiment `without_rows`).",
        "Try": "make that line safe for such a sample.",
    },
    related=("data/finite", "data/constant"),
)

register(
    "uninitialized_memory",
    "cause",
    "memory allocated but never written is used as a parameter, activation or gradient",
    {
        "Looks like": "values that come from `torch.empty` and relatives: in an operator trace directly, for parameters by reading the source of the module.",
        "Proof": "the step is finite when fresh memory is filled with zeros (experiments `patched_operator` and `filled_state`).",
        "Try": "`torch.zeros`, or fill it.",
    },
    related=("SF161", "SF162", "SF163", "init/unwritten", "edges/memory"),
)

register(
    "bad_initialization",
    "cause",
    "a parameter or buffer is non-finite from construction",
    {
        "Looks like": "a parameter or buffer that is not finite before the first step and was not restored.",
        "Proof": "the step is finite when the bad values in the state are replaced (experiment `filled_state`).",
        "Try": "look at how it is computed when the model is made.",
    },
    related=("init/finite", "init/scale"),
)

register(
    "lr_divergence",
    "cause",
    "the learning rate, or the schedule that sets it, makes the updates grow until something overflows",
    {
        "Looks like": "loss and weights have grown by orders of magnitude before the overflow.",
        "Proof": "from the last snapshot on, the training stays finite with a smaller learning rate (experiment `smaller_lr`) or with clipped gradients (`clipped`).",
        "Try": "a lower learning rate, clipping, warmup.",
    },
    related=("stability/lr", "config/lr", "config/warmup", "edges/growth"),
)

register(
    "exploding_gradient",
    "cause",
    "the product of Jacobians over depth or time overflows although weights, activations and LR are ordinary",
    {
        "Looks like": "an Inf out of a product in the backward; weights, activations, loss and learning rate are ordinary.",
        "Proof": "the report shows how the gradient grows over the backward; the step is finite when the gradient is limited on its way (experiment `limited_gradient`).",
        "Try": "hooks that limit the gradient, truncated backpropagation, another initialization, normalization.",
    },
    related=("gradients/norm", "gradients/by-depth", "config/clip"),
)

register(
    "optimizer_denominator",
    "cause",
    "the optimizer's own denominator is zero (epsilon zero or rounded to zero) for finite gradients",
    {
        "Looks like": "finite gradients, and a NaN or Inf out of a division inside `optimizer.step()`.",
        "Proof": "the same update with a larger epsilon is finite (`larger_eps`).",
        "Try": "`eps=1e-8`; in half precision `1e-4` or `float32` state.",
    },
    related=("SF164", "config/adam-eps"),
)

register(
    "bad_schedule",
    "cause",
    "the scheduler hands the optimizer a learning rate that is itself NaN or Inf",
    {
        "Looks like": "the learning rate of a parameter group is NaN or Inf.",
        "Proof": "the same update with the last finite learning rate is finite (`finite_lr`).",
        "Try": "guard the divisions and logarithms of the schedule.",
    },
    related=("config/schedule",),
)

register(
    "loss_scaling",
    "cause",
    "a loss scale, static or misused (clip without unscale, scale collapsed), corrupts gradients that are ordinary without it",
    {
        "Looks like": "a constant factor on the loss overflows it or its gradients; a `GradScaler` that is never stepped; a scale that only falls.",
        "Proof": "without the factor the same step is finite (`unscaled`).",
        "Try": "`torch.amp.GradScaler` with `step`, `update` and `unscale_` before clipping.",
    },
    related=(
        "SF201",
        "SF202",
        "SF203",
        "config/grad-scaler",
        "precision/scaler",
        "scaler_collapsed",
    ),
)

register(
    "corrupt_checkpoint",
    "cause",
    "restored weights, buffers or optimizer state already contain NaN or Inf",
    {
        "Looks like": "the NaN comes from a restored parameter, buffer or optimizer entry that was bad before the first step.",
        "Proof": "the step is finite when the bad values are replaced (experiment `filled_state`), or with a new optimizer state (`fresh_optimizer`).",
        "Try": "`stayfinite scan` names the last good checkpoint.",
    },
    related=("nonfinite_tensor", "nonfinite_setting", "SF209"),
)

register(
    "resume_mismatch",
    "cause",
    "a resume restores only part of the run (LR, scheduler), and the finite restored state then diverges",
    {
        "Looks like": "a divergence in a resumed run whose learning rate, scheduler or optimizer does not belong to the restored weights.",
        "Proof": "the learning rates of the file, the configuration and the first step are compared; the training stays finite with the right one (experiment `smaller_lr`).",
        "Try": "restore all of it, set the learning rate again after `load_state_dict`.",
    },
    related=("lr_mismatch", "SF210"),
)

register(
    "hardware_or_nondeterminism",
    "cause",
    "the same step, replayed, is finite",
    {
        "Looks like": "the step is run again from the same weights, batch and random numbers, and is finite.",
        "Proof": "two complete replays of the step were finite.",
        "Try": "deterministic algorithms for a while; check memory, streams and shared buffers.",
    },
    related=("environment/determinism", "environment/known-bad"),
)
