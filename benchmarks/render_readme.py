"""Write the READMEs' session, `docs/results.md` and `docs/images` anew from `benchmarks/results`.

Run it after a result file has changed: `.venv/bin/python benchmarks/render_readme.py`.
"""

from __future__ import annotations

from pathlib import Path

from gemmkit.report.readme import PICTURES, render, replace_generated

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    rendering = render(ROOT / "benchmarks" / "results")
    folder = ROOT / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        if old.name not in rendering.pictures:
            old.unlink()
    for name, svg in rendering.pictures.items():
        (folder / name).write_text(svg, "utf-8")
    for name, sections in rendering.pages.items():
        page = ROOT / name
        page.write_text(replace_generated(page.read_text("utf-8"), sections), "utf-8")


if __name__ == "__main__":
    main()
