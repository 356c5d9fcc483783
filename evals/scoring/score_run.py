"""Turn recorded outcomes into scores, and count the looks at test queries. No model, no retriever,
no network.

A failed query scores 0; a run with unanswered queries gets no score. A run that has shown a value
of a query outside dev is a look, because whoever keeps the best of many looks has chosen on the
test. Looks are lines of $SEXTANT_HOME/looks.jsonl; resuming or scoring again is no new look. No
failure of counting ends a run.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from sextant.environments.base import POOLED, Environment
from sextant.evals import run_folder
from sextant.evals.run_descriptions import describe_resuming
from sextant.evals.run_folder import load_environment
from sextant.evals.run_sittings import explain_resuming
from sextant.evals.scoring.attribution import (
    LossCounts,
    attribute,
    attribution_json,
    choose_cutoffs,
)
from sextant.evals.scoring.behaviour import FigureMeans
from sextant.evals.scoring.metrics import (
    Values,
    add_metrics,
    collapse_to_units,
    compute_metrics,
    digest_metric_code,
    is_custom,
    is_weighted,
    measure_unjudged,
    parse_metric,
    ranking_of,
    require_metrics,
)
from sextant.evals.scoring.reference_runs import read_reference_bounds
from sextant.evals.scoring.scored_run import Column, name_retriever
from sextant.evals.scoring.statistics import estimate_mean, resampled_mean
from sextant.programs import describe_deviations
from sextant.tools.errors import DataError, RunIncomplete, SextantError
from sextant.tools.platform import files
from sextant.tools.platform.number_format import choose_verb, plural, queries
from sextant.tools.platform.result_table import write_csv
from sextant.tools.pool_kinds import describe_signs
from sextant.tools.records import JsonMapping, JsonObject, Query, Usage, usage_from_json, usage_json

# Files whose digests scores.json has after that of the outcomes, in their order there.
_WRITTEN = (run_folder.JUDGED_FILE, run_folder.TREC_FILE, run_folder.VALUES_FILE)
KINDS = 5  # of failures that are told, the commonest first
_SPECIAL = re.compile(r"[\s%\x00-\x1f\x7f-\x9f]")


def score(
    path: Path, environment: Environment, outcomes: run_folder.JsonlIndex | None = None
) -> JsonObject:
    """Write run.trec, scores.csv, attribution.jsonl and scores.json into `path`; return the content
    of scores.json.

    RunIncomplete when queries are unanswered. `environment` is the run's, `outcomes` those of an
    open folder.
    """
    config = run_folder.read_config(path)
    outcomes = run_folder.read_outcomes(path) if outcomes is None else outcomes
    query_ids = [query.query_id for query in environment.queries]
    if pending := [query_id for query_id in query_ids if query_id not in outcomes]:
        unanswered = (
            f"{len(pending)} of {queries(len(query_ids))} of {path} {choose_verb(len(pending))} "
            f"unanswered, e.g. {pending[0]!r}"
        )
        raise RunIncomplete(f"{unanswered}; {explain_resuming(path)}")
    outcomes_digest = run_folder.file_digest(path / run_folder.OUTCOMES_FILE)
    sums = PartialScores(config, environment)
    figures = FigureMeans(environment.metric, config["depth"])
    with (
        run_folder.writing(path / run_folder.TREC_FILE) as trec,
        run_folder.writing(path / run_folder.JUDGED_FILE) as judged,
    ):
        _score_queries(path, sums, outcomes, trec, judged, figures)
    _write_columns(path / run_folder.VALUES_FILE, sums.columns, sums.errors)
    pooled = environment.judgements.get(POOLED)
    rankings = {}
    if pooled:  # else nothing is read a second time
        rankings = {query_id: outcomes[query_id]["ranking"] for query_id in query_ids}
    pools = [query.candidates for query in environment.queries if query.candidates is not None]
    has_pools = pools and len(pools) == len(environment.queries)
    candidates = max(map(len, pools)) if has_pools else None
    metric_code = {
        name: digest_metric_code(name) for name in environment.metrics if is_custom(name)
    }
    summary = sums.summary(resampled=environment.resampled)
    scores = summary | {
        "documents": len(environment.documents),
        "candidates": candidates,
        **({"opaque_ids": True} if environment.release_ids else {}),
        "searchers": figures.json(),
        **({"metric_code": metric_code} if metric_code else {}),
        **({"unjudged": measure_unjudged(environment.metrics, pooled, rankings)} if pooled else {}),
        "notes": _list_notes(config, environment, candidates, summary["notes"]),
    }
    made_of = {"config": run_folder.digest(config), run_folder.OUTCOMES_FILE: outcomes_digest}
    made_of |= {name: run_folder.file_digest(path / name) for name in _WRITTEN}
    scores = run_folder.seal_scores(files.hide_folders(scores) | {"made_of": made_of})
    run_folder.write(
        path / run_folder.SCORES_FILE,
        json.dumps(scores, indent=2) + "\n",
    )
    return scores


def _list_notes(
    config: JsonMapping,
    environment: Environment,
    candidates: int | None,
    tally_notes: Sequence[str],
) -> list[str]:
    """Return what a reader of the scores should know; `candidates` is the size of the
    largest pool, if all queries have some.
    """
    notes = [f"Warning: {warning}" for warning in environment.warnings]
    if environment.split_note:
        notes.append(environment.split_note)
    depths = [parse_metric(name).depth or 0 for name in environment.metrics]
    if config["depth"] < max(depths, default=0):
        unit = "passages" if environment.max_p else "documents"
        notes.append(
            f"rankings end at {config['depth']} {unit}, so larger cutoffs say nothing more"
        )
    deviations = describe_deviations(config, has_candidates=candidates is not None)
    notes += filter(
        None,
        (
            describe_resuming(config),
            deviations,
            describe_signs(config),
            _describe_relevance(environment),
        ),
    )
    imported = config.get("imported") or {}
    return [
        *notes,
        *tally_notes,
        *environment.notes,
        *imported.get("notes", ()),
    ]


def _describe_relevance(environment: Environment) -> str:
    """Say which grades count as relevant, if there are several, and how many queries have none."""
    judged = environment.judgements[environment.headline]
    grades = set[float]()
    without = 0
    for query in environment.queries:
        grades.update(judged.gains(query.query_id).values())
        without += not judged.relevant(query.query_id)
    if len(grades) < 2:
        return ""
    note = f"documents are {judged.level}, of grades up to {max(grades):g} (--relevant-from)"
    return f"{note}; {plural(without, 'query has', 'queries have')} none" if without else note


def _write_columns(path: Path, values: Values, errors: Mapping[str, str]) -> None:
    """Write scores.csv: a row a query, a column a metric."""
    rows = [["query_id", *values, "error"]]
    for query_id, error in errors.items():
        cells = [column[query_id] for column in values.values()]
        row = ["" if value is None else repr(value) for value in cells]
        # A lone carriage return is not quoted, and would be read as the end of the row.
        rows.append([query_id, *row, error.replace("\r", " ")])
    with run_folder.writing(path) as file:
        write_csv(file, rows)


def rescore(
    path: Path,
    judgements: str = "",
    metrics: Sequence[str] = (),
    relevant_from: float | None = None,
) -> JsonObject:
    """Score the run in `path` again, by its own judgements and level if none are named; return the
    output of --json.
    """
    metrics = require_metrics(metrics)
    config = run_folder.read_config(path)
    environment = add_metrics(load_environment(config, judgements, relevant_from), metrics)
    with run_folder.claim(path, config) as folder:
        scores = {"run": str(path)} | score(path, environment, folder.outcomes)
    return scores | {"bounds": read_reference_bounds(path)}


def _score_queries(
    path: Path,
    sums: "PartialScores",
    outcomes: run_folder.JsonlIndex,
    trec: TextIO,
    judged: TextIO,
    figures: FigureMeans,
) -> None:
    """Score each query, and write its lines of run.trec and attribution.jsonl."""
    environment = sums.environment
    rows = outcomes.rows(query.query_id for query in environment.queries)
    for query, outcome in zip(environment.queries, rows, strict=True):
        # A sealed ranking was checked when it was written.
        if "digest" not in outcome:
            try:
                run_folder.check_ranking(outcome["ranking"], query, environment.documents)
            except run_folder.InvalidRanking as wrong:
                file = path / run_folder.OUTCOMES_FILE
                raise DataError(
                    f"{file}, query {query.query_id!r}: {wrong}; {run_folder.MEND}"
                ) from None
        units, row = sums.add(query, outcome, outcomes)
        released = [environment.release_ids.get(unit, unit) for unit in units]
        lines = trec_lines(query.query_id, released, path.name)
        trec.buffer.write(lines.encode("utf-8", "backslashreplace"))
        figures.add(outcome, row)
        judged.write(files.dumps(row) + "\n")


def summarise_unfinished(
    config: run_folder.Config, environment: Environment, outcomes: run_folder.JsonlIndex
) -> JsonObject:
    """Summarise a run with unanswered queries, without a score; metrics over the others are
    under "partial".
    """
    answered = [query.query_id for query in environment.queries if query.query_id in outcomes]
    asked = environment.asking(query_ids=answered, limit=len(answered))  # which may be none
    sums = PartialScores(config, asked)
    for query in asked.queries:
        sums.add(query, outcomes[query.query_id], outcomes)
    summary = sums.summary()
    partial = {"queries": len(answered)} | {key: summary[key] for key in ("metrics", "judgements")}
    for key in ("judgements", "metric", "losses"):
        del summary[key]
    asked_for = len(environment.queries)
    left = {"queries": asked_for, "owed": asked_for - len(answered)}
    return summary | left | {"metrics": {}, "partial": partial}


class PartialScores:
    """The scores of a run over the queries that were added so far.

    `columns` and `errors` are as a scored run has them in scores.csv.
    """

    def __init__(self, config: run_folder.Config, environment: Environment) -> None:
        self.environment = environment
        self.columns = Values()
        self.errors = dict[str, str]()
        self._config = config
        self._tally = _Tally()
        self._losses = LossCounts(choose_cutoffs(environment.metric, environment.metrics))

    def add(
        self, query: Query, outcome: run_folder.Outcome, outcomes: JsonMapping
    ) -> tuple[Sequence[str], JsonObject]:
        """Score an outcome; return its ranking in the units that are scored, and its line of
        attribution.jsonl. `outcomes` has those of all queries answered so far.
        """
        judgements = self.environment.judgements[self.environment.headline]
        self._tally.add(outcome)
        self._add_values(outcome, outcomes)
        twin = self.environment.twins.get(query.query_id, "")
        if twin in self.errors:  # its values are of both queries
            self._add_values(outcomes[twin], outcomes)
        self.errors[query.query_id] = outcome["error"] or ""
        units = collapse_to_units(outcome["ranking"], judgements)
        relevant = attribute(query.query_id, outcome, units, judgements)
        self._losses.add(relevant)
        return units, attribution_json(query.text, relevant, outcome, judgements)

    def _add_values(self, outcome: run_folder.Outcome, outcomes: JsonMapping) -> None:
        query_id = outcome["query_id"]
        rankings = {query_id: ranking_of(outcome)}
        if (twin := self.environment.twins.get(query_id, "")) in outcomes:
            rankings[twin] = ranking_of(outcomes[twin])
        for name, value in compute_metrics(query_id, rankings, self.environment).items():
            self.columns.setdefault(name, {})[query_id] = value

    def summary(self, *, resampled: bool = False) -> JsonObject:
        """Return what scores.json would hold, with means over the added queries."""
        environment = self.environment
        weights = {name: query_weights(name, environment) for name in self.columns}
        return self._tally.summary(self._config, len(environment.queries)) | {
            "judgements": environment.headline,
            "relevant_from": environment.judgements[environment.headline].relevant_from,
            "metric": environment.metric,
            "metrics": summarise_columns(self.columns, weights, resampled=resampled),
            "losses": self._losses.json(),
        }


@lru_cache(1 << 16)
def encode_trec_id(identifier: str) -> str:
    """Return an id as it stands in TREC files, whose columns blanks separate: blanks and %
    are percent-encoded.
    """
    return _SPECIAL.sub(
        lambda match: "".join(f"%{b:02X}" for b in match[0].encode()),
        identifier,
    )


def trec_lines(query_id: str, ranking: Sequence[str], tag: str) -> str:
    """Return a query's lines in run.trec; scores fall strictly, so that no tool breaks our
    ties its own way.
    """
    start = f"{encode_trec_id(query_id)}\tQ0"
    lines = []
    for rank, doc_id in enumerate(map(encode_trec_id, ranking), start=1):
        lines.append(f"{start}\t{doc_id}\t{rank}\t{len(ranking) + 1 - rank}\t{tag}\n")
    return "".join(lines)


def query_weights(name: str, environment: Environment) -> dict[str, int]:
    """Return how often each query counts in a metric's mean: once per triplet (BIRCO,
    appendix D); {} is once.
    """
    if not is_weighted(name):
        return {}
    return {
        query.query_id: len(environment.comparisons.get(query.query_id, ()))
        for query in environment.queries
    }


def summarise_columns(
    columns: Mapping[str, Column], weights: Mapping[str, Mapping[str, int]], *, resampled: bool
) -> dict[str, JsonObject]:
    """Return each metric's mean with its interval, over the queries for which it is defined;
    None if there are none.

    `weights` has the weights of queries by metric; a metric with none of them has weights of 1.
    """
    summary = {}
    for name, column in columns.items():
        values = {query_id: value for query_id, value in column.items() if value is not None}
        if not values:
            summary[name] = {
                "mean": None,
                "low": None,
                "high": None,
                "queries": 0,
            }
            continue
        weight_of_query = weights[name]
        weighed = [weight_of_query[query_id] for query_id in values] if weight_of_query else None
        interval = estimate_mean([list(values.values())], weighed)
        summary[name] = measured = dict[str, Any](interval._asdict())
        if len(values) < len(column):
            measured["queries"] = len(values)
        if resampled and set(weight_of_query.values()) <= {1}:
            measured["resampled"] = resampled_mean(list(values.values()))
    return summary


class _Tally:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._unusable: Counter[str] = Counter()
        self._used_in_part: Counter[str] = Counter()
        self._failures: dict[str, JsonObject] = {}  # the first of each kind, and how many
        self._read: Counter[str] = Counter()
        self._usage = Usage()
        self._seconds = list[float]()

    def add(self, outcome: run_folder.Outcome) -> None:
        trace = outcome["trace"]
        if (error := outcome["error"]) is not None:
            first = {
                "error": run_folder.first_error_line(error),
                "queries": 0,
                "at": _raised_at(outcome),
                "first": outcome["query_id"],
            }
            self._failures.setdefault(run_folder.error_template(error), first)["queries"] += 1
        self._counts.update(
            answered=1,
            failed=int(error is not None),
            invented_ids=trace["invented_ids"],
            followed=len(trace.get("followed", ())),
            shortened=sum(step["tool"] == "shorten" for step in trace["steps"]),
            searches_cut=sum("cut" in step for step in trace["steps"]),
            fallbacks=trace.get("fallbacks", 0),
            unshown=sum(len(step["doc_ids"]) for step in trace["steps"] if step["tool"] == "files"),
        )
        self._unusable.update(trace.get("unusable", {}))
        self._used_in_part.update(trace.get("used_in_part", {}))
        self._read.update(_count_read(trace["steps"]))
        self._usage += usage_from_json(outcome["usage"])
        if outcome.get("seconds") is not None:
            self._seconds.append(outcome["seconds"])

    def summary(self, config: run_folder.Config, queries: int) -> JsonObject:
        provenance = config[run_folder.PROVENANCE]
        compiled = config.get("compiled")
        failures = sorted(self._failures.values(), key=lambda failure: -failure["queries"])[:KINDS]
        usage = usage_json(self._usage)
        # The usage of an imported run may be unknown, and 0 would be a claim.
        if (config.get("imported") or {}).get("usage") is False:
            usage = dict.fromkeys(usage)
        counts = self._counts
        summary = {
            **{key: config[key] for key in ("task", "split", "instruction", "program")},
            "data": provenance["data"],
            "pool": config.get("pool"),
            "compiled": compiled and {**compiled, "file": provenance.get("compiled")},
            "retriever": name_retriever(config),
            "lm": config["lm"]["name"],
            "queries": queries,
            "failed": counts["failed"],
            "failure": failures[0] if failures else None,
            "failures": failures,
            "owed": queries - counts["answered"],
            "invented_ids": counts["invented_ids"],
            "unusable": dict(sorted(self._unusable.items())),
            "used_in_part": dict(sorted(self._used_in_part.items())),
            **{key: counts[key] for key in ("fallbacks", "followed", "shortened", "searches_cut")},
            "read": {
                key: self._read[key] for key in ("documents", "cut", "characters", "left_out")
            },
            "metrics": {},
            "usage": usage,
            "query_seconds": round(sum(self._seconds), 4) if self._seconds else None,
        }
        notes = describe_cuts(summary)
        if unshown := counts["unshown"]:
            notes.append(
                f"read past the tools: {plural(unshown, 'document')} named that no tool had shown"
            )
        return summary | {"notes": notes}


def _count_read(steps: Iterable[JsonMapping]) -> dict[str, int]:
    """Count the documents of a query that were put into prompts, and the characters that the
    shortest showing of each cut off.
    """
    least: dict[str, tuple[int, int]] = {}  # doc_id -> characters shown, of how many
    for step in steps:
        if step["tool"] in ("judge", "read"):
            readings = zip(
                step.get("shown", ()),
                step.get("lengths", ()),
                strict=False,
            )
            for doc_id, reading in zip(step["doc_ids"], readings, strict=False):
                if reading[0]:  # what was to be shown when a limit came is 0
                    least[doc_id] = min(least.get(doc_id, reading), reading)
    left_out = [max(0, length - shown) for shown, length in least.values()]
    return {
        "documents": len(least),
        "cut": sum(map(bool, left_out)),
        "characters": sum(length for _, length in least.values()),
        "left_out": sum(left_out),
    }


def describe_cuts(scores: JsonMapping) -> list[str]:
    """Say in a line how much of its documents a run left out of prompts; none if that is
    nothing, or unknown.
    """
    read = scores.get("read") or {}
    if not read.get("cut"):
        return []
    cut_documents = f"{read['cut']:,} of {plural(read['documents'], 'document')}"
    by = f"({scores['program']}, {scores['task']})"
    share = 100 * read["left_out"] / read["characters"]
    were = choose_verb(read["cut"], "was", "were")
    return [
        f"{cut_documents} {were} cut on the way into a prompt {by}: {share:.1f} % of the characters"
    ]


def _raised_at(outcome: run_folder.Outcome) -> str:
    """Return file and line of the last frame of a traceback that is in no library."""
    frames = re.findall(
        r'^  File "([^"<]+)", line (\d+)', outcome.get("traceback") or "", re.MULTILINE
    )
    own_frames = [f"{file}:{line}" for file, line in frames if "site-packages" not in file]
    return own_frames[-1].removeprefix(f"{Path.cwd()}/") if own_frames else ""


def record_test_use(config: run_folder.Config, path: Path) -> None:
    """Record that the run of `config` in `path` has shown values; nothing for dev, or a
    second time.
    """
    if config["split"] == "dev":
        return
    look = {
        **{key: config[key] for key in ("task", "data_fingerprint", "split", "program")},
        "data": _data_of(config),
        "compiled": (config.get("compiled") or {}).get("digest"),
        "lm": config["lm"]["name"],
        "run": path.name,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with suppress(OSError, SextantError):
        if _identity(look) not in _read_looks():
            file = files.sextant_home() / "looks.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            # Reading cuts off a torn line, which the new line would join.
            list(files.iter_lines(file, repair=True))
            files.append_line(file, json.dumps(look).encode(), files.SHARED)


def count_test_uses(config: run_folder.Config) -> int:
    """Count the runs with the program of `config` that have looked at queries of its task
    outside dev.
    """
    alike = {
        "task": config["task"],
        "data": _data_of(config),
        "program": config["program"],
    }
    return sum(look | alike == look for look in _read_looks().values())


def _data_of(config: run_folder.Config) -> str:
    provenance = config[run_folder.PROVENANCE]
    return str(provenance["folder"] or provenance["data"])


def _identity(look: JsonObject) -> str:
    """Return the keys of a look; a run folder's name has its configuration's digest in it."""
    return json.dumps([look.get(key) for key in ("run", "task", "data_fingerprint")])


def _read_looks() -> dict[str, JsonObject]:
    looks = {}
    with suppress(OSError, SextantError):
        for line in files.iter_lines(files.sextant_home() / "looks.jsonl"):
            if look := files.read_object(line.decode("utf-8", "replace")):
                looks[_identity(look)] = look
    return looks
