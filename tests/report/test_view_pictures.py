"""Pictures of the views, compared with references; `--write-references` makes these anew.

Both are reduced to the means of small squares, and a picture may be shifted by a pixel, so that
browsers and machines may smooth edges their own way. Letters are those of matplotlib's fonts.
"""

from __future__ import annotations

import base64
import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")
MATPLOTLIB = importlib.util.find_spec("matplotlib")
if MATPLOTLIB is None or MATPLOTLIB.origin is None:
    pytest.skip("needs matplotlib's fonts", allow_module_level=True)
FONTS = Path(MATPLOTLIB.origin).parent / "mpl-data" / "fonts" / "ttf"
REFERENCES = Path(__file__).parent / "references"

# Pictures have half the size of the page; of a view, the first so many pixels of the page.
SCALE, WIDTH, MOST_HEIGHT = 0.5, 1000, 640
# A square, in pixels of a picture; how far its mean may be off, of 255, and what is not gray in it,
# which smooth edges of letters do not change; the share of squares that may be further off.
SQUARE, TOLERANCE, COLOR_TOLERANCE, SHARE = 5, 24, 8, 0.002
KINDS = (
    *("accesses", "bars", "errors", "occupancy", "raster", "roofline", "shared", "source"),
    *("tiles", "timeline"),
)
THEMES = ("light", "dark")
WITH_FONTS = """
(async () => {
  for (const [name, data] of Object.entries(FONTS)) {
    const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
    document.fonts.add(await new FontFace(name, bytes.buffer).load());
  }
  const style = document.createElement("style");
  style.textContent = `* { font-family: "test sans" !important; animation: none !important }
    code, pre, .source *, svg text { font-family: "test mono" !important }`;
  document.head.append(style);
  const kinds = JSON.parse(document.getElementById("data").textContent).views;
  for (const each of document.querySelectorAll("[data-view]")) {
    each.dataset.kind = kinds[each.dataset.view].kind;
  }
})()
"""
BOX = """
(() => {
  const shown = document.querySelector(SELECTOR);
  // At a whole pixel of the picture, whatever the height of what stands above.
  shown.style.top = "0";
  const top = shown.getBoundingClientRect().top + scrollY;
  Object.assign(shown.style, { position: "relative", top: `${Math.ceil(top / 4) * 4 - top}px` });
  shown.scrollIntoView({ block: "start", behavior: "instant" });
  const box = shown.getBoundingClientRect();
  return { x: box.left, y: box.top + scrollY, width: box.width, height: box.height };
})()
"""


class Gallery:
    """Takes pictures of one page after the other; a page stays open while it is asked for."""

    def __init__(self, browser, pages):
        self.browser, self.pages, self.open = browser, pages, None

    def show(self, name, theme, width=WIDTH):
        wanted = (name, width)
        if self.open != wanted:
            self.browser.open(self.pages(name), width=width, theme=theme)
            fonts = {
                f"test {name}": base64.b64encode((FONTS / file).read_bytes()).decode()
                for name, file in (("sans", "DejaVuSans.ttf"), ("mono", "DejaVuSansMono.ttf"))
            }
            self.browser.run(WITH_FONTS.replace("FONTS", repr(fonts)))
            self.open = wanted
        self.browser.media("", theme)

    def picture(self, selector, most=MOST_HEIGHT):
        box = self.browser.run(BOX.replace("SELECTOR", repr(selector)))
        box["height"] = min(box["height"], most)
        with Image.open(io.BytesIO(self.browser.picture(box, SCALE))) as image:
            return image.convert("RGB")


@pytest.fixture(scope="module")
def gallery(browser, request, written):
    def pages(name):
        return request.getfixturevalue("page") if name == "explain" else written(name)

    return Gallery(browser, pages)


def page_of(kind):
    return "ladder" if kind == "bars" else "explain"


def selector_of(kind):
    return f"[data-kind={kind}]"


def differences(actual, expected):
    """How far squares are off, in tolerances, at the best shift by at most a pixel."""
    wide, high = (min(one, other) for one, other in zip(actual.size, expected.size, strict=True))
    wide, high = (each // SQUARE * SQUARE for each in (wide - 2, high - 2))
    one, other = (np.asarray(each, dtype=np.float64) for each in (actual, expected))

    def means(pixels, right, down):
        part = pixels[down : down + high, right : right + wide]
        return part.reshape(high // SQUARE, SQUARE, wide // SQUARE, SQUARE, 3).mean((1, 3))

    def off(right, down):
        apart = means(one, right, down) - means(other, 1, 1)
        colored = apart - apart.mean(-1, keepdims=True)
        return np.maximum(
            np.abs(apart).max(-1) / TOLERANCE, np.abs(colored).max(-1) / COLOR_TOLERANCE
        )

    return np.min([off(right, down) for right in range(3) for down in range(3)], axis=0)


def differs(actual, expected):
    """Whether two pictures show different things."""
    sizes = zip(actual.size, expected.size, strict=True)
    if any(abs(one - other) > 4 for one, other in sizes):
        return True
    return bool((differences(actual, expected) > 1).mean() > SHARE)


def compare(actual, name, folder, write):
    file = REFERENCES / f"{name}.png"
    if write:
        REFERENCES.mkdir(exist_ok=True)
        actual.save(file, optimize=True)
        return
    assert file.is_file(), f"no reference {file}: --write-references makes it"
    with Image.open(file) as image:
        expected = image.convert("RGB")
    if not differs(actual, expected):
        return
    seen = differences(actual, expected)
    marked = Image.fromarray(
        np.kron(np.clip(seen * 100, 0, 255), np.ones((SQUARE, SQUARE))).astype("u1")
    )
    for kind, picture in (("actual", actual), ("expected", expected), ("difference", marked)):
        picture.save(folder / f"{name}-{kind}.png")
    share = (seen > 1).mean()
    pytest.fail(
        f"{name}: {share:.2%} of its squares differ, size {actual.size} for {expected.size}; see "
        f"{folder}/{name}-actual.png, -expected.png and -difference.png"
    )


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda each: (page_of(each), each)))
def test_a_view_looks_as_it_did(gallery, kind, tmp_path, pytestconfig):
    for theme in THEMES:
        gallery.show(page_of(kind), theme)
        actual = gallery.picture(selector_of(kind))
        compare(actual, f"{kind}-{theme}", tmp_path, pytestconfig.getoption("write_references"))


@pytest.mark.parametrize(("name", "width"), [("wide", 1300), ("narrow", 800)])
def test_the_top_of_a_page_looks_as_it_did(gallery, name, width, tmp_path, pytestconfig):
    gallery.show("explain", "light", width)
    actual = gallery.picture("body", 900)
    compare(actual, f"top-{name}", tmp_path, pytestconfig.getoption("write_references"))


# What a change could break, as a script on a view, and the kinds of view that have that.
MUTATIONS = {
    "blank": ("view.style.visibility = 'hidden'", KINDS),
    "without its shapes": (
        "for (const each of view.querySelectorAll('rect, circle, polyline, canvas'))"
        " each.style.visibility = 'hidden'",
        tuple(each for each in KINDS if each != "source"),
    ),
    "gray": ("view.style.filter = 'grayscale(1)'", KINDS),
    "without labels": (
        "for (const each of view.querySelectorAll('svg text')) each.style.visibility = 'hidden'",
        ("accesses", "bars", "errors", "occupancy", "roofline", "timeline"),
    ),
    "without its legend": (
        "for (const each of view.querySelectorAll('.quiet')) each.style.visibility = 'hidden'",
        ("accesses", "errors", "raster", "shared", "timeline"),
    ),
}


@pytest.mark.parametrize("name", ["explain", "ladder"])
@pytest.mark.sample(2)
def test_a_view_that_loses_something_no_longer_looks_as_it_did(gallery, name):
    gallery.show(name, "light")
    same = []
    for kind in (each for each in KINDS if page_of(each) == name):
        view = f"const view = document.querySelector({selector_of(kind)!r});"
        with Image.open(REFERENCES / f"{kind}-light.png") as image:
            expected = image.convert("RGB")
        for mutation, (script, kinds) in MUTATIONS.items():
            if kind not in kinds:
                continue
            gallery.browser.run(f"{{ {view} {script} }}")
            if not differs(gallery.picture(selector_of(kind)), expected):
                same.append((kind, mutation))
            gallery.browser.run(
                f"{{ {view} for (const each of [view, ...view.querySelectorAll('*')])"
                " { each.style.visibility = ''; each.style.filter = ''; } }"
            )
    assert same == []


def test_references_are_small():
    assert sum(each.stat().st_size for each in REFERENCES.glob("*.png")) < 600_000
