"""A matrix decomposition at repeated or zero eigen- or singular values."""

from __future__ import annotations

import re

from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix

_NODE = re.compile(
    r"(Eigh?|Svd|Qr|Cholesky|Inv|Inverse|Solve|Lu|LuFactor|Lstsq|Pinv|Det|Slogdet|Logdet|Eigvals|"
    r"Triangular|MatrixExp|HouseholderProduct)"
)
_KERNEL = re.compile(
    r"(linalg_(eigh?|svd|qr|cholesky|inv|solve|lu|lstsq|pinv|det|slogdet|eig|triangular)|"
    r"_linalg_(eigh?|svd|det|slogdet|solve|eigvals)|cholesky|inverse|logdet|geqrf|ormqr)"
)


@rule("degenerate_linalg")
def decomposition(e: Evidence) -> Finding | None:
    if e.birth is None:
        return None
    name = e.node or e.kernel
    if "VectorNorm" in name or "vector_norm" in name:
        return None
    if not (_NODE.search(e.node) if e.node else _KERNEL.match(e.kernel)):
        return None
    if e.is_backward:
        what = (
            "The backward of the decomposition divides by differences of eigenvalues or by singular "
            "values"
        )
    else:
        what = "The matrix is singular, or nearly so, and its decomposition has no finite result"
    return Finding(
        confidence=0.95,
        sentence=f"{what}; {here(e)} some of them are equal or zero.",
        fixes=(
            line_fix(
                e,
                "add a small, growing diagonal to the matrix before the decomposition, for instance "
                "1e-4 * torch.diag(torch.arange(n)), or work in float64",
                "it pulls equal eigenvalues apart; eigenvalues alone (eigvalsh, svdvals) have a finite "
                "derivative where eigenvectors have none",
            ),
        ),
    )
