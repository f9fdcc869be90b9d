"""The examples run as they are, and print the very figures that their texts and README name."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NUMBERED = sorted(path.name for path in EXAMPLES.glob("[0-9]*.py"))
# Of 128³: what each of the scripts is about.
FIGURES = {
    "01_uncoalesced.py": {"sectors per request": 16.5, "sectors per store request": 32},
    "02_coalesced.py": {"sectors per request": 2.5, "global loads/result": 2 * 128},
    "03_shared_tiling.py": {"global loads/result": 2 * 128 / 32, "shared loads/result": 2 * 128},
    "04_coarsening_1d.py": {"shared loads/result": 9 * 128 / 8, "bank conflicts": 0},
    "05_coarsening_2d.py": {
        "global loads/result": 2 * 128 / 64,
        "shared loads/result": 128 / 4,
        "bank conflicts": 0,
    },
    "07_ptx_kernel.py": {"sectors per request": 2.5, "global loads/result": 2 * 128},
}


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script and return what it printed."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run_it(name: str) -> str:
        if "numba" in (EXAMPLES / name).read_text("utf-8") and find_spec("numba_cuda") is None:
            pytest.skip("needs the extra numba")
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_it


@pytest.mark.parametrize("name", FIGURES)
def test_right_and_with_the_figures_that_it_is_about(run, name):
    printed = run(name)
    assert re.findall(r"^  \d+x\d+x\d+: (.*)", printed, re.MULTILINE) == ["ok", "ok"]
    figures = dict(re.findall(r"^    (\D+?) +([\d.,]+)$", printed, re.MULTILINE))
    for counter, value in FIGURES[name].items():
        assert float(figures[counter].replace(",", "")) == value


def test_a_planted_bug_is_found(run):
    printed = run("06_check_your_own_kernel.py")
    verdicts = dict(re.findall(r"^(\w+\.cu, \d+x\d+x\d+): (.*)", printed, re.MULTILINE))
    assert {verdicts[each] for each in verdicts if each.startswith("sgemm.cu")} == {"ok"}
    assert verdicts["broken.cu, 1x1x1"] == "findings"
    line = (EXAMPLES / "sgemm.cu").read_text("utf-8").partition("C[m * N + n] = ")[0].count("\n")
    assert re.search(rf"memcheck: .*'C'.* at broken\.cu:{line + 1}", printed)
    assert "4 sectors per load request" in printed
    assert "0 bank conflicts" in printed


def test_the_code_of_the_page_on_front_ends_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("numba_cuda", reason="needs the extra numba")
    monkeypatch.chdir(EXAMPLES.parent)
    page = (EXAMPLES.parent / "docs" / "other-front-ends.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "page.py"
    path.write_text("\n".join(blocks).replace("512x512x512", "64x64x64"), "utf-8")
    runpy.run_path(str(path))
    *verdicts, sectors, requests = capsys.readouterr().out.splitlines()
    assert {line.split()[-1] for line in verdicts} == {"ok"}
    assert float(sectors) == 2
    assert int(requests) == 2 * 128 * 128 * 128 // 32


def test_the_guide_quotes_the_example_as_it_is():
    guide = (EXAMPLES.parent / "docs" / "check-your-kernel-in-ci.md").read_text("utf-8")
    source = (EXAMPLES / "sgemm.cu").read_text("utf-8").split("\n")
    quoted = re.findall(r"^>? +(\d+) \| (.*)$", guide, re.MULTILINE)
    assert len(quoted) == 3
    assert all(source[int(number) - 1] == line for number, line in quoted)
    assert set(re.findall(r"sgemm\.cu:(\d+)", guide)) == {quoted[1][0]}


# How many results each script of the library compares with float64, and how often it says so.
LIBRARY = {
    "08_matmul.py": {"error": 8},
    "09_views.py": {"True": 7, "960 of 960": 1},
    "10_epilogues.py": {"error": 5},
    "11_batches_and_groups.py": {"error": 6},
    "12_small_network.py": {"difference": 1, "True": 1},
    "13_pytorch_layer.py": {"True": 4},
}


@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.sample(6)
def test_the_library_is_right_as_often_as_the_script_asks(run, name):
    if "torch" in name:
        pytest.importorskip("torch", reason="needs PyTorch")
    printed = run(name)
    for word, count in LIBRARY[name].items():
        assert printed.count(word) == count
    assert "False" not in printed
    errors = re.findall(r"(?:error|difference) (\S+)$", printed, re.MULTILINE)
    assert all(float(error) < 2e-5 for error in errors)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("01_uncoalesced.py", "numba", "numba"), ("13_pytorch_layer.py", "torch", "torch")],
)
def test_a_missing_extra_is_named_in_one_line(run, monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        SystemExit, match=rf"^this example needs .*: pip install 'gemmkit\[{extra}\]'$"
    ):
        run(name)


@pytest.mark.filterwarnings("ignore::gemmkit.errors.EmulationWarning")
def test_refinement_ends_at_the_roundoff_of_fp32_in_both_precisions(run):
    rows = re.findall(r"^ +\d  +(\S+)  +(\S+)$", run("15_linear_system.py"), re.MULTILINE)
    assert len(rows) == 7
    for history in zip(*rows, strict=True):
        first, *_, last = map(float, history)
        assert first > 1e-5
        assert last < 2.0**-24


@pytest.mark.filterwarnings("ignore::gemmkit.errors.EmulationWarning")
def test_smaller_parts_with_a_scale_are_more_exact(run):
    pytest.importorskip("ml_dtypes", reason="needs ml_dtypes")
    errors = re.findall(r"wrong by ([\d.]+)%$", run("16_fp8_scales.py"), re.MULTILINE)
    of_tensors, of_lines, of_blocks = map(float, errors)
    assert of_tensors > 50
    assert 2 * of_blocks < of_lines < 20


def test_the_kernel_in_ci_passes_its_own_tests():
    path = EXAMPLES / "14_kernel_in_ci.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "4 passed" in done.stdout, done.stdout


def test_every_example_is_run_here_and_listed_in_the_readme():
    others = {"06_check_your_own_kernel.py", "14_kernel_in_ci.py", "15_linear_system.py"}
    others.add("16_fp8_scales.py")
    assert {*FIGURES, *LIBRARY, *others} == set(NUMBERED)
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    for path in EXAMPLES.iterdir():
        if path.suffix in (".cu", ".ptx") or path.name in NUMBERED:
            assert f"[{path.name}]({path.name})" in readme
