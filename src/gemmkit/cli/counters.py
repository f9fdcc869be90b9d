"""`gemmkit counters`: every metric, how it is obtained, and its limits."""

from __future__ import annotations

import click

from gemmkit.cli.files import Verb
from gemmkit.cli.options import debug_option


@click.command("counters", cls=Verb)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead.")
@debug_option
def command(as_json: bool) -> None:
    """List every metric that gemmkit provides without a GPU.

    For each, what it counts and how it is obtained: exact, after ptxas's merging of loads, from the
    address pattern alone, static, or predicted.
    """
    from gemmkit.analysis.metric_list import metric_list
    from gemmkit.cli.output import Printer
    from gemmkit.report.metrics import metrics_text

    found = metric_list()
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(found).decode())
        return
    out = Printer()
    out.print(metrics_text(found, out.width), end="")
