"""A user's own CUDA C++ file as a `Kernel`: its entry, arguments, grid and block."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemmkit.errors import UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.kernels.declarations import (
    KernelDeclaration,
    closing,
    constants_in,
    head_comment,
    kernels_in,
    split_arguments,
)
from gemmkit.kernels.element_types import element_assertions, resolved, type_names
from gemmkit.kernels.expressions import Expression, Number, split_list
from gemmkit.kernels.includes import included_files
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.plan import (
    MAX_GRID_YZ,
    Dim3,
    LaunchShape,
    Signature,
    SourceFile,
    StructPlace,
    TileConfig,
)
from gemmkit.kernels.refusals import check_parameters
from gemmkit.kernels.signatures import (
    SIZES,
    hidden_elements,
    names_in,
    read_signature,
    told_signature,
    wrong_matrices,
)
from gemmkit.kernels.struct_arguments import expanded
from gemmkit.kernels.structs import Structs, own_numbers
from gemmkit.problem import GemmProblem

# One to three expressions in CUDA's x, y, z order, or a single number.
Extent = str | int | Sequence[str | int]

_KERNEL_MACRO = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n\\]|\\.)*__global__", re.M | re.S)

_DEFINITION = re.compile(r"-D(\w+)=(.+)")

MAX_GRID_X = 2**31 - 1
MAX_BLOCK: Dim3 = (1024, 1024, 64)


def kernel_from_file(
    path: str | Path,
    *,
    entry: str | None = None,
    args: str | Sequence[str] | None = None,
    grid: Extent | None = None,
    block: Extent | None = None,
    shared: str | int = "0",
    name: str | None = None,
    include_dirs: Sequence[str | Path] = (),
    options: Sequence[str] = (),
) -> Kernel:
    """See `Kernel.from_file`."""
    path = Path(path)
    text = read_source(path)
    own = [option.removeprefix("-I") for option in options if option.startswith("-I")]
    folders = tuple(str(Path(each).resolve()) for each in (path.parent, *include_dirs, *own))
    rest = tuple(option for option in options if not option.startswith("-I"))
    source = SourceFile(text, path.name, "cuda", folders, rest)
    included = included_files(text, path.parent.resolve(), folders)
    others = included.values()
    declared = find_entry(entry, source, tuple(others))
    constants: dict[str, str] = {}
    for each in (*others, text):
        constants |= constants_in(each)
    constants |= {each[1]: each[2] for each in map(_DEFINITION.fullmatch, rest) if each}
    values = _template_values(entry, declared)
    constants |= values
    numbers = _numbers(constants)
    if declared is not None:
    structs: tuple[StructPlace | None, ...] = ()
    refuses, here = None, path.name
    if declared is not None:
        here = _file_of(declared, path, included)
        check_parameters(declared, here)
        known = Structs.of((*others, text), numbers)
        refuses = known.wrong_elements(declared, values)
        declared, structs = known.flattened(declared, values, here)
        types = type_names((*others, text), rest)
        declared = resolved(resolved(declared, types), types | values)
    if args is not None:
        listed = split_list(args) if isinstance(args, str) else list(args)
        if declared is not None and structs:
            listed = expanded(listed, declared, structs)
        signature = told_signature(listed, declared, numbers)
    elif declared is not None:
        signature = read_signature(declared, here)
    else:
        raise UsageError(
            f"the parameters of '{entry}' cannot be read from {path.name}: give --args"
        )
    whole_name = entry or _whole_name(declared)
    if declared is not None:
        hidden = own_numbers(hidden_elements(signature, declared), structs)
        source = replace(source, assertions=element_assertions(whole_name, hidden))
    kernel = user_kernel(
        source,
        entry=whole_name,
        signature=signature,
        grid=grid,
        block=block,
        shared=shared,
        name=name or path.stem,
        idea=head_comment(text),
        constants=numbers,
        refuses=refuses or (wrong_matrices(signature, declared) if declared is not None else None),
    )
    return replace(kernel, structs=structs)


def _file_of(kernel: KernelDeclaration, path: Path, included: Mapping[Path, str]) -> str:
    """The file that declares a kernel, as messages call it."""

    def declares(text: str) -> bool:
        return any(
            (each.name, each.line) == (kernel.name, kernel.line) for each in kernels_in(text)
        )

    if declares(read_source(path)):
        return path.name
    return next((each.name for each, text in included.items() if declares(text)), path.name)


def user_kernel(
    source: SourceFile,
    *,
    entry: str,
    signature: Signature,
    grid: Extent | None,
    block: Extent | None,
    shared: str | int = "0",
    name: str,
    idea: str = "",
    constants: Mapping[str, Number] | None = None,
    refuses: str | None = None,
) -> Kernel:
    """A kernel without rung from what is known of it, whatever language it was written in.

    Args:
        source: what it is compiled from.
        entry: its name expression, or its symbol in PTX.
        signature: a name or an expression for each parameter.
        grid: blocks along x, y, z: expressions over M, N, K, lda, ldb, ldc and the constants.
        block: threads along x, y, z, alike.
        shared: bytes of dynamic shared memory, alike.
        name: what tables call it.
        idea: what it is about, if that is known.
        constants: names with fixed values that the expressions may use.
        refuses: why it takes no problem at all.

    Raises:
        UsageError: grid or block is missing, or an expression uses unknown names.
    """
    if grid is None or block is None:
        missing = " and ".join(
            option for option, given in (("--grid", grid), ("--block", block)) if given is None
        )
        raise UsageError(
            f"how is '{name}' launched? Give {missing}, in x,y,z order as in CUDA, for example "
            "--grid '(N+127)/128,(M+127)/128' --block 256"
        )
    rule = LaunchRule(
        _extents(grid, "grid"), _extents(block, "block"), Expression.parse(shared), constants or {}
    )
    rule.check_names()
    return Kernel(
        name=name,
        rung=None,
        idea=idea,
        default=TileConfig(),
        space={},
        launch=rule,
        rule=lambda config, gpu: None,  # noqa: ARG005
        signature=signature,
        file=source,
        entry=entry,
        condition=_condition(signature, rule, refuses),
    )


@dataclass(frozen=True)
class LaunchRule:
    """Grid, block and shared memory as expressions; called, it gives the launch for a problem."""

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared: Expression
    constants: Mapping[str, Number]

    def __call__(
        self,
        problem: GemmProblem,
        config: TileConfig,  # noqa: ARG002
        gpu: GpuSpec,  # noqa: ARG002
    ) -> LaunchShape:
        """The launch.

        Raises:
            UsageError: an expression fails, or its result is no possible extent.
        """
        values = self._values(problem)
        grid = [
            _within(expression, values, "grid", 0, limit)
            for expression, limit in zip(
                self.grid, (MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ), strict=False
            )
        ]
        block = [
            _within(expression, values, "block", 1, limit)
            for expression, limit in zip(self.block, MAX_BLOCK, strict=False)
        ]
        return LaunchShape(
            template=(),
            grid=_three(grid),
            block=_three(block),
            shared_bytes=_within(self.shared, values, "shared", 0, 2**31 - 1),
        )

    def check_names(self) -> None:
        """Raise a UsageError for a name that no problem gives a value."""
        known = self._values(GemmProblem(1, 1, 1))
        for expression in (*self.grid, *self.block, self.shared):
            unknown = sorted(expression.names - known.keys())
            if unknown:
                raise UsageError(
                    f"'{expression.text}' uses {', '.join(unknown)}; grid, block and shared memory "
                    f"may use {', '.join(known)}"
                )

    def _values(self, problem: GemmProblem) -> dict[str, Number]:
        sizes = {"M": problem.m, "N": problem.n, "K": problem.k}
        leading = {"lda": problem.lda, "ldb": problem.ldb, "ldc": problem.ldc}
        return {**sizes, **leading, **self.constants}


def read_source(path: Path) -> str:
    """The text of a user's file.

    Raises:
        UsageError: there is no such file, it cannot be read, or it holds no text.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if b"\0" in data:
        raise UsageError(f"{path} is no text file: source code is wanted")
    # Comments in other encodings do no harm.
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text


def find_entry(
    entry: str | None, source: SourceFile, included: Sequence[str]
) -> KernelDeclaration | None:
    """The declaration of the wanted kernel; None if it is made by macros and cannot be read.

    Raises:
        UsageError: there is no such kernel, or none is asked for and there are several.
    """
    own = kernels_in(source.text)
    found = [*own, *(each for text in included for each in kernels_in(text))]
    if entry is None:
        return _only_kernel(own or found, source.name)
    wanted = re.sub(r"\s+", "", entry.partition("<")[0])
    matches = [each for each in found if each.name == wanted]
    if not matches:
        # Its namespace may be opened by a macro, or named with leading colons.
        matches = [each for each in found if each.name.split("::")[-1] == wanted.split("::")[-1]]
        matches = matches if "::" in wanted else []
    if matches:
        _check_template(entry, matches[0], source.name)
        return matches[0]
    texts = (source.text, *included)
    if any(_KERNEL_MACRO.search(text) for text in texts) and any(
        re.search(rf"[(,]\s*{re.escape(wanted)}\b", text) for text in texts
    ):
        return None
    raise UsageError(f"{source.name} has no kernel '{wanted}'; {_listed(found)}")


def _only_kernel(found: Sequence[KernelDeclaration], file: str) -> KernelDeclaration:
    if not found:
        raise UsageError(f"{file} has no __global__ function")
    if len(found) > 1:
        raise UsageError(f"which kernel of {file}? Give --entry; {_listed(found)}")
    _check_template(found[0].name, found[0], file)
    return found[0]


def _check_template(entry: str, kernel: KernelDeclaration, file: str) -> None:
    if kernel.template is None or "<" in entry:
        return
    if any(not default for _, default in kernel.template):
        raise UsageError(
            f"'{kernel.name}' in {file} is a template: give --entry '{_shown(kernel)}' with values "
            "in the brackets"
        )


def _whole_name(kernel: KernelDeclaration | None) -> str:
    assert kernel is not None
    return kernel.name + ("<>" if kernel.template is not None else "")


def _listed(found: Sequence[KernelDeclaration]) -> str:
    return "it has: " + (", ".join(_shown(each) for each in found) or "none")


def _shown(kernel: KernelDeclaration) -> str:
    if kernel.template is None:
        return kernel.name
    return f"{kernel.name}<{', '.join(name or '?' for name, _ in kernel.template)}>"


def _template_values(entry: str | None, kernel: KernelDeclaration | None) -> dict[str, str]:
    """The text of each template argument, by the parameter's name."""
    if kernel is None or kernel.template is None:
        return {}
    values = {name: default for name, default in kernel.template if name and default}
    opening = (entry or "").find("<")
    if entry is not None and opening >= 0:
        close = closing(entry, opening)
        given = split_arguments(entry[opening + 1 : close]) if close > 0 else []
        names = (name for name, _ in kernel.template)
        values |= {name: text for name, text in zip(names, given, strict=False) if name}
    return values


def _numbers(texts: Mapping[str, str]) -> dict[str, Number]:
    """The values of those constants that are whole numbers, or follow from others that are."""
    found: dict[str, Number] = {}
    left = dict(texts)
    while left:
        progress = False
        for name, text in [*left.items()]:
            try:
                expression = Expression.parse(text)
            except UsageError:
                del left[name]
                continue
            if expression.names <= found.keys():
                del left[name]
                try:
                    found[name] = expression.integer(found)
                except UsageError:
                    continue
                progress = True
        if not progress:
            break
    return found


def _extents(given: Extent, what: str) -> tuple[Expression, ...]:
    if isinstance(given, int):
        given = [given]
    parts = split_list(given) if isinstance(given, str) else [str(each) for each in given]
    if not 1 <= len(parts) <= 3:
        raise UsageError(f"--{what} '{given}' has {len(parts)} parts: give x, y and z at most")
    return tuple(Expression.parse(part) for part in parts)


def _within(
    expression: Expression, values: Mapping[str, Number], what: str, least: int, most: int
) -> int:
    value = expression.integer(values)
    if not least <= value <= most:
        raise UsageError(
            f"{what} '{expression.text}' is {value:,} here; it must be {least} to {most:,}"
        )
    return value


def _three(extents: Sequence[int]) -> Dim3:
    x, y, z = [*extents, 1, 1][:3]
    return x, y, z


def _condition(
    signature: Signature, rule: LaunchRule, refuses: str | None
) -> Callable[[GemmProblem, GpuSpec], str | None]:
    used = names_in(signature)
    sizes = used & set(SIZES)
    square = len(sizes) == 1 and not set(SIZES) & rule.constants.keys()

    def condition(problem: GemmProblem, gpu: GpuSpec) -> str | None:
        if refuses is not None:
            return refuses
        if square and not problem.m == problem.n == problem.k:
            return f"its only size is {min(sizes)}, so it takes square matrices only"
        if bool(problem.epilogue.bias) != ("bias" in used):
            has = "has an argument 'bias': give an epilogue with bias" if "bias" in used else (
                "has no argument 'bias'"
            )  # fmt: skip
            return f"its signature {has}"
        for name, asked, plain in (
            ("alpha", problem.alpha, 1.0),
            ("beta", problem.beta, 0.0),
            ("lda", problem.lda, max(problem.k, 1)),
            ("ldb", problem.ldb, max(problem.n, 1)),
            ("ldc", problem.ldc, max(problem.n, 1)),
        ):
            if name not in used and asked != plain:
                return f"its signature has no argument '{name}', so {name} can only be {plain:g}"
        try:
            shape = rule(problem, TileConfig(), gpu)
        except UsageError as error:
            return str(error)
        threads = shape.block[0] * shape.block[1] * shape.block[2]
        if threads > gpu.capability.max_threads_per_block:
            return f"{threads} threads a block are more than {gpu.name} allows"
        return None

    return condition
