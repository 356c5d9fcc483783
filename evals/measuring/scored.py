"""Read run folders that have been scored: what compares, shows and reports runs works on this alone.

No corpus, no model, no network. Scores are read at once, outcomes and what became of documents a query at a time. Runs
with unanswered queries or without scores are refused with the reason, or listed with it (`find`).
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evals import folder as run_folder
from evals.forms import JudgedForm, ScoresForm
from evals.running.configuration import load_environment
from tools import forms
from tools.console import brief
from tools.errors import DataError, RunIncomplete, SextantError, UsageError

Column = dict[str, float | None]  # query_id -> value of one metric, None where it is undefined

# What two runs must share for their difference to be that of the systems; beside these, the judgements that lead.
CONTRACT = ("task", "data_fingerprint", "split", "asked", "instruction", "max_p", "depth", "pool")
# Where compilations lie beside the runs; their folders have other files.
COMPILED = "compiled"
READ = ("documents", "cut", "characters", "left_out")
USED = ("calls", "input_tokens", "output_tokens", "paid_usd", "list_usd")


@dataclass(frozen=True)
class Run:
    """A run folder that has been scored."""

    path: Path  # as given
    config: run_folder.Config
    scores: dict[str, Any]  # scores.json
    columns: dict[str, Column]  # scores.csv: metric -> its values; the task's headline metric is the first
    errors: dict[str, str]  # query_id -> why it failed, for those that did
    query_ids: list[str]

    @property
    def name(self) -> str:
        """Its path as given."""
        return str(self.path)

    @property
    def contract(self) -> dict[str, Any]:
        """What was asked of it, and how that was judged."""
        return {key: self.config.get(key) for key in CONTRACT} | {"judgements": self.scores["judgements"]}

    @property
    def metric(self) -> str:
        """The headline metric."""
        return str(self.scores.get("metric") or next(iter(self.scores["metrics"])))

    @property
    def usage_known(self) -> bool:
        """Whether somebody knows what its model calls used: not of every run that was imported."""
        return (self.config.get("imported") or {}).get("usage") is not False

    @property
    def retriever(self) -> str:
        """The complete name of its retriever, parameters included."""
        return str(self.config["retriever"].get("with") or self.config["retriever"]["name"])

    def mean(self, metric: str) -> float | None:
        """The mean of a metric; None where the run has none."""
        measured = self.scores["metrics"].get(metric)
        mean = measured.get("mean") if isinstance(measured, dict) else None
        return float(mean) if isinstance(mean, int | float) else None

    @cached_property
    def outcomes(self) -> run_folder.Rows:
        """query_id -> its line of outcomes.jsonl: ranking, trace, usage, error. DataError where one is missing."""
        rows = run_folder.read_outcomes(self.path)
        if missing := [query_id for query_id in self.query_ids if query_id not in rows]:
            raise DataError(
                f"{self.path} has scores, but no outcome of {len(missing)} of its {len(self.query_ids)} queries, e.g. "
                f"{missing[0]!r}; give its command again to have them answered"
            )
        self._check_file("outcomes.jsonl")
        return rows

    @cached_property
    def judged(self) -> run_folder.Rows:
        """query_id -> its line of attribution.jsonl: text, grades, and what became of each relevant document.

        DataError where it is missing, as in a run that an earlier version scored.
        """
        rows = run_folder.read_rows(
            self.path / "attribution.jsonl", lambda line: str(forms.read(JudgedForm, line)["query_id"])
        )
        if missing := [query_id for query_id in self.query_ids if query_id not in rows]:
            raise DataError(
                f"{self.path} does not say what became of the documents of {len(missing)} queries; "
                f"python -m evals.score {self.path} scores it again"
            )
        self._check_file("attribution.jsonl")
        return rows

    def _check_file(self, name: str) -> None:
        """DataError where a file of the run has changed since it was scored."""
        try:
            run_folder.check_file(self.path / name, self.scores)
        except ValueError as error:
            raise DataError(f"{self.path}: {error}; python -m evals.score {self.path} scores it again") from None


def pair(*columns: Mapping[str, float | None]) -> dict[str, tuple[float, ...]]:
    """Query -> its value in each column, for the queries that have one in all of them, in the order of the first."""
    rows = {query_id: tuple(column.get(query_id) for column in columns) for query_id in columns[0]}
    return {query_id: row for query_id, row in rows.items() if None not in row}  # type: ignore[misc]


def describe_cuts(scores: Mapping[str, Any]) -> list[str]:
    """How much of its documents a run left out of prompts, as a line; none where that is nothing, or unknown."""
    read = scores.get("read") or {}
    if not read.get("cut"):
        return []
    many, by = f"{read['cut']:,} of {read['documents']:,} documents", f"({scores['program']}, {scores['task']})"
    share = 100 * read["left_out"] / read["characters"]
    return [f"{many} were cut on their way into a prompt {by}: {share:.1f} % of their characters"]


def differences(baseline: Run, run: Run) -> dict[str, str]:
    """What two runs were not both asked: key of the contract, or "queries" -> both values, in words."""
    found = {
        key: f"{brief(value)}, {brief(run.contract[key])}"
        for key, value in baseline.contract.items()
        if run.contract[key] != value
    }
    shared = len(set(baseline.query_ids) & set(run.query_ids))
    many = len(baseline.query_ids), len(run.query_ids)
    return found | ({} if many == (shared, shared) else {"queries": f"{many[0]}, {many[1]}, {shared} in common"})


def check_same_contract(runs: Sequence[Run]) -> None:
    """UsageError, with what differs, for runs that were not asked the same: their difference is not the systems'."""
    for run in runs[1:]:
        if found := differences(runs[0], run):
            values = ", ".join(f"{key} ({what})" for key, what in found.items())
            raise UsageError(
                f"{runs[0].name} and {run.name} were not asked the same: {values}; give runs that agree in these"
            )


def find_folders(paths: Iterable[Path]) -> list[Path]:
    """The run folders among `paths` and in the folders below them, each once; DataError where there are none."""
    found: dict[Path, Path] = {}
    for path in paths:
        here = [path] if (path / "config.json").is_file() else _folders_below(path)
        if not here:
            raise DataError(f"{path} holds no run folder; name run folders, or a folder that has some in it")
        for one in here:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def _folders_below(path: Path) -> list[Path]:
    found = [place.parent for place in path.rglob("config.json") if (place.parent / "outcomes.jsonl").is_file()]
    return sorted(place for place in found if COMPILED not in place.relative_to(path).parts[:1])


def find(paths: Iterable[Path]) -> tuple[list[Run], dict[Path, str]]:
    """(the scored runs in `paths` and below them, the others with the reason). DataError where no folder is a run."""
    runs, others = list[Run](), dict[Path, str]()
    for path in find_folders(paths):
        try:
            runs.append(read(path, load_data=False))
        except (SextantError, OSError) as problem:  # a file may be unreadable
            others[path] = str(problem)
    return runs, others


def read(path: Path, *, load_data: bool = True) -> Run:
    """The run in `path` with its scores. DataError where there are none, RunIncomplete when queries are unanswered.

    How many queries of a run without scores are unanswered is said only with its data, which `load_data` allows.
    """
    config = run_folder.read_config(path)
    try:
        scores = read_scores(path, config)
        run_folder.check_file(path / "scores.csv", scores)
        columns, errors = _read_columns((path / "scores.csv").read_bytes().decode())
        if len(errors) != scores["queries"] or list(columns) != list(scores["metrics"]):
            raise ValueError("scores.csv is not of scores.json")
    except FileNotFoundError:
        raise _unscored(path, config, load_data=load_data) from None
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"the scores in {path} are damaged ({error}); python -m evals.score {path} makes them again"
        ) from None
    failed = {query_id: error for query_id, error in errors.items() if error}
    return Run(path, config, scores, columns, failed, list(errors))


def _unscored(path: Path, config: run_folder.Config, *, load_data: bool) -> SextantError:
    """Why a run without scores cannot be compared."""
    outcomes, asked = run_folder.read_outcomes(path), list[str]()
    if load_data:
        with suppress(SextantError):  # its data may not be here
            asked = [query.query_id for query in load_environment(config).queries]
    pending = [query_id for query_id in asked if query_id not in outcomes]
    if pending or not outcomes:
        many = f"{len(pending)} of {len(asked)}" if pending else "all"
        return RunIncomplete(f"{many} queries of {path} are unanswered; give its command again to resume it")
    if not asked:
        return DataError(f"{path} has no scores; python -m evals.score {path} makes them, or says what is unanswered")
    return DataError(f"{path} is not scored; python -m evals.score {path} does that")


def read_scores(path: Path, config: run_folder.Config) -> dict[str, Any]:
    """What scores.json of the run in `path` holds. ValueError where it is none, or does not fit the configuration."""
    scores: dict[str, Any] = forms.read_whole(ScoresForm, (path / "scores.json").read_bytes())
    if (losses := scores.get("losses")) and str(losses["cutoff"]) not in losses["at"]:
        raise ValueError("'losses' has nothing at its cutoff")
    for name, one in scores["metrics"].items():
        low, high = one.get("low"), one.get("high")
        if (low is None) != (high is None) or (one.get("mean") is None and low is not None):
            raise ValueError(f"{name!r} has no mean with its interval")
    run_folder.check_scores(scores, run_folder.digest(config))
    return scores


def _read_columns(text: str) -> tuple[dict[str, Column], dict[str, str]]:
    """(values per metric and query, query -> its error or "") of a scores.csv; ValueError for what is none."""
    csv.field_size_limit(2**31 - 1)  # the last column has error messages, of any length
    head, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    if head[:1] != ["query_id"] or head[-1:] != ["error"] or any(len(row) != len(head) for row in rows):
        raise ValueError("scores.csv is no table of query_id, metrics and error")
    if not rows or len({row[0] for row in rows}) < len(rows):
        raise ValueError("scores.csv has no queries, or one of them twice")
    columns = {name: {row[0]: _number(row[place]) for row in rows} for place, name in enumerate(head[1:-1], start=1)}
    return columns, {row[0]: row[-1] for row in rows}


def _number(cell: str) -> float | None:
    value = float(cell) if cell else None
    if value is not None and not abs(value) <= 2**53:  # NaN is neither
        raise ValueError(f"scores.csv: {cell[:40]!r} is no value of a metric")
    return value
