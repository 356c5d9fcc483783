"""A run folder that has been scored, read: what compares, shows and reports runs works on this alone.

No corpus, no model, no network; scores are read at once, outcomes and what became of documents a query at a time. Left
out: runs that owe queries or have no scores. They are refused with the reason, or listed with it (`found`).
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evals import folder as run_folder
from evals import seal
from evals.measuring.attribution import Relevant, relevant_from_json
from tools.errors import DataError, RunIncomplete, SextantError, UsageError

Column = dict[str, float | None]  # query_id -> value of one metric, None where it is undefined

# What two runs must share for their difference to be that of the systems; beside these, the judgements that lead.
CONTRACT = ("task", "data_fingerprint", "split", "asked", "instruction", "max_p", "depth", "pool")
# Where compilations lie beside the runs; their folders have other files.
COMPILED = "compiled"


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
        return str(self.scores.get("metric") or next(iter(self.columns)))

    @property
    def usage_known(self) -> bool:
        """Whether somebody knows what its model calls used: not of every run that was imported."""
        return (self.config.get("imported") or {}).get("usage") is not False

    @cached_property
    def outcomes(self) -> run_folder.Rows:
        """query_id -> its line of outcomes.jsonl: ranking, trace, usage, error. DataError where one is missing."""
        rows = run_folder.read_outcomes(self.path)
        if missing := [query_id for query_id in self.query_ids if query_id not in rows]:
            raise DataError(
                f"{self.path} has scores, but no outcome of {len(missing)} of its {len(self.query_ids)} queries, e.g. "
                f"{missing[0]!r}; give its command again to have them answered"
            )
        self._fits("outcomes.jsonl")
        return rows

    @cached_property
    def judged(self) -> run_folder.Rows:
        """query_id -> its line of attribution.jsonl: text, grades, and what became of each relevant document.

        DataError where it is missing, as in a run that an earlier version scored.
        """
        from evals.forms import JudgedForm
        from tools import forms

        rows = run_folder.read_rows(
            self.path / "attribution.jsonl", lambda line: str(forms.read(JudgedForm, line)["query_id"])
        )
        if missing := [query_id for query_id in self.query_ids if query_id not in rows]:
            raise DataError(
                f"{self.path} does not say what became of the documents of {len(missing)} queries; "
                f"python -m evals.score {self.path} scores it again"
            )
        self._fits("attribution.jsonl")
        return rows

    def _fits(self, name: str) -> None:
        """DataError where a file of the run has changed since it was scored."""
        try:
            seal.check_file(self.path / name, self.scores)
        except ValueError as error:
            raise DataError(f"{self.path}: {error}; python -m evals.score {self.path} scores it again") from None

    def relevant(self, query_id: str) -> list[Relevant]:
        """What became of a query's relevant documents; none where recall is undefined."""
        return relevant_from_json(self.judged[query_id])


def cut(scores: Mapping[str, Any]) -> list[str]:
    """How much of its documents a run left out of prompts, as a line; none where that is nothing, or unknown."""
    read = scores.get("read") or {}
    if not read.get("cut"):
        return []
    many, what = (
        f"{read['cut']:,} of {read['documents']:,} documents were cut",
        f"{scores['program']}, {scores['task']}",
    )
    share = read["left_out"] / read["characters"]
    return [f"{many} on their way into a prompt ({what}): {100 * share:.1f} % of their characters"]


def differing(baseline: Run, run: Run) -> dict[str, str]:
    """What two runs were not both asked: key of the contract, or "queries" -> both values, in words."""
    found = {
        key: f"{brief(value)}, {brief(run.contract[key])}"
        for key, value in baseline.contract.items()
        if run.contract[key] != value
    }
    shared = len(set(baseline.query_ids) & set(run.query_ids))
    many = len(baseline.query_ids), len(run.query_ids)
    return found | ({} if many == (shared, shared) else {"queries": f"{many[0]}, {many[1]}, {shared} in common"})


def same_contract(runs: Sequence[Run]) -> None:
    """UsageError, with what differs, for runs that were not asked the same: their difference is not the systems'."""
    for run in runs[1:]:
        if found := differing(runs[0], run):
            values = ", ".join(f"{key} ({what})" for key, what in found.items())
            raise UsageError(
                f"{runs[0].name} and {run.name} were not asked the same: {values}; give runs that agree in these"
            )


def brief(value: Any, most: int = 60) -> str:
    """A value of a configuration in a line."""
    if isinstance(value, dict) and "digest" in value:
        value = f"{value.get('optimizer', '')} {value['digest']}".strip()
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def told(value: float | None, form: str = "{:.4f}", unknown: str = "unknown") -> str:
    """A number in a table, in the `form` that str.format takes."""
    return unknown if value is None else form.format(value)


def counted(count: int, one: str, more: str = "") -> str:
    """So many things, in words."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def folders(paths: Iterable[Path]) -> list[Path]:
    """The run folders among `paths` and in the folders below them, each once; DataError where there are none."""
    found: dict[Path, Path] = {}
    for path in paths:
        here = (
            [path]
            if (path / "config.json").is_file()
            else sorted(
                place.parent
                for place in path.rglob("config.json")
                if COMPILED not in place.relative_to(path).parts[:1] and (place.parent / "outcomes.jsonl").is_file()
            )
        )
        if not here:
            raise DataError(f"{path} holds no run folder; name run folders, or a folder that has some in it")
        for one in here:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def found(paths: Iterable[Path]) -> tuple[list[Run], dict[Path, str]]:
    """(the scored runs in `paths` and below them, the others with the reason). DataError where no folder is a run."""
    runs, others = list[Run](), dict[Path, str]()
    for path in folders(paths):
        try:
            runs.append(read(path, count_owed=False))
        except (SextantError, OSError) as problem:  # a file may be unreadable
            others[path] = str(problem)
    return runs, others


def read(path: Path, *, count_owed: bool = True) -> Run:
    """The run in `path` with its scores. DataError where there are none, RunIncomplete when it owes queries.

    How many a run without scores owes is told where its data is at hand; `count_owed` says whether to load that.
    """
    config = run_folder.read_config(path)
    try:
        scores = read_scores(path, config)
        seal.check_file(path / "scores.csv", scores)
        columns, errors = _columns((path / "scores.csv").read_bytes().decode())
        if len(errors) != scores["queries"] or list(columns) != list(scores["metrics"]):
            raise ValueError("scores.csv is not of scores.json")
    except FileNotFoundError:
        raise _unscored(path, config, count_owed=count_owed) from None
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"the scores in {path} are damaged ({error}); python -m evals.score {path} makes them again"
        ) from None
    failed = {query_id: error for query_id, error in errors.items() if error}
    return Run(path, config, scores, columns, failed, list(errors))


def _unscored(path: Path, config: run_folder.Config, *, count_owed: bool) -> SextantError:
    """Why a run without scores cannot be compared. Which queries it owes is known only where its data is at hand."""
    outcomes = run_folder.read_outcomes(path)
    asked = _asked(config) if count_owed else []
    owed = [query_id for query_id in asked if query_id not in outcomes]
    if owed or not outcomes:
        many = f"{len(owed)} of {len(asked)}" if owed else "all"
        return RunIncomplete(f"{path} owes {many} queries; give its command again to resume it")
    if not asked:
        return DataError(f"{path} has no scores; python -m evals.score {path} makes them, or says what it still owes")
    return DataError(f"{path} is not scored; python -m evals.score {path} does that")


def _asked(config: run_folder.Config) -> list[str]:
    """The queries that a run was asked; none where its data is not at hand."""
    from evals.running.configuration import environment_of

    try:
        return [query.query_id for query in environment_of(config).queries]
    except SextantError:
        return []


READ = ("documents", "cut", "characters", "left_out")
USED = ("calls", "input_tokens", "output_tokens", "paid_usd", "list_usd")


def read_scores(path: Path, config: run_folder.Config) -> dict[str, Any]:
    """What scores.json of the run in `path` holds. ValueError where it is none, or does not fit the configuration."""
    from evals.forms import ScoresForm
    from tools import forms

    scores: dict[str, Any] = forms.read_whole(ScoresForm, (path / "scores.json").read_bytes())
    if (losses := scores.get("losses")) and str(losses["cutoff"]) not in losses["at"]:
        raise ValueError("'losses' has nothing at its cutoff")
    for name, one in scores["metrics"].items():
        low, high = one.get("low"), one.get("high")
        if (low is None) != (high is None) or (one.get("mean") is None and low is not None):
            raise ValueError(f"{name!r} has no mean with its interval")
    seal.check_scores(scores, run_folder.digest(config))
    return scores


def _columns(text: str) -> tuple[dict[str, Column], dict[str, str]]:
    """(values per metric and query, query -> its error or "") of a scores.csv; ValueError for what is none."""
    csv.field_size_limit(2**31 - 1)  # the last column has error messages, of any length
    head, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    if head[:1] != ["query_id"] or head[-1:] != ["error"] or any(len(row) != len(head) for row in rows):
        raise ValueError("scores.csv is no table of query_id, metrics and error")
    query_ids = [row[0] for row in rows]
    if not rows or len(set(query_ids)) < len(rows):
        raise ValueError("scores.csv has no queries, or one of them twice")
    columns = {name: {row[0]: _number(row[place]) for row in rows} for place, name in enumerate(head[1:-1], start=1)}
    return columns, {row[0]: row[-1] for row in rows}


def _number(cell: str) -> float | None:
    value = float(cell) if cell else None
    if value is not None and not abs(value) <= 2**53:  # NaN is neither
        raise ValueError(f"scores.csv: {cell[:40]!r} is no value of a metric")
    return value
