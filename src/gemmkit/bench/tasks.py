"""`Task`: what a comparison measures, and which tasks a file of records lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gemmkit.bench.layer import Layer
from gemmkit.bench.run import problem_record
from gemmkit.bench.suites import LAYER_SUITES, find_suite
from gemmkit.problem import GemmProblem
from gemmkit.record import Record


@dataclass(frozen=True, slots=True)
class Task:
    """A problem, and the suite that it belongs to, if any; or a layer, with its largest product."""

    problem: GemmProblem
    suite: str = ""
    layer: Layer | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What its record has of it: see `key_of`."""
        layer = self.layer and (self.layer.name, self.layer.sizes)
        return self.suite, problem_record(self.problem), layer


def key_of(record: Record) -> tuple[object, ...]:
    """Which task a record is of: `Task.key`."""
    layer = record.layer and (record.layer.name, record.layer.sizes)
    return record.suite, record.problem, layer


def left(tasks: Sequence[Task], done: Iterable[Record]) -> list[Task]:
    """The tasks that have no record yet."""
    covered = {key_of(each) for each in done}
    return [task for task in tasks if task.key not in covered]


def suite_tasks(
    names: Iterable[str], asked: Callable[[Sequence[GemmProblem]], Sequence[GemmProblem]]
) -> list[Task]:
    """The tasks of some suites; `asked` makes of a suite's products what is asked for, in other
    types and layouts, say. Layers are as they are.

    Raises:
        UsageError: there is no such suite.
    """
    found: list[Task] = []
    for name in names:
        if name in LAYER_SUITES:
            found += [Task(each.product, name, each) for each in LAYER_SUITES[name]]
        else:
            found += [Task(each, name) for each in asked(find_suite(name))]
    return found
