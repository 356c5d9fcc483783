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

import math
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from sextant.environments.base import Environment
from sextant.environments.readers import document_ids, raw_files
from sextant.evals.formats.export_run import ExportedRun
from sextant.evals.run_folder import TREC_FILE, InvalidRanking, check_ranking
from sextant.evals.scoring.score_run import encode_trec_id, trec_lines
from sextant.tools.errors import DataError
from sextant.tools.platform.number_format import plural, queries
from sextant.tools.records import Query

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
    notes = {
        "run.trec ranks what is judged, documents.trec the passages or documents that were handed "
        "in": units,
        f"no ranking for {queries(empty)}: each counts 0 in our means, and trec_eval leaves it "
        "out": empty,
        "qrels.trec has grades that are fractions, which trec_eval does not read; ranx does": (
            fractions
        ),
    }
    return [note for note, is_so in notes.items() if is_so]


def _copy_run(source: ExportedRun, folder: Path) -> None:
    chosen = {
        encode_trec_id(query_id).encode(errors="backslashreplace") for query_id in source.query_ids
    }
    with (
        (source.run.path / TREC_FILE).open("rb") as lines,
        (folder / TREC_FILE).open("wb") as copy,
    ):
        copy.writelines(line for line in lines if line.partition(b"\t")[0] in chosen)


def _qrels_lines(query_id: str, grades: Mapping[str, float]) -> Iterator[str]:
    start = f"{encode_trec_id(query_id)} 0 "
    return (f"{start}{encode_trec_id(unit)} {grade:.12g}\n" for unit, grade in grades.items())


class RankedLines(NamedTuple):
    """A query's lines of a run file, best first."""

    doc_ids: list[str]
    scores: list[float]
    is_tied: bool  # whether two scores are equal


class _QueryLines(NamedTuple):
    """The lines of a query, in the order of the file."""

    raw_documents: list[bytes]  # the ids with the bytes of the file
    scores: "array[float]"  # in single precision; infinite beyond it, as trec_eval has it
    line_numbers: "array[int]"


class RunFile:
    """A run file that fits a task, in memory: some twenty bytes a line, and each id once."""

    def __init__(self, path: Path, environment: Environment, *, encoded: bool) -> None:
        """`encoded`: ids are percent-encoded. DataError, with the line, for a faulty file."""
        self.path = path
        self.tag = ""  # of its first line
        self._environment = environment
        self._encoded = encoded
        self._queries = environment.queries_by_id
        self._known_queries = {*self._queries, *environment.unjudged}
        self._doc_ids = dict[bytes, str]()  # by the bytes of the file
        self._lines = dict[str, _QueryLines]()
        self._read()
        # Queries that nobody judged.
        self.left_out = len(self._lines.keys() - self._queries.keys())
        for query_id in self._lines.keys() & self._queries.keys():
            self._check_ranking(self._queries[query_id], self._lines[query_id])

    def ranking(self, query_id: str) -> RankedLines:
        """Return a query's documents with their scores; none if the file has none."""
        if query_id not in self._lines:
            return RankedLines([], [], is_tied=False)
        lines = self._lines[query_id]
        ranked = sorted(zip(lines.scores, lines.raw_documents, strict=True), reverse=True)
        doc_ids = [self._doc_ids[raw] for _, raw in ranked]
        scores = [score for score, _ in ranked]
        return RankedLines(doc_ids, scores, is_tied=len(set(scores)) < len(scores))

    def _read(self) -> None:
        query_ids = {}
        for number, (raw_query, _, raw_document, _, raw_score, tag) in self._fields():
            if raw_query not in query_ids:
                query_ids[raw_query] = self._identify("query", raw_query, number)
            if raw_document not in self._doc_ids:
                self._doc_ids[raw_document] = self._identify("document", raw_document, number)
            query_id = query_ids[raw_query]
            if query_id not in self._lines:
                self._lines[query_id] = _QueryLines([], array("f"), array("Q"))
            lines = self._lines[query_id]
            lines.raw_documents.append(raw_document)
            lines.scores.append(self._parse_score(raw_score, number))
            lines.line_numbers.append(number)
            self.tag = self.tag or tag.decode()
        if not self._lines:
            raise DataError(f"{self.path} has no lines; a run file has {_COLUMNS} in each")

    def _fields(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (line number, columns); only ASCII's blanks separate columns."""
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

    def _check_ranking(self, query: Query, lines: _QueryLines) -> None:
        """Raise DataError for a document that a query cannot have."""
        doc_ids = [self._doc_ids[raw] for raw in lines.raw_documents]
        try:
            check_ranking(doc_ids, query, self._environment.documents)
        except InvalidRanking as wrong:
            of_document = [
                number
                for number, doc_id in zip(lines.line_numbers, doc_ids, strict=True)
                if doc_id == wrong.doc_id
            ]
            # The second line of a document that is there twice.
            raise self._wrong(of_document[:2][-1], str(wrong)) from None

    def _identify(self, subject: str, encoded: bytes, line: int) -> str:
        environment = self._environment
        names = self._known_queries if subject == "query" else environment.documents
        try:
            name = unquote(encoded.decode(), errors="strict") if self._encoded else encoded.decode()
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

    def _parse_score(self, text: bytes, line: int) -> float:
        with suppress(ValueError):
            score = float(text)
            if math.isfinite(score) and b"_" not in text:
                return score
        shown = text.decode(errors="replace")
        raise self._wrong(line, f"the score {shown!r} is no finite number")

    def _wrong(self, line: int, problem: str) -> DataError:
        return DataError(f"{self.path}, line {line}: {problem}")
