"""The lint rules: what each finds, when the code fails, what to write instead."""

from __future__ import annotations

from .registry import register

_CODES = {
    "SF101": (
        "the logarithm of a softmax or sigmoid, which underflows to 0 or saturates at 1",
        "One logit is about 104 below another (float32; 17 in float16), or a sigmoid is given -104. The value is -inf, the gradient NaN.",
        "log_softmax(x) or logsigmoid(x); log(1 - sigmoid(x)) is logsigmoid(-x)",
    ),
    "SF102": (
        "the logarithm of a probability that nothing keeps away from 0",
        "The probability went through an index, a product or a mean before its logarithm, and is exactly 0.",
        "stay in log space, or p.clamp(min=torch.finfo(p.dtype).tiny).log()",
    ),
    "SF103": (
        "binary cross-entropy of a sigmoid instead of its logits",
        "The logit is beyond ±17 (float32): the sigmoid is exactly 0 or 1, and the sample that is most wrong has no gradient. Under autocast to half precision the call raises.",
        "binary_cross_entropy_with_logits on what goes into the sigmoid",
    ),
    "SF104": (
        "log(sum(exp(x))), which overflows where logsumexp does not",
        "One entry is above 88 (float32; 11 in float16): exp is inf. Or all are below -104: the sum is 0.",
        "torch.logsumexp(x, dim)",
    ),
    "SF105": (
        "the exponential of a value that is not bounded (a log-variance, a log-ratio, scores)",
        "A log-variance, a log-ratio of two policies or a score runs away: above 88 (float32) or 11 (float16) the exponential is inf.",
        "bound it first: x.clamp(max=...), stayfinite.numerics.bound, or softplus instead of exp",
    ),
    "SF106": (
        "a softmax written by hand, without subtracting the largest entry",
        "An entry is above 88: inf / inf is NaN. All are below -104: 0 / 0 is NaN.",
        "torch.softmax(x, dim)",
    ),
    "SF107": (
        "the logarithm of a value that can be 0 or negative (relu, a count, a layer's output)",
        "A relu is off, a count is 0, or a layer gives a negative number: log is -inf or NaN.",
        "softplus instead of relu, or a floor: x.clamp(min=torch.finfo(x.dtype).tiny).log()",
    ),
    "SF111": (
        "a division by a count that is 0 where nothing is selected",
        "Nothing is selected: a batch without a positive, a sentence of padding, a node without neighbors. 0 / 0 is NaN.",
        ".clamp(min=1) on the count, or stayfinite.numerics.masked_mean",
    ),
    "SF112": (
        "a division by a norm or a standard deviation that can be 0",
        "All values are equal (the deviation is 0), or two points coincide (the length of their difference is 0). By default only those two are reported; the length of an embedding under `--pedantic`.",
        ".clamp(min=torch.finfo(x.dtype).eps) on the divisor, F.normalize, or safe_normalize",
    ),
    "SF113": (
        "a division by a sum of values that can all be 0",
        "All summands are 0: weights that have been masked out, a row of zeros.",
        "a floor on the sum, or stayfinite.numerics.safe_div",
    ),
    "SF114": (
        "a division by 1 - p, which is 0 once the probability has saturated",
        "The probability rounds to 1: from a logit of 17 on in float32, 8 in float16.",
        "work with the logits: p / (1 - p) is exp(logit), its log is the logit",
    ),
    "SF121": (
        "a root whose argument can be 0: its derivative there is infinite",
        "The argument is exactly 0: two equal points, a perfect prediction, a silent signal. The value is fine, the gradient is 0 * inf = NaN. By default only differences are reported. (A relu is harmless: its backward puts 0 where it is off.)",
        "torch.sqrt(x.clamp(min=torch.finfo(x.dtype).tiny)), stayfinite.numerics.safe_norm, or the square",
    ),
    "SF122": (
        "a power below 1, or a learned one, of a value that can be 0 or negative",
        "The base is 0 and the power is below 1 (infinite derivative) or below 0 (inf), or the base is negative (NaN).",
        "a floor under the base, or stayfinite.numerics.safe_pow",
    ),
    "SF123": (
        "acos or asin of a cosine that reaches 1 or rounds to beyond it",
        "The two directions are the same: their cosine is 1 (infinite derivative) or 1.0000001 (NaN). A clamp to exactly 1 keeps the value and not the gradient.",
        "clamp to 1 - eps before the arc, stayfinite.numerics.safe_acos, or atan2 of sine and cosine",
    ),
    "SF124": (
        "a branch of where (or a selection) whose derivative is not finite where it is discarded",
        "An element is outside of the domain and `where` takes the other branch: the value is right, the gradient is 0 * inf = NaN.",
        "the double where: replace the bad inputs before the operation as well as the result after it",
    ),
    "SF125": (
        "the root of E[x^2] - E[x]^2, which rounds to below 0",
        "The values are equal, or large beside their spread: the difference of the two moments rounds to a negative number.",
        "x.var(correction=0), or clamp the difference at the smallest number before the root",
    ),
    "SF126": (
        "atanh or logit of a value that saturates at the edge of its domain",
        "tanh of more than 9 is exactly 1 in float32, a sigmoid of more than 17 too.",
        "keep the value before tanh or sigmoid, or stayfinite.numerics.safe_atanh; torch.logit(p, eps=...)",
    ),
    "SF131": (
        "a softmax over rows in which everything may be masked with -inf",
        "A whole row is masked: a sentence of padding only, a state without a legal action.",
        "masked_softmax of stayfinite.numerics, or a finite mask: torch.finfo(x.dtype).min",
    ),
    "SF132": (
        "a sample deviation over a batch that may have one row",
        "The last batch of an epoch has one row: the sample deviation divides by n - 1 = 0.",
        "correction=0, drop_last=True, or stayfinite.numerics.safe_std",
    ),
    "SF133": (
        "a mean or an averaged loss over a selection that may be empty",
        "The mask selects nothing: the mean of no element is NaN.",
        "sum and divide by .sum().clamp(min=1), or stayfinite.numerics.masked_mean",
    ),
    "SF134": (
        "an averaged cross-entropy whose targets may all be ignored",
        "Every target of the batch is `ignore_index`: a long prompt that leaves no room for an answer.",
        'reduction="sum" over the count of kept targets, at least 1; or masked_cross_entropy',
    ),
    "SF135": (
        "a CTC loss without zero_infinity",
        "A transcript is longer than its recording has frames: there is no alignment, the loss is inf and the gradient NaN.",
        "zero_infinity=True, or stayfinite.numerics.ctc_loss, which names the samples",
    ),
    "SF136": (
        "p * log(p) or a divergence where p can be 0: 0 * -inf is NaN",
        "A probability is exactly 0: 0 * log(0) is NaN, although its limit is 0.",
        "torch.xlogy(p, p), torch.special.entr(p), or log_softmax with F.kl_div(log_target=True)",
    ),
    "SF137": (
        "label smoothing over classes that are masked out",
        "Always: a tenth of the target lies on classes whose log-probability is -inf (or the lowest number), and the loss is inf.",
        "smooth over the classes that are left, or stayfinite.numerics.masked_cross_entropy",
    ),
    "SF141": (
        "the gradient of eigenvectors or singular vectors, infinite for equal values",
        "Two eigenvalues or singular values are equal, or one is 0: the derivative of their vectors divides by the difference.",
        "eigvalsh or svdvals if the values are enough; detach; or pull equal values apart by a small diagonal",
    ),
    "SF142": (
        "a result changed in place that its own backward needs (exp, sigmoid, softmax, sqrt)",
        "Always, in the backward: torch raises, because the saved value has changed. Through `.data` it does not raise, and the gradient is wrong.",
        "a new tensor: y = y * m instead of y *= m or y.mul_(m)",
    ),
    "SF151": (
        "a fill value beyond the range of the half precision it is written into",
        "The model runs in float16, whose largest number is 65504: writing -1e9 raises, or becomes -inf.",
        "torch.finfo(x.dtype).min",
    ),
    "SF152": (
        "an epsilon or a limit that half precision rounds away",
        "The tensor is float16 (1e-8 is 0 there) or bfloat16 (1 - 1e-4 is 1): the epsilon does nothing. Where the file only speaks of half precision, under `--pedantic`.",
        "an epsilon for the dtype: torch.finfo(x.dtype).eps, or compute in float32",
    ),
    "SF161": (
        "a parameter or buffer from torch.empty that nothing writes",
        "Always: the memory holds what was there before, which may be NaN, 1e38 or 0 by luck.",
        "fill it in __init__: nn.init.zeros_(self.x), nn.init.xavier_uniform_(self.x), ...",
    ),
    "SF162": (
        "a parameter or buffer from torch.Tensor(n) that nothing writes",
        "Always: `torch.Tensor(n)` is `torch.empty(n)` by another name.",
        "torch.zeros, or torch.empty with nn.init",
    ),
    "SF163": (
        "memory from torch.empty of which some places may never be written",
        "A part of the memory is never written: rows without an index, a tail that is cut off.",
        "torch.zeros or torch.zeros_like",
    ),
    "SF164": (
        "an optimizer or a normalization with an epsilon of 0",
        "A parameter has had only zero gradients (an unused head, a padding row): 0 / 0 in the step.",
        "eps=1e-8, in half precision 1e-4 or float32 parameters",
    ),
    "SF201": (
        "gradients that are clipped while they are still multiplied by the loss scale",
        "Always: gradients are 65536 times as large as the limit assumes, and the clipped step is almost 0 after the division.",
        "scaler.unscale_(optimizer) before the clipping",
    ),
    "SF202": (
        "a scaled loss with a plain optimizer.step()",
        "Always: nothing takes the loss scale out of the gradients again, and the learning rate is 65536 times as large.",
        "scaler.step(optimizer) and scaler.update()",
    ),
    "SF203": (
        "scaler.step without scaler.update",
        "The first overflow: the scale is never lowered, so every later step overflows too and is left out.",
        "scaler.update() after scaler.step(optimizer)",
    ),
    "SF204": (
        "scheduler.step() before optimizer.step()",
        "Always: the first learning rate is never used; after a warm-up from 0 the first steps are larger than meant.",
        "scheduler.step() after optimizer.step()",
    ),
    "SF205": (
        "a training loop that never zeroes its gradients",
        "After some steps: the gradients of all steps so far add up, and the updates grow until they overflow.",
        "optimizer.zero_grad() in each round",
    ),
    "SF206": (
        "bad gradients that are zeroed or repaired and then stepped",
        "A gradient is NaN: it is replaced by 0, and momentum and weight decay move the weights all the same; the moments have taken it in.",
        "leave the step out (`continue`), or stayfinite run train.py",
    ),
    "SF207": (
        "a loss that is clamped from above",
        "The loss is above the limit: its gradient is 0, and the samples that are most wrong are no longer learned. A NaN stays NaN.",
        "find the part of the loss that overflows and repair that; clip the gradient instead",
    ),
    "SF208": (
        "a check for NaN that lets Inf through",
        "The loss or the norm is inf: `isnan` says no, the step is made, and inf - inf is NaN.",
        "isfinite",
    ),
    "SF209": (
        "a checkpoint that is saved without a look at the loss or the weights",
        "The weights have become NaN some steps ago: the last good checkpoint is overwritten.",
        "check before saving, or stayfinite.save_gate",
    ),
    "SF210": (
        "a resume that restores the optimizer and not the scheduler",
        "A run is resumed: the optimizer goes on, the schedule begins again with its warm-up or its peak.",
        "scheduler.load_state_dict(checkpoint[...]) beside the optimizer's",
    ),
    "SF211": (
        "gradient accumulation that does not divide the loss",
        "Always: the gradients of `n` parts are added, and the step is `n` times as large as the learning rate was chosen for.",
        "loss = loss / num_parts before backward()",
    ),
    "SF212": (
        "a comparison with NaN by == or !=",
        "Always: NaN is equal to nothing, not even to itself.",
        "torch.isnan(x) or math.isnan(x)",
    ),
    "SF213": (
        "a best metric that NaN becomes, or that a first NaN blocks",
        "A metric is NaN once: every comparison with it is False. In an `else` it becomes the best; as the first value it is never beaten.",
        "math.isfinite(x) and x < best, with best = math.inf to begin with",
    ),
}

for _name, (_definition, _fails, _instead) in _CODES.items():
    register(_name, "lint", _definition, {"Fails when": _fails, "Write instead": _instead})
