"""A TREC run file: query, Q0, document, rank, score, tag in each line, in any order (trec_eval's README has the form).

Like trec_eval it goes by the scores and not by the ranks, keeps scores in single precision, and puts the greater
document id first among equal scores. Unlike it, it refuses what is not of the task, with the line: queries and
documents that there are not, documents twice, documents that a query excludes or that are outside its pool, scores that
are no numbers. Held in memory: eight bytes a line, and each document's id once.
"""

import gzip
import math
import zlib
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from evals.running.submission import BadRanking, check_ranking
from tools.errors import DataError

if TYPE_CHECKING:
    from environments.base import Environment


class Ranking(NamedTuple):
    """What a run file says of one query."""

    doc_ids: list[str]  # best first
    scores: list[float]
    ties: int  # documents that have the score of the one before


class RunFile:
    """A run file that fits a task."""

    def __init__(self, path: Path, environment: "Environment", *, encoded: bool) -> None:
        """`encoded` says that ids are percent-encoded, as in our own run files. DataError for what does not fit."""
        self.path = path
        self.tag = ""  # of its first line
        self._encoded = encoded
        self._environment = environment
        self._queries = {query.query_id: query for query in environment.queries}
        self._doc_ids: list[str] = []  # as they were first met
        self._orders: list[int] = []  # of those, by the ids as they stand in the file
        # Query -> its documents, as numbers in the list of ids, and their scores.
        self._lines: dict[str, tuple[array[int], array[float]]] = {}
        self._read()

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def ranking(self, query_id: str) -> Ranking:
        """A query's documents, best first; none where the file has none."""
        numbers, scores = self._lines.get(query_id, (array("I"), array("f")))
        places = sorted(range(len(numbers)), key=lambda at: (scores[at], self._orders[numbers[at]]), reverse=True)
        ordered = [scores[at] for at in places]
        ties = sum(a == b for a, b in pairwise(ordered))
        return Ranking([self._doc_ids[numbers[at]] for at in places], ordered, ties)

    def _read(self) -> None:
        number_of: dict[bytes, int] = {}
        queries: dict[bytes, str] = {}
        for line, fields in self._fields():
            raw_query, _, raw_document, _, raw_score, tag = fields
            self.tag = self.tag or tag.decode("utf-8", "replace")
            if raw_query not in queries:
                queries[raw_query] = self._query_id(raw_query, line)
            if raw_document not in number_of:
                self._doc_ids.append(self._doc_id(raw_document, line))
                number_of[raw_document] = len(number_of)
            numbers, scores = self._lines.setdefault(queries[raw_query], (array("I"), array("f")))
            numbers.append(number_of[raw_document])
            scores.append(self._score(raw_score, line))
        if not self._lines:
            raise DataError(f"{self.path} has no lines; a run file has query, Q0, document, rank, score, tag in each")
        self._orders = [0] * len(number_of)
        for order, raw in enumerate(sorted(number_of)):
            self._orders[number_of[raw]] = order
        self._check()

    def _fields(self) -> Iterator[tuple[int, list[bytes]]]:
        """(line number, its six columns) of every line that is not empty; only ASCII's blanks separate, as in C."""
        try:
            with gzip.open(self.path, "rb") if self.path.suffix == ".gz" else self.path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    fields = line.split()
                    if fields and len(fields) != 6:
                        what = f"has {len(fields)} columns, not the six of a run file"
                        raise self._wrong(number, f"{what}: query, Q0, document, rank, score, tag")
                    if fields:
                        yield number, fields
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{self.path} is damaged ({error}); get it again") from None

    def _query_id(self, raw: bytes, line: int) -> str:
        query_id = self._decoded(raw, line)
        if query_id not in self._queries:
            where = f"the {self._environment.split} split of {self._environment.task}"
            elsewhere = "" if self._environment.split == "all" else "; is it in another, such as --split all?"
            other = _hint(query_id in self._queries, unquote(query_id) in self._queries)
            raise self._wrong(line, f"query {query_id!r} is not in {where}{other or elsewhere}")
        return query_id

    def _doc_id(self, raw: bytes, line: int) -> str:
        doc_id, known = self._decoded(raw, line), self._environment.documents
        if doc_id not in known:
            task = self._environment.task
            parents = f"; {task} ranks passages, not the documents that they are of" if self._environment.max_p else ""
            other = _hint(doc_id in known, unquote(doc_id) in known)
            raise self._wrong(line, f"document {doc_id!r} is not in the corpus of {task}{other or parents}")
        return doc_id

    def _decoded(self, raw: bytes, line: int) -> str:
        try:
            text = raw.decode()
            return unquote(text, errors="strict") if self._encoded else text
        except UnicodeDecodeError:
            raise self._wrong(line, f"{raw!r} is not UTF-8") from None

    def _score(self, raw: bytes, line: int) -> float:
        try:
            score = float(raw)
        except ValueError:
            score = math.nan
        if not math.isfinite(score) or b"_" in raw:
            raise self._wrong(line, f"the score {raw.decode('utf-8', 'replace')!r} is no finite number")
        return score

    def _check(self) -> None:
        """DataError for a document twice, one that is excluded for its query, or one outside its pool."""
        for query_id, (numbers, _) in self._lines.items():
            doc_ids = [self._doc_ids[number] for number in numbers]
            try:
                check_ranking(doc_ids, self._queries[query_id], self._environment.documents)
            except BadRanking as wrong:
                line = self._lines_of(query_id, wrong.doc_id)[:2][-1]  # the second, of one that is there twice
                raise self._wrong(line, str(wrong)) from None

    def _lines_of(self, query_id: str, doc_id: str) -> list[int]:
        """The numbers of the lines that name both; they were not kept, so the file is read again."""
        found = []
        for number, fields in self._fields():
            if self._decoded(fields[2], number) == doc_id and self._decoded(fields[0], number) == query_id:
                found.append(number)
        return found

    def _wrong(self, line: int, what: str) -> DataError:
        return DataError(f"{self.path}, line {line}: {what}")


def _hint(plain: bool, decoded: bool) -> str:
    return "; it looks percent-encoded, as our own run files are: --encoded" if decoded and not plain else ""
