"""Turn recorded outcomes into scores. No model, no retriever, no network.

Averages run over the queries that were asked, not over those that were answered: a failed query scores 0. A run with
unanswered queries gets no score at all.
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from environments.base import Environment
from evals import folder as run_folder
from evals.folder import BadRanking, check_ranking
from evals.measuring import attribution
from evals.measuring.bounds import beside
from evals.measuring.metrics import Ranking, Values, add_metrics, check_metric, collapse, compute_all
from evals.measuring.stats import bootstrap_mean, resampled_mean
from evals.measuring.tally import Tally
from evals.running.configuration import load_environment
from programs import DIFFERS
from tools import disk
from tools.errors import DataError, RunIncomplete

_FILES = ("outcomes.jsonl", "attribution.jsonl", "scores.csv")


def score(path: Path, environment: Environment, outcomes: run_folder.Rows | None = None) -> dict[str, Any]:
    """Write run.trec, scores.csv, attribution.jsonl and scores.json into `path`; return what scores.json holds.

    RunIncomplete when queries are unanswered. `environment` must be the one that the run was made in; other metrics
    than its task's own are added by `metrics.add_metrics`. `outcomes` are those of the folder, where it is open; they
    are read one by one, because a run may be larger than memory.
    """
    config = run_folder.read_config(path)
    outcomes = run_folder.read_outcomes(path) if outcomes is None else outcomes
    asked = [query.query_id for query in environment.queries]
    if pending := [query_id for query_id in asked if query_id not in outcomes]:
        raise RunIncomplete(
            f"{len(pending)} of {len(asked)} queries of {path} are unanswered, e.g. {pending[0]!r}; "
            "give the same run command again to resume it"
        )
    tally, losses = Tally(), attribution.Losses(attribution.choose_cutoffs(environment.metric, environment.metrics))
    values, errors = _score_queries(path, environment, outcomes, tally, losses)
    about = tally.summary(config, asked)
    scores = about | {
        "judgements": environment.headline,
        "metric": environment.metric,
        "metrics": summarise_values(values, environment, resampled=environment.resampled),
        "losses": losses.json(),
        "notes": [
            *filter(None, [environment.split_note, _depth_note(config, environment)]),
            *([] if config.get("imported") else _deviations(config["program"])),
            *about["notes"],
            *environment.notes,
            *(config.get("imported") or {}).get("notes", ()),
        ],
    }
    with run_folder.writing(path / "scores.csv") as table:
        _write_table(table, values, errors)
    of = {"config": run_folder.digest(config), **run_folder.file_digests(path, _FILES)}
    scores = run_folder.seal_scores(scores | {"made_of": of})
    run_folder.write(path / "scores.json", json.dumps(scores, indent=2) + "\n")
    return scores


def rescore(path: Path, judgements: str = "", metrics: Sequence[str] = ()) -> dict[str, Any]:
    """Score the run in `path` again, by its own judgements where none are named; return what --json prints.

    UnknownName or UsageError, before anything is read, for a metric that is none or that the task cannot have.
    """
    for name in metrics:
        check_metric(name)
    config = run_folder.read_config(path)
    environment = add_metrics(load_environment(config, judgements), metrics)
    with run_folder.claim(path, config) as folder:
        scores = {"run": str(path)} | score(path, environment, folder.outcomes)
    return scores | {"bounds": beside(path).json()}


def _score_queries(
    path: Path, environment: Environment, outcomes: run_folder.Rows, tally: Tally, losses: attribution.Losses
) -> tuple[Values, dict[str, str]]:
    """Write run.trec and attribution.jsonl; return each query's values and its error or ""."""
    judgements = environment.judgements[environment.headline]
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
            _add_values(values, outcome, outcomes, environment)
            units = collapse(outcome["ranking"], judgements)
            trec.write(run_lines(query_id, units, tag=path.name))
            relevant = attribution.attribute(query_id, outcome, units, judgements)
            losses.add(relevant)
            attributed.write(disk.dumps(attribution.to_json(query.text, relevant, outcome, judgements)) + "\n")
    return values, errors


def score_partly(environment: Environment, outcomes: run_folder.Rows) -> dict[str, Any]:
    """The metrics over the answered queries of an unfinished run: {"queries", "metrics", "judgements"}.

    It is no score of the run: the unanswered ones may be the hard ones.
    """
    answered = [query.query_id for query in environment.queries if query.query_id in outcomes]
    part = environment.asking(query_ids=answered)
    values: Values = {}
    for query_id in answered:
        _add_values(values, outcomes[query_id], outcomes, part)
    measured = summarise_values(values, part, resampled=False)
    return {"queries": len(answered), "metrics": measured, "judgements": environment.headline}


def _add_values(
    values: Values, outcome: run_folder.Outcome, outcomes: Mapping[str, Any], environment: Environment
) -> None:
    """Add a query's value of every metric; of other outcomes only that of its twin is read."""
    query_id = outcome["query_id"]
    rankings = {query_id: ranking_of(outcome)}
    if (twin := environment.twins.get(query_id, "")) in outcomes:
        rankings[twin] = ranking_of(outcomes[twin])
    for name, value in compute_all(query_id, rankings, environment).items():
        values.setdefault(name, {})[query_id] = value


def ranking_of(outcome: run_folder.Outcome) -> Ranking:
    """The ranking in an outcome; a failed query has an empty one."""
    return Ranking(outcome["ranking"], outcome.get("scores") or ())


def summarise_values(values: Values, environment: Environment, *, resampled: bool) -> dict[str, dict[str, Any]]:
    """`summarise_column` of each metric."""
    return {
        name: summarise_column(column, weigh_queries(name, environment), resampled=resampled)
        for name, column in values.items()
    }


def weigh_queries(name: str, environment: Environment) -> dict[str, int]:
    """How much each query counts in a metric's mean: as often as it has triplets (BIRCO, appendix D); {} is once."""
    if name != "Triplets":
        return {}
    return {query.query_id: len(environment.comparisons.get(query.query_id, ())) for query in environment.queries}


def summarise_column(
    column: Mapping[str, float | None], weights: Mapping[str, int], *, resampled: bool
) -> dict[str, Any]:
    """A metric's mean with its interval, over the queries for which it is defined; None where there are none."""
    defined = {query_id: value for query_id, value in column.items() if value is not None}
    if not defined:
        return {"mean": None, "low": None, "high": None, "queries": 0}
    values = list(defined.values())
    weighed = [weights[query_id] for query_id in defined] if weights else None
    measured: dict[str, Any] = bootstrap_mean(values, weighed)._asdict()
    if len(defined) < len(column):
        measured["queries"] = len(defined)
    if resampled and set(weights.values()) <= {1}:
        measured["resampled"] = resampled_mean(values)._asdict()
    return measured


def _depth_note(config: run_folder.Config, environment: Environment) -> str:
    """A note for a run whose rankings are shorter than a metric's depth; "" where they are not."""
    depths = [int(name.partition("@")[2]) for name in environment.metrics if "@" in name]
    depth, unit = config["depth"], "passages" if environment.max_p else "documents"
    if depth >= max(depths, default=0):
        return ""
    return f"rankings end at {depth} {unit}, so larger cutoffs say nothing more"


def _deviations(program: str) -> list[str]:
    return [f"{program} differs from the paper's: {DIFFERS[program]}"] if program in DIFFERS else []


def _write_table(file: TextIO, values: Values, errors: Mapping[str, str]) -> None:
    """Write scores.csv: one row a query, an empty cell where a metric is undefined for it."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["query_id", *values, "error"])
    for query_id, error in errors.items():
        cells = [column[query_id] for column in values.values()]
        row = ["" if value is None else repr(value) for value in cells]
        # A lone carriage return is not quoted, and would be read as the end of the row.
        writer.writerow([query_id, *row, error.replace("\r", " ")])


_SPECIAL = re.compile(r"[\s%]")


@lru_cache(1 << 16)
def encode_id(identifier: str) -> str:
    """Return an id as it stands in TREC files, whose columns blanks separate: blanks and % are percent-encoded."""
    if not _SPECIAL.search(identifier):
        return identifier
    return _SPECIAL.sub(lambda match: "".join(f"%{b:02X}" for b in match[0].encode()), identifier)


def run_lines(query_id: str, ranking: Sequence[str], tag: str) -> str:
    """Return a query's lines in run.trec; scores fall strictly, so that no tool breaks our ties its own way."""
    start, ends = f"{encode_id(query_id)}\tQ0\t", _line_ends(len(ranking), tag)
    return "".join([f"{start}{doc_id}{end}" for doc_id, end in zip(map(encode_id, ranking), ends, strict=True)])


@lru_cache(8)
def _line_ends(many: int, tag: str) -> list[str]:
    """Return what follows the documents in so many lines; rankings of a run are of few lengths."""
    return [f"\t{rank}\t{many + 1 - rank}\t{tag}\n" for rank in range(1, many + 1)]
