"""Inputs, float64 reference and error bounds: is a result right?"""

from gemmkit.verify.arithmetic import Arithmetic
from gemmkit.verify.inputs import InputKind, Inputs, make_inputs
from gemmkit.verify.verdict import Reference, Verdict, check

__all__ = ["Arithmetic", "InputKind", "Inputs", "Reference", "Verdict", "check", "make_inputs"]
