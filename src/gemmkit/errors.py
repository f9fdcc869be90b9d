"""What can go wrong: every error that gemmkit raises on purpose, and what it warns of."""


class GemmkitError(Exception):
    """Base of all gemmkit errors; its text is one clear message for the user."""


class UsageError(GemmkitError, ValueError):
    """An argument that is not valid: an unknown kernel, board, config key or bad shape."""


class UnsupportedType(UsageError, TypeError):
    """An argument of a type, or an array with elements of a type, that gemmkit does not take."""


class UnsupportedProblem(GemmkitError):
    """A kernel or configuration refuses a problem; the text names the rule and what would work."""


class CompileError(GemmkitError):
    """The CUDA compiler rejected a source; the text holds its message and the source lines."""


class CompilerMissing(CompileError):
    """There is no CUDA compiler on this machine; the text says how to get or to do without one."""


class UnsupportedInstruction(GemmkitError):
    """The emulator met a PTX form outside its instruction table; the text names form and line."""


class SanitizerFinding(GemmkitError):
    """A kernel broke a rule of the machine (out-of-bounds access, deadlock, …)."""


class DeviceError(GemmkitError):
    """A device is missing, or it failed while it allocated, copied or ran.

    `printed` are the lines that a kernel had printed before it failed on the emulator.
    """

    printed: tuple[str, ...] = ()


class TuningError(GemmkitError):
    """The tuner or its store could not do what was asked."""


class EmulationWarning(UserWarning):
    """No GPU is usable, so the emulator computes products of host arrays; the text says why."""
