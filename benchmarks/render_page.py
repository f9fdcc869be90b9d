"""Draw the excerpts of a page in the READMEs: `python benchmarks/render_page.py`.

They are two sections of what `gemmkit explain vectorized --against conflict_free --html` writes, as
Chromium shows it in both languages and themes: `docs/images/page-light.png` … `page-zh-dark.png`.
It needs a Chinese font.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
EXPLAIN = ("explain", "vectorized", "--against", "conflict_free", "--shape", "1024")
SHOWN = ("vectorized-vs-conflict-free", "accesses-of-a-warp")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# What a browser asks for, and what the files' names begin with.
LANGUAGES = {"en-US": "page", "zh-CN": "page-zh"}
WIDTH, HEIGHT, COLORS = 1200, 1405, 96


def main() -> int:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("needs Chromium")
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder, "page.html"), Path(folder, "page.png")
        command = [sys.executable, "-m", "gemmkit", *EXPLAIN, "--html", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        text = page.read_text("utf-8")
        others = "".join(f":not(#{name})" for name in SHOWN)
        # The contents of the page list what is shown.
        unlisted = "".join(f":not(:has([href='#{name}']))" for name in SHOWN)
        hidden = f"section{others}, .lead, nav li{unlisted} {{ display: none }}"
        style = f"{hidden} h2 {{ margin-top: .7rem }}"
        for (language, name), theme in product(LANGUAGES.items(), ("light", "dark")):
            shown = text.replace("<html ", f'<html data-theme="{theme}" ', 1)
            page.write_text(shown.replace("</style>", f"{style}</style>", 1), "utf-8")
            subprocess.run(
                [
                    *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                    *(f"--accept-lang={language}", f"--window-size={WIDTH},{HEIGHT}"),
                    *(f"--screenshot={picture}", page.as_uri()),
                ],
                check=True,
                capture_output=True,
            )
            with Image.open(picture) as drawn:
                file = IMAGES / f"{name}-{theme}.png"
                drawn.convert("RGB").quantize(COLORS).save(file, optimize=True)
                print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
