"""Attention by two batched products, with a softmax between them."""

from __future__ import annotations

import math
from typing import Any

from gemmkit.errors import UsageError
from gemmkit.nn import fused
from gemmkit.nn.namespace import Array, expect_one_type, shape_of, shared_namespace
from gemmkit.nn.products import multiply, recorded
from gemmkit.ops.shapes import broadcast_shapes
from gemmkit.ops.tracing import recordable


@recordable()
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Array | None = None,
    precision: str | None = None,
    device: Any = None,
) -> Array:
    """Attention, softmax(scale · q · kᵀ + mask) · v, as PyTorch's `scaled_dot_product_attention`.

    k is read transposed in place and the scale is the product's α. Scores are fp32 if the
    elements have 16 bits, and the softmax first subtracts the maximum of each row. The result of a
    query that attends to no key is zero. Leading axes broadcast as in `gemmkit.matmul`. Work is
    launched on the caller's current stream.

    Args:
        q: (…, queries, e).
        k: (…, keys, e).
        v: (…, keys, d).
        scale: 1/√e by default.
        causal: whether query i attends to keys 0 to i only.
        mask: added to the scores or, if boolean, true where a query attends to a key; it
            broadcasts to (…, queries, keys).
        precision: as for `gemmkit.matmul`.
        device: as for `gemmkit.matmul`.

    Returns:
        (…, queries, d), of q's kind and on its device.

    Raises:
        UsageError: shapes or types do not fit.
    """
    xp = shared_namespace(q=q, k=k, v=v, mask=mask)
    for name, array in (("q", q), ("k", k), ("v", v)):
        shape_of(array, name, least=2)
    (queries, e), keys = q.shape[-2:], k.shape[-2]
    if k.shape[-1] != e or v.shape[-2] != keys:
        raise UsageError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: the last "
            "sizes of q and k must be the same, and those before the last of k and v"
        )
    if not recorded(q, k, v):
        expect_one_type(q=q, k=k)
    stack = _stack(q, k, v)
    if mask is not None:
        _check_mask(mask, (*stack, queries, keys))
    scores = multiply(
        q,
        k.swapaxes(-1, -2),
        alpha=1 / math.sqrt(max(e, 1)) if scale is None else scale,
        out_dtype=None if str(q.dtype).endswith("64") else "float32",
        precision=precision,
        device=device,
    )
    if mask is not None:
        if str(mask.dtype).endswith("bool"):
            scores = xp.where(mask, scores, -math.inf)
        else:
            scores = scores + xp.cast(mask, scores)
    weights = fused.softmax(scores, causal=causal)
    if weights is None:
        if causal:
            seen = xp.steps(queries, q)[:, None] >= xp.steps(keys, q)
            scores = xp.where(seen, scores, -math.inf)
        weights = xp.softmax(scores, masked=mask is not None)
    return multiply(xp.cast(weights, v), v, precision=precision, device=device)


def _stack(q: Array, k: Array, v: Array) -> tuple[int, ...]:
    """The leading sizes of the scores.

    Raises:
        UsageError: those of q, k and v do not broadcast.
    """
    leading = [tuple(each.shape[:-2]) for each in (q, k, v)]
    scores = broadcast_shapes(*leading[:2])
    if scores is None or broadcast_shapes(*leading) is None:
        raise UsageError(
            f"the leading sizes of q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} "
            "do not broadcast"
        )
    return scores


def _check_mask(mask: Array, scores: tuple[int, ...]) -> None:
    """See that a mask broadcasts to the scores' shape.

    Raises:
        UsageError: it does not.
    """
    found = shape_of(mask, "mask")
    fits = zip(reversed(found), reversed(scores), strict=False)
    if len(found) > len(scores) or any(size not in (1, wanted) for size, wanted in fits):
        raise UsageError(f"mask has the shape {found}, which does not broadcast to {scores}")
