"""What tests of the bindings to other libraries share: operands' shapes, and the docs' snippets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# Of both operands, by the rules of numpy.matmul.
SHAPES = {
    "matrices": ((3, 4), (4, 5)),
    "vectors": ((4,), (4,)),
    "matrix-vector": ((3, 4), (4,)),
    "vector-matrix": ((4,), (4, 5)),
    "stack-matrix": ((2, 3, 4), (4, 5)),
    "matrix-stack": ((3, 4), (2, 4, 5)),
    "stack-vector": ((2, 3, 4), (4,)),
    "vector-stack": ((4,), (2, 4, 3)),
    "stacks": ((2, 1, 3, 4), (3, 4, 2)),
    "no rows": ((0, 4), (4, 5)),
    "no k": ((2, 0), (0, 3)),
    "empty stack": ((0, 2, 3), (3, 4)),
    "no k in an empty stack": ((0, 2, 0), (0, 0, 4)),
}

# One for each way in which a gradient is brought back to its operand's shape.
DIFFERENTIATED = ("matrices", "vector-matrix", "stack-matrix", "matrix-stack", "stacks")


def each_shape(*names: str) -> pytest.MarkDecorator:
    """Parametrize a test by the shapes `left` and `right`: those of these names, or all."""
    chosen = names or tuple(SHAPES)
    pairs = [SHAPES[name] for name in chosen]
    return pytest.mark.parametrize(("left", "right"), pairs, ids=chosen)


def run_snippets(page: str) -> None:
    """Run the Python code of a page of the docs, from its top to its end."""
    text = (Path(__file__).parent.parent / "docs" / page).read_text("utf-8")
    exec("\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)), {})
