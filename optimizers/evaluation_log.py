"""The books of one compilation: every candidate and every evaluation of one, on disk before
it is used.
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from programs.compiled import Prompt, get_prompts
from tools import files, schemas
from tools.errors import AbortCompilation, RunIncomplete
from tools.records import Query
from tools.schemas import Amount, Count, Number


@dataclass(frozen=True, slots=True)
class Candidate:
    """One state that a program was evaluated in: all that an optimizer can change."""

    digest: str  # eight hex digits over the rest
    prompts: Mapping[str, Prompt]  # by predictor
    parameters: Mapping[str, Any]  # that are tuned, and not prompts


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one candidate made of one query; a line of evaluations.jsonl."""

    candidate: str  # its digest
    query_id: str
    # "" of the student as it is; else the teacher or the sampled answers that it was made with
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
        """What there is one evaluation of."""
        return self.candidate, self.query_id, self.sample


class EvaluationLog:
    """The candidates and evaluations of a compilation's folder. Threads share them."""

    def __init__(
        self, folder: Path, queries_by_part: Mapping[str, tuple[Query, ...]]
    ) -> None:  # of "train" and "validation"
        self.folder = folder
        self.parts = queries_by_part
        # The candidates that are the program as it is, what an optimizer started from, and what it
        # returned.
        self.before = self.start = ""
        self.returned: dict[str, Mapping[str, Any]] = {}  # with what of it is more than prompts
        self.fold = 0
        self.fold_of = dict[str, int]()
        self._dev = queries_by_part["train"]
        self._made_in: dict[
            str, set[int]
        ] = {}  # the folds that a candidate was evaluated in by an optimizer
        self.candidates: dict[str, Candidate] = {}  # in the order in which they came
        self._evaluations: dict[tuple[str, str, str], Evaluation] = {}
        self._lock = threading.Lock()
        mend = "remove the line to have it made again"
        for _, candidate in files.read_lines(
            folder / "candidates.jsonl", _read_candidate, mend, repair=True
        ):
            self.candidates[candidate.digest] = candidate
        for _, evaluation in files.read_lines(
            folder / "evaluations.jsonl", _read_evaluation, mend, repair=True
        ):
            self._evaluations[evaluation.key] = evaluation

    @property
    def calls(self) -> int:
        """Model calls of all evaluations, those of instructions not among them."""
        return sum(evaluation.calls for evaluation in list(self._evaluations.values()))

    @property
    def sizes(self) -> dict[str, int]:
        """How many queries train and validate; with folds in each of them, or one more."""
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
        """Train on one fold from now on, and validate on the others; nothing where there are none."""
        self.fold = fold
        if self.fold_of:
            self.parts = {part_name: self._take({fold}, part_name) for part_name in self.parts}

    def queries(self, digest: str, part_name: str) -> tuple[Query, ...]:
        """Return the queries of a part; with folds those of a candidate: what it is made of, and all others."""
        if not self.fold_of:
            return self.parts[part_name]
        made_in = set[int]() if digest in (self.before, self.start) else self._made_in.get(digest)
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
        """The student's evaluations of a candidate on a part, or on that of a candidate `like` it, in order."""
        queries = self.queries(like or digest, part_name)
        evaluations = (self._evaluations.get((digest, query.query_id, "")) for query in queries)
        return [evaluation for evaluation in evaluations if evaluation]

    def is_whole(self, digest: str, part_name: str) -> bool:
        """Whether a candidate was evaluated on every query of a part."""
        return (
            0 < len(self.evaluations_of(digest, part_name)) == len(self.queries(digest, part_name))
        )

    def candidate(self, program: Any, parameters: Mapping[str, Any]) -> Candidate:
        """Return the candidate that a program is as it stands; written down when it is new."""
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
        """Write an evaluation down, and return it; where another thread was first, return that one's."""
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
    candidate = schemas.build_dataclass(Candidate, schemas.parse_json_exact(dict[str, Any], line))
    if candidate.digest != _digest(candidate.prompts, candidate.parameters):
        raise ValueError("it was edited")
    return candidate


def _read_evaluation(line: bytes) -> Evaluation:
    return schemas.build_dataclass(Evaluation, schemas.parse_json(dict[str, Any], line))


def _digest(prompts: Mapping[str, Prompt], parameters: Mapping[str, Any]) -> str:
    states = {
        name: [prompt.instructions, prompt.demos, *filter(None, [prompt.descriptions])]
        for name, prompt in prompts.items()
    }
    text = json.dumps([states, parameters], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
