"""How close the equal-budget rule is to what programs submit: `python -m benchmarks.anytime RUN
[RUN ...]`.

At the last step of a trace, the ranking of evals/scoring/attribution.py is compared with the
submission by nDCG@10, over all queries of each program's runs; docs/decisions/comparing.md
has the table for OBLIQ-Bench's miniatures. Left out: earlier steps, for which the submission is
unknown; runs over pools or over some of the queries; and all but the latest run of a program on a
task.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sextant.evals.scoring import scored_run
from sextant.evals.scoring.anytime_ranking import AnytimeRanking
from sextant.evals.scoring.metrics import metric_from_attribution
from sextant.tools.platform.cli import CommandParser, print_stdout, run_and_leave

METRIC = "nDCG@10"
FIRST = 10
HEADS = (
    "program",
    "handed in",
    "mean distance of a query",
    "difference of means",
    "first ten the same",
)


class Compared(NamedTuple):
    """One query at its last step."""

    ours: float  # METRIC of the rule's ranking
    theirs: float  # of the submission
    same: bool  # the first ten are


def parser() -> CommandParser:
    """The command line."""
    made = CommandParser(
        prog="python -m benchmarks.anytime",
        description="The rule of equal budgets beside submissions.",
    )
    made.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="run folders, or folders that have some in them",
    )
    return made


def command(arguments: argparse.Namespace) -> int:
    """Compare and print a table in Markdown."""
    lines = [_line(HEADS), _line(["---"] + ["--:"] * (len(HEADS) - 1))]
    distances = []
    for program, rows in sorted(by_program(arguments.runs).items()):
        distance = fmean(abs(row.ours - row.theirs) for row in rows)
        distances.append(distance)
        theirs = fmean(row.theirs for row in rows)
        ours = fmean(row.ours for row in rows)
        share = fmean(row.same for row in rows)
        lines.append(
            _line(
                [
                    f"`{program}`",
                    f"{theirs:.4f}",
                    f"{distance:.4f}",
                    f"{ours - theirs:+.4f}",
                    f"{share:.0%}",
                ]
            )
        )
    if distances:
        lines.append(f"\n{len(distances)} programs, mean distance {fmean(distances):.4f}")
    print_stdout("\n".join(lines) + "\n")
    return 0


def by_program(paths: list[Path]) -> dict[str, list[Compared]]:
    """Program -> its queries, of the last whole run of each task."""
    runs = [
        run
        for run in scored_run.find_scored_runs(paths)[0]
        if not run.config["pool"] and run.config["split"] == "all"
    ]
    runs.sort(key=lambda run: (run.path / "outcomes.jsonl").stat().st_mtime)
    last = {
        (run.config["program"], run.config["task"]): run
        for run in runs
        if not run.config["asked"]["limit"]
    }
    made: dict[str, list[Compared]] = defaultdict(list)
    for (program, _), run in sorted(last.items()):
        made[program] += [compared(run, query_id) for query_id in run.query_ids]
    return made


def compared(run: scored_run.ScoredRun, query_id: str) -> Compared:
    """The rule's ranking of one query beside its submission."""
    outcome = run.outcomes[query_id]
    row = run.judged[query_id]
    rule = AnytimeRanking({}, ())
    for step in outcome["trace"]["steps"]:
        rule.add(step)
    ranking = rule.ranking(run.config["depth"])
    submitted = outcome["ranking"]
    ours, theirs = (
        metric_from_attribution(METRIC, doc_ids, row) or 0.0 for doc_ids in (ranking, submitted)
    )
    return Compared(ours, theirs, ranking[:FIRST] == submitted[:FIRST])


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    run_and_leave(parser(), command)
