"""A product of many ordinary factors is beyond what the dtype can hold."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix, num

_PRODUCTS = ("mm", "bmm", "addmm", "mul", "sum", "add", "convolution_backward", "matmul", "cumsum",
             "addcmul", "div", "baddbmm", "addmv", "mv", "dot", "pow", "native_layer_norm_backward",
             "_softmax_backward_data", "embedding_dense_backward", "index_put", "tanh_backward")  # fmt: skip

_ORDINARY_RATE = 10.0


@rule("exploding_gradient")
def grows_over_depth(e: Evidence) -> Finding | None:
    if e.birth is None or not e.is_overflow:
        return None
    if not (e.is_backward or e.is_in_optimizer) or e.has_diverged >= 0.75 or _is_moved_far(e):
        return None
    if _is_searching_far(e):
        return None
    if e.largest_input < 1e9 and not e.is_half_birth:
        return None
    if e.is_half_birth and e.dtype == "float16":
        return None
    confidence = 0.88 if e.largest_input > 1e15 else 0.55
    if e.has_diverged >= 0.5:
        confidence = 0.6
    return Finding(
        confidence=confidence,
        sentence=f"The gradient grows from layer to layer (or from one time step to the next) until it "
        f"overflows {here(e)}{_course(e)}. {_what_is_ordinary(e)}; the product over the depth is not.",
        fixes=(
            Fix(
                title="limit the gradient on its way: a hook that clamps it between the steps "
                "(h.register_hook(lambda g: g.clamp(-1, 1))), truncated backpropagation through time, "
                "or gated cells",
                why="clipping at the end is too late: the norm of an infinite gradient is infinite",
                experiment="limited_gradient",
            ),
            line_fix(
                e,
                "initialize so that each application keeps the size of its input (gain 1, orthogonal or "
                "divided by the depth), or put a normalization layer or a residual around it",
                "a factor of 2 per step is 1e30 after a hundred steps",
                experiment=None,
            ),
        ),
        wants=("limited_gradient",),
    )


@rule("exploding_gradient")
def forward_grows_too(e: Evidence) -> Finding | None:
    """The same product in the forward, on the first step, so no update can be the cause."""
    if e.birth is None or not e.is_overflow or e.is_backward or e.is_half_birth:
        return None
    if e.kernel not in _PRODUCTS or e.has_diverged >= 0.5 or _is_searching_far(e):
        return None
    return Finding(
        confidence=0.35,
        sentence=f"Values grow from layer to layer until they overflow {here(e)}, although the weights "
        "are ordinary.",
        fixes=(
            line_fix(
                e,
                "normalize between the layers or start with a smaller gain",
                "a factor that is larger than one, many times over, overflows",
            ),
        ),
    )


def _is_searching_far(e: Evidence) -> bool:
    """Whether the weights are not ordinary where the optimizer's own search has evaluated the loss."""
    return e.weights.searched > 3 * max(e.weights.largest, 1e-3)


def _is_moved_far(e: Evidence) -> bool:
    """The updates were so large that they determine the weights."""
    return not e.is_first_step and max(e.event.lr, default=0.0) > _ORDINARY_RATE


def _what_is_ordinary(e: Evidence) -> str:
    """The observed figures."""
    parts = []
    if e.weights.largest > 0:
        parts.append(f"the largest weight ({num(e.weights.largest)})")
    if e.is_first_step:
        parts.append("the start, since no update has been made,")
    elif e.event.lr:
        parts.append(f"the learning rate ({num(max(e.event.lr))})")
    text = " and ".join(parts) or "each factor"
    return f"{text[0].upper()}{text[1:]} {'are' if len(parts) > 1 else 'is'} ordinary"


def _course(e: Evidence) -> str:
    peaks = [p for p in e.gradient_peaks if 0 < p < float("inf")]
    if len(peaks) < 3:
        return ""
    return f" (from {num(peaks[0])} to {num(max(peaks))} over {len(peaks)} steps of the backward)"
