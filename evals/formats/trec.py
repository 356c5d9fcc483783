"""TREC run and qrels files, which trec_eval, pytrec_eval, ir_measures and ranx read (trec_eval's README has the form).

Ids are percent-encoded as in run.trec: blanks separate the columns. Left out: comparisons (Win, Flip, Triplets), which
no TREC file can hold.
"""

from pathlib import Path

from evals.folder import encoded, trec
from evals.formats.source import Source


def write(source: Source, folder: Path) -> list[str]:
    """TREC files: run.trec as scored, qrels.trec (what nDCG gains from), relevant.trec (what recall counts)."""
    notes, empty, fractions, units = list[str](), 0, False, False
    _copy(source, folder / "run.trec")
    with (folder / "documents.trec").open("w", encoding="utf-8", errors="backslashreplace") as documents:
        for one in source:
            documents.write(trec(one.query_id, one.outcome["ranking"], source.run.path.name))
            empty += not one.outcome["ranking"]
            units |= bool(one.judged.get("units"))
    if not units:
        (folder / "documents.trec").unlink()
    if source.has_judged:
        with (
            (folder / "qrels.trec").open("w", encoding="utf-8", errors="backslashreplace") as qrels,
            (folder / "relevant.trec").open("w", encoding="utf-8", errors="backslashreplace") as relevant,
        ):
            for one in source:
                qrels.write(_qrels(one.query_id, one.judged["grades"]))
                relevant.write(_qrels(one.query_id, {relevant["unit"]: 1.0 for relevant in one.relevant}))
                fractions |= any(grade != int(grade) for grade in one.judged["grades"].values())
    if units:
        notes.append("run.trec ranks what is judged, documents.trec the passages or documents that were handed in")
    if empty:
        notes.append(f"{empty} queries have no ranking: they count 0 in our means, and trec_eval leaves them out")
    if fractions:
        notes.append("qrels.trec has grades that are fractions, which trec_eval does not read; ranx does")
    return notes


def _copy(source: Source, path: Path) -> None:
    """The lines of the run's own run.trec, of the queries that are asked for."""
    wanted = {encoded(query_id).encode("utf-8", "backslashreplace") for query_id in source.query_ids}
    with (source.run.path / "run.trec").open("rb") as lines, path.open("wb") as copy:
        copy.writelines(line for line in lines if line.partition(b"\t")[0] in wanted)


def _qrels(query_id: str, grades: dict[str, float]) -> str:
    """The lines of a qrels file for one query: query, 0, document, grade."""
    start = f"{encoded(query_id)} 0 "
    return "".join(f"{start}{encoded(unit)} {grade:.12g}\n" for unit, grade in grades.items())
