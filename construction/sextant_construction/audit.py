"""What is wrong with tasks, on a page: `sextant tasks audit TASK [TASK ...]`.

For each task whether its data is whole (`tasks check`), the figures of `build check` without a model, and
the reach of its relevant documents (`reach`), each with a verdict and the next thing to do. Searches go
to a temporary folder. Left out: contamination, which a model is asked about, and is named as not done.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sextant import environments
from sextant.environments import task_card
from sextant.evals.running.reach import measure_task
from sextant.evals.running.request import Request
from sextant.programs import FLOOR
from sextant.tools.platform.number_format import number
from sextant.tools.platform.result_table import ResultTable, tabulate
from sextant.tools.records import JsonMapping, JsonObject
from sextant_construction.checks import BOUNDS, check_benchmark

RETRIEVERS = ("bm25", "bm25(k1=1.5,b=0.75)")  # two, so that the power of the task's size is told
# What to do where a figure is on the wrong side of its bound; else its own sentence says it.
ACTIONS = {
    "twins": "judge equal texts alike, or leave all but one out",
    "alike": "leave out all but one of queries that repeat each other",
    "across": "move both to one split, or leave the dev query out",
    "power": "ask more queries; a difference between systems is not shown by so few",
    "generator": "look at how its distractors were made: sextant build check --json has examples",
}


class Finding(NamedTuple):
    """A line of an audit."""

    task: str
    name: str
    value: str
    verdict: str  # "fine", "look", "wrong", or "-" where nothing can be said
    action: str

    @property
    def is_leak(self) -> bool:
        """Whether the data itself is at fault, not only easy or small."""
        return self.verdict == "wrong" or (self.verdict == "look" and self.name in LEAKS)


LEAKS = ("twins", "across", "first")


def audit(names: Sequence[str], data: str | None = None) -> list[Finding]:
    """Return the findings on tasks, or on patterns of tasks such as `obliq/*`."""
    findings = list[Finding]()
    for task in [task for name in names for task in environments.expand_tasks(name)]:
        findings += audit_task(task, data)
    return findings


def audit_task(task: str, data: str | None = None) -> Iterator[Finding]:
    """Yield the findings on a task; those after the first only if its data can be loaded."""
    checked = list(task_card.run_checks(task, data))
    wrong = [f"{result.what}: {result.said}" for result in checked if not result.fine]
    verdict = "wrong" if wrong else "fine"
    yield Finding(task, "data", f"{len(checked)} checks", verdict, "; ".join(wrong))
    if not checked[0].fine:
        return
    with TemporaryDirectory() as folder:
        request = Request(program=FLOOR, task=task, data=data, runs=Path(folder))
        figures = check_benchmark(request, RETRIEVERS)["figures"]
    for figure in figures:
        yield _read_figure(task, figure)
    yield _read_reach(task, measure_task(task, data, "test", "bm25"))
    action = f"sextant build contamination --task {task} --lm MODEL --out FOLDER asks a model"
    yield Finding(task, "contamination", "-", "-", action)


def _read_figure(task: str, figure: JsonMapping) -> Finding:
    verdict = {True: "fine", False: "look", None: "-"}[figure["fine"]]
    action = figure["says"]
    if verdict == "look":
        action = ACTIONS.get(figure["name"], BOUNDS[figure["name"]].wrong)
    return Finding(task, figure["name"], number(figure["value"], "{:.4g}", "-"), verdict, action)


def _read_reach(task: str, measured: JsonMapping) -> Finding:
    [vocabulary] = measured["vocabularies"]
    chances = vocabulary["sizes"]["2"]["10"]
    relevant, chance = chances["relevant"], chances["random"]
    if not relevant or not chance:
        return Finding(task, "reach", "-", "-", "no query has a relevant document")
    value = f"{relevant['mean']:.4f} against {chance['mean']:.4f}"
    low = relevant["low"]
    if low is not None and low > chance["mean"]:
        return Finding(
            task, "reach", value, "fine", "pairs of a query's words lead to its documents"
        )
    action = "no better than random documents by these queries: a search needs words of its own"
    return Finding(task, "reach", value, "look", action)


def lay_out_audit(findings: Sequence[Finding]) -> list[str | ResultTable]:
    """Lay out the findings as a table, with the number of tasks that have none to look at."""
    looked_at = {finding.task for finding in findings}
    leaking = {finding.task for finding in findings if finding.is_leak}
    rows: list[JsonObject] = [finding._asdict() for finding in findings]
    faults = f"{len(leaking)} of {len(looked_at)} tasks have faults in their data"
    return [tabulate("", rows), f"{faults}{': ' * bool(leaking)}{', '.join(sorted(leaking))}"]
