"""A terminal session as an SVG picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

Theme = tuple[
    tuple[int, int, int], tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]
]
# Background, foreground, red and green, as GitHub's own code blocks have them.
LIGHT: Theme = ((246, 248, 250), (31, 35, 40), (207, 34, 46), (26, 127, 55))
DARK: Theme = ((21, 27, 35), (240, 246, 252), (255, 123, 114), (63, 185, 80))

# rich's own, less its width and a font that it would download.
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px;
line-height: {line_height}px;
}}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def terminal_svg(text: Text, theme: Theme) -> str:
    """What a terminal as wide as the text shows, in the colors of `LIGHT` or `DARK`."""
    import io

    from rich.console import Console

    width = max(map(len, text.plain.splitlines()))
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="standard"
    )
    console.print(text, end="", soft_wrap=True)
    return console.export_svg(title="", theme=_rich_theme(theme), code_format=_SVG)


def _rich_theme(theme: Theme) -> TerminalTheme:
    from rich.terminal_theme import TerminalTheme

    background, foreground, red, green = theme
    others = [foreground] * 5
    return TerminalTheme(background, foreground, [foreground, red, green, *others])
