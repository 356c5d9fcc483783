"""Read run folders that have been scored. No corpus, no model.

score_run.py writes the scores; the other files of a run are read by evals/run_folder.py.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from sextant.evals import run_folder
from sextant.evals.run_folder import load_environment
from sextant.evals.run_schemas import JudgedSchema, ScoresSchema
from sextant.evals.run_sittings import explain_resuming
from sextant.evals.scoring.metrics import unordered_depth
from sextant.programs import FLOOR, describe_deviations
from sextant.tools import schemas
from sextant.tools.errors import DataError, RunIncomplete, SextantError, UsageError
from sextant.tools.platform import files
from sextant.tools.platform.number_format import abbreviate, choose_verb, queries
from sextant.tools.pool_kinds import describe_signs, read_kind
from sextant.tools.records import JsonObject

T = TypeVar("T")
Column = dict[str, float | None]  # query_id -> value of one metric, None where it is undefined

# Keys that two runs must share for their difference to be that of the systems; in addition, the
# judgements that lead must be the same, and the grade from which a document is relevant.
CONTRACT = (
    "task",
    "data_fingerprint",
    "split",
    "asked",
    "instruction",
    "max_p",
    "depth",
    "pool",
)
# Keys that results repeat of a run.
ABOUT = ("task", "data", "split", "judgements", "relevant_from")
NAMED = ("program", "retriever", "lm")
USED = (
    "calls",
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "paid_usd",
    "list_usd",
)
_COMPILED = "compiled"  # folder of compilations next to the runs; its folders have other files
_LARGEST_TABLE = 1 << 30  # bytes of scores.csv, whose last column has error messages
JUDGED = "judged-"  # prefix of the folders of judges next to the runs (construction/sextant_construction/llm_judge.py)


class Searched(NamedTuple):
    """The set of documents that a query retrieves from."""

    name: str
    documents: int  # for the query with the most


@dataclass(frozen=True)
class ScoredRun:
    """A run folder that has been scored."""

    path: Path  # as given
    config: run_folder.Config
    scores: JsonObject  # scores.json
    # scores.csv: metric -> its values; the task's headline metric is the first
    columns: dict[str, Column]
    errors: dict[str, str]  # query_id -> why it failed, for those that did
    query_ids: list[str]

    @property
    def name(self) -> str:
        """Its path as outputs have it."""
        return str(files.hide_folders(str(self.path)))

    @property
    def contract(self) -> JsonObject:
        """Its task and conditions, and how it was judged."""
        return {key: self.config.get(key) for key in CONTRACT} | {
            key: self.scores[key] for key in ("judgements", "relevant_from")
        }

    @property
    def metric(self) -> str:
        """The headline metric."""
        return str(self.scores.get("metric") or next(iter(self.scores["metrics"])))

    @property
    def searched(self) -> Searched | None:
        """The candidates of a query; None for a run that was scored by an earlier version."""
        documents = self.scores.get("documents")
        if documents is None:
            return None
        sizes = [Searched("corpus", documents)]
        if candidates := self.scores.get("candidates"):
            sizes.append(Searched("candidate pool", candidates))
        if pool := self.config.get("pool"):
            sizes.append(Searched("pool", pool["size"]))
        return min(sizes, key=lambda searched: searched.documents)

    def is_exhausted_by(self, metric: str) -> bool:
        """Return whether a metric counts all that a query could retrieve, so that its value says
        nothing of a search.

        A ranking that ends before that, at the run's depth, is still a choice.
        """
        depth = unordered_depth(metric)
        return (
            depth is not None
            and self.searched is not None
            and min(depth, self.config["depth"]) >= self.searched.documents
        )

    @property
    def usage_known(self) -> bool:
        """Whether the usage of its model calls is known: not of every run that was imported."""
        return (self.config.get("imported") or {}).get("usage") is not False

    @property
    def retriever(self) -> str:
        """The complete name of its retriever, parameters included."""
        return str(self.config["retriever"].get("with") or self.config["retriever"]["name"])

    @property
    def pool(self) -> str:
        """The kind of its --pool (tools/pool_kinds.py); "" for the whole corpus."""
        return read_kind(self.config)

    @property
    def is_floor(self) -> bool:
        """Whether this is the bare retriever over everything."""
        return self.config["program"] == FLOOR and not self.config.get("pool")

    @property
    def deviations(self) -> str:
        """How its program differs from the paper's, in a line; "" for a run that was imported."""
        has_candidates = self.scores.get("candidates") is not None
        return describe_deviations(self.config, has_candidates=has_candidates)

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric; None if the run has none."""
        mean = self.scores["metrics"].get(metric, {}).get("mean")
        return None if mean is None else float(mean)

    @cached_property
    def outcomes(self) -> run_folder.JsonlIndex:
        """query_id -> its line of outcomes.jsonl: ranking, trace, usage, error.

        DataError if a run is missing.
        """
        return self._check(
            run_folder.read_outcomes(self.path),
            "has scores, but no outcome",
            "give its command again to have them answered",
        )

    @cached_property
    def seconds(self) -> float:
        """The seconds that its queries took, one after another."""
        kept: float | None = self.scores.get("query_seconds")
        if kept is None:  # an earlier version has scored it
            return float(sum(outcome["seconds"] for outcome in self.outcomes.values()))
        return kept

    @cached_property
    def judged(self) -> run_folder.JsonlIndex:
        """query_id -> its line of attribution.jsonl.

        DataError if a value is missing, as in an old run.
        """
        file = self.path / run_folder.JUDGED_FILE
        rows = run_folder.read_rows(
            file, lambda line: str(schemas.parse_json(JudgedSchema, line)["query_id"])
        )
        return self._check(rows, "does not say what became of the documents")

    def _check(
        self,
        rows: run_folder.JsonlIndex,
        lacks: str,
        mend: str = "",
    ) -> run_folder.JsonlIndex:
        remedy = f"sextant score {self.path} scores it again"
        if missing := [query_id for query_id in self.query_ids if query_id not in rows]:
            affected = f"{len(missing)} of its {queries(len(self.query_ids))}, e.g. {missing[0]!r}"
            raise DataError(f"{self.path} {lacks} of {affected}; {mend or remedy}")
        try:
            run_folder.check_file(rows.path, self.scores)
        except ValueError as error:
            raise DataError(f"{self.path}: {error}; {remedy}") from None
        return rows


def list_deviations(runs: Iterable[ScoredRun]) -> list[str]:
    """Return how the programs of runs differ from those of the papers, and what their pools give
    away, each line once.
    """
    lines = dict[str, None]()
    for run in runs:
        lines |= dict.fromkeys([run.deviations, describe_signs(run.config)])
    return list(filter(None, lines))


def align_columns(*columns: Mapping[str, float | None]) -> dict[str, tuple[float, ...]]:
    """Return query -> its value in each column, in the order of the first column.

    Queries that lack a value are left out.
    """
    aligned: JsonObject = {}
    first, *others = columns
    for query_id, value in first.items():
        values = (value, *[column.get(query_id) for column in others])
        if None not in values:
            aligned[query_id] = values
    return aligned


def contract_differences(baseline: ScoredRun, run: ScoredRun) -> dict[str, str]:
    """Return the differences of two runs' questions: key of the contract -> both values, in words.

    Under "queries" are the numbers of their queries, if they are not the same queries.
    """
    differences = {}
    for key, value in baseline.contract.items():
        if run.contract[key] != value:
            differences[key] = f"{abbreviate(value)}, {abbreviate(run.contract[key])}"
    baseline_count = len(baseline.query_ids)
    run_count = len(run.query_ids)
    shared = len(set(baseline.query_ids) & set(run.query_ids))
    if not baseline_count == run_count == shared:
        differences["queries"] = f"{baseline_count}, {run_count}, {shared} in common"
    return differences


def require_same_contract(runs: Sequence[ScoredRun]) -> None:
    """Raise UsageError if a run was not asked the same as the first."""
    for run in runs[1:]:
        if differences := contract_differences(runs[0], run):
            raise UsageError(
                f"{describe_differences(runs[0], run, differences)}; give runs that agree in these "
                f"(sextant score has --qrels and --relevant-from)"
            )


def describe_differences(
    baseline: ScoredRun, run: ScoredRun, differences: Mapping[str, str]
) -> str:
    """Say in a line which `contract_differences` two runs have."""
    values = ", ".join(f"{key} ({difference})" for key, difference in differences.items())
    return f"{baseline.name} and {run.name} were not asked the same: {values}"


def find_folders(paths: Iterable[Path], *, unanswered: bool = False) -> list[Path]:
    """Return the run folders among `paths` and below them, each once; DataError if there
    are none.

    With `unanswered`, also those below them that were begun and have no answer yet.
    """
    run_folders: dict[Path, Path] = {}
    for path in paths:
        folders = [path]
        if not (path / run_folder.CONFIG_FILE).is_file():
            folders = _run_folders_below(path, unanswered=unanswered)
        if not folders:
            raise DataError(
                f"{path} holds no run folder; name run folders, or a folder that has some in it"
            )
        for folder in folders:
            run_folders.setdefault(folder.resolve(), folder)
    if not run_folders:
        raise DataError("no run is named; name run folders, or a folder that has some in it")
    return list(run_folders.values())


def _run_folders_below(path: Path, *, unanswered: bool) -> list[Path]:
    """Return the run folders below `path`, without those of judges, compilations and shards."""
    folders = []
    for file in files.walk(path):
        folder = file.parent
        if file.name != run_folder.CONFIG_FILE:
            continue
        is_begun = unanswered and (folder / ".lock").is_file()
        if not is_begun and not (folder / run_folder.OUTCOMES_FILE).is_file():
            continue
        top = folder.relative_to(path).parts[0]
        if folder.name.startswith(JUDGED) or top == _COMPILED or run_folder.SHARD.match(top):
            continue
        folders.append(folder)
    return sorted(folders)


def find_scored_runs(paths: Iterable[Path]) -> tuple[list[ScoredRun], dict[Path, str]]:
    """Return the scored runs in `paths` and below, the others with the reason.

    DataError if no folder is a run.
    """
    runs = []
    unreadable = {}
    for path in find_folders(paths):
        try:
            runs.append(read_scored_run(path, load_data=False))
        except (SextantError, OSError) as problem:  # a file may be unreadable
            unreadable[path] = str(problem)
    return runs, unreadable


def read_scored_run(path: Path, *, load_data: bool = True) -> ScoredRun:
    """Read the run in `path`.

    DataError for no scores, RunIncomplete for unanswered queries (`load_data`: how many).
    """
    config = run_folder.read_config(path)
    try:
        scores = read_scores(path, config)
        run_folder.check_file(path / run_folder.VALUES_FILE, scores)
        columns, errors = _read_columns(
            files.read_input(path / run_folder.VALUES_FILE, _LARGEST_TABLE).decode()
        )
        if len(errors) != scores["queries"] or list(columns) != list(scores["metrics"]):
            raise ValueError("scores.csv is not of scores.json")
    except FileNotFoundError:
        raise _unscored(path, config, load_data=load_data) from None
    except (ValueError, csv.Error) as error:
        mend = f"sextant score {path} makes them again"
        raise DataError(f"the scores in {path} are damaged ({error}); {mend}") from None
    failed = {query_id: error for query_id, error in errors.items() if error}
    return ScoredRun(path, config, scores, columns, failed, list(errors))


def _unscored(path: Path, config: run_folder.Config, *, load_data: bool) -> SextantError:
    outcomes = run_folder.read_outcomes(path)
    query_ids = []
    if load_data:
        with suppress(SextantError):  # its data may not be here
            query_ids = [query.query_id for query in load_environment(config).queries]
    pending = [query_id for query_id in query_ids if query_id not in outcomes]
    if pending or not outcomes:
        unanswered = f"{len(pending)} of {queries(len(query_ids))}" if pending else "all queries"
        return RunIncomplete(
            f"{unanswered} of {path} {choose_verb(len(pending))} unanswered; {explain_resuming(path)}"
        )
    unsure = "" if query_ids else ", or says what is unanswered"
    return DataError(f"{path} is not scored; sextant score {path} does that{unsure}")


def read_scores(path: Path, config: run_folder.Config) -> JsonObject:
    """Read and check scores.json of the run of `config`. ValueError if it is damaged."""
    scores: JsonObject = schemas.parse_json_exact(
        ScoresSchema, files.read_input(path / run_folder.SCORES_FILE, _LARGEST_TABLE)
    )
    if (losses := scores.get("losses")) and str(losses["cutoff"]) not in losses["at"]:
        raise ValueError("'losses' has nothing at its cutoff")
    for name, measured in scores["metrics"].items():
        low = measured.get("low")
        one_bound = (low is None) != (measured.get("high") is None)
        if one_bound or (measured.get("mean") is None and low is not None):
            raise ValueError(f"{name!r} has no mean with its interval")
    run_folder.check_scores(scores, run_folder.digest(config))
    return {"relevant_from": 0.0} | scores  # of runs scored by an earlier version


def _read_columns(text: str) -> tuple[dict[str, Column], dict[str, str]]:
    csv.field_size_limit(2**31 - 1)  # the last column has error messages, of any length
    head, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    if (
        head[:1] != ["query_id"]
        or head[-1:] != ["error"]
        or any(len(row) != len(head) for row in rows)
    ):
        raise ValueError("scores.csv is no table of query_id, metrics and error")
    if not rows or len({row[0] for row in rows}) < len(rows):
        raise ValueError("scores.csv has no queries, or one of them twice")
    columns = {
        name: {row[0]: _number(row[position]) for row in rows}
        for position, name in enumerate(head[1:-1], start=1)
    }
    return columns, {row[0]: row[-1] for row in rows}


def _number(cell: str) -> float | None:
    value = float(cell) if cell else None
    if value is not None and not abs(value) <= 2**53:  # NaN is neither
        raise ValueError(f"scores.csv: {cell[:40]!r} is no value of a metric")
    return value


def name_retriever(config: run_folder.Config) -> str:
    """Return a run's retriever as results name it.

    The name has the recall of each approximate index that is used.
    """
    retrievers = f"{config['retriever']} {config.get('pool')}"
    recalls = re.findall(r"recall=\[([\d.]+),([\d.]+)\]", retrievers)
    name = str(config["retriever"]["name"])
    for at_10, at_100 in dict.fromkeys(recalls):
        name += f" (recall@10 {at_10}, recall@100 {at_100})"
    return name
