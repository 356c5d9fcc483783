"""Turn recorded outcomes into scores: `python -m evals.score RUN`. No model, no retriever, no network.

Averages run over the queries that were asked, not over those that were answered: a failed query scores 0. A run
that still owes queries gets no score at all.
"""

import argparse
import csv
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from evals import folder as run_folder
from evals import seal
from evals.measuring.scored import READ, cut
from evals.running.environment import environment_of
from evals.running.submission import BadRanking, check_ranking
from programs import DIFFERS
from tools import disk
from tools.console.command import Parser, run_and_leave
from tools.errors import DataError, RunIncomplete
from tools.records import Usage, usage_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from environments.base import Environment
    from evals.measuring.metrics import Ranking, Values


def score(path: Path, environment: "Environment", outcomes: run_folder.Rows | None = None) -> dict[str, Any]:
    """Write run.trec, scores.csv, attribution.jsonl and scores.json into `path`; return what scores.json holds.

    RunIncomplete when the run owes queries. `environment` must be the one that the run was made in. `outcomes` are
    those of the folder, where it is open; they are read one by one, because a run may be larger than memory.
    """
    from evals.measuring import attribution
    from evals.measuring.metrics import collapsed

    config = run_folder.read_config(path)
    outcomes = run_folder.read_outcomes(path) if outcomes is None else outcomes
    asked = [query.query_id for query in environment.queries]
    if owed := [query_id for query_id in asked if query_id not in outcomes]:
        raise RunIncomplete(
            f"{path} owes {len(owed)} of {len(asked)} queries, e.g. {owed[0]!r}; "
            "give the same run command again to resume it"
        )
    rankings, judgements = _Rankings(outcomes), environment.judgements[environment.headline]
    tally, losses = _Tally(), attribution.Losses(attribution.cutoffs(environment.metric, environment.metrics))
    values: Values = {}
    errors: dict[str, str] = {}
    known = set[str]()
    with (
        run_folder.writing(path / "run.trec") as trec,
        run_folder.writing(path / "attribution.jsonl") as attributed,
    ):
        for query in environment.queries:
            query_id, outcome = query.query_id, outcomes[query.query_id]
            try:
                check_ranking(outcome["ranking"], query, environment.documents, known)
            except BadRanking as wrong:
                raise DataError(
                    f"{path / 'outcomes.jsonl'}, query {query_id!r}: {wrong}; "
                    "remove its line and give the run's command again to have it answered again"
                ) from None
            tally.add(outcome)
            errors[query_id] = outcome["error"] or ""
            for name, value in _values(query_id, rankings.keeping(outcome), environment).items():
                values.setdefault(name, {})[query_id] = value
            units = collapsed(outcome["ranking"], judgements)
            trec.write(run_folder.trec(query_id, units, tag=path.name))
            relevant = attribution.attribute(query_id, outcome, units, judgements)
            losses.add(relevant)
            row = attribution.row(query.text, relevant, outcome, judgements)
            attributed.write(disk.dumps(row) + "\n")
    about = tally.summary(config, asked)
    scores = about | {
        "judgements": environment.headline,
        "metric": environment.metric,
        "metrics": {
            name: _measured(column, _weights(name, environment), resampled=environment.resampled)
            for name, column in values.items()
        },
        "losses": losses.json(),
        "notes": [
            *filter(None, [environment.split_note, _depth_note(config, environment)]),
            *([] if config.get("imported") else _differs(config["program"])),
            *about["notes"],
            *environment.notes,
            *(config.get("imported") or {}).get("notes", ()),
        ],
    }
    with run_folder.writing(path / "scores.csv") as table:
        _write_table(table, values, errors)
    of = {"config": run_folder.digest(config), **seal.made_of(path, _FILES)}
    scores = seal.sealed_scores(scores | {"made_of": of})
    run_folder.write(path / "scores.json", json.dumps(scores, indent=2) + "\n")
    return scores


_FILES = ("outcomes.jsonl", "attribution.jsonl", "scores.csv")


def partial(environment: "Environment", outcomes: run_folder.Rows, asked: list[str]) -> dict[str, Any]:
    """The metrics over the queries that are answered, of a run that owes others: {"queries", "metrics", "judgements"}.

    It is no score of the run: those that are owed may be the hard ones.
    """
    answered = [query_id for query_id in asked if query_id in outcomes]
    if not answered:
        return {"queries": 0, "metrics": {}, "judgements": environment.headline}
    part = environment.asking(query_ids=answered)
    values: dict[str, dict[str, float | None]] = {}
    rankings = _Rankings(outcomes)
    for query_id in answered:
        for name, value in _values(query_id, rankings, part).items():
            values.setdefault(name, {})[query_id] = value
    measured = {name: _measured(column, _weights(name, part), resampled=False) for name, column in values.items()}
    return {"queries": len(answered), "metrics": measured, "judgements": environment.headline}


def _values(query_id: str, rankings: Mapping[str, "Ranking"], environment: "Environment") -> Mapping[str, float | None]:
    """Every metric of a query. Other judgements are under "<metric> [<judgements>]"; comparisons depend on none."""
    from evals.measuring.metrics import is_pairwise, one_query

    values = one_query(query_id, rankings, environment)
    for other in environment.judgements:
        if other != environment.headline:
            beside = one_query(query_id, rankings, environment, other)
            values |= {f"{name} [{other}]": value for name, value in beside.items() if not is_pairwise(name)}
    return values


class _Rankings(Mapping[str, "Ranking"]):
    """The rankings of a run, read when they are asked for; the one at hand is not read again."""

    def __init__(self, outcomes: run_folder.Rows) -> None:
        self._outcomes = outcomes
        self._kept: run_folder.Outcome = {"query_id": None}

    def keeping(self, outcome: run_folder.Outcome) -> Self:
        """The same with this outcome at hand."""
        self._kept = outcome
        return self

    def __getitem__(self, query_id: str) -> "Ranking":
        kept = self._kept["query_id"] == query_id
        return ranking_of(self._kept if kept else self._outcomes[query_id])

    def __iter__(self) -> "Iterator[str]":
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)


def _depth_note(config: run_folder.Config, environment: "Environment") -> str:
    """What to know of a run whose rankings end before a metric does."""
    cutoffs = [int(name.partition("@")[2]) for name in environment.metrics if "@" in name]
    depth, unit = config["depth"], "passages" if environment.max_p else "documents"
    if depth >= max(cutoffs, default=0):
        return ""
    return f"rankings end at {depth} {unit}, so larger cutoffs say nothing more"


def _differs(program: str) -> list[str]:
    return [f"{program} differs from the paper's: {DIFFERS[program]}"] if program in DIFFERS else []


def ranking_of(outcome: run_folder.Outcome) -> "Ranking":
    """What an outcome says of a ranking; a failed query has an empty one."""
    from evals.measuring.metrics import Ranking

    return Ranking(outcome["ranking"], outcome.get("scores") or ())


def _weights(name: str, environment: "Environment") -> dict[str, int]:
    """How much each query counts in a metric's mean: as often as it has triplets (BIRCO, appendix D), else once."""
    if name != "Triplets":
        return {query.query_id: 1 for query in environment.queries}
    return {query.query_id: len(environment.comparisons.get(query.query_id, ())) for query in environment.queries}


def _measured(column: Mapping[str, float | None], weights: dict[str, int], *, resampled: bool) -> dict[str, Any]:
    """A metric's mean with its interval, over the queries for which it is defined; None where there are none."""
    from evals.measuring.stats import bootstrap_mean, resampled_mean

    defined = {query_id: value for query_id, value in column.items() if value is not None}
    if not defined:
        return {"mean": None, "low": None, "high": None, "queries": 0}
    values = list(defined.values())
    measured: dict[str, Any] = bootstrap_mean(values, [weights[query_id] for query_id in defined])._asdict()
    if len(defined) < len(column):
        measured["queries"] = len(defined)
    if resampled and set(weights.values()) == {1}:
        measured["resampled"] = resampled_mean(values)._asdict()
    return measured


def _write_table(file: TextIO, values: "Values", errors: Mapping[str, str]) -> None:
    """scores.csv: one row a query, an empty cell where a metric is undefined for it."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["query_id", *values, "error"])
    for query_id, error in errors.items():
        cells = [column[query_id] for column in values.values()]
        row = ["" if value is None else repr(value) for value in cells]
        # A lone carriage return is not quoted, and would be read as the end of the row.
        writer.writerow([query_id, *row, error.replace("\r", " ")])


class _Tally:
    """What a run's outcomes add up to, counted one after the other."""

    def __init__(self) -> None:
        self.answered = self.failed = self.invented = self.followed = self.shortened = self.cut = 0
        self.unusable: Counter[str] = Counter()
        self._failures: dict[str, dict[str, Any]] = {}  # the first of each kind, and how many
        self.read: Counter[str] = Counter()
        self.usage = Usage()

    def add(self, outcome: run_folder.Outcome) -> None:
        """One more."""
        trace = outcome["trace"]
        self.answered += 1
        if (error := outcome["error"]) is not None:
            self.failed += 1
            first = {"error": error.strip().partition("\n")[0][:300], "queries": 0, "at": _raised_at(outcome)}
            self._failures.setdefault(run_folder.alike(error), first)["queries"] += 1
        self.invented += trace["invented_ids"]
        self.unusable.update(trace.get("unusable", {}))
        self.followed += len(trace.get("followed", ()))
        self.shortened += sum(step["tool"] == "shorten" for step in trace["steps"])
        self.read.update(_read(trace["steps"]))
        self.cut += sum("cut" in step for step in trace["steps"])
        self.usage += run_folder.usage(outcome)

    def summary(self, config: run_folder.Config, asked: list[str]) -> dict[str, Any]:
        """What is known of a run without scoring it: what it is, how far it came, what it used."""
        usage = usage_json(self.usage)
        if (config.get("imported") or {}).get("usage") is False:  # nobody knows, and 0 would be a claim
            usage = dict.fromkeys(usage)
        about = {
            "task": config["task"],
            "data": config[run_folder.PROVENANCE]["data"],
            "split": config["split"],
            "instruction": config["instruction"],
            "program": config["program"],
            "pool": config.get("pool"),
            "compiled": config.get("compiled"),
            "retriever": config["retriever"]["name"],
            "lm": config["lm"]["name"],
            "isolated": config[run_folder.PROVENANCE].get("isolated"),
            "queries": len(asked),
            "failed": self.failed,
            "failure": max(self._failures.values(), key=lambda kind: kind["queries"], default=None),  # the commonest
            "owed": len(asked) - self.answered,
            "invented_ids": self.invented,
            "unusable": dict(sorted(self.unusable.items())),
            "followed": self.followed,
            "shortened": self.shortened,
            "searches_cut": self.cut,
            "read": {name: self.read[name] for name in READ},
            "metrics": {},
            "usage": usage,
        }
        return about | {"notes": cut(about)}


def _read(steps: "Iterable[Mapping[str, Any]]") -> dict[str, int]:
    """How many documents of a query were put into prompts, and how much of them was cut off where that was most."""
    least: dict[str, tuple[int, int]] = {}  # doc_id -> characters shown, of how many
    for step in steps:
        if step["tool"] in ("judge", "read"):
            for doc_id, *reading in zip(step["doc_ids"], step.get("shown", ()), step.get("lengths", ()), strict=False):
                shown, length = reading
                if shown:  # what was to be shown when a limit came is 0
                    least[doc_id] = min(least.get(doc_id, (shown, length)), (shown, length))
    left_out = [max(0, length - shown) for shown, length in least.values()]
    characters = sum(length for _, length in least.values())
    return dict(zip(READ, (len(least), sum(map(bool, left_out)), characters, sum(left_out)), strict=True))


def _raised_at(outcome: run_folder.Outcome) -> str:
    """File and line of an outcome's error: the last of its traceback that is in no library; "" where there is none."""
    frames = re.findall(r'^  File "([^"<]+)", line (\d+)', outcome.get("traceback") or "", re.MULTILINE)
    own = [f"{file}:{line}" for file, line in frames if "site-packages" not in file]
    return own[-1].removeprefix(f"{Path.cwd()}/") if own else ""


def summary(config: run_folder.Config, outcomes: Mapping[str, run_folder.Outcome], asked: list[str]) -> dict[str, Any]:
    """What is known of a run that may owe queries."""
    tally = _Tally()
    for query_id in asked:
        if query_id in outcomes:
            tally.add(outcomes[query_id])
    return tally.summary(config, asked)


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.score", description="Score a run again; nothing is run.")
    made.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    made.add_argument("--qrels", default="", metavar="NAME", help="which judgements lead; those of the run")
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Score and print; exit code 7 when queries of the run have failed."""
    from evals.measuring.bounds import beside
    from evals.showing.terminal import show

    config = run_folder.read_config(arguments.run)
    environment = environment_of(config, arguments.qrels)
    with run_folder.claim(arguments.run, config) as folder:
        scores = {"run": str(arguments.run)} | score(arguments.run, environment, folder.outcomes)
    scores["bounds"] = beside(arguments.run).json()

    show(scores, as_json=arguments.json)
    return 7 if scores["failed"] else 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
