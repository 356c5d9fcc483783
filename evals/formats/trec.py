"""TREC run and qrels files, which trec_eval, pytrec_eval, ir_measures and ranx read (trec_eval's
README has the form).

We write ids percent-encoded, because blanks separate the columns: OBLIQ-Bench's math task has an id
with a blank. Like trec_eval, reading goes by the scores and not by ranks or lines, keeps scores in
single precision, and puts the greater document id first among equal scores. Unlike it, it refuses,
with the line, entries that are not of the task: unknown queries and documents, documents twice,
excluded documents or documents outside the pool, scores that are no numbers.

Left out: comparisons (Win, Flip, Triplets), which no TREC file can hold.
"""

import math
import operator
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote

from environments.base import Environment
from environments.readers import document_ids, raw_files
from evals.formats.export_run import ExportedRun
from evals.run_folder import InvalidRanking, check_ranking
from evals.scoring.score_run import encode_trec_id, trec_lines
from tools.errors import DataError

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
    chosen = set[bytes]()
    for query_id in source.query_ids:
        chosen.add(encode_trec_id(query_id).encode("utf-8", "backslashreplace"))
    with (
        (source.run.path / "run.trec").open("rb") as lines,
        (folder / "run.trec").open("wb") as copy,
    ):
        copy.writelines(line for line in lines if line.partition(b"\t")[0] in chosen)


def _notes(*, units: bool, empty: int, fractions: bool) -> list[str]:
    notes = list[str]()
    if units:
        notes.append(
            "run.trec ranks what is judged, documents.trec the passages or documents that were "
            "handed in"
        )
    if empty:
        notes.append(
            f"{empty} queries have no ranking: they count 0 in our means, and trec_eval leaves "
            "them out"
        )
    if fractions:
        notes.append(
            "qrels.trec has grades that are fractions, which trec_eval does not read; ranx does"
        )
    return notes


def _qrels_lines(query_id: str, grades: Mapping[str, float]) -> Iterator[str]:
    start = f"{encode_trec_id(query_id)} 0 "
    return (f"{start}{encode_trec_id(unit)} {grade:.12g}\n" for unit, grade in grades.items())


class RunFile:
    """A run file that fits a task, in memory: twelve bytes a line, and each document's id once."""

    def __init__(
        self, path: Path, environment: Environment, *, encoded: bool
    ) -> None:  # percent-encoded ids
        self.path = path
        self._environment = environment
        self._encoded = encoded
        # The tag of its first line.
        self.tag = ""
        self._queries = {query.query_id: query for query in environment.queries}
        # The ids in the order of the file.
        self._doc_ids: list[str] = []
        # The same, with the bytes of the file.
        self._raw: list[bytes] = []
        # Query -> for each of its lines the document's number in the list of ids, the line's
        # number, and the score.
        self._lines: dict[str, tuple[array[int], array[int], array[float]]] = {}
        self._read()

    def ranking(self, query_id: str) -> tuple[list[str], list[float]]:
        """Return a query's documents, best first, and their scores; none if the file has none."""
        numbers, _, scores = self._lines.get(
            query_id,
            (
                array("I"),
                array("I"),
                array("f"),
            ),
        )
        places: Sequence[int] = range(len(numbers))
        if not all(map(operator.gt, scores, scores[1:])):  # most files are in order
            places = sorted(
                places,
                key=lambda at: (
                    scores[at],
                    self._raw[numbers[at]],
                ),
                reverse=True,
            )
        return [self._doc_ids[numbers[at]] for at in places], [scores[at] for at in places]

    def _read(self) -> None:
        number_of: dict[bytes, int] = {}
        queries: dict[bytes, str] = {}
        for line, (raw_query, _, raw_document, _, raw_score, tag) in self._fields():
            self.tag = self.tag or tag.decode("utf-8", "replace")
            if raw_query not in queries:
                queries[raw_query] = self._identify("query", raw_query, line)
            if raw_document not in number_of:
                self._doc_ids.append(self._identify("document", raw_document, line))
                number_of[raw_document] = len(number_of)
            query_id = queries[raw_query]
            if query_id not in self._lines:
                self._lines[query_id] = array("I"), array("I"), array("f")
            numbers, lines, scores = self._lines[query_id]
            numbers.append(number_of[raw_document])
            lines.append(line)
            scores.append(self._score(raw_score, line))
        if not self._lines:
            raise DataError(f"{self.path} has no lines; a run file has {_COLUMNS} in each")
        self._raw = list(number_of)
        self._check_rankings()

    def _check_rankings(self) -> None:
        for query_id, (numbers, lines, _) in self._lines.items():
            doc_ids = [self._doc_ids[number] for number in numbers]
            try:
                check_ranking(doc_ids, self._queries[query_id], self._environment.documents)
            except InvalidRanking as wrong:
                pairs = zip(doc_ids, lines, strict=True)
                of_document = [line for doc_id, line in pairs if doc_id == wrong.doc_id]
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
                    number, f"has {len(fields)} columns, not the six of a run file: {_COLUMNS}"
                )
            yield number, fields

    def _identify(self, subject: str, encoded: bytes, line: int) -> str:
        environment = self._environment
        names: Collection[str] = self._queries if subject == "query" else environment.documents
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

    def _score(self, text: bytes, line: int) -> float:
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score) or b"_" in text:
            raise self._wrong(
                line, f"the score {text.decode('utf-8', 'replace')!r} is no finite number"
            )
        return score

    def _wrong(self, line: int, problem: str) -> DataError:
        return DataError(f"{self.path}, line {line}: {problem}")
