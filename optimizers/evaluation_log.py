"""The log of a compilation: every candidate and every evaluation, on disk before they are used.

candidate_evaluator.py makes the evaluations; answers of models are in the ledger.
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sextant.programs.compiled import Prompt, get_prompts
from sextant.tools import schemas
from sextant.tools.errors import AbortCompilation, RunIncomplete
from sextant.tools.platform import files
from sextant.tools.records import JsonMapping, JsonObject, Query
from sextant.tools.schemas import Amount, Count, Number


@dataclass(frozen=True, slots=True)
class Candidate:
    """One state that a program was evaluated in: all that an optimizer can change."""

    digest: str  # eight hex digits over the rest
    prompts: Mapping[str, Prompt]  # by predictor
    parameters: JsonMapping  # that are tuned, and not prompts


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The score of a candidate on a query; a line of evaluations.jsonl."""

    candidate: str  # its digest
    query_id: str
    # "" for the student as it is; else the teacher or the number of sampled answers.
    sample: str
    value: Number  # of the objective
    metrics: Mapping[str, Number | None]
    calls: Count
    tokens: Count
    list_usd: Amount | None
    ranking: list[str]  # its first ten documents
    error: str | None
    seconds: Amount

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the evaluation: there is one for each key."""
        return self.candidate, self.query_id, self.sample


class EvaluationLog:
    """The candidates and evaluations of a compilation's folder. Threads share them."""

    def __init__(self, folder: Path, queries_by_part: Mapping[str, tuple[Query, ...]]) -> None:
        """Read the log of a folder; `queries_by_part` has the parts "train" and "validation"."""
        self.folder = folder
        self.parts = queries_by_part
        # Digests of the program as it is, and of the candidate that an optimizer starts from.
        self.before = ""
        self.start = ""
        # Digests of the candidates that an optimizer returned, with their parts that are no prompts.
        self.returned: dict[str, JsonMapping] = {}
        self.fold = 0
        self.fold_of = dict[str, int]()
        self._dev = queries_by_part["train"]
        # The folds in which an optimizer evaluated a candidate, by its digest.
        self._made_in: dict[str, set[int]] = {}
        self.candidates: dict[str, Candidate] = {}  # in the order in which they came
        self._evaluations: dict[tuple[str, str, str], Evaluation] = {}
        self._lock = threading.Lock()
        mend = "remove the line to have it made again"
        candidates_file = folder / "candidates.jsonl"
        for _, candidate in files.read_lines(candidates_file, _read_candidate, mend, repair=True):
            self.candidates[candidate.digest] = candidate
        log_file = folder / "evaluations.jsonl"
        for _, evaluation in files.read_lines(log_file, _read_evaluation, mend, repair=True):
            self._evaluations[evaluation.key] = evaluation

    @property
    def calls(self) -> int:
        """Model calls of all evaluations, without calls that write instructions."""
        return sum(evaluation.calls for evaluation in list(self._evaluations.values()))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of queries to train on and to validate; with folds, of each, or one more."""
        if not self.fold_of:
            return {part_name: len(queries) for part_name, queries in self.parts.items()}
        query_count = len(self._dev)
        folds = len(set(self.fold_of.values()))
        return {
            "train": query_count // folds,
            "validation": query_count - -(-query_count // folds),
            "folds": folds,
        }

    def take_fold(self, fold: int) -> None:
        """Train on one fold from now on, and validate on the others; does nothing without folds."""
        self.fold = fold
        if self.fold_of:
            self.parts = {part_name: self._take({fold}, part_name) for part_name in self.parts}

    def queries(self, digest: str, part_name: str) -> tuple[Query, ...]:
        """Return the queries of a part.

        With folds, "train" is the folds that the candidate was compiled on, and "validation" the others.
        """
        if not self.fold_of:
            return self.parts[part_name]
        made_in = self._made_in.get(digest)
        if digest in (self.before, self.start):
            made_in = set()
        return () if made_in is None else self._take(made_in, part_name)

    def _take(self, folds: set[int], part_name: str) -> tuple[Query, ...]:
        return tuple(
            query
            for query in self._dev
            if (self.fold_of[query.query_id] in folds) == (part_name == "train")
        )

    def evaluations_of(
        self,
        digest: str,
        part_name: str,
        like: str = "",
    ) -> list[Evaluation]:
        """Return the student's evaluations of a candidate on a part, in the order of the queries.

        `like` is the digest of another candidate, whose part is taken.
        """
        queries = self.queries(like or digest, part_name)
        evaluations = []
        for query in queries:
            if evaluation := self._evaluations.get((digest, query.query_id, "")):
                evaluations.append(evaluation)
        return evaluations

    def is_whole(self, digest: str, part_name: str) -> bool:
        """Whether a candidate was evaluated on every query of a part."""
        evaluated = len(self.evaluations_of(digest, part_name))
        return 0 < evaluated == len(self.queries(digest, part_name))

    def candidate(self, program: Any, parameters: JsonMapping) -> Candidate:
        """Return the present state of a program as a candidate; a new candidate is logged."""
        prompts = get_prompts(program)
        digest = _digest(prompts, parameters)
        with self._lock:
            self._made_in.setdefault(digest, set()).add(self.fold)
            if digest not in self.candidates:
                candidate = Candidate(digest, prompts, dict(parameters))
                self._append("candidates.jsonl", candidate)
                self.candidates[digest] = candidate
            return self.candidates[digest]

    def add(self, evaluation: Evaluation) -> Evaluation:
        """Log an evaluation and return it; if another thread was first, return its evaluation."""
        with self._lock:
            if evaluation.key not in self._evaluations:
                self._append("evaluations.jsonl", evaluation)
                self._evaluations[evaluation.key] = evaluation
            return self._evaluations[evaluation.key]

    def _append(self, name: str, row: Candidate | Evaluation) -> None:
        path = self.folder / name
        try:
            files.append_line(
                path,
                json.dumps(asdict(row), ensure_ascii=False).encode("utf-8", "backslashreplace"),
            )
        except OSError as error:
            reason = (
                f"{path}: {error.strerror or error}; what was evaluated before is safe; "
                f"{files.remedy(error)}"
            )
            raise AbortCompilation(RunIncomplete(reason)) from None


def _read_candidate(line: bytes) -> Candidate:
    candidate = schemas.build_dataclass(Candidate, schemas.parse_json_exact(JsonObject, line))
    if candidate.digest != _digest(candidate.prompts, candidate.parameters):
        raise ValueError("it was edited")
    return candidate


def _read_evaluation(line: bytes) -> Evaluation:
    return schemas.build_dataclass(Evaluation, schemas.parse_json(JsonObject, line))


def _digest(prompts: Mapping[str, Prompt], parameters: JsonMapping) -> str:
    states = {
        name: [prompt.instructions, prompt.demos, *filter(None, [prompt.descriptions])]
        for name, prompt in prompts.items()
    }
    text = json.dumps([states, parameters], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
