"""A user's own CUDA C++ file as a `Kernel`: its entry, arguments, grid and block."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gemmkit.cxx.conditionals import compiled, defined_by
from gemmkit.cxx.declarations import (
    KernelDeclaration,
    body_of,
    closing,
    constants_in,
    kernels_in,
    split_arguments,
)
from gemmkit.cxx.element_types import resolved, type_names
from gemmkit.cxx.expressions import Expression, Number, split_list
from gemmkit.cxx.head_comments import head_comment
from gemmkit.dtypes import Dtype
from gemmkit.errors import UsageError
from gemmkit.file_directives import text_name
from gemmkit.frontends.element_rule import ElementRule
from gemmkit.frontends.entries import (
    Declared,
    check_read,
    declared_in,
    hides_parameters,
    name_expression,
    split_entry,
)
from gemmkit.frontends.launch_rule import LaunchRule, condition_of
from gemmkit.frontends.refusals import (
    check_folders,
    check_map_names,
    check_maps,
    check_misspelled,
    check_parameters,
)
from gemmkit.frontends.signatures import (
    hidden_elements,
    map_name,
    matrix_types,
    named_size,
    narrow_scalars,
    read_signature,
    told_signature,
    wrong_matrices,
)
from gemmkit.frontends.struct_arguments import expanded
from gemmkit.frontends.structs import Structs, own_numbers
from gemmkit.kernels.kernel import Kernel
from gemmkit.kernels.launch_options import Extent, LaunchOptions
from gemmkit.kernels.layouts import read_layout
from gemmkit.kernels.mainloops.unknown import by_grid
from gemmkit.kernels.plan import (
    ARGUMENT_NAMES,
    Signature,
    SourceFile,
    StructPlace,
    TileConfig,
    names_in,
)
from gemmkit.kernels.sizes import SIZES, SizeRule, read_multiples
from gemmkit.kernels.tensor_maps import read_maps

_NAME = re.compile(r"[A-Za-z_]\w*")


def kernel_from_file(path: str | Path, launch: LaunchOptions) -> Kernel:
    """See `Kernel.from_file`."""
    path, entry = Path(path), launch.entry
    if launch.dtype is not None or launch.out_dtype is not None:
        raise UsageError(
            f"{path.name} declares the types of its kernels' parameters: omit dtype and out_dtype, "
            "which are for PTX"
        )
    text = read_source(path)
    if path.suffix.lower() == ".py":
        raise UsageError(
            f"{path.name} is Python, not CUDA C++: gemmkit.Kernel.from_numba makes a kernel of a "
            "numba-cuda function in it, which gemmkit.check and the others take"
        )
    own = [option.removeprefix("-I") for option in launch.options if option.startswith("-I")]
    check_folders((*launch.include_dirs, *own))
    searched = (path.parent, *launch.include_dirs, *own)
    folders = tuple(str(Path(each).resolve()) for each in searched)
    rest = tuple(option for option in launch.options if not option.startswith("-I"))
    source = SourceFile(text, text_name(path.name), "cuda", folders, rest)
    # What the compiler sees: a kernel's parameters, constants and types may depend on conditions.
    seen = compiled(text, path.parent.resolve(), folders, rest)
    seen_texts = seen.text, *seen.included.values()
    entry, chosen = split_entry(entry)
    found = declared_in(seen, source, entry, chosen)
    declared, text, others = found.kernel, found.text, found.included.values()
    constants: dict[str, str] = {}
    for each in (*others, text):
        constants |= constants_in(each)
    constants |= {name: value for name, value in defined_by(rest).items() if value}
    values = _template_values(entry, declared)
    constants |= values
    numbers = _numbers(constants)
    structs: tuple[StructPlace | None, ...] = ()
    refuses, here = None, path.name
    maps, listed = {each.name: each for each in read_maps(launch.tensor_maps)}, None
    if launch.args is not None:
        listed = split_list(launch.args) if isinstance(launch.args, str) else list(launch.args)
    if declared is not None and hides_parameters(declared):
        if listed is None:
            check_read(declared, _file_of(declared, path, found))
        elif len(listed) != len(declared.parameters):
            # The compiled kernel tells what they are.
            entry, declared = entry or name_expression(declared), None
    if declared is not None:
        types = type_names((*others, text), rest)
        declared = resolved(resolved(declared, types), types | values)
        here = _file_of(declared, path, found)
        given = [each.name for each in declared.parameters] if listed is None else listed
        mapped = [number for number, each in enumerate(given) if each in maps]
        check_map_names(maps)
        check_misspelled(maps, given, declared)
        check_parameters(declared, here, mapped)
        known = Structs.of((*others, text), numbers)
        refuses = known.wrong_elements(declared, values)
        declared, structs = known.flattened(declared, values, here, mapped)
        if listed is not None and structs:
            listed = expanded(listed, declared, structs)
        fields = [map_name(each, maps) or each.name for each in declared.parameters]
        fields = fields if listed is None else listed
        check_maps(maps, given, declared, fields)
        mapped = [number for number, each in enumerate(fields) if each in maps]
        check_parameters(declared, here, mapped)
    if listed is not None:
        others_named = {key: value for key, value in numbers.items() if key not in ARGUMENT_NAMES}
        signature = told_signature(listed, declared, others_named, maps)
    elif declared is not None:
        operands = {name: each.operand for name, each in maps.items()}
        signature = read_signature(declared, here, operands)
    else:
        raise UsageError(f"cannot read the parameters of '{entry}' from {path.name}: give --args")
    whole_name = entry or name_expression(declared)
    if chosen is not None and declared is not None:
        # Their types as declared choose among the functions of that name.
        whole_name = f"static_cast<void (*)({', '.join(declared.types)})>({whole_name})"
    hidden = tuple(
        (own, signature[number])
        for number in hidden_elements(signature, declared)
        for own in own_numbers([number], structs)
    )
    kernel = user_kernel(
        source,
        entry=whole_name,
        signature=signature,
        launch=launch,
        name=launch.name or _shown_name(text_name(path.stem), entry, declared, kernels_in(text)),
        idea=head_comment(source.text),
        constants=numbers,
        sizes=_sizes_used(
            dict.fromkeys((*seen_texts, text, *others)),
            declared,
            signature,
            launch.grid,
            constants,
            numbers,
        ),
        parameters=[each.name for each in declared.parameters] if declared is not None else (),
        refuses=refuses or (wrong_matrices(signature, declared) if declared is not None else None),
        types=matrix_types(signature, declared),
    )
    if hidden:
        kernel = replace(kernel, assertions=ElementRule(whole_name, hidden))
    scalars = narrow_scalars(signature, declared) if declared is not None else ()
    return given_to(replace(kernel, structs=structs, scalars=scalars), launch)


def _file_of(kernel: KernelDeclaration, path: Path, seen: Declared) -> str:
    """The file that declares a kernel, as messages call it."""

    def declares(text: str) -> bool:
        return any(
            (each.name, each.line) == (kernel.name, kernel.line) for each in kernels_in(text)
        )

    if declares(seen.text):
        return path.name
    return next((each.name for each, text in seen.included.items() if declares(text)), path.name)


def user_kernel(
    source: SourceFile,
    *,
    entry: str,
    signature: Signature,
    launch: LaunchOptions,
    name: str,
    idea: str = "",
    constants: Mapping[str, Number] | None = None,
    sizes: Mapping[str, int] | None = None,
    parameters: Sequence[str] = (),
    refuses: str | None = None,
    types: tuple[tuple[Dtype, ...], tuple[Dtype, ...]] = (("float32",), ()),
) -> Kernel:
    """A kernel without rung from what is known of it, whatever language it was written in.

    Args:
        source: what it is compiled from.
        entry: its name expression, or its symbol in PTX.
        signature: a name or an expression for each parameter.
        launch: its grid, block, shared memory, layout and sizes.
        name: what tables call it.
        idea: what it is about, if that is known.
        constants: names with fixed values that the expressions may use.
        sizes: those of M, N and K that are compiled in.
        parameters: the names of its parameters, in the order of the signature.
        refuses: why it takes no problem at all.
        types: those of A and B that it may take, and those of C, where they are others.

    Raises:
        UsageError: grid or block is missing, or an expression uses unknown names.
    """
    grid, block = launch.grid, launch.block
    if grid is None or block is None:
        missing = " and ".join(
            option for option, given in (("--grid", grid), ("--block", block)) if given is None
        )
        raise UsageError(
            f"'{name}' needs a launch configuration: give {missing}, in x,y,z order as in CUDA, "
            "for example --grid '(N+127)/128,(M+127)/128' --block 256"
        )
    rule = LaunchRule.read(
        grid,
        block,
        launch,
        constants=constants or {},
        signature=signature,
        parameters=parameters,
    )
    maps = read_maps(launch.tensor_maps)
    multiples = read_multiples(launch.multiple_of)
    taken = SizeRule.of(names_in(signature, maps), sizes or {}, multiples, maps)
    dtypes, result_dtypes = types
    return Kernel(
        name=name,
        rung=None,
        idea=idea,
        default=TileConfig(),
        space={},
        launch=rule,
        rule=lambda config, gpu: None,  # noqa: ARG005
        work=by_grid(rule),
        signature=signature,
        layouts=(read_layout(launch.layout),),
        dtypes=dtypes,
        result_dtypes=result_dtypes,
        sizes=taken,
        file=source,
        entry=entry,
        condition=condition_of(signature, rule, taken, refuses),
        tensor_maps=maps,
    )


def given_to(kernel: Kernel, launch: LaunchOptions) -> Kernel:
    """The kernel with its variables, and with how exact it has to be."""
    return kernel.given(launch.constants, launch.compute_dtype, launch.tolerance)


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
        raise UsageError(f"{path} is not a text file: give source code")
    # Comments in other encodings do no harm.
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    if not text.strip():
        raise UsageError(f"{path} is empty: give source code")
    return text


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


def _sizes_used(
    texts: Iterable[str],
    kernel: KernelDeclaration | None,
    signature: Signature,
    grid: Extent | None,
    constants: Mapping[str, str],
    numbers: Mapping[str, Number],
) -> dict[str, int]:
    """Those of M, N and K that are constants which the kernel's code or its grid uses, by name.

    What the host's code alone calls N is none of them. Beside a size that is an argument, a local
    constant `k` or `width` may be anything, and only M, N and K themselves count.
    """
    if kernel is None:
        return {}
    code = " ".join(body_of(kernel, text) for text in texts)
    used: set[str] = set()
    # `N` in a grid may be the size of the problem; `NN` is nothing but a constant.
    new = set(_NAME.findall(code)) | (set(_NAME.findall(str(grid))) - set(SIZES))
    while new:
        used |= new
        new = {
            word for name in new & constants.keys() for word in _NAME.findall(constants[name])
        } - used
    found: dict[str, int] = {}
    passes_any = bool(names_in(signature) & set(SIZES))
    other = (lambda _: "") if passes_any else named_size
    # M, N and K themselves before other names for them.
    for name in sorted(used & numbers.keys(), key=lambda name: (name not in SIZES, name)):
        size, value = name if name in SIZES else other(name), numbers[name]
        if size and isinstance(value, int) and value > 0:
            found.setdefault(size, value)
    return found


def _shown_name(
    stem: str,
    entry: str | None,
    declared: KernelDeclaration | None,
    own: Sequence[KernelDeclaration],
) -> str:
    """What tables call a kernel: the file's name where that is its own, else as it is entered."""
    whole = entry or (declared.name if declared is not None else stem)
    if whole.split("::")[-1].strip() == stem and len(own) == 1:
        return stem
    return re.sub(r"\s*([<>,])\s*", r"\1", whole).strip()
