"""Pages in a browser in Chinese: what stays in Latin letters, and the way back to English."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import chinese_pages
import pytest

from gemmkit.analysis.explain import explain_facts, gather
from gemmkit.analysis.trace import trace
from gemmkit.gpu import find_board
from gemmkit.kernels.catalog import find_kernel
from gemmkit.problem import GemmProblem
from gemmkit.report.explain_text import explanation_document
from gemmkit.report.explain_views import explain_views
from gemmkit.report.page.html import to_html

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BOARD = find_board("rtx3090")

# Words that Chinese GPU engineers write in English, and the names of what the pages show.
KEPT = {"warp", "lane", "bank", "wavefront", "tag", "word", "phase", "cp", "async"}
KEPT |= {"float", "normal", "race", "bounds", "naive", "memcheck", "racecheck", "initcheck"}
# Nsight Compute's names of its sections, and other proper names.
KEPT |= {"Speed", "Of", "Light", "Memory", "Workload", "Analysis", "Launch", "Statistics"}
KEPT |= {"English", "Chrome", "Perfetto", "Nsight", "Compute", "gemmkit", "check", "As", "Bs"}
KEPT |= {"ptxas", "trace", "mod", "nan", "Tensor", "Core"}

HEAD = """
const problems = [];
addEventListener("error", (event) => problems.push(event.message));
console.error = (...what) => problems.push(what.join(" "));
"""
# Visible text, and that of attributes, outside of code.
TEXTS = """
const all = (selector) => [...document.querySelectorAll(selector)];
const CODE = "script, style, code, pre, [translate=no], td[title], .source td:first-child";
function texts() {
  const found = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const place = node.parentElement;
    if (!place.closest(CODE) && place.checkVisibility()) found.add(node.textContent.trim());
  }
  for (const each of all("[aria-label]")) found.add(each.getAttribute("aria-label"));
  for (const each of all(":not(td)[title]")) found.add(each.title);
  return [...found];
}
const drawn = () => all("[data-view]").map((each) => each.querySelectorAll("*").length);
const choices = () => all("select").map((each) => [...each.options].map((one) => one.value));
const labels = () => all("option").map((each) => each.textContent);
const opened = () => all("details").forEach((each) => { each.open = true; });
const seen = () => (opened(), {
  lang: root.lang, title: document.title, texts: texts(), drawn: drawn(), choices: choices(),
  labels: labels(), body: document.body.innerHTML, button: button.textContent,
});
const root = document.documentElement, button = document.getElementById("language");
// Buttons and fields do something, and links lead to sections.
function used() {
  for (const each of all("select")) {
    each.selectedIndex = each.options.length - 1;
    each.dispatchEvent(new Event("change"));
  }
  for (const each of all("input[type=range]")) {
    each.value = each.max;
    each.dispatchEvent(new Event("input"));
  }
  for (const each of all(".source button, .pick")) each.click();
  return all("nav a").map((each) => {
    each.click();
    return location.hash === each.getAttribute("href") && all(location.hash).length === 1;
  });
}
"""
# The page as it opens, after a press, after another, and after use.
SWITCHED = (
    TEXTS
    + """
const first = seen();
button.click();
const second = seen();
button.click();
const third = seen();
button.click();
const links = used();
opened();
const left = texts();
tell({ first, second, third, links, left, problems });
"""
)
OPENED = TEXTS + "tell({ first: seen(), preferred: navigator.language, problems });"


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """Opens a page in a browser of a language, and returns what a script at its end tells."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("needs Chromium")
    folder = tmp_path_factory.mktemp("browser")
    end = """
function tell(what) {
  const made = document.createElement("pre");
  made.id = "told";
  made.textContent = JSON.stringify(what);
  document.body.append(made);
}
"""

    def open_page(page, script, language="en-US"):
        file = folder / "page.html"
        page = page.replace("<head>", f"<head><script>{HEAD}</script>")
        file.write_text(page.replace("</body>", f"<script>{end}{script}</script></body>"), "utf-8")
        done = subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu"),
                *("--disable-dev-shm-usage", f"--lang={language}", f"--accept-lang={language}"),
                *(f"--user-data-dir={folder / language}", "--dump-dom", file.as_uri()),
            ],
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=True,
        )
        (told,) = re.findall(r'<pre id="told">(.*?)</pre>', done.stdout, re.S)
        return json.loads(unescape(told))

    return open_page


@pytest.fixture(scope="module")
def explanation(tmp_path_factory):
    own = chinese_pages.own_kernel(tmp_path_factory.mktemp("own"), "race")
    problem = GemmProblem(32, 32, 32)
    both = [
        gather(kernel, kernel.lay_out(problem), BOARD) for kernel in (own, find_kernel("naive"))
    ]
    traces = [trace(each.kernel, each.problem, BOARD) for each in both]
    explained = explain_facts(*both)
    return to_html(explanation_document(explained, explain_views(explained, both, traces)))


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    return to_html(chinese_pages.findings_page(tmp_path_factory.mktemp("found"), "bounds"))


def english(text):
    """Words of a text that are neither names nor code.

    A word of small letters, or with a capital at its start, is English unless it is in `KEPT`. All
    others are names, units, types or code: they have digits, underscores or several capitals, or
    stand beside a dot, a quote, a hyphen or a slash.
    """
    words = re.findall(r"(?<![\w.'/:\-])[A-Za-z]?[a-z]{2,}(?![\w.'/\-]|:\d)", text)
    return [each for each in words if each not in KEPT]


def test_what_counts_as_english():
    assert english("每个 warp 的 bank 冲突：gemmkit__x_pct，own.cu:3，'As'，TFLOP/s，--shape") == []
    assert english("等待 barrier，Stopped early") == ["barrier", "Stopped", "early"]


def judged(seen):
    """What must hold of a page that opens in English and is switched twice."""
    first, second, third = seen["first"], seen["second"], seen["third"]
    assert seen["problems"] == []
    assert (first["lang"], second["lang"], third["lang"]) == ("en", "zh-Hans", "en")
    assert (first["button"], second["button"]) == ("中文", "English")
    assert {text: found for text in second["texts"] if (found := english(text))} == {}
    assert {text: found for text in seen["left"] if (found := english(text))} == {}
    assert third["body"] == first["body"]
    assert third["title"] == first["title"] != second["title"]
    assert re.search("[\u4e00-\u9fff]", second["title"])
    assert not any(re.search("[\u4e00-\u9fff]", text) for text in first["texts"] if text != "中文")
    assert second["drawn"] == first["drawn"]
    assert min(first["drawn"], default=0) > 3
    assert second["choices"] == first["choices"]
    assert seen["links"] == [True] * len(seen["links"]) != []


def test_an_explanation_is_switched_to_chinese_and_back(explanation, browse):
    seen = browse(explanation, SWITCHED)
    judged(seen)
    assert seen["second"]["labels"] != seen["first"]["labels"]


def test_findings_are_switched_to_chinese_and_back(findings, browse):
    seen = browse(findings, SWITCHED)
    judged(seen)
    assert "结果错误" in seen["second"]["texts"]
    assert '<span lang="zh-Hans">调用自 own.cu:' in findings
    assert "wrong result" in seen["first"]["texts"]


def test_a_chinese_browser_opens_in_chinese(findings, browse):
    seen = browse(findings, OPENED, "zh-CN")
    assert seen["preferred"] == "zh-CN"
    assert seen["problems"] == []
    assert seen["first"]["lang"] == "zh-Hans"
    assert seen["first"]["button"] == "English"
    assert "算例" in seen["first"]["texts"]
