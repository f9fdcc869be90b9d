"""The page of an explanation: one file, nothing from outside, drawn by a browser without errors."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from gemmkit.analysis.explain import explain_facts, gather
from gemmkit.analysis.occupancy import launch_resources, occupancy
from gemmkit.analysis.trace import trace
from gemmkit.error_histogram import ErrorHistogram
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.record import ConditionsRecord, TimeRecord
from gemmkit.report.document import Document, Prose, Remark, Remarks, Section, View
from gemmkit.report.explain_text import explanation_document
from gemmkit.report.explain_views import explain_views
from gemmkit.report.layout import Cell, Column, Row, Table
from gemmkit.report.page import html
from gemmkit.report.page.html import to_html
from gemmkit.report.record_page import figures_view, records_document
from gemmkit.report.tables import ladder_table
from gemmkit.report.views.occupancy import occupancy_view
from gemmkit.report.views.roofline import roofline_views

BOARD = find_board("rtx3090")
TABLE = Table("Figures", (Column("name", "left"), Column("value")), (Row((Cell("a"), Cell("1"))),))


class Elements(HTMLParser):
    """What a page refers to, its identifiers, and elements that are left open."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.ids, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found[key] for key in ("href", "src") if key in found]
        self.ids += [found["id"]] if "id" in found else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_whole_and_needs_nothing_from_outside(page):
    seen = Elements(page)
    assert not seen.open
    assert len(set(seen.ids)) == len(seen.ids)
    assert {each[1:] for each in seen.links if each.startswith("#")} <= set(seen.ids)
    assert all(each.startswith("#") for each in seen.links)
    assert set(re.findall(r"https?://[^\s\"']+", page)) <= {"http://www.w3.org/2000/svg"}
    assert len(page.encode()) < 500_000


def test_remarks_have_a_word_and_links_that_need_no_scripts(page):
    items = re.findall(r'<li class="(bad|good)">\s*<p><strong class="(\w+)">(.*?)</strong>', page)
    assert {first for first, _, _ in items} == {"bad", "good"}
    for first, second, word in items:
        assert first == second
        assert {"bad": "Issue:", "good": "Good:"}[first] in word
    link = r'<a href="#source-counters" data-place="([^"]+:\d+)" data-side="0"><code>([^<]+)</code>'
    places = re.findall(link, page)
    assert places
    assert all(place == text for place, text in places)


def test_a_remark_as_text_has_its_word_and_its_places():
    remark = Remark("It is slow.", ("metric: 1",), "bad", ("a.cu:3", "b.cuh:4"))
    text = Document("", (), (Section("S", (Remarks((remark,)),)),)).to_text().plain
    assert "- Issue: It is slow.\n    at a.cu:3, b.cuh:4\n    metric: 1\n" in text


def test_what_leads_comes_first_on_a_page_and_last_in_a_terminal(page, facts):
    titles = re.findall(r"<h2[^>]*>(?:<span lang=.en.>)?([^<]+)<", page)
    assert titles[0].startswith("Summary of")
    assert titles[1] == "vectorized vs. conflict_free"
    assert {"Source Counters", "Accesses of a warp", "Roofline"} <= set(titles)
    text = explanation_document(explain_facts(*facts)).to_text().plain
    assert text.index("Source Counters") < text.index("Summary of vectorized")


def test_the_data_of_a_page_is_the_explanation(page, facts):
    (embedded,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.S
    )
    data = json.loads(embedded)
    assert data["document"]["kernel"] == "vectorized"
    assert data["document"]["against"]["kernel"] == "conflict_free"
    kinds = [each["kind"] for each in data["views"]]
    pairs = ("source", "accesses", "shared", "tiles", "raster", "occupancy")
    paired = [kind for kind in pairs for _ in range(2)]
    assert sorted(kinds) == sorted([*paired, "roofline", "errors", "timeline"])
    assert [each["side"] for each in data["views"] if each["kind"] in paired] == [0, 1] * len(pairs)
    accesses, tiles = (
        next(each["data"] for each in data["views"] if each["kind"] == kind)
        for kind in ("accesses", "tiles")
    )
    stores = [each for each in accesses["accesses"] if each["name"].startswith("store of As")]
    tile = tiles["tiles"][2]
    assert (tile["array"], len(tile["rows"]), tile["columns"]) == ("C", 128, 128)
    assert all(sum(line[1::2]) == 128 for line in tile["rows"])
    # Four lanes meet in each bank: a row of the map for each of their wavefronts.
    assert [len(each["rows"]) for each in stores] == [4]
    assert stores[0]["worse"]


def test_kernels_of_different_pipes_have_rooflines_of_their_own():
    problem = GemmProblem(128, 128, 64, dtype="float16")
    both = [gather(find_kernel(name), problem, BOARD) for name in ("typed", "typed_mma")]
    seen = [each.data for each in roofline_views(both)]
    assert [each["points"][0]["label"] for each in seen] == ["typed", "typed_mma"]
    assert seen[0]["peak"] < seen[1]["peak"]
    for each in seen:
        assert all(point["tflops"] <= each["peak"] for point in each["points"])


@pytest.mark.parametrize(
    ("board", "others"),
    [
        ("t4", ["fp64", "fp16 tensor core"]),
        ("rtx3090", ["fp64", *(f"{each} tensor core" for each in ("fp16", "bf16", "TF32"))]),
        (
            "h100",
            ["fp64", *(f"{each} tensor core" for each in ("fp16", "bf16", "TF32", "fp8", "fp64"))],
        ),
    ],
)
@pytest.mark.sample(2)
def test_a_roofline_has_the_peaks_of_other_pipes_of_the_board(board, others):
    spec = find_board(board)
    (view,) = roofline_views([gather(find_kernel("naive"), GemmProblem(64, 64, 64), spec)])
    assert [each["pipe"] for each in view.data["pipes"]] == ["fp32", *others]
    assert view.data["pipes"][0]["peak"] == view.data["peak"] == spec.peak_tflops


# Labels that stand over each other, with the level that is shown, and the dashed lines.
LABELS = """
const pipe = document.querySelector("select[id^=pipe]");
const dashed = () => document.querySelectorAll("#roofline line[stroke-dasharray]").length;
const before = dashed();
pipe.value = "all";
pipe.dispatchEvent(new Event("change"));
const labels = [...document.querySelectorAll("#roofline text.onstage:not([transform])")];
const over = (one, other) => {
  const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
  const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  return across > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
};
document.title = JSON.stringify([
  before, dashed(), labels.map((each) => each.textContent),
  labels.flatMap((one, at) => labels.slice(at + 1).filter((other) => over(one, other)))
    .map((each) => each.textContent),
]);
"""


def test_labels_of_a_roofline_stay_apart_and_precisions_add_roofs(page, browse):
    before, after, labels, over = json.loads(browse(page, LABELS))
    # The slope of each level goes on to the highest peak; three heights besides that of fp32.
    assert (before, after) == (0, 3 + 2)
    assert over == []
    named = [f"{name}, {level}" for level in ("DRAM", "L2") for name in ("vectorized",)]
    assert set(named) <= set(labels)
    assert "fp16 tensor core, bf16 tensor core, 71.16 TFLOP/s" in labels


def test_the_first_figure_differs_between_kernels(make_record):
    sectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
    first = make_record()
    other = make_record(kernel="mine", counters={**first.counters, sectors: 1})
    assert figures_view([first, other]).data["first"] == sectors
    timed = make_record(tflops=1.0)
    assert figures_view([other, timed]).data["first"] == "TFLOP/s"
    assert figures_view([first]).data["first"] in figures_view([first]).data["about"]


def test_sizes_of_a_sweep_are_curves(make_record, browse):
    larger = msgspec.structs.replace(make_record().problem, m=128, n=128, k=128)
    records = [
        make_record(kernel=kernel, problem=problem)
        for problem in (make_record().problem, larger)
        for kernel in ("naive", "mine")
    ]
    assert [row["size"] for row in figures_view(records).data["rows"]] == pytest.approx(
        [64, 64, 128, 128]
    )
    text = to_html(records_document([ladder_table(records)], records))
    count = "document.title = document.querySelectorAll('#figures polyline').length"
    assert browse(text, count) == "2"
    assert browse(to_html(records_document([ladder_table(records)], records[:2])), count) == "0"


def test_occupancy_on_a_page_has_the_limit_of_barriers(facts):
    data = occupancy_view(facts[0], "mine").data
    assert data["barriers"] == facts[0].occupancy.limits["barriers"]
    assert data["registers"][-1] == BOARD.capability.max_registers_per_thread


def test_text_cannot_break_out_of_a_page():
    hostile = "</script><script>alert(1)</script><b>&"
    section = Section(
        hostile,
        (
            Prose(hostile),
            Remarks((Remark(hostile, (hostile,)),)),
            Table(
                hostile, (Column(hostile, "left"),), (Row((Cell(hostile),), hostile),), (hostile,)
            ),
            View("source", {"lines": [], "told": hostile}),
        ),
    )
    text = to_html(Document(hostile, (Prose(hostile),), (section,), {"told": hostile}))
    assert "alert(1)</script>" not in text
    assert "<b>" not in text
    assert not Elements(text).open


def test_each_kind_of_view_has_a_script_that_a_page_with_it_carries():
    for path in (Path(html.__file__).parent / "script").glob("*.js"):
        if path.stem in ("common", "page"):
            continue
        view = View(path.stem, {})
        document = Document("", (), (Section("", (view,)),))
        assert f"views.{path.stem} = function {path.stem}(view" in to_html(document)
        assert to_html(Document("", (), ())).count("views.") == 0


def test_a_document_as_text():
    section = Section("Findings", (Remarks((Remark("It waits.", ("stall: 3",)),)), TABLE))
    told = Document("Title", (Prose("Lead."),), (section, Section("Figures", (TABLE,)))).to_text()
    assert told.plain.startswith(
        "Title\n\nLead.\n\nFindings\n\n- It waits.\n    stall: 3\n\nFigures\n"
    )
    assert told.plain.count("Figures") == 2


# What a reader does, one thing after the other; errors and what is seen go into the title.
READER = """
const seen = [];
addEventListener("error", (event) => seen.push("error " + event.message));
const all = (selector) => [...document.querySelectorAll(selector)];
seen.push(`pictures ${all("[data-view] svg[aria-label]").length}`);
const line = all(".source button").find((each) => each.textContent === "LINE");
line.click();
seen.push(`chosen ${all(".source tr.chosen").length}`);
const shown = all(".beside > :first-child .pick:not([hidden])");
seen.push(`requests ${shown.every((each) => each.textContent.includes("LINE"))}`);
const level = document.querySelector("select[id^=level]");
level.value = "DRAM";
level.dispatchEvent(new Event("change"));
seen.push(`roofs ${all("polyline").length}`);
const result = document.querySelector("[id^=what-if] p[aria-live]");
const canvas = document.querySelector("canvas[aria-label^='C,']");
const box = canvas.getBoundingClientRect();
const corner = { clientX: box.left + 1, clientY: box.top + 1 };
canvas.dispatchEvent(new PointerEvent("pointermove", corner));
seen.push(document.querySelector("[id^=tiles] p[aria-live]").textContent);
const words = document.querySelector("canvas[aria-label^='As (A)']");
for (const key of ["ArrowDown", "ArrowRight"]) {
  words.dispatchEvent(new KeyboardEvent("keydown", { key }));
}
seen.push(document.querySelector("[id^=shared] p[aria-live]").textContent);
const before = words.toDataURL();
all(".pick").filter((each) => each.textContent.startsWith("load of As"))[0].click();
seen.push(`outlined ${words.toDataURL() !== before}`);
all(".pick").find((each) => each.textContent.startsWith("load of Bs")).click();
seen.push(words.getAttribute("aria-label").slice(0, 6));
const wave = document.querySelector("[id^=order] [aria-live]");
seen.push(wave.textContent);
seen.push(result.textContent);
const threads = document.querySelector("input[id^=warps]");
threads.value = 31;
threads.dispatchEvent(new Event("input"));
seen.push(result.textContent);
const time = document.querySelector("input[id^=time]");
const stages = document.querySelector(".walk p[aria-live]");
const button = (text) => all("button").find((each) => each.textContent === text);
time.value = 0;
time.dispatchEvent(new Event("input"));
for (let left = 12; left && !stages.textContent.includes("multiply"); left -= 1) {
  button("Next stage").click();
}
seen.push(stages.textContent.replace(/^[^,]*, /, "").replace(/[0-9]+\\s%/, "some of it"));
button("Play").click();
seen.push(`while playing ${stages.getAttribute("aria-live")}`);
button("Pause").click();
seen.push(`then ${stages.getAttribute("aria-live")}`);
time.value = time.max;
time.dispatchEvent(new Event("input"));
seen.push(stages.textContent.replace(/^.*: /, ""));
document.getElementById("theme").click();
seen.push(`theme ${document.documentElement.dataset.theme}`);
document.title = seen.join("; ");
"""


@pytest.fixture
def browse(browser):
    """Opens a page, runs a script in it, and returns the title that the script sets."""

    def open_page(page, script, width=1000):
        browser.open(page, width=width)
        browser.run(f"{{{script}}}")
        return browser.run("document.title")

    return open_page


def test_a_browser_draws_the_views_and_ties_them_together(page, facts, browse):
    line = re.search(r'"name":"store of As: [^"]* at ([^"]+)"', page)
    assert line is not None
    title = browse(page, READER.replace("LINE", line[1]))
    taken = launch_resources(facts[0].plan, facts[0].binary)
    as_it_is, with_more = (
        occupancy(BOARD, **taken | {"threads": threads}) for threads in (taken["threads"], 1024)
    )
    assert title.split("; ") == [
        "pictures 10",
        "chosen 1",
        "requests true",
        "roofs 1",
        "C[0][0]: thread 0, lane 0 of warp 0.",
        # A is transposed there: a line of 32 words down, and one to the right.
        "Word 33 of As, bank 1: A[33][0]",
        "outlined true",
        "Bs (B)",
        "Block 0 reads 32 KiB of A and 32 KiB of B, 64 KiB in all. Row by row it would be "
        "64 KiB, as square as possible 64 KiB. All of it fits in the L2 (6 MiB).",
        *map(told, (as_it_is, with_more)),
        "iteration 0: multiply tile 0 (multiply-adds issue some of it of this time).",
        "while playing off",
        "then polite",
        "the block has ended.",
        "theme dark",
    ]


# A line of the first kernel is chosen; what each side then shows, and where the sides stand.
CHOOSER = """
const sides = [...document.querySelectorAll(".beside")].map((each) => [...each.children]);
const [sources, accesses] = sides;
const texts = (place, what) => [...place.querySelectorAll(what)].map((each) => each.textContent);
const shown = (side) => texts(accesses[side], ".pick:not([hidden])");
const before = shown(1);
const lines = [...sources[0].querySelectorAll(".source button")];
lines.find((each) => each.textContent === "LINE").click();
const same = texts(sources[1], ".source button").includes("LINE");
const tops = sides.map(([left, right]) => left.offsetTop === right.offsetTop);
document.title = JSON.stringify({
  names: sources.map((each) => texts(each, "h3")[0]),
  headings: sides.map((pair) => pair.map((each) => texts(each, "h3")[0].split(" ")[0])),
  same, own: shown(0).length && shown(0).every((each) => each.endsWith("LINE")),
  kept: JSON.stringify(shown(1)) === JSON.stringify(before),
  chosen: sources.map((each) => each.querySelectorAll(".chosen").length), columns: tops,
});
"""


@pytest.mark.parametrize(("width", "columns"), [(1400, True), (800, False)])
def test_two_configurations_side_by_side_are_linked_each_within_itself(
    configurations, browse, width, columns
):
    line = re.search(r'"name":"load of A: [^"]* at ([^"]+)"', configurations)
    assert line is not None
    seen = json.loads(browse(configurations, CHOOSER.replace("LINE", line[1]), width))
    assert seen["names"] == ["coarsening_1d:TM=8", "coarsening_1d:TM=1"]
    assert seen["headings"] == [seen["names"]] * 6
    assert (seen["same"], seen["own"], seen["kept"]) == (True, True, True)
    assert seen["chosen"] == [1, 0]
    assert seen["columns"] == [columns] * 6


@pytest.fixture(scope="module")
def configurations():
    kernel, problem = find_kernel("coarsening_1d"), GemmProblem(64, 64, 32)
    both = [
        gather(kernel, problem, BOARD, config=kernel.configure({"stride": stride}))
        for stride in (8, 1)
    ]
    traces = [trace(kernel, problem, BOARD, config=each.config) for each in both]
    explained = explain_facts(*both)
    return to_html(explanation_document(explained, explain_views(explained, both, traces)))


def told(seen):
    """Occupancy as the page says it."""
    share = f"{100 * seen.theoretical:.4g}"
    return (
        f"{share} % occupancy: {seen.blocks_per_sm} blocks of {seen.warps_per_block} warps per SM, "
        f"limited by {seen.limiter}."
    )


def test_a_page_of_records_has_their_tables_and_every_figure(make_record):
    slow, fast = make_record(kernel="naive"), make_record(kernel="gemm_tiled")
    counters = {"sm__sass_thread_inst_executed_op_ffma_pred_on.sum": 7.0}
    fast = msgspec.structs.replace(fast, counters=counters, correct=False)
    document = records_document([ladder_table([slow, fast])], [slow, fast], ended=False)
    text = to_html(document)
    assert not Elements(text).open
    assert "Stopped early" in text
    view = figures_view([slow, fast]).data
    assert [row["label"] for row in view["rows"]] == ["naive", "gemm_tiled (wrong result)"]
    assert view["rows"][1]["figures"].items() >= counters.items()
    assert all(set(row["figures"]) <= set(view["about"]) for row in view["rows"])
    assert document.data[0]["kernel"] == "naive"
    assert len(re.findall(r'<div class="view"', text)) == 1


# The histograms of all problems together, then of the second alone; and the first bar's label.
PROBLEMS = """
const errors = [...document.querySelectorAll(".view")].at(-1);
const bars = (fill) => errors.querySelectorAll(`rect[fill="var(--${fill})"]`).length;
const strips = () => [...errors.querySelectorAll("text:not(.small)")].filter(
  (each) => each.getAttribute("text-anchor") === "end").map((each) => each.textContent);
const seen = [[strips(), bars("accent"), bars("bad"), bars("good")]];
const pick = errors.querySelector("select");
pick.value = [...pick.options].at(-1).value;
pick.dispatchEvent(new Event("change"));
seen.push([strips(), bars("accent"), bars("bad"), bars("good")]);
const form = document.querySelector("select[id^=form]");
form.value = "bars";
form.dispatchEvent(new Event("change"));
const figures = document.querySelector("#figures svg").textContent;
document.title = JSON.stringify([seen, figures.includes("50 at 1,755 MHz")]);
"""


def test_histograms_of_one_problem_can_be_picked_and_bars_tell_the_clock(make_record, browse):
    times = TimeRecord(median=9, p20=9, p80=9, minimum=9, mean=9, maximum=9, samples=5)
    readings = ConditionsRecord(
        sm_clock_mhz=1755.0,
        sm_clock_min_mhz=None,
        sm_clock_max_mhz=None,
        power_watts=None,
        temperature_c=None,
        samples=3,
    )
    right = ErrorHistogram(exact=9, first=-6, counts=(50, 41))
    wrong = ErrorHistogram(exact=0, first=-1, counts=(90, 7), beyond=3)
    larger = msgspec.structs.replace(make_record().problem, m=128)
    records = [
        make_record(errors=right, time_us=times, tflops=50.0, conditions=readings),
        make_record(errors=right, kernel="mine"),
        make_record(errors=wrong, kernel="mine", problem=larger),
    ]
    seen, told = json.loads(
        browse(to_html(records_document([ladder_table(records)], records)), PROBLEMS)
    )
    # Two bins of each kernel, and one of the wrong result; what is wrong in two bars more.
    assert seen[0] == [["naive", "mine"], 5, 2, 2]
    assert seen[1] == [["mine"], 1, 2, 0]
    assert told


def test_backquotes_are_code_and_stay_harmless():
    document = Document("x", (Prose("run `a <b>` and <i>"),), ())
    assert "run <code>a &lt;b&gt;</code> and &lt;i&gt;" in to_html(document)
