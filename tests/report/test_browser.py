"""The pages of all verbs in a browser: silent, for the keyboard, for screen readers, on paper."""

from __future__ import annotations

import base64
import itertools
import re

import pytest

# Everything that takes the keyboard, by a number of its own, and whether it is to be seen.
CONTROLS = """
[...document.querySelectorAll("a[href], button, select, input, summary, [tabindex='0']")]
  .filter((each) => each.checkVisibility({ visibilityProperty: true }))
  .map((each, index) => { each.dataset.stop = index; return each.outerHTML.slice(0, 160); })
"""
# Where the focus is, and whether that shows.
FOCUS = """
(() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const box = at.getBoundingClientRect();
  return {
    stop: at.dataset.stop ?? null,
    scrolls: at.scrollWidth > at.clientWidth || at.scrollHeight > at.clientHeight,
    seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1 && box.width > 0,
    what: at.outerHTML.slice(0, 160),
  };
})()
"""
# Boxes that reach past the paper's edge, or whose content is cut off by their own.
CUT = """
[...document.querySelectorAll("body *")].filter((each) => {
  const box = each.getBoundingClientRect();
  if (!box.width || each.closest("svg svg, .skip, script, style")) return false;
  const style = getComputedStyle(each);
  const hidden = style.overflowX !== "visible" && each.scrollWidth > each.clientWidth + 1;
  return box.right > innerWidth + 1 || (hidden && !(each instanceof SVGElement));
}).map((each) => [each.tagName, each.getBoundingClientRect().right, each.textContent.slice(0, 80)])
"""
# A4 with margins of 1 cm, in pixels of CSS.
PAPER_WIDTH, MARGIN_INCHES = 717, 0.4
CONTROL_ROLES = {"button", "checkbox", "combobox", "slider", "link", "DisclosureTriangle"}
NAMED_ROLES = CONTROL_ROLES | {"image", "img", "application", "region", "navigation", "Canvas"}


@pytest.mark.sample(3)
def test_pages_draw_every_view_in_silence_and_ask_for_nothing(verb_page, browser):
    browser.open(verb_page)
    undrawn = browser.run(
        "[...document.querySelectorAll('[data-view]')]"
        ".filter((each) => !each.querySelector('svg, canvas, .source')).length"
    )
    assert undrawn == 0
    # Everything that opens or closes, and each choice of each list.
    browser.run("""
      for (const each of document.querySelectorAll("details")) each.open = true;
      for (const select of document.querySelectorAll("select")) {
        for (const option of select.options) {
          select.value = option.value;
          select.dispatchEvent(new Event("change"));
        }
      }
      for (const each of document.querySelectorAll("input")) {
        if (each.type === "checkbox") each.click();
        for (const value of [each.min, each.max]) {
          each.value = value;
          each.dispatchEvent(new Event("input"));
        }
      }
      for (const each of document.querySelectorAll("button:not(#save)")) {
        if (!each.textContent.startsWith("Save")) each.click();
      }
      new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    """)
    assert browser.complaints() == []
    assert [each.partition(":")[0] for each in browser.requests()] == ["file"]


def test_every_kind_of_view_is_on_one_of_the_pages(page, written):
    kinds = set(re.findall(r"views\.(\w+) = function", page + written("ladder")))
    assert kinds == {
        *("accesses", "bars", "errors", "occupancy", "raster", "roofline", "shared", "source"),
        *("tiles", "timeline"),
    }


@pytest.mark.sample(2)
def test_tab_reaches_every_control_and_shows_where_it_is(verb_page, browser):
    browser.open(verb_page)
    controls = browser.run(CONTROLS)
    reached, unseen = set(), []
    for _ in range(2 * len(controls) + 20):
        browser.press("Tab")
        focus = browser.run(FOCUS)
        if focus["stop"] is None:
            # A browser gives the focus to what scrolls, too, and in the end to the page as a whole.
            if not focus["scrolls"] or focus["what"].startswith("<body"):
                break
            continue
        if int(focus["stop"]) in reached:
            break
        reached.add(int(focus["stop"]))
        if not focus["seen"]:
            unseen.append(focus["what"])
    assert [each for index, each in enumerate(controls) if index not in reached] == []
    assert unseen == []


def test_controls_work_by_keys(page, browser):
    browser.open(page)

    def focus(selector):
        browser.run(f"document.querySelector({selector!r}).focus()")

    focus(".pick:not(.chosen)")
    for key in (" ", "Enter"):
        browser.press(key)
        assert browser.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    focus("select[id^=level]")
    browser.press("ArrowDown")
    assert browser.run("document.querySelectorAll('polyline').length") == 1
    focus("input[id^=warps]")
    before = browser.run("document.querySelector('[id^=what-if] p[aria-live]').textContent")
    browser.press("ArrowRight")
    after = browser.run("document.querySelector('[id^=what-if] p[aria-live]').textContent")
    assert before != after
    focus("summary")
    browser.press("Enter")
    assert browser.run("document.querySelector('details').open")


def test_a_remark_leads_to_its_line_in_the_source_of_its_kernel(page, browser):
    browser.open(page)
    place = browser.run("document.querySelector('.remarks a[data-place]').dataset.place")
    browser.run("document.querySelector('.remarks a[data-place]').click()")
    chosen = browser.run(
        "[...document.querySelectorAll('.source')].map((each) =>"
        " [...each.querySelectorAll('tr.chosen button')].map((one) => one.textContent))"
    )
    # The other kernel's source, which has the same file, keeps its line.
    assert chosen == [[place], []]
    assert browser.run("document.activeElement.textContent") == place
    # A finding of the comparison leads to the kernel that is worse.
    worse = browser.run("[...document.querySelectorAll('.remarks .places')].at(-1).textContent")
    assert "(vectorized)" in worse
    assert browser.run("document.querySelectorAll('.remarks a[data-side=\"1\"]').length") == 0
    seen = "document.activeElement.getBoundingClientRect().top"
    assert 0 < browser.run(seen) < browser.run("innerHeight")


# What the pointer is told in each picture, and what its first part says.
TOLD = {
    "accesses": r"lanes? [\d, ]+; (bank|word) \d+",
    "errors": r"vectorized, error / bound .* of 16,384 elements, .* %",
    "raster": r"Tile in row 0, column 0, from C\[0\]\[0\]: block 0\.",
    "shared": r"Word 1 of \w+, bank 1: [AB]\[\d+\]\[\d+\]",
    "tiles": r"A\[0\]\[0\]: thread 0, lane 0 of warp 0\.",
}


@pytest.mark.parametrize("kind", TOLD)
@pytest.mark.sample(2)
def test_what_the_pointer_is_told_the_arrow_keys_tell_too(page, browser, kind):
    browser.open(page)
    browser.run(f"""
      const kinds = JSON.parse(document.getElementById("data").textContent).views;
      const view = [...document.querySelectorAll("[data-view]")]
        .find((each) => kinds[each.dataset.view].kind === "{kind}");
      view.id = "walked";
      view.querySelector("[role=application]").focus();
    """)
    told = "[...document.querySelectorAll('#walked p')].map((each) => each.textContent)"
    before = browser.run(told)
    browser.press("ArrowRight")
    first = [each for each in browser.run(told) if each not in before]
    assert len(first) == 1
    assert re.match(TOLD[kind], first[0])
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    further = [each for each in browser.run(told) if each not in before]
    # The only tile of a raster stays the one that is told of.
    assert (further != first) == (kind != "raster")


def test_bars_tell_by_keys_which_kernel_they_are_of(written, browser):
    browser.open(written("ladder"))
    browser.run("document.querySelector('#figures [role=application]').focus()")
    for key in ("ArrowRight", "ArrowDown"):
        browser.press(key)
    told = browser.run("[...document.querySelectorAll('#figures p')].at(-1).textContent")
    assert re.match(r"naive: \d[\d,.]*\. Neighboring threads", told)


@pytest.mark.sample(2)
def test_a_screen_reader_gets_names_and_headers(verb_page, browser):
    browser.open(verb_page)
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    shown = {each["nodeId"]: each for each in nodes if not each["ignored"]}

    def role(node):
        return node.get("role", {}).get("value")

    named = [each for each in shown.values() if role(each) in NAMED_ROLES]
    assert [each for each in named if not each.get("name", {}).get("value", "").strip()] == []
    assert any(role(each) == "application" for each in named) == ("data-view" in verb_page)
    # Nothing that only one who sees could use.
    assert not [each for each in shown.values() if role(each) == "Canvas"]

    def below(node):
        for child in node.get("childIds", ()):
            found = next((each for each in nodes if each["nodeId"] == child), None)
            if found is not None:
                yield found
                yield from below(found)

    tables = [each for each in shown.values() if role(each) == "table"]
    assert len(tables) == browser.run("document.querySelectorAll('table').length")
    for table in tables:
        assert any(role(each) == "columnheader" for each in below(table))
    levels = [
        prop["value"]["value"]
        for each in shown.values()
        if role(each) == "heading"
        for prop in each["properties"]
        if prop["name"] == "level"
    ]
    assert levels[0] == 1
    assert all(later - level <= 1 for level, later in itertools.pairwise(levels))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.sample
def test_paper_has_all_sections_in_light_colors_and_cuts_nothing_off(verb_page, browser, theme):
    page = verb_page.replace("<html ", f'<html data-theme="{theme}" ', 1)
    browser.open(page, width=PAPER_WIDTH, theme="dark")
    browser.media("print", "dark")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.body).color") == "rgb(28, 36, 48)"
    assert browser.run(CUT) == []
    if theme == "light":
        return
    browser.media("", "dark")
    sheets = base64.b64decode(
        browser.call(
            "Page.printToPDF",
            paperWidth=8.27,
            paperHeight=11.69,
            generateDocumentOutline=True,
            **{f"margin{side}": MARGIN_INCHES for side in ("Left", "Right", "Top", "Bottom")},
        )["data"]
    )
    titles = browser.run(
        "[...document.querySelectorAll('h1, h2')].map((each) => each.innerText.trim())"
    )
    outlined = {
        _pdf_text(bytes.fromhex(coded.decode()) if coded else text)
        for text, coded in re.findall(rb"/Title (?:\(((?:[^()\\]|\\.)*)\)|<(\w+)>)", sheets)
    }
    assert [each for each in titles if each not in outlined] == []
    assert len(re.findall(rb"/Type /Page\b", sheets)) >= 1


def _pdf_text(text: bytes) -> str:
    """A string of a PDF file: with a byte-order mark in UTF-16, else in Latin letters."""
    plain = re.sub(
        rb"\\([0-7]{3}|.)",
        lambda found: bytes([int(found[1], 8)]) if len(found[1]) == 3 else found[1],
        text,
        flags=re.DOTALL,
    )
    return plain.decode("utf-16" if plain[:2] in (b"\xfe\xff", b"\xff\xfe") else "latin-1")


# A page is mailed and opens at once: bytes of the file, of its script, and elements.
MOST_BYTES, MOST_SCRIPT, MOST_ELEMENTS = 3_000_000, 65_000, 6_000


@pytest.mark.sample(2)
def test_pages_are_small_and_mark_when_each_view_is_drawn(verb_page, browser):
    browser.open(verb_page)
    assert len(verb_page.encode()) <= MOST_BYTES
    assert len(browser.run("document.scripts[1].textContent")) <= MOST_SCRIPT
    assert browser.run("document.querySelectorAll('*').length") <= MOST_ELEMENTS
    marks = browser.run("performance.getEntriesByType('mark').map((each) => each.name)")
    views = browser.run("document.querySelectorAll('[data-view]').length")
    assert marks == [f"view {number}" for number in range(views)]
    assert views


def test_notes_of_a_wide_table_stay_in_sight_when_it_is_scrolled(written, browser):
    browser.open(written("ladder"), width=800)
    seen = browser.run("""
      (() => {
        const box = document.querySelector(".scroll:has(.note)");
        box.scrollLeft = 150;
        const { left, right } = box.getBoundingClientRect();
        const notes = [...box.querySelectorAll(".note p")];
        return [box.scrollLeft, notes.length, notes.every((each) => {
          const own = each.getBoundingClientRect();
          return own.left >= left && own.right <= right;
        })];
      })()
    """)
    assert seen == [150, 10, True]


@pytest.mark.parametrize("width", [320, 800])
@pytest.mark.sample
def test_a_narrow_page_is_as_wide_as_the_screen_and_its_pictures_are_legible(
    verb_page, browser, width
):
    name = "kernel_" * 28
    browser.open(verb_page.replace("vectorized", name), width=width)
    assert browser.run("document.documentElement.scrollWidth") == width
    small = """
      [...document.querySelectorAll(".drawing > svg")].map((each) => each.getBoundingClientRect())
        .filter((each) => each.width < 640).length
    """
    assert browser.run(small) == 0
    # What scrolls takes the keyboard.
    assert browser.run("""
      [...document.querySelectorAll(".drawing")]
        .every((each) => each.scrollWidth <= each.clientWidth + 1 || each.tabIndex === 0)
    """)
