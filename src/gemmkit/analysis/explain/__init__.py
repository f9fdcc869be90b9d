"""Explains a kernel: its figures, and in sentences why it is faster or slower than another."""

from gemmkit.analysis.explain.build import explain, explain_facts
from gemmkit.analysis.explain.explanation import Evidence, Explanation, Sentence
from gemmkit.analysis.explain.facts import Facts, gather

__all__ = ["Evidence", "Explanation", "Facts", "Sentence", "explain", "explain_facts", "gather"]
