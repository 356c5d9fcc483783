"""Join the shards of a run into the run that one command would have made: outcomes, books, answers,
scores.

RUNS/shard-K-of-N/TASK/NAME are joined in RUNS/TASK/NAME, and may go on and be joined again. Left
out: checkpoints of agents, which only pending queries need.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evals import run_folder
from evals.run_folder import load_environment
from evals.scoring.reference_runs import read_reference_bounds
from evals.scoring.score_run import count_test_uses, record_test_use, score
from tools import files
from tools.errors import DataError, RunConflict, RunIncomplete, SextantError
from tools.models.storage.response_cache import Ledger, open_ledger

# The rows of a shard's ledger (?2) that the run's (?1) has not got yet.
_NEW = (
    "run = ?2 AND calls.id > (SELECT coalesce(max(last), 0) FROM gathered WHERE run = ?1 AND "
    "shard = ?2)"
)


def gather(path: Path) -> dict[str, Any]:
    """Join the shards of the run in `path`, its own folder or that of a shard; return what --json
    prints.

    DataError for a damaged one, RunConflict for shards that do not belong together, RunIncomplete
    for pending queries.
    """
    whole, of, shards = _find(path.resolve())
    config = run_folder.read_config(next(iter(shards.values())))
    environment = load_environment(config)
    query_ids = [query.query_id for query in environment.queries]
    _check_complete(whole, shards, [query_ids[number::of] for number in range(of)])
    with run_folder.claim(whole, config) as folder:
        for number, place in shards.items():
            with run_folder.claim(place, run_folder.read_config(place)) as shard:
                _join_outcomes(folder, shard, query_ids[number - 1 :: of])
                if (place / "run-id").exists():
                    _join_books(open_ledger(whole), open_ledger(place))
        scores = {"run": str(whole)} | score(whole, environment)
    record_test_use(config, whole)
    books = {"ledger": open_ledger(whole).books.json()} if (whole / "run-id").exists() else {}
    return (
        scores | books | {"bounds": read_reference_bounds(whole), "looks": count_test_uses(config)}
    )


def _find(path: Path) -> tuple[Path, int, dict[int, Path]]:
    """Return the folder of the whole run, how many shards it has, and the folders of those
    that are there.
    """
    if len(path.parents) < 3:
        raise DataError(
            f"{path} is no run folder; name RUNS/TASK/NAME, or the folder of one of its shards"
        )
    run = path.relative_to(path.parents[1])
    runs = path.parents[1]
    runs = runs.parent if run_folder.SHARD.fullmatch(runs.name) else runs
    places = [
        (run_folder.SHARD.fullmatch(place.parents[2].name), place)
        for place in runs.glob(f"*/{run}/config.json")
    ]
    found = sorted((int(named[2]), int(named[1]), place.parent) for named, place in places if named)
    if not found:
        raise DataError(f"{runs} has no shards of {run}; evals.run --shard K/N makes them")
    if found[0][0] != found[-1][0]:
        raise RunConflict(
            f"{runs} has shards of {run} of {found[0][0]} and of {found[-1][0]}; remove those of "
            f"one"
        )
    whole = found[0][0]
    numbers = [number for _, number, _ in found]
    if wrong := [
        place for _, number, place in found if not 1 <= number <= whole or numbers.count(number) > 1
    ]:
        raise RunConflict(f"{wrong[0]} is no shard of {whole}, or there twice; remove it")
    return runs / run, whole, {number: place for _, number, place in found}


def _check_complete(
    whole: Path, shards: Mapping[int, Path], shares: Sequence[Sequence[str]]
) -> None:
    """Raise RunIncomplete where a shard is missing, or has pending queries.

    DataError for one that is damaged.
    """
    owed = list[str]()
    pending = 0
    for number, share in enumerate(shares, start=1):
        outcomes = run_folder.read_outcomes(shards[number]) if number in shards else {}
        if left := sum(query_id not in outcomes for query_id in share):
            pending += left
            owed.append(f"{number}/{len(shares)} ({left}{'' if number in shards else ', missing'})")
    if owed:
        rest = (
            f"{pending} of {sum(map(len, shares))} queries of {whole} are pending, of --shard "
            f"{', '.join(owed)}"
        )
        raise RunIncomplete(
            f"{rest}; the same commands go on, with the code, data and libraries of the other "
            f"shards"
        )


def _join_outcomes(
    whole: run_folder.RunFolder, shard: run_folder.RunFolder, query_ids: Sequence[str]
) -> None:
    """Append a shard's outcomes, but where the run has a later one of its own, as of `--again
    failed`.
    """
    made = set(files.iter_lines(shard.outcomes.path))
    with files.open_file(whole.path / "outcomes.jsonl", "ab") as file:
        for query_id in query_ids:
            line = _line(shard, query_id)
            own = _line(whole, query_id)
            if own is None or (own in made and own != line):
                file.write(line or b"")


def _line(folder: run_folder.RunFolder, query_id: str) -> bytes | None:
    if query_id not in folder.outcomes:
        return None
    with folder.outcomes.path.open("rb") as file:
        file.seek(folder.outcomes.starts[query_id])
        return file.readline()


def _join_books(whole: Ledger, shard: Ledger) -> None:
    """Copy the rows of a shard's ledger that are not there yet, and what was sent, all or none."""
    query = whole.answers.query
    runs = (whole.run, shard.run)
    names = ", ".join(
        row[1] for row in query("PRAGMA table_info(calls)") if row[1] not in ("id", "run")
    )
    query("ATTACH DATABASE ? AS part", [str(shard.answers.path)])
    try:
        query("BEGIN IMMEDIATE")
        query(
            "CREATE TABLE IF NOT EXISTS gathered (run TEXT, shard TEXT, last INTEGER, PRIMARY KEY "
            "(run, shard))"
        )
        sent = f"SELECT value FROM part.calls, json_each(calls.request) WHERE {_NEW}"
        query(
            f"INSERT OR IGNORE INTO parts (id, text) SELECT id, text FROM part.parts WHERE id IN "
            f"({sent})",
            runs,
        )
        query(
            f"INSERT INTO calls (run, {names}) SELECT ?1, {names} FROM part.calls WHERE {_NEW} "
            f"ORDER BY id",
            runs,
        )
        query(
            "INSERT OR REPLACE INTO gathered SELECT ?1, ?2, max(id) FROM part.calls WHERE run = ?2",
            runs,
        )
        query("COMMIT")
    except BaseException:
        with suppress(SextantError):
            query("ROLLBACK")
        raise
    finally:
        query("DETACH DATABASE part")
