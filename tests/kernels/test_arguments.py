"""The parameters of production kernels are listed alike in CUDA C++ and in Python."""

import re

import pytest

from gemmkit.kernels import include_files
from gemmkit.kernels.catalog import PRODUCTION
from gemmkit.kernels.production.arguments import SPLIT_SIGNATURE

TEXT = include_files()["arguments.cuh"]
NAMES = list(SPLIT_SIGNATURE)


def _macro(name: str) -> str:
    found = re.search(rf"#define {name}((?:.*\\\n)*.*)", TEXT)
    assert found is not None
    return re.sub(r"\\\n", " ", found[1])


def test_the_parameters_are_those_of_the_signature():
    listed = _macro("GEMM_PARAMETERS").partition(")")[2]
    listed = re.sub("SCALE_RESULT_PARAMETER|CUSTOM_PARAMETERS", "", listed)
    assert [re.findall(r"\w+", each)[-1] for each in listed.split(",")] == NAMES


def test_the_struct_is_made_of_them_in_their_order():
    assert re.findall(r"\w+", _macro("GEMM_ARGUMENTS")) == [*NAMES, "SCALE_RESULT", "CUSTOM"]
    body = TEXT[TEXT.index("  using Sum") : TEXT.index("  // BLAS: alpha = 0")]
    types = r"(?:const )?(?:typename \w+::|long )?\w+[*]?"
    fields = re.findall(rf"^  (?!using|typename Epilogue::Act){types} ([\w, ]+);", body, re.M)
    names = [name for each in fields for name in each.split(", ")]
    assert names == [*NAMES, "scale_result"]


@pytest.mark.parametrize("kernel", PRODUCTION, ids=lambda kernel: kernel.name)
def test_no_kernel_takes_a_struct(kernel):
    """NVVM takes what it loads from one for different from thread to thread."""
    signature = re.search(rf"\b{kernel.name}\(([^{{]*)\) {{", kernel.source)
    assert signature is not None
    assert "Arguments" not in signature[1]
