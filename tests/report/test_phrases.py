"""Reports in Chinese: how sentences are matched, the catalog, and that pages leave nothing out."""

from __future__ import annotations

import re
import tomllib
from itertools import chain, permutations, product
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import chinese_pages
import msgspec
import pytest

from gemmkit.analysis.explain import derived, explain_facts, gather, remarks
from gemmkit.analysis.explain.explanation import Operand
from gemmkit.analysis.metric_list import metric_list
from gemmkit.analysis.trace import trace
from gemmkit.analysis.warp_time import Cause
from gemmkit.dtypes import ITEM_BYTES, RESULT_TYPES, types_text
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import LADDER, PRODUCTION, find_kernel
from gemmkit.kernels.kernel import Kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import ConditionsRecord, TimeRecord
from gemmkit.report.explain_text import _note, explanation_document, operand_table
from gemmkit.report.explain_views import explain_views
from gemmkit.report.page.html import HERE as PAGE
from gemmkit.report.page.html import to_html
from gemmkit.report.record_page import records_document
from gemmkit.report.tables import LeftOut, bench_table, ladder_table, sweep_table
from gemmkit.report.translation import CHINESE, HERE, Phrases, _ordered, _Template, phrases

BOARD = find_board("rtx3090")
FOREIGN = Path(__file__).parent.parent / "corpus" / "foreign"
IDEOGRAPH = r"[\u4e00-\u9fff]"
FULL_WIDTH = "，。：；（）、！？"
NAMES = re.compile(r"\{(\w+)\}")
CATALOG = {
    path.name: tomllib.loads(path.read_text("utf-8")) for path in HERE.glob(f"{CHINESE}*.toml")
}
ENTRIES = [
    (section, english, said)
    for catalog in CATALOG.values()
    for section, entries in catalog.items()
    for english, said in entries.items()
]


# --- how sentences are matched -------------------------------------------------------------------


def made(sentences, parts=()):
    """Phrases of these templates."""
    whole, pieces = (
        [_Template(*each) for each in dict(given).items()] for given in (sentences, parts)
    )
    return Phrases("x", {}, _ordered(whole), _ordered([*pieces, *whole]))


SOME = made(
    {
        "It takes {n} µs": "用时 {n} µs",
        "{kernel} is {speed}": "{kernel} {speed}",
        "Use `{name}`": "使用 `{name}`",
        "Limited by {what}": "受限于 {what}",
        "{n} of them ({where}): {why}": "其中 {n} 个（{where}）：{why}",
        "row": "行",
    },
    {
        "fast": "很快",
        "row": "一行",
        "{a}; {b}": "{a}；{b}",
        "{a} and {b}": "{a}和{b}",
        "the bias": "偏置",
        "warps": "warp",
        "a scan (in fp32)": "扫描（fp32）",
    },
)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("It takes 1,024.5 µs", "用时 1,024.5 µs"),
        ("It takes −3.2e-05 µs.", "用时 −3.2e-05 µs。"),
        ("my_kernel<fast, 2> is fast", "my_kernel<fast, 2> 很快"),
        # A space beside Latin letters, and none beside Chinese.
        ("Limited by the bias", "受限于偏置"),
        ("Limited by warps and the bias", "受限于 warp 和偏置"),
        ("Limited by A", "受限于 A"),
        ("Use `a; b is fast`", "使用 `a; b is fast`"),
        ("It takes 3 µs. Limited by the bias. Use `x`.", "用时 3 µs。受限于偏置。使用 `x`。"),
        # Parentheses stay together: the semicolon inside does not part the clauses.
        ("3 of them (a scan (in fp32)): A; the bias", "其中 3 个（扫描（fp32））：A；偏置"),
        ("64x64x32: Limited by the bias", "64x64x32：受限于偏置"),
        ("row", "行"),
        ("Limited by row", "受限于一行"),
    ],
)
def test_names_are_kept_and_parts_are_translated(english, chinese):
    assert SOME.say(english) == chinese
    assert english not in SOME.untranslated


@pytest.mark.parametrize(
    "text",
    [
        "It takes long",
        "It takes 3 µs to start",
        # What is in braces is no name but prose that has no translation.
        "Limited by some other thing",
        "the clock: some other thing",
    ],
)
def test_what_has_no_template_stays_english(text):
    fresh = made({"It takes {n} µs": "用时 {n} µs", "Limited by {what}": "受限于 {what}"})
    assert fresh.say(text) == text
    assert list(fresh.untranslated) == [text]


def test_nothing_in_braces_goes_on_into_another_sentence():
    text = "Use `x`. Nobody knows `y`."
    assert SOME.say(text) == "使用 `x`。Nobody knows `y`."
    assert SOME.say("a.b is fast. Use `vs. X`.") == "a.b 很快。使用 `vs. X`。"
    assert made({"{name} is wrong": "{name} 错误"}).say("A. B is wrong") == "A. B 错误"


def test_a_label_is_one_of_a_list():
    lists = made(
        {"In all rows: {what}": "各行：{what}", "{what} are fast": "{what}很快"},
        {
            "driver {label}": "驱动 {label}",
            "compiler {label}": "编译器 {label}",
            "loads of {label}": "对 {label} 的加载",
            "{a}; {b}": "{a}；{b}",
            "{a}, {b}": "{a}、{b}",
            "{a} and {b}": "{a}和{b}",
        },
    )
    assert lists.say("In all rows: driver 580; compiler NVRTC 13") == (
        "各行：驱动 580；编译器 NVRTC 13"
    )
    assert lists.say("loads of A, loads of B and loads of C are fast") == (
        "对 A 的加载、对 B 的加载和对 C 的加载很快"
    )


def test_every_string_of_data_is_said():
    data = {"row": ["It takes 3 µs", {"at": "1"}], "counts": [1, 2]}
    assert SOME.strings(data) == {"row": "行", "It takes 3 µs": "用时 3 µs"}


def test_english_is_said_as_it_is():
    assert phrases("en").say("Limited by the bias. Row") == "Limited by the bias. Row"


# --- the catalog ---------------------------------------------------------------------------------


def test_each_template_is_there_once():
    keys = [(section, english) for section, english, _ in ENTRIES]
    assert len(keys) == len(set(keys))
    shapes = [
        (section, re.sub(r"\{(\w+?)\d*\}", _shape, english).removesuffix("."))
        for section, english, _ in ENTRIES
        if section != "page"
    ]
    assert [each for each in shapes if shapes.count(each) > 1] == []


def _shape(name):
    return (
        f"<{name[1]}>" if name[1] in ("n", "kernel", "label", "name", "site", "xyz") else "<part>"
    )


def test_a_translation_has_the_names_of_its_template():
    for _, english, said in ENTRIES:
        assert set(NAMES.findall(english)) == set(NAMES.findall(said)), english


def test_chinese_is_set_as_chinese():
    for _, english, said in ENTRIES:
        ends = {".": "。", ":": "："}
        assert said[-1] == ends.get(english[-1], said[-1]), english
        assert said[-1] not in "。：" or english[-1] in ".:", english
        assert not re.search(f"{IDEOGRAPH}[,;:!?]|[,;:!?]{IDEOGRAPH}", said), said
        # Latin letters and numbers have spaces around them; nothing else has.
        latin = r"(?:[A-Za-z0-9]|\{n\d*\})"
        assert not re.search(f"{IDEOGRAPH}{latin}|{latin}{IDEOGRAPH}", said), said
        assert not re.search(f"[{FULL_WIDTH}] | [{FULL_WIDTH}]|{IDEOGRAPH} {IDEOGRAPH}", said), said


def test_a_template_is_matched_by_what_it_stands_for():
    catalog = phrases(CHINESE)
    values = {"n": "7", "xyz": "(0, 1, 2)", "site": "own.cu:3", "kernel": "own<2>", "name": "A[1]"}
    for section, english, _ in ENTRIES:
        if section != "sentences":
            continue
        text = NAMES.sub(lambda name: values.get(name[1].rstrip("0123456789"), "Q"), english)
        said = catalog.say(text)
        assert said != text or not re.search("[a-z]{3} [a-z]{3}", text), text


@pytest.mark.parametrize(
    ("name", "problem", "chinese"),
    [
        ("gemm_skinny", GemmProblem(64, 8, 64), "启动只有 1 个流水级，而不是配置中的 2 个"),
        (
            "gemm_wgmma",
            GemmProblem(512, 512, 512, dtype="bfloat16", beta=1.0),
            "启动只有 3 个流水级，而不是配置中的 4 个",
        ),
    ],
)
def test_why_a_launch_has_fewer_stages_is_said(name, problem, chinese):
    kernel = find_kernel(name)
    plan = kernel.plan(problem, kernel.default, find_board("h100"))
    facts = SimpleNamespace(plan=plan, config=kernel.default)
    (sentence,) = remarks._stages(facts, {derived.STAGES: plan.fewer_stages.number})
    catalog = phrases(CHINESE)
    said = catalog.say(sentence.text)
    assert said.startswith(chinese)
    assert not re.search("[a-z]{3} [a-z]{3}", said)


# --- what the scripts of a page say --------------------------------------------------------------

_STRING = r'"((?:[^"\\\n]|\\.)*)"'


def _strings(text):
    """The strings in a piece of a script; those joined by + are one."""
    whole = re.sub(r'"\s*\+\s*"', "", text)
    return [each.replace("\\u00a0", "\u00a0") for each in re.findall(_STRING, whole)]


def _said(script):
    """The first argument of each call of `say`."""
    for call in re.finditer(r"\bsay\(", script):
        depth, quoted, end = 0, "", call.end()
        while end < len(script):
            letter = script[end]
            if quoted:
                quoted = "" if letter == quoted else quoted
            elif letter in '"`':
                quoted = letter
            elif letter in "([{":
                depth += 1
            elif (letter in ")]}" or letter == ",") and not depth:
                break
            elif letter in ")]}":
                depth -= 1
            end += 1
        # What is compared with is not said.
        yield re.sub(rf"[!=]== *{_STRING}", "", script[call.end() : end])


def test_the_catalog_has_what_scripts_say_and_nothing_else():
    page = set(CATALOG[f"{CHINESE}.toml"]["page"])
    scripts = [path.read_text("utf-8") for path in (PAGE / "script").glob("*.js")]
    nouns = chain.from_iterable(re.findall(r'\bseveral\([^"]*"(\w+)"\)', each) for each in scripts)
    counted = {f"{{n}} {noun}{end}" for noun in nouns for end in ("", "s")}
    said = {text for each in scripts for call in _said(each) for text in _strings(call)}
    assert said | counted <= page
    # Others are said by a variable: they are strings of the scripts, or names of properties.
    written = {text for each in scripts for text in _strings(each)}
    named = {name for each in scripts for name in re.findall(r"\b(\w+):", each)}
    assert page <= written | counted | named
    assert {each for each in written if NAMES.search(each)} <= page


# --- nothing on a page is left in English --------------------------------------------------------


@pytest.fixture(autouse=True)
def untranslated():
    """Prose that had no translation in this test."""
    found = phrases(CHINESE).untranslated
    found.clear()
    yield found
    found.clear()


def test_explanations_are_translated(tmp_path, untranslated):
    own, problem = chinese_pages.own_kernel(tmp_path, "race"), GemmProblem(32, 32, 32)
    both = [
        gather(kernel, kernel.lay_out(problem), BOARD) for kernel in (own, find_kernel("naive"))
    ]
    traces = [trace(each.kernel, each.problem, BOARD) for each in both]
    for count in (1, 2):
        told = explain_facts(*both[:count])
        to_html(explanation_document(told, explain_views(told, both[:count], traces[:count])))
        assert list(untranslated) == []


def test_explanations_of_kernels_for_tensor_cores_are_translated(untranslated):
    kernel = Kernel.from_file(FOREIGN / "ldmatrix_swizzled.cu", grid="N/32,M/64", block="128")
    problem = kernel.lay_out(GemmProblem(64, 32, 32, dtype="bfloat16"))
    facts = gather(kernel, problem, find_board("h100"))
    told = explain_facts(facts)
    traces = [trace(facts.kernel, facts.problem, facts.gpu)]
    to_html(explanation_document(told, explain_views(told, [facts], traces)))
    # The user's own words.
    assert [each for each in untranslated if each != kernel.idea] == []


@pytest.mark.parametrize("kind", ["load", "store"])
def test_merged_accesses_are_translated(kind):
    figures = dict.fromkeys(
        ("data_bytes", "sectors", "ideal_sectors", "tag_wavefronts", "wavefronts"), 1.0
    )
    for array in ("As", "shared memory"):
        operand = Operand(
            array=array, space="shared", kind=kind, requests=1920, instructions=768,
            ideal_wavefronts=1.0, **figures,
        )  # fmt: skip
        table = operand_table(SimpleNamespace(kernel="own", operands=[operand]))
        (said,) = phrases(CHINESE).table(table).footnotes
        assert re.search(f"{IDEOGRAPH}.* 1,920 .* 768 ", said), said
        assert "shared" not in said


def test_waits_and_types_are_translated():
    catalog = phrases(CHINESE)
    for causes in permutations(get_args(Cause), 3):
        said = catalog.say(", ".join(f"{cause} 7 %" for cause in causes))
        assert not re.search(r"loads|barrier|instructions|7%", said), said
    for types in product(ITEM_BYTES, RESULT_TYPES):
        text = types_text(*types)
        assert " to " not in catalog.say(text), text


@pytest.mark.parametrize("entry", chinese_pages.BUGS)
def test_findings_are_translated(tmp_path, untranslated, entry):
    document = chinese_pages.findings_page(tmp_path, entry)
    text = to_html(document)
    assert list(untranslated) == []
    assert "算例" in text
    titles = [section.title for section in document.sections]
    assert titles[0] == "Findings"


def test_records_are_translated(make_record, untranslated):
    times = TimeRecord(median=9, p20=9, p80=9, minimum=9, mean=9, maximum=9, samples=5)
    readings = ConditionsRecord(
        sm_clock_mhz=1755.0,
        sm_clock_min_mhz=1700.0,
        sm_clock_max_mhz=1800.0,
        power_watts=300.0,
        temperature_c=50.0,
        samples=3,
    )
    idea = find_kernel("naive").idea
    counted = [make_record(idea=idea), make_record(kernel="mine", idea="", correct=False)]
    timed = [
        msgspec.structs.replace(each, time_us=times, tflops=50.0, conditions=readings)
        for each in counted
    ]
    problem = GemmProblem(64, 64, 64, batch=2)
    refused = [
        LeftOut(each.name, each.rung, reason)
        for each in LADDER
        if (reason := each.supports(problem, each.default, BOARD)) is not None
    ]
    assert refused
    for records in (counted, timed):
        tables = [ladder_table(records, refused), bench_table(records), sweep_table(records)]
        to_html(records_document(tables, records, ended=False))
    assert list(untranslated) == []


def test_ideas_and_metrics_are_translated(untranslated):
    catalog = phrases(CHINESE)
    for each in (*LADDER, *PRODUCTION):
        catalog.say(each.idea)
    for metric in metric_list():
        catalog.say(metric.description)
    assert list(untranslated) == []


def test_a_figure_of_one_kernel_is_said_of_that_one():
    reason = "the size of the board decides which blocks share a tile and read partial sums"
    two = SimpleNamespace(kernel="stream_k", against=SimpleNamespace(kernel="split_k"))
    notes = [
        _note("No formula for loads", values, two)
        for values in ([reason, None], [reason, "k is short"], [reason, reason])
    ]
    assert notes == [
        f"No formula for loads: stream_k: {reason}.",
        f"No formula for loads: stream_k: {reason}; split_k: k is short.",
        f"No formula for loads: {reason} (both kernels).",
    ]
    chinese = phrases(CHINESE).say(reason)
    assert phrases(CHINESE).say(notes[0]) == f"加载次数没有公式：stream_k：{chinese}。"
    assert phrases(CHINESE).say(notes[2]) == f"加载次数没有公式：{chinese}（两个核函数相同）。"
    limit = _note("Limited by", ["warps", "registers"], two)
    assert limit == "Limited by: stream_k: warps; split_k: registers."
    assert phrases(CHINESE).say(limit) == "受限于：stream_k：warp；split_k：寄存器。"
