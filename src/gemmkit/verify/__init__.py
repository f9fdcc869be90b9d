"""Inputs, float64 reference and error bounds: is a result right?"""

from gemmkit.verify.check import Reference, Verdict, check
from gemmkit.verify.inputs import InputKind, Inputs, make_inputs

__all__ = ["InputKind", "Inputs", "Reference", "Verdict", "check", "make_inputs"]
