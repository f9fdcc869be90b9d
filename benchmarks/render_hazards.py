"""Write the generated parts of docs/hazards.md, and its pictures: what `gemmkit check` prints.

Run it after a finding's words, examples/hopper.cu or the bugs have changed:
`.venv/bin/python benchmarks/render_hazards.py`. It needs no GPU and takes about a minute.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hazards.bugs import BUGS, Bug
from hazards.scenes import SCENES

from gemmkit.cli import gemmkit as command
from gemmkit.report.readme import replace_generated

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, IMAGES = DOCS / "hazards.md", DOCS / "images" / "hazards"
WRITER = "benchmarks/render_hazards.py"
# The section with a whole output, and the bug whose output it is.
WHOLE, SHOWN_WHOLE = "whole", "no-fence-store"
WIDTH = 100


def output(bug: Bug) -> str:
    """What `gemmkit check` prints for a bug: the report, or the reason why there is none.

    Raises:
        SystemExit: it does not find the bug.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, bug.file_name)
        path.write_text(bug.source, "utf-8")
        asked = ["check", str(path), *bug.arguments]
        found = CliRunner().invoke(command, asked, env={"COLUMNS": str(WIDTH)})
    printed = found.stdout or found.stderr[found.stderr.find("gemmkit: ") :]
    if found.exit_code == 0 or bug.told not in " ".join(printed.split()):
        raise SystemExit(f"{bug.file_name}: no '{bug.told}' in:\n{found.output}")
    return "\n".join(line.rstrip() for line in printed.splitlines())


def excerpt(bug: Bug, printed: str) -> str:
    """The sentence of an output that tells of the bug, and the summary."""
    findings = re.findall(r"^\d+\. .*?(?=^  -->|^  seen|\n\n)", printed, re.M | re.S)
    notes = re.findall(r"^(?:    \S.*\n)+", printed, re.M)
    summary = re.findall(r"^\d+ problem.*", printed, re.M)
    telling = [each for each in (*findings, *notes) if bug.told in " ".join(each.split())]
    if not summary:
        return printed
    first = telling[0] if telling else notes[0]
    return "\n".join([first.rstrip(), "…", *summary])


def section(bug: Bug, printed: str) -> str:
    """The change and what is printed for it, in Markdown."""
    change = f"```diff\n{bug.diff}\n```\n\n" if bug.changes else ""
    return f"{change}```text\n{excerpt(bug, printed)}\n```\n"


def pictures() -> dict[str, str]:
    """The pictures as SVG, by file name."""
    return {f"{name}.svg": scene.to_svg() for name, scene in SCENES.items()}


def draw() -> None:
    """Write the pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for old in IMAGES.glob("*.svg"):
        old.unlink()
    for file, svg in pictures().items():
        (IMAGES / file).write_text(svg, "utf-8")


def main() -> None:
    draw()
    sections = {}
    for name, bug in BUGS.items():
        printed = output(bug)
        sections[name] = section(bug, printed)
        if name == SHOWN_WHOLE:
            sections[WHOLE] = f"```text\n{printed}\n```\n"
        print(name)
    page = PAGE.read_text("utf-8")
    PAGE.write_text(replace_generated(page, sections, WRITER), "utf-8")


if __name__ == "__main__":
    main()
