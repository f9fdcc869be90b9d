"""`Kernel`: a CUDA C++ file, the problems it takes, and how it is launched for one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from gemmkit.dtypes import (
    ITEM_BYTES,
    OPERAND_TYPES,
    Dtype,
    Precision,
    full_type_name,
    is_precise_enough,
)
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import GpuSpec
from gemmkit.kernels import source_text
from gemmkit.kernels.constructors import UsersKernels
from gemmkit.kernels.layouts import layout_text
from gemmkit.kernels.limits import MAX_EXTENT
from gemmkit.kernels.loads import LoadFormula
from gemmkit.kernels.operand_copies import made_anew, with_copies, workspace_bytes
from gemmkit.kernels.plan import (
    BATCH_ARGUMENTS,
    EPILOGUE_ARGUMENTS,
    OFFSETS,
    SGEMM_SIGNATURE,
    TABLE_ARGUMENTS,
    LaunchPlan,
    LaunchShape,
    Signature,
    SourceFile,
    StructPlace,
    TileConfig,
    names_in,
)
from gemmkit.kernels.policy import policy, source_file
from gemmkit.kernels.spaces import fitting_values
from gemmkit.kernels.work import Way
from gemmkit.problem import GemmProblem

if TYPE_CHECKING:
    from gemmkit.kernels.sizes import SizeRule
    from gemmkit.kernels.tensor_maps import MapRule
    from gemmkit.kernels.variables import DeviceVariables, Value


@dataclass(frozen=True, repr=False)
class Kernel(UsersKernels):
    """One kernel: a rung of the ladder, a production kernel, or a user's own.

    `idea` says in one sentence what it changes and why that helps. `default` is the configuration
    taken when none is given, `space` the values worth trying for each of its keys, `refinements`
    those of further keys, to be tried when the others are settled. `launch` maps
    (problem, config, board) to template arguments, grid, block and memory; `rule` returns
    the reason why a configuration is refused, or None; `work` says what a launch asks of the
    board's pipes; `loads` gives the words that its threads load, where a formula does. `file` is
    where the code comes from; None stands for gemmkit's own file of that name. Only rungs have a
    `rung`. The `entry` of a user's kernel is the whole name expression, and its `condition` says
    why a problem is refused, and its `assertions` have the compiler refuse one whose types are not
    its own. `translate` is another language's front end: it gives the PTX for a
    board, and the kernel's symbol in that.
    `pairing` says why a configuration that is right in itself does not serve a problem.
    `mainloop` is another kernel whose mainloop and configurations it uses: what was measured of a
    configuration there is the best guide to it here, until it is measured itself.
    `layouts` (as `GemmProblem.layout` names them) and `dtypes` are those it reads in place,
    `result_dtypes` those of C where they are others. `precision` says how it multiplies float32:
    it takes problems of that precision and of lower ones. `takes_scales` says whether it multiplies
    A and B by the scales of a problem. Of a user's kernel nobody knows, and its
    results are judged by its instructions.
    `structs` are those that it takes by value (see `LaunchPlan`). `compute_dtype` and `tolerance`
    say how exact its results must be, where that is not to be read from its instructions: see
    `gemmkit.verify.arithmetic`; the former may depend on the problem. `variables` are the values of
    its `__constant__` and `__device__` variables. `sizes` says which sizes a user's kernel takes.
    `scalars` names those of α and β that it takes as 16-bit parameters, and their type; None is
    that of the matrices. `tensor_maps` are those that a user's kernel takes by value. `fuses` says
    whether it applies an epilogue, `signature` names its parameters in order, and `aliases` maps
    other names of configuration keys to the keys.
    """

    name: str
    rung: int | None
    idea: str
    default: TileConfig
    space: Mapping[str, tuple[int, ...]]
    launch: Callable[[GemmProblem, TileConfig, GpuSpec], LaunchShape]
    rule: Callable[[TileConfig, GpuSpec], str | None]
    work: Way
    loads: LoadFormula | None = None
    mainloop: Kernel | None = None
    fuses: bool = True
    refinements: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    signature: Signature = SGEMM_SIGNATURE
    layouts: tuple[str, ...] = ("nn",)
    dtypes: tuple[Dtype, ...] = ("float32",)
    result_dtypes: tuple[Dtype, ...] = ()
    precision: Precision = "ieee"
    takes_scales: bool = False
    file: SourceFile | None = None
    entry: str | None = None
    condition: Callable[[GemmProblem, GpuSpec], str | None] | None = None
    assertions: Callable[[GemmProblem], str] | None = None
    pairing: Callable[[GemmProblem, TileConfig, GpuSpec], str | None] | None = None
    translate: Callable[[GpuSpec], tuple[SourceFile, str]] | None = None
    structs: tuple[StructPlace | None, ...] = ()
    compute_dtype: str | Callable[[GemmProblem], str] = ""
    tolerance: float | None = None
    variables: DeviceVariables | None = None
    sizes: SizeRule | None = None
    scalars: tuple[tuple[str, Dtype | None], ...] = ()
    tensor_maps: tuple[MapRule, ...] = ()

    # How a refusal by `plan` ends. The catalog, which has all kernels, says which of them take it.
    recommendation: ClassVar[Callable[[Kernel, GemmProblem, GpuSpec], str]] = (
        lambda _kernel, _problem, _gpu: ""
    )

    @cached_property
    def source(self) -> str:
        """The text of the file."""
        return self.file.text if self.file is not None else source_text(self.name)

    def given(
        self,
        constants: Mapping[str, Value] | None = None,
        compute_dtype: str = "",
        tolerance: float | None = None,
    ) -> Kernel:
        """The kernel with values that host code would set, and with a required accuracy.

        Args:
            constants: values of `__constant__` and `__device__` variables, by name: a number, an
                expression over M, N, K, lda, ldb, ldc, alpha and beta, or several of them.
            compute_dtype: the type that operands are rounded to and, after a comma, the type of the
                accumulators if it is not fp32: `"float16"`, `"float16,float16"`; by default, both
                follow from its instructions. See `gemmkit.verify.arithmetic` for the types.
            tolerance: the allowed |error| as a fraction of |α|·Σ|A|·|B| + |β·C|, instead of the
                bound from rounding theory.

        Raises:
            UsageError: there is no such variable, or a value cannot be read.
        """
        from gemmkit.kernels.variables import variables_of

        return replace(
            self,
            variables=variables_of(self.file, constants),
            compute_dtype=compute_dtype,
            tolerance=tolerance,
        )

    def configure(self, changes: Mapping[str, int]) -> TileConfig:
        """The default configuration with `changes`, such as `{"BM": 64}`; case does not matter.

        Raises:
            UsageError: the kernel has no such key.
        """
        own = self.default.as_dict()
        known = {name.lower(): name for name in own} | {
            alias.lower(): key for alias, key in self.aliases.items()
        }
        for given, value in changes.items():
            key = known.get(given.lower())
            if key is None:
                keys = ", ".join(own) or "none"
                raise UsageError(f"kernel '{self.name}' has no key '{given}'; it has: {keys}")
            own[key] = value
        return TileConfig(**own)

    def label(self, config: TileConfig, keys: Iterable[str] | None = None) -> str:
        """The name with `keys` of a `config`, as command lines take it: `coarsening_1d:TM=1`.

        By default, the keys are those that differ from the kernel's default.
        """
        values, default = config.as_dict(), self.default.as_dict()
        if keys is None:
            keys = [key for key, value in values.items() if default.get(key) != value]
        told = ",".join(f"{key}={values[key]}" for key in keys)
        return f"{self.name}:{told}" if told else self.name

    def lay_out(self, problem: GemmProblem) -> GemmProblem:
        """A problem of plain layout as the kernel reads it; others stay as they are."""
        if problem.layout != "nn" or "nn" in self.layouts:
            return problem
        return problem.laid_out(self.layouts[0])

    def types(
        self, dtype: str | None, out_dtype: str | None, precision: str | None = None
    ) -> dict[str, Any]:
        """`dtype`, `out_dtype` and `precision` by name. In place of None, the first that the kernel
        takes, or float32 where a lower precision is asked for; for C the type of A and B if it
        writes that. Where neither is given, the precision is the kernel's own, else the highest."""
        first: str = self.dtypes[0]
        if precision is None:
            precision = self.precision if not dtype and first == "float32" else "ieee"
        elif precision != "ieee" and "float32" in self.dtypes:
            first = "float32"
        dtype = full_type_name(dtype) if dtype else first
        if out_dtype is None and self.result_dtypes and dtype not in self.result_dtypes:
            out_dtype = self.result_dtypes[0]
        return {"dtype": dtype, "out_dtype": out_dtype, "precision": precision}

    def configurations(self, gpu: GpuSpec) -> Iterator[TileConfig]:
        """Every configuration of `space` that the rules allow on the board `gpu`."""
        fixed = self.default.as_dict()
        for values in fitting_values(self.space, gpu):
            config = TileConfig(**{**fixed, **values})
            if self.rule(config, gpu) is None:
                yield config

    def supports(self, problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> str | None:
        """Why it cannot run `problem` with `config` on the board `gpu`, or None if it can."""
        reason = self.accepts(problem, gpu) or self.rule(config, gpu)
        if reason is None and self.pairing is not None:
            reason = self.pairing(problem, config, gpu)
        return reason

    @property
    def user_defined(self) -> bool:
        """Whether it is a user's own, whose front end says what its entry is."""
        return self.entry is not None or self.translate is not None

    @property
    def assumes_type(self) -> bool:
        """Whether nothing says what types its matrices have, so that the first of all is taken."""
        return self.user_defined and len(self.dtypes) > 1 and self.assertions is None

    @property
    def passed(self) -> frozenset[str]:
        """The names of all that reaches it, as arguments or through tensor maps."""
        return names_in(self.signature, self.tensor_maps)

    @property
    def takes_batches(self) -> bool:
        """Whether one launch can compute several products of one shape."""
        return self.takes_groups or set(BATCH_ARGUMENTS) <= self._batch_names

    @property
    def _batch_names(self) -> frozenset[str]:
        names = frozenset(self.signature).union(*(each.passes for each in self.tensor_maps))
        # Maps that hold the products of a batch hold their number.
        return names | {"batch"} if any(len(each.box) > 2 for each in self.tensor_maps) else names

    @property
    def takes_groups(self) -> bool:
        """Whether one launch can compute products of different shapes."""
        return set(TABLE_ARGUMENTS) <= set(self.signature)

    @property
    def takes_ragged(self) -> bool:
        """Whether one launch can compute groups that are ragged, by where their rows end."""
        return OFFSETS in self.signature

    @property
    def is_for_groups(self) -> bool:
        """Whether it is made for groups, of whatever kind; single products are others' then."""
        return self.takes_groups or self.takes_ragged

    @property
    def shares_tiles(self) -> bool:
        """Whether several blocks can share a tile of C, and leave partial sums in a workspace."""
        return {"workspace", "semaphores"} <= set(self.signature)

    @property
    def takes_matrices(self) -> bool:
        """Whether its write-back can add a residual, fill an auxiliary output and scale."""
        names = set(self.signature)
        return self.fuses and (self.is_for_groups or set(EPILOGUE_ARGUMENTS) <= names)

    def takes_types(self, problem: GemmProblem) -> bool:
        """Whether it reads A and B of the problem's type, with scales where there are any,
        multiplies them as precisely as that asks for, and writes C of its own."""
        return (
            problem.dtype in self.dtypes
            and (self.takes_scales or not problem.scales)
            and self._writes_results_of(problem)
            and self._is_precise_enough_for(problem)
        )

    def _writes_results_of(self, problem: GemmProblem) -> bool:
        return problem.result_dtype in (self.result_dtypes or self.dtypes)

    def _is_precise_enough_for(self, problem: GemmProblem) -> bool:
        return problem.dtype != "float32" or is_precise_enough(self.precision, problem.precision)

    def accepts(self, problem: GemmProblem, gpu: GpuSpec) -> str | None:
        """Why it cannot run `problem` on the board `gpu`, whatever the configuration, or None."""
        if str(problem.epilogue) != "none" and not self.fuses:
            return f"'{self.name}' has no fused epilogue"
        if problem.epilogue.takes_matrices and not self.takes_matrices:
            return (
                f"'{self.name}' fuses only a bias and an activation: it adds no residual, "
                "does not scale, and does not keep the activation's argument"
            )
        if problem.dtype not in self.dtypes:
            return f"'{self.name}' is for {', '.join(self.dtypes)}, not {problem.dtype}"
        if not self._writes_results_of(problem):
            results = self.result_dtypes or self.dtypes
            unsupported = set(results) <= set(OPERAND_TYPES)
            only = ", which your own kernels have for A and B only" if unsupported else ""
            listed = ", ".join(results)
            return f"'{self.name}' writes C as {listed}, not {problem.result_dtype}{only}"
        if not self._is_precise_enough_for(problem):
            own = self.precision
            return f"'{self.name}' multiplies float32 in {own}: --precision {own} allows that"
        if problem.scales and not self.takes_scales:
            return f"'{self.name}' multiplies A and B without scales"
        if problem.layout not in self.layouts:
            shown = ", ".join(map(layout_text, self.layouts))
            otherwise = "; --layout says otherwise" if self.user_defined else ""
            return f"'{self.name}' takes {shown}, not {layout_text(problem.layout)}{otherwise}"
        if problem.groups is not None and not self.takes_groups:
            if not self.takes_ragged:
                return (
                    f"'{self.name}' computes products of one shape, not groups of different shapes"
                )
            if not problem.ragged:
                return f"'{self.name}' computes ragged groups, which are rows of one A, no others"
        if problem.batch != 1 and not self.takes_batches:
            return f"'{self.name}' computes one product per launch, not a batch"
        extents = (problem.m, problem.n, problem.k, problem.batch)
        # Of groups, its condition names the product.
        if problem.groups is None and max(extents) > MAX_EXTENT:
            return f"m, n, k and batch must be {MAX_EXTENT} or less: indices are 32-bit"
        return self.condition(problem, gpu) if self.condition is not None else None

    def plan(self, problem: GemmProblem, config: TileConfig, gpu: GpuSpec) -> LaunchPlan:
        """How to launch it for `problem` with `config` on the board `gpu`.

        Raises:
            UnsupportedProblem: `supports` gave a reason; the message names kernels that take it.
            CompileError, CompilerMissing: `translate` failed.
        """
        reason = self.supports(problem, config, gpu)
        if reason is not None:
            instead = self.recommendation(problem, gpu)
            configured = f" ({config})" if config.as_dict() else ""
            raise UnsupportedProblem(f"{self.name}{configured}: {reason}{instead}")
        if not problem.alpha:
            # By the rules of BLAS, neither A nor B is read where α = 0.
            problem = replace(problem, prepared="")
        shape = self.launch(problem, config, gpu)
        copies = {each.operand: each for each in shape.copies}
        own = shape.signature or self.signature
        in_place = shape.copies if shape.in_place else ()
        arguments = ", ".join(map(str, shape.template))
        if self.fuses:
            arguments += f", {policy(problem)}"
        source = self.file or source_file(self.name, self.source, problem)
        entry = self.entry or f"{shape.entry or self.name}<{arguments}>"
        if self.translate is not None:
            source, entry = self.translate(gpu)
        if self.assertions is not None:
            source = replace(source, assertions=self.assertions(problem))
        return LaunchPlan(
            kernel=self.name,
            source=source,
            entry=entry,
            grid=shape.grid,
            block=shape.block,
            signature=(*with_copies(own, in_place), *problem.epilogue.parameters),
            shared_bytes=shape.shared_bytes,
            cluster=shape.cluster,
            workspace_bytes=shape.workspace_bytes + workspace_bytes(shape.copies),
            semaphores=shape.semaphores,
            residue=shape.residue,
            chunks=shape.chunks,
            rasterized=shape.rasterized,
            structs=self.structs,
            table=shape.table,
            compute_dtype=self._compute_dtype_of(problem),
            tolerance=self.tolerance,
            constants=self.variables.packed(problem) if self.variables is not None else (),
            scalars=self._scalars_for(problem),
            tensor_maps=tuple(
                each.planned(problem, copies.get(each.operand))
                for each in (*self.tensor_maps, *shape.tensor_maps)
            ),
            before=shape.before if problem.alpha else None,
            prepared=shape.prepared,
            copied_in_place=tuple(each.operand for each in made_anew(in_place)),
            dependent=shape.dependent,
            reserved_bytes=shape.reserved_bytes,
            fewer_stages=shape.fewer_stages,
        )

    def _compute_dtype_of(self, problem: GemmProblem) -> str:
        own = self.compute_dtype
        return own if isinstance(own, str) else own(problem)

    def _scalars_for(self, problem: GemmProblem) -> tuple[tuple[str, Dtype], ...]:
        """See `LaunchPlan.scalars`."""
        own = (problem.dtype, problem.result_dtype)
        half: Dtype = "float16"
        narrow = next((each for each in own if ITEM_BYTES[each] == 2), half)
        return tuple((name, each or narrow) for name, each in self.scalars)
