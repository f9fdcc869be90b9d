"""The closed-form time of a launch: from sizes and a board's figures, in about ten microseconds.

No code is compiled, read or run for it. The tuner ranks its search space with it, and dispatch its
candidates; `analysis.model` predicts from code, and takes about a second per launch.
"""
