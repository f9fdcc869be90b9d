"""Users' kernels that take tensor maps: what they are given, and what is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import gemmkit
from gemmkit import Kernel
from gemmkit.bench.default_cases import default_cases
from gemmkit.cli import gemmkit as command_line
from gemmkit.errors import UnsupportedProblem, UsageError
from gemmkit.gpu import find_board
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.asked import Asked
from gemmkit.kernels.tensor_maps import MapRule

EXAMPLE = Path(__file__).parents[2] / "examples" / "tma.cu"
MAPS = (
    "map_a=A,box=64x64,swizzle=128B",
    "map_b=B,box=64x32,swizzle=128B",
    "map_c=C,box=32x64",
)
LAUNCH: dict[str, Any] = {"grid": "(N+31)/32,(M+63)/64", "block": 128, "layout": "NT"}
TYPES = {"dtype": "bf16", "out_dtype": "fp32", "gpu": "h100"}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str, name: str = "mine.cu") -> Path:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return write_file


def edited(*changes: tuple[str, str]) -> str:
    text = EXAMPLE.read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def check(path: Path, shape: str, maps: tuple[str, ...] = MAPS, **launch: Any) -> Any:
    kernel = Kernel.from_file(path, **{**LAUNCH, "tensor_maps": maps, **launch})
    (record,) = gemmkit.check(kernel, [shape], **TYPES)
    return record


def test_the_example_is_right_and_sound() -> None:
    record = check(EXAMPLE, "65x36x72")
    assert record.verdict == "ok", record.detail


def test_arguments_and_maps_by_other_names(write: Write) -> None:
    text = edited(("map_a", "first"), ("map_b", "second"), ("int K", "int depth"),
                  ("(K +", "(depth +"))  # fmt: skip
    own = "struct alignas(64) TensorMap { char bytes[128]; };\n"
    path = write(own + text.replace("CUtensorMap", "TensorMap").replace("#include <cuda.h>", ""))
    record = check(path, "64x32x72", args="map_a,map_b,map_c,(K+7)/8*8")
    assert record.verdict == "ok", record.detail


@pytest.mark.parametrize(
    ("maps", "kind"),
    [
        # The kernel reads a swizzle of 128 bytes.
        (("map_a=A,box=64x64", *MAPS[1:]), "wrong result"),
        # It announces boxes of 64 rows.
        (("map_a=A,box=64x32,swizzle=128B", *MAPS[1:]), "deadlock"),
        (("map_a=A,box=64x128,swizzle=128B", *MAPS[1:]), "deadlock"),
    ],
)
def test_maps_that_do_not_suit_the_kernel_are_found(maps: tuple[str, ...], kind: str) -> None:
    record = check(EXAMPLE, "64x32x64", maps)
    kinds = {each.kind for each in record.findings} | {record.verdict}
    assert kind in kinds, record


def test_problems_whose_rows_are_no_multiples_of_16_bytes() -> None:
    with pytest.raises(UnsupportedProblem) as caught:
        check(EXAMPLE, "64x32x60")
    assert "tensor map 'map_a' of A (M = 64, K = 60, lda = 60)" in str(caught.value)
    assert "a stride of 120 bytes; it must be a multiple of 16" in str(caught.value)


HEAD = "struct alignas(64) Map { char bytes[128]; };\n"
REFUSED = {
    "say of which matrix and box, such as --tensor-map 'map=A,box": (
        "const __grid_constant__ CUtensorMap map, float* B, float* C, int N", {}),
    "points to a tensor map: take it by value": (
        "const Map* map, float* B, float* C, int N", {"tensor_maps": "map=A,box=8x8"}),
    "is a number: a tensor map is a struct of 128 bytes": (
        "int map, float* B, float* C, int N", {"tensor_maps": "map=A,box=8x8"}),
    "tensor map 'mop' is not among the arguments of 'k', map, B, C, N": (
        "const Map map, float* B, float* C, int N", {"tensor_maps": "mop=A,box=8x8"}),
    "as an argument is: give it another name, and --args with that name where": (
        "const Map map, float* B, float* C, int N", {"tensor_maps": "B=A,box=8x8"}),
    "give an initializer with one argument": (
        "const Map map, float* B, float* C, int N", {"args": "A,B,C,N"}),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_valid_is_refused_in_words(write: Write, words: str) -> None:
    parameters, launch = REFUSED[words]
    path = write(f"{HEAD}__global__ void k({parameters}) {{}}")
    with pytest.raises(UsageError) as caught:
        Kernel.from_file(path, grid=1, block=32, **launch)
    assert words in str(caught.value)


def test_a_struct_of_another_size_or_alignment(write: Write) -> None:
    maps = ("map_a=A,box=64x64,swizzle=128B", *MAPS[1:])
    for size, words in ((64, "'map_a' of 128 bytes"), (128, "declare its type with alignas(64)")):
        first = "Flag flag, const __grid_constant__ Odd map_a, const __grid_constant__ CUtensorMap"
        text = edited(
            ("gemm(const __grid_constant__ CUtensorMap map_a", f"gemm({first} plain"),
            ("&map_a", "(const CUtensorMap *)&map_a"),
        )
        own = f"struct Odd {{ int words[{size // 4}]; }}; struct Flag {{ int value; }};\n"
        record = check(write(own + text), "64x32x64", maps, args="{K},map_a,map_a,map_b,map_c,K")
        assert words in record.detail, record.detail


def test_the_command_line() -> None:
    maps = [word for each in MAPS for word in ("--tensor-map", each)]
    launch = ["--grid", LAUNCH["grid"], "--block", "128", "--layout", "NT", "--gpu", "h100"]
    command = [str(EXAMPLE), *maps, *launch, "--dtype", "bf16", "--out-dtype", "fp32"]
    shape = ["--shape", "64x32x64"]
    found = CliRunner().invoke(command_line, ["check", *command, *shape])
    assert (found.exit_code, "1 ok" in found.output) == (0, True), found.output
    found = CliRunner().invoke(command_line, ["explain", *command, *shape])
    assert found.exit_code == 0, found.output
    found = CliRunner().invoke(command_line, ["check", "naive", *maps[:2]])
    assert found.exit_code == 2
    assert "leave out --tensor-map" in found.output


def test_a_batch_by_maps_of_three_dimensions(write: Write) -> None:
    text = edited(
        ("tensor.2d", "tensor.3d"),
        ("{%2, %3}], [%4];", "{%2, %3, %5}], [%4];"),
        ('"r"(row), "r"(full)', '"r"(row), "r"(full), "r"(blockIdx.z)'),
        ("{%1, %2}], [%3];", "{%1, %2, %4}], [%3];"),
        ('"r"(shared(Cs))', '"r"(shared(Cs)), "r"(blockIdx.z)'),
    )
    maps = tuple(f"{each},rank=3" for each in MAPS)
    record = check(
        write(text),
        "64x32x64x3",
        maps,
        grid="(N+31)/32,(M+63)/64,batch",
        args="map_a,map_b,map_c,K",
    )
    assert record.verdict == "ok", record


@pytest.mark.parametrize("operand", ["A", "B"])
def test_a_map_of_three_dimensions_refuses_products_that_share_an_operand(operand: str) -> None:
    """The kernel loads the box of its product, and cannot know that there is but one."""
    stride = f"stride_{operand.lower()}"
    shared = gemmkit.GemmProblem(64, 32, 64, batch=3, **{stride: gemmkit.BROADCAST})
    rules = [MapRule.parse(f"m={each},box=32x32x1") for each in ("A", "B", "C")]
    refusals = [each.refusal(shared) for each in rules]
    assert [each is not None for each in refusals] == [each == operand for each in ("A", "B", "C")]
    assert f"and here they share one {operand}" in (refusals[operand == "B"] or "")
    apart = gemmkit.GemmProblem(64, 32, 64, batch=3)
    assert not any(each.refusal(apart) for each in rules)


def test_default_problems_of_maps_of_three_dimensions_have_batches_of_their_own() -> None:
    maps = tuple(f"{each},rank=3" for each in MAPS)
    kernel = Kernel.from_file(EXAMPLE, **LAUNCH, tensor_maps=maps)
    gpu, asked = find_board("h100"), Asked(dtype="bf16", out_dtype="fp32")
    cases = default_cases(kernel, kernel.default, gpu, asked)
    batches = [each.problem for each in cases if each.problem.batch > 1]
    assert batches
    assert not any(kernel.accepts(each, gpu) for each in batches)


def test_ptx_takes_maps_too() -> None:
    plain = Kernel.from_file(EXAMPLE, **LAUNCH, tensor_maps=MAPS)
    problem = gemmkit.GemmProblem(64, 32, 64, dtype="bfloat16", out_dtype="float32")
    plan = plain.plan(problem.laid_out("nt"), plain.default, find_board("h100"))
    text = compile_plan(plan, "sm_90").ptx
    how = {**LAUNCH, "dtype": "bf16", "out_dtype": "fp32", "tensor_maps": MAPS}
    kernel = Kernel.from_ptx(text, args="map_a,map_b,map_c,K", **how)
    (record,) = gemmkit.check(kernel, ["64x32x64"], gpu="h100")
    assert record.verdict == "ok", record.detail
    with pytest.raises(UsageError, match=r"'K' of 'gemm' is an integer, but its parameter is .b8"):
        Kernel.from_ptx(text, args="map_a,map_b,K,map_c", **how)
    with pytest.raises(UsageError, match="'map_c' of 'gemm' is a tensor map of 128 bytes, but"):
        Kernel.from_ptx(text, args="map_a,map_b,C,map_c".replace("C", "map_a"), **how)
    with pytest.raises(UsageError, match="tensor map 'map_c' is not among the arguments"):
        Kernel.from_ptx(text, args="map_a,map_b,map_a,K", **how)


# The example with all of its arguments in one struct.
STRUCT = (
    (
        'extern "C" __global__ void gemm(const __grid_constant__ CUtensorMap map_a,\n'
        "                                const __grid_constant__ CUtensorMap map_b,\n"
        "                                const __grid_constant__ CUtensorMap map_c, int K) {\n",
        "struct Params { int K; CUtensorMap map_a, map_b, map_c; };\n"
        'extern "C" __global__ void gemm(const __grid_constant__ Params p) {\n'
        "const int K = p.K;\n",
    ),
    ("&map_a", "&p.map_a"),
    ("&map_b", "&p.map_b"),
    ("&map_c", "&p.map_c"),
)


@pytest.mark.parametrize("args", [None, "{K,map_a,map_b,map_c}"])
def test_maps_in_a_struct(write: Write, args: str | None) -> None:
    record = check(write(edited(*STRUCT)), "65x36x72", args=args)
    assert record.verdict == "ok", record.detail


@pytest.mark.parametrize(
    ("maps", "args", "text"),
    [
        (MAPS, "{K,map_a,map_b,map_c", r"has no '}' for its '\{'"),
        (MAPS, "{K,map_a,map_c}", r"has 4 fields .* gives 3"),
        (MAPS, "{map_a,K,map_b,map_c}", r"is a number: a tensor map is a struct of 128 bytes"),
        (MAPS[:2], None, r"'CUtensorMap p.map_c' .* is a tensor map: say of which matrix"),
    ],
)
def test_what_does_not_fit_a_struct_with_maps(
    write: Write, maps: tuple[str, ...], args: str | None, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        check(write(edited(*STRUCT)), "64x32x64", maps, args=args)


def test_a_misspelled_map_or_argument_suggests_the_right_one() -> None:
    maps = ("map_a=A,box=64x64", "mapb=B,box=64x32", "map_c=C,box=32x64")
    with pytest.raises(UsageError, match=r"is called 'mapb', as a tensor map is: did you mean"):
        check(EXAMPLE, "64x32x72", maps=maps)
    with pytest.raises(UsageError, match=r"called 'map_b', .*: did you mean map_bb\?"):
        check(EXAMPLE, "64x32x72", args="map_a,map_bb,map_c,K")
    with pytest.raises(UsageError, match="has '32' without '=' and a value; an x separates"):
        check(EXAMPLE, "64x32x72", maps=("map_a=A,box=64,32",))


@pytest.mark.parametrize("option", ["-Inowhere", "-Imine.cu"])
def test_a_folder_that_is_none(write: Write, option: str) -> None:
    path = write(EXAMPLE.read_text("utf-8"))
    folder = path.parent / option.removeprefix("-I")
    reason = "this is not a folder" if folder.exists() else "there is no such folder"
    with pytest.raises(UsageError, match=f"-I .*: {reason}"):
        check(path, "64x32x72", include_dirs=(folder,))
    with pytest.raises(UsageError, match=f"-I .*: {reason}"):
        check(path, "64x32x72", options=(f"-I{folder}",))


def test_a_deadlock_has_an_order_that_leads_to_it(write: Write) -> None:
    # A buffer without a name, such as that of the parameters, is no array of the finding.
    record = check(EXAMPLE, "64x32x72", maps=("map_a=A,box=64x32,swizzle=128B", *MAPS[1:]))
    (found,) = (each for each in record.findings if each.kind == "deadlock")
    assert found.interleaving is not None
    assert not found.interleaving.reason
    assert "has completed no phase; arrivals so far: warp 0, now blocked, at" in found.message
