"""TREC run and qrels files, which trec_eval, pytrec_eval, ir_measures and ranx read (trec_eval's
README has the form).

We write ids percent-encoded, because blanks separate the columns: OBLIQ-Bench's math task has an id
with a blank. Like trec_eval, reading goes by the scores and not by ranks or lines, keeps scores in
single precision, and puts the greater document id first among equal scores. Unlike it, it refuses,
with the line, entries that are not of the task: unknown queries and documents, documents twice,
excluded documents or documents outside the pool, scores that are no numbers. Queries of the task's
data without a judgement are left out, as trec_eval does.

Left out: comparisons (Win, Flip, Triplets), which no TREC file can hold.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from sextant.environments.base import Environment
from sextant.environments.readers import document_ids, raw_files
from sextant.evals.formats.export_run import ExportedRun
from sextant.evals.formats.trec_columns import parse_score, read_columns
from sextant.evals.run_folder import InvalidRanking, check_ranking
from sextant.evals.scoring.score_run import encode_trec_id, trec_lines
from sextant.tools.errors import DataError
from sextant.tools.platform.number_format import plural, queries

_COLUMNS = "query, Q0, document, rank, score, tag"


def write(source: ExportedRun, folder: Path) -> list[str]:
    """TREC files: run.trec as scored, qrels.trec (gains of nDCG), relevant.trec (documents counted
    by recall).
    """
    run = source.run.path
    empty = 0
    fractions = False
    units = False
    _copy_run(source, folder)
    with ExitStack() as opened:
        documents, qrels, relevant = (
            opened.enter_context(
                (folder / f"{name}.trec").open("w", encoding="utf-8", errors="backslashreplace")
            )
            for name in ("documents", "qrels", "relevant")
        )
        for query in source:
            ranking = query.outcome["ranking"]
            grades = query.judged.get("grades", {})
            counted = {row["unit"]: 1.0 for row in query.relevant}
            documents.write(trec_lines(query.query_id, ranking, run.name))
            qrels.writelines(_qrels_lines(query.query_id, grades))
            relevant.writelines(_qrels_lines(query.query_id, counted))
            empty += not ranking
            units |= bool(query.judged.get("units"))
            fractions |= any(grade != int(grade) for grade in grades.values())
    if not units:
        (folder / "documents.trec").unlink()
    if not source.has_judged:
        (folder / "qrels.trec").unlink()
        (folder / "relevant.trec").unlink()
    return _notes(units=units, empty=empty, fractions=fractions)


def _copy_run(source: ExportedRun, folder: Path) -> None:
    chosen = set()
    for query_id in source.query_ids:
        chosen.add(encode_trec_id(query_id).encode("utf-8", "backslashreplace"))
    with (
        (source.run.path / "run.trec").open("rb") as lines,
        (folder / "run.trec").open("wb") as copy,
    ):
        copy.writelines(line for line in lines if line.partition(b"\t")[0] in chosen)


def _notes(*, units: bool, empty: int, fractions: bool) -> list[str]:
    notes = []
    if units:
        notes.append(
            "run.trec ranks what is judged, documents.trec the passages or documents that were "
            "handed in"
        )
    if empty:
        notes.append(
            f"no ranking for {queries(empty)}: each counts 0 in our means, and trec_eval leaves it "
            "out"
        )
    if fractions:
        notes.append(
            "qrels.trec has grades that are fractions, which trec_eval does not read; ranx does"
        )
    return notes


def _qrels_lines(query_id: str, grades: Mapping[str, float]) -> Iterator[str]:
    start = f"{encode_trec_id(query_id)} 0 "
    return (f"{start}{encode_trec_id(unit)} {grade:.12g}\n" for unit, grade in grades.items())


class _Line(NamedTuple):
    number: int
    doc_id: str


class RankedLines(NamedTuple):
    """A query's lines of a run file, best first."""

    doc_ids: list[str]
    scores: list[float]
    is_tied: bool  # whether two scores are equal


class RunFile:
    """A run file that fits a task, in memory: twenty bytes a line, and each document's id once."""

    def __init__(
        self, path: Path, environment: Environment, *, encoded: bool
    ) -> None:  # percent-encoded ids
        self.path = path
        self._environment = environment
        self._encoded = encoded
        self._queries = {query.query_id: query for query in environment.queries}
        self._known_queries = {*self._queries, *environment.unjudged}
        self.left_out = 0  # queries that nobody judged
        try:
            self._columns = read_columns(path)
            doc_ids = self._decode(self._columns.raw_documents, environment.documents)
            self._doc_ids = np.array(doc_ids, object)
            # Query -> where its lines are among those sorted by query.
            self._places = self._group()
            self._check_rankings()
        except (ValueError, DataError) as fault:
            self._refuse_line()
            reason = " ".join(str(fault).split())
            raise DataError(f"{path} is no run file: {reason}") from None
        # The tag of its first line.
        self.tag = self._columns.tag

    def ranking(self, query_id: str) -> RankedLines:
        """Return a query's documents with their scores; none if the file has none."""
        if query_id not in self._places:
            return RankedLines([], [], is_tied=False)
        numbers, scores, is_tied = self._sort_lines(query_id)
        return RankedLines(self._doc_ids[numbers].tolist(), scores.tolist(), is_tied)

    def measure_ranking(self, query_id: str) -> tuple[int, bool]:
        """Return how many documents `ranking` has, and whether it has equal scores."""
        if query_id not in self._places:
            return 0, False
        numbers, _, is_tied = self._sort_lines(query_id)
        return len(numbers), is_tied

    def _sort_lines(self, query_id: str) -> tuple[NDArray[np.int32], NDArray[np.float32], bool]:
        """Return a query's documents and scores, best first, and whether two scores are equal."""
        lines = self._lines(query_id)
        numbers = self._columns.document_numbers[lines]
        scores = self._columns.scores[lines]
        if (scores[1:] < scores[:-1]).all():  # most files are in order
            return numbers, scores, False
        order = np.lexsort((self._byte_order[numbers], scores))[::-1]
        scores = scores[order]
        return numbers[order], scores, bool((scores[1:] == scores[:-1]).any())

    def _lines(self, query_id: str) -> NDArray[np.int64]:
        return np.concatenate([self._order[place] for place in self._places[query_id]])

    @cached_property
    def _byte_order(self) -> NDArray[np.int64]:
        """For each document its place among all, sorted by the bytes of the file."""
        raw = self._columns.raw_documents
        places = np.empty(len(raw), np.int64)
        places[sorted(range(len(raw)), key=raw.__getitem__)] = np.arange(len(raw))
        return places

    def _group(self) -> dict[str, list[slice]]:
        """Sort the lines by query, and return where each query has its own.

        An id that is encoded in two ways has two slices.
        """
        numbers = self._columns.query_numbers
        self._order = np.argsort(numbers, kind="stable")
        query_ids = self._decode(self._columns.raw_queries, self._known_queries)
        ends = np.cumsum(np.bincount(numbers, minlength=len(query_ids))).tolist()
        places: dict[str, list[slice]] = {}
        start = 0
        for query_id, end in zip(query_ids, ends, strict=True):
            if query_id in self._queries:
                places.setdefault(query_id, []).append(slice(start, end))
            start = end
        self.left_out = len({*query_ids} - self._queries.keys())
        return places

    def _decode(self, raw_ids: list[bytes], names: Collection[str]) -> list[str]:
        """Return ids as text; ValueError if one of them is not among `names`."""
        ids = []
        for raw in raw_ids:
            name = self._decode_id(raw)
            if name not in names:
                raise ValueError(f"{name!r} is not of the task")
            ids.append(name)
        return ids

    def _decode_id(self, raw: bytes) -> str:
        return unquote(raw.decode(), errors="strict") if self._encoded else raw.decode()

    def _check_rankings(self) -> None:
        """Raise InvalidRanking for documents that a query cannot have."""
        documents = self._columns.document_numbers
        one_form = len(set(self._doc_ids)) == len(self._doc_ids)
        last_line = np.zeros(len(self._doc_ids), np.int64)
        for query_id in self._places:
            query = self._queries[query_id]
            lines = self._lines(query_id)
            numbers = documents[lines]
            last_line[numbers] = lines
            once = one_form and (last_line[numbers] == lines).all()
            if once and not query.excluded and query.candidates is None:
                continue
            doc_ids = self._doc_ids[numbers].tolist()
            check_ranking(doc_ids, query, self._environment.documents)

    def _refuse_line(self) -> None:
        """Raise DataError for the first faulty line, or the first that spoils its ranking."""
        rankings: dict[str, list[_Line]] = {}
        for line, (raw_query, _, raw_document, _, raw_score, _) in self._fields():
            query_id = self._identify("query", raw_query, line)
            doc_id = self._identify("document", raw_document, line)
            rankings.setdefault(query_id, []).append(_Line(line, doc_id))
            self._check_score(raw_score, line)
        if not rankings:
            raise DataError(f"{self.path} has no lines; a run file has {_COLUMNS} in each")
        for query_id, ranking in rankings.items():
            if query_id not in self._queries:
                continue
            doc_ids = [line.doc_id for line in ranking]
            try:
                check_ranking(doc_ids, self._queries[query_id], self._environment.documents)
            except InvalidRanking as wrong:
                of_document = [line.number for line in ranking if line.doc_id == wrong.doc_id]
                # The second line of a document that is there twice.
                raise self._wrong(of_document[:2][-1], str(wrong)) from None

    def _fields(
        self,
    ) -> Iterator[tuple[int, list[bytes]]]:  # (line number, columns); only ASCII's blanks separate
        for number, line in raw_files.read_lines(self.path):
            if number == 1 and line.startswith(("{", "[")):
                raise self._wrong(number, f"it is JSON; a run file has six columns: {_COLUMNS}")
            fields = line.encode().split()
            if len(fields) != 6:
                raise self._wrong(
                    number,
                    f"has {plural(len(fields), 'column')}, not the six of a run file: {_COLUMNS}",
                )
            yield number, fields

    def _identify(self, subject: str, encoded: bytes, line: int) -> str:
        environment = self._environment
        names: Collection[str] = (
            self._known_queries if subject == "query" else environment.documents
        )
        try:
            name = self._decode_id(encoded)
        except UnicodeDecodeError:
            raise self._wrong(line, f"{encoded!r} is not UTF-8 when it is decoded") from None
        if name in names:
            return name
        context = f"the corpus of {environment.task}"
        hint = ""
        if subject == "query":
            context = f"the {environment.split} split of {environment.task}"
            hint = "" if environment.split == "all" else "; is it in another, such as --split all?"
        elif environment.max_p:
            hint = f"; {environment.task} ranks passages, not the documents that they are of"
        if unquote(name) in names:
            hint = "; it looks percent-encoded, as our own run files are: --encoded"
        elif alike := document_ids.suggest(name, names):
            hint = alike
        raise self._wrong(line, f"{subject} {name!r} is not in {context}{hint}")

    def _check_score(self, text: bytes, line: int) -> None:
        try:
            parse_score(text)
        except ValueError:
            raise self._wrong(
                line,
                f"the score {text.decode('utf-8', 'replace')!r} is no finite number",
            ) from None

    def _wrong(self, line: int, problem: str) -> DataError:
        return DataError(f"{self.path}, line {line}: {problem}")
