"""A run that has no scores yet: its state, and the queries answered so far, scored in memory.

The file of outcomes is read on from where it ended before, so a run may be looked at every second.
Scored runs are in loaded_run.py.
"""

import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sextant.environments.base import Environment
from sextant.evals import run_folder
from sextant.evals.run_sittings import explain_resuming
from sextant.evals.running.run_status import BROKE_OFF, RunState, read_state
from sextant.evals.scoring.attribution import fate_at
from sextant.evals.scoring.score_run import PartialScores
from sextant.evals.scoring.scored_run import ScoredRun, name_retriever
from sextant.evals.viewer.loaded_run import BEGINNING, Answer, DocumentTexts, Judged, LoadedRun
from sextant.tools.errors import DataError
from sextant.tools.records import JsonObject

NOT_SCORED = "not scored"
NEWEST = 20  # answered queries that are named, the last first
# Keys of a run's configuration, and of its status, that the page shows.
_CONFIG_KEYS = ("task", "split", "program", "compiled", "pool")
_STATUS_KEYS = (
    "metric",
    "mean",
    "low",
    "high",
    "failed",
    "pending",
    "usage",
    "seconds",
    "left",
    "calls_in_flight",
    "calls_limit",
    "calls_waiting",
)
# Bytes of outcomes that are read at once.
_BLOCK = 1 << 26


@dataclass(frozen=True)
class AnsweredPart(LoadedRun):
    """The answered queries of a run without scores."""

    part_outcomes: run_folder.JsonlIndex
    part_judged: Judged

    @property
    def outcomes(self) -> run_folder.JsonlIndex:
        """The outcomes so far."""
        return self.part_outcomes

    @property
    def judged(self) -> Judged:
        """The fates of the relevant documents of the answered queries."""
        return self.part_judged


class UnfinishedRun:
    """A run folder without scores; `refresh` reads what was added to it since."""

    def __init__(self, path: Path, texts: DocumentTexts) -> None:
        self.path = path
        self.config = run_folder.read_config(path)
        self._texts = texts
        self._outcomes = run_folder.JsonlIndex(
            path / run_folder.OUTCOMES_FILE,
            {},
            partial(run_folder.check_outcome, config_digest=run_folder.digest(self.config)),
        )
        self._end = 0  # bytes of outcomes.jsonl that were read
        self._scores: PartialScores | None = None
        self._rows = dict[str, JsonObject]()  # of attribution.jsonl
        self._lock = threading.Lock()
        self.state: RunState | None = None

    def refresh(self) -> None:
        """Read the state, and the outcomes that were added."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        self.state = read_state(self.path)
        file = self._outcomes.path
        with suppress(FileNotFoundError), file.open("rb") as lines:
            if file.stat().st_size < self._end:
                # Another run was begun in its place.
                self._outcomes.starts.clear()
                self._end = 0
                self._scores = None
            lines.seek(self._end)
            while block := lines.readlines(_BLOCK):
                for line in block:
                    self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            # It is still being written.
            return
        start = self._end
        self._end += len(line)
        with suppress(ValueError):
            # A damaged line is reported by the command of the run.
            query_id = self._outcomes.read(line)["query_id"]
            if self._outcomes.starts.pop(query_id, None) is not None:
                # It was asked again, and the new outcome counts.
                self._scores = None
            self._outcomes.starts[query_id] = start
            self._outcomes.checksums[start] = zlib.crc32(line)

    @property
    def stub(self) -> ScoredRun:
        """The run without scores, for what only its configuration is needed."""
        return ScoredRun(
            self.path, self.config, {"judgements": "", "relevant_from": 0.0}, {}, {}, []
        )

    def describe(self) -> Answer:
        """Return the state for the list of runs: keys of the status, and the newest queries."""
        state = self.state
        status = state.status if state else {}
        data = self.config[run_folder.PROVENANCE]["data"]
        asked = self.config["asked"]
        queries = status.get("queries") or len(asked["query_ids"] or ()) or asked["limit"]
        if state and not state.is_live and status.get("done") != len(self._outcomes):
            # It was killed between an answer and the next status, so the mean is of fewer queries.
            status = dict(status) | {"mean": None, "low": None, "high": None}
        return {
            **{key: self.config.get(key) for key in _CONFIG_KEYS},
            "data": data,
            "mini": data == "mini",
            "retriever": name_retriever(self.config),
            "lm": self.config["lm"]["name"],
            **{key: status.get(key) for key in _STATUS_KEYS},
            "in_flight": status.get("in_flight", []),
            "queries": queries,
            "done": len(self._outcomes),
            **self._describe_state(queries),
            "since": state.since if state else None,
            "newest": list(self._outcomes)[: -NEWEST - 1 : -1],
        }

    def _describe_state(self, queries: int | None) -> Answer:
        state = self.state
        name, reason = (state.name, state.reason) if state else (BROKE_OFF, "")
        remedy = ""
        is_live = bool(state and state.is_live)
        if not is_live and queries and len(self._outcomes) >= queries:
            name = NOT_SCORED
            reason = ""
            remedy = f"sextant score {self.path} scores it."
        elif not is_live:
            remedy = explain_resuming(self.path)
            remedy = f"{remedy[0].upper()}{remedy[1:]}"
        return {"state": name, "reason": reason, "live": is_live, "remedy": remedy}

    def load(self) -> AnsweredPart:
        """Return the answered queries with their scores.

        DataError while the corpus is still being read, or if it cannot be had.
        """
        environment = self._texts.load(self.config)
        if not isinstance(environment, Environment):
            raise DataError(environment)
        with self._lock:
            return self._score(environment)

    def _score(self, environment: Environment) -> AnsweredPart:
        if self._scores is None:
            self._scores = PartialScores(self.config, environment)
            self._rows = {}
        scores = self._scores
        for query in environment.queries:
            if query.query_id in self._outcomes and query.query_id not in self._rows:
                _, self._rows[query.query_id] = scores.add(
                    query, self._outcomes[query.query_id], self._outcomes
                )
        summary = scores.summary()
        columns = {name: dict(column) for name, column in scores.columns.items()}
        errors = {query_id: error for query_id, error in scores.errors.items() if error}
        rows = dict(self._rows)
        run = ScoredRun(self.path, self.config, summary, columns, errors, list(rows))
        texts = {query_id: row["text"][:BEGINNING] for query_id, row in rows.items()}
        cutoff = summary["losses"]["cutoff"]
        judged = Judged(
            texts,
            {
                query_id: [str(fate_at(document, cutoff)) for document in row["relevant"]]
                for query_id, row in rows.items()
            },
            rows,
            "",
        )
        return AnsweredPart(run, list(rows), self._texts, self._outcomes, judged)
