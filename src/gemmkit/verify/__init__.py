"""Inputs, float64 reference and error bounds: is a result right?"""

from gemmkit.verify.inputs import InputKind, Inputs, make_inputs
from gemmkit.verify.verdict import Reference, Verdict, check

__all__ = ["InputKind", "Inputs", "Reference", "Verdict", "check", "make_inputs"]
