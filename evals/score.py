"""Turn recorded outcomes into scores: `python -m evals.score RUN`. No model, no retriever, no network.

Averages run over the queries that were asked, not over those that were answered: a failed query scores 0. A run
that still owes queries gets no score at all.
"""

import argparse
import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals import folder as run_folder
from tools.command import Parser, run_command
from tools.errors import DataError, RunIncomplete
from tools.records import total, usage_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from environments.base import Environment
    from evals.metrics import Ranking, Values


def score(path: Path, environment: "Environment") -> dict[str, Any]:
    """Write run.trec, scores.csv and scores.json into the run folder `path`; return what scores.json holds.

    RunIncomplete when the run owes queries. `environment` must be the one that the run was made in.
    """
    from evals.metrics import collapsed, is_pairwise, per_query

    config = run_folder.read_config(path)
    outcomes = run_folder.read_outcomes(path)
    asked = [query.query_id for query in environment.queries]
    if owed := [query_id for query_id in asked if query_id not in outcomes]:
        raise RunIncomplete(
            f"{path} owes {len(owed)} of {len(asked)} queries, e.g. {owed[0]!r}; "
            "give the same run command again to resume it"
        )
    rankings = {query_id: ranking_of(outcomes[query_id]) for query_id in asked}
    values = per_query(rankings, environment)
    # Other judgements are reported under "<metric> [<judgements>]"; comparisons don't depend on judgements.
    for other in environment.judgements:
        if other != environment.headline:
            beside = per_query(rankings, environment, other)
            values |= {f"{name} [{other}]": column for name, column in beside.items() if not is_pairwise(name)}
    scores = summary(config, outcomes, asked) | {
        "judgements": environment.headline,
        "metrics": {
            name: _measured(column, _weights(name, environment), resampled=environment.resampled)
            for name, column in values.items()
        },
        "notes": [*filter(None, [environment.split_note, _depth_note(config, environment)]), *environment.notes],
    }
    units = {
        query_id: collapsed(ranking.doc_ids, environment.judgements[environment.headline])
        for query_id, ranking in rankings.items()
    }
    run_folder.write(path / "run.trec", run_folder.trec(units, tag=path.name))
    run_folder.write(path / "scores.csv", _table(asked, values, outcomes))
    run_folder.write(path / "scores.json", json.dumps(scores, indent=2) + "\n")
    return scores


def _depth_note(config: run_folder.Config, environment: "Environment") -> str:
    """What to know of a run whose rankings end before a metric does."""
    cutoffs = [int(name.partition("@")[2]) for name in environment.metrics if "@" in name]
    depth, unit = config["depth"], "passages" if environment.max_p else "documents"
    if depth >= max(cutoffs, default=0):
        return ""
    return f"rankings end at {depth} {unit}, so larger cutoffs say nothing more"


def ranking_of(outcome: run_folder.Outcome) -> "Ranking":
    """What an outcome says of a ranking; a failed query has an empty one."""
    from evals.metrics import Ranking

    return Ranking(outcome["ranking"], outcome.get("scores") or ())


def _weights(name: str, environment: "Environment") -> dict[str, int]:
    """How much each query counts in a metric's mean: as often as it has triplets (BIRCO, appendix D), else once."""
    if name != "Triplets":
        return {query.query_id: 1 for query in environment.queries}
    return {query.query_id: len(environment.comparisons.get(query.query_id, ())) for query in environment.queries}


def _measured(column: "Mapping[str, float | None]", weights: dict[str, int], *, resampled: bool) -> dict[str, Any]:
    """A metric's mean with its interval, over the queries for which it is defined; None where there are none."""
    from evals.stats import bootstrap_mean, resampled_mean

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


def _table(asked: list[str], values: "Values", outcomes: dict[str, run_folder.Outcome]) -> str:
    """scores.csv: one row a query, an empty cell where a metric is undefined for it."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["query_id", *values, "error"])
    for query_id in asked:
        cells = [column[query_id] for column in values.values()]
        row = ["" if value is None else repr(value) for value in cells]
        # A lone carriage return is not quoted, and would be read as the end of the row.
        writer.writerow([query_id, *row, (outcomes[query_id]["error"] or "").replace("\r", " ")])
    return table.getvalue()


def summary(config: run_folder.Config, outcomes: dict[str, run_folder.Outcome], asked: list[str]) -> dict[str, Any]:
    """What is known of a run without scoring it: what it is, how far it came, what it used."""
    answered = [outcomes[query_id] for query_id in asked if query_id in outcomes]
    return {
        "task": config["task"],
        "data": config[run_folder.PROVENANCE]["data"],
        "split": config["split"],
        "instruction": config["instruction"],
        "program": config["program"],
        "pool": config.get("pool"),
        "compiled": config.get("compiled"),
        "retriever": config["retriever"]["name"],
        "lm": config["lm"]["name"],
        "queries": len(asked),
        "failed": sum(outcome["error"] is not None for outcome in answered),
        "owed": len(asked) - len(answered),
        "invented_ids": sum(outcome["trace"]["invented_ids"] for outcome in answered),
        "unusable": _by_kind(outcome["trace"].get("unusable", {}) for outcome in answered),
        "followed": sum(len(outcome["trace"].get("followed", ())) for outcome in answered),
        "shortened": sum(step["tool"] == "shorten" for outcome in answered for step in outcome["trace"]["steps"]),
        "searches_cut": sum("cut" in step for outcome in answered for step in outcome["trace"]["steps"]),
        "metrics": {},
        "usage": usage_json(total(run_folder.usage(outcome) for outcome in answered)),
    }


def _by_kind(counts: "Iterable[dict[str, int]]") -> dict[str, int]:
    summed: Counter[str] = Counter()
    for count in counts:
        summed.update(count)
    return dict(sorted(summed.items()))


def environment_of(config: run_folder.Config, qrels: str = "") -> "Environment":
    """The environment that a run was made in, `qrels` leading; DataError when the data is no longer the same."""
    import environments

    where = config[run_folder.PROVENANCE]["folder"] or config["data"]
    loaded = environments.load(
        config["task"],
        where,
        config["split"],
        qrels=qrels or config[run_folder.PROVENANCE]["judgements"],
        instruction=config["instruction"],
    )
    chosen = loaded.asking(**config["asked"])
    if chosen.fingerprint != config["data_fingerprint"]:
        raise DataError(
            f"the data of {config['task']} in {where} is not what the run was made with "
            f"({chosen.fingerprint}, not {config['data_fingerprint']}); run again"
        )
    return chosen


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.score", description="Score a run again; nothing is run.")
    made.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    made.add_argument("--qrels", default="", metavar="NAME", help="which judgements lead; those of the run")
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Score and print; exit code 7 when queries of the run have failed."""
    config = run_folder.read_config(arguments.run)
    environment = environment_of(config, arguments.qrels)
    with run_folder.claim(arguments.run, config):
        scores = {"run": str(arguments.run)} | score(arguments.run, environment)
    from evals.terminal import show

    show(scores, as_json=arguments.json)
    return 7 if scores["failed"] else 0


if __name__ == "__main__":
    sys.exit(run_command(parser(), command))
