from dataclasses import replace

import pytest

from gemmkit.kernels import include_files
from gemmkit.kernels.catalog import LADDER, find_kernel
from gemmkit.kernels.plan import SourceFile
from gemmkit.trials import freshness
from gemmkit.trials.freshness import source_digest


def with_text(kernel, text):
    return replace(kernel, file=SourceFile(text, kernel.name))


def test_each_rung_has_a_digest_of_its_own():
    assert len({source_digest(kernel) for kernel in LADDER}) == len(LADDER)


def test_comments_and_line_breaks_do_not_count():
    kernel = find_kernel("naive")
    text = "// another word\n" + kernel.source.replace(";\n", ";  /* so */\n\n")
    assert source_digest(with_text(kernel, text)) == source_digest(kernel)


@pytest.mark.parametrize("name", ["naive", "gemm_tiled"])
def test_code_counts(name):
    kernel = find_kernel(name)
    text = kernel.source.replace("{", "{ ;", 1)
    assert source_digest(with_text(kernel, text)) != source_digest(kernel)


def test_code_of_what_it_includes_counts(monkeypatch):
    kernel = find_kernel("gemm_tiled")
    before = source_digest(kernel)
    headers = include_files()
    far = headers["cp_async.cuh"] + "\n"
    monkeypatch.setattr(freshness, "include_files", lambda: headers | {"cp_async.cuh": far})
    assert source_digest(kernel) == before
    changed = headers | {"cp_async.cuh": far + "struct Changed {};\n"}
    monkeypatch.setattr(freshness, "include_files", lambda: changed)
    assert source_digest(kernel) != before


def test_code_of_what_it_does_not_include_does_not_count(monkeypatch):
    kernel = find_kernel("naive")
    before = source_digest(kernel)
    headers = include_files() | {"async_tiles.cuh": "struct Changed {};\n"}
    monkeypatch.setattr(freshness, "include_files", lambda: headers)
    assert source_digest(kernel) == before
