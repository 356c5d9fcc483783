"""Join the shards of a run into the run that a single command would have made: outcomes, usage,
answers, scores.

RUNS/shard-K-of-N/TASK/NAME are joined in RUNS/TASK/NAME, and may go on and be joined again. Left
out: checkpoints of agents, which only pending queries need.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sextant.evals import run_folder
from sextant.evals.run_folder import load_environment
from sextant.evals.scoring.reference_runs import read_reference_bounds
from sextant.evals.scoring.score_run import count_test_uses, record_test_use, score
from sextant.tools.errors import DataError, RunConflict, RunIncomplete
from sextant.tools.models.storage.ledger import open_ledger
from sextant.tools.platform import files
from sextant.tools.platform.number_format import choose_verb, queries
from sextant.tools.records import JsonObject


def gather(path: Path) -> JsonObject:
    """Join the shards of the run in `path`, its own folder or that of a shard; return the output of
    --json.

    DataError for a damaged shard, RunConflict for shards that do not belong together, RunIncomplete
    for pending queries.
    """
    joined_path, shards = _find(path.resolve())
    config = run_folder.read_config(next(shard for shard in shards if shard.exists()))
    environment = load_environment(config)
    query_ids = list(environment.queries_by_id)
    shares = [query_ids[number :: len(shards)] for number in range(len(shards))]
    _check_complete(joined_path, shards, shares)
    opened = _join_opened(shards)
    with run_folder.claim(joined_path, config) as folder:
        for shard_path, share in zip(shards, shares, strict=True):
            with run_folder.claim(shard_path, run_folder.read_config(shard_path)) as shard:
                _join_outcomes(folder, shard, share)
                if (shard_path / "run-id").exists():
                    open_ledger(joined_path).gather(open_ledger(shard_path))
        run_folder.write_opened(joined_path, run_folder.read_opened(joined_path) | opened)
        scores: JsonObject = {"run": str(joined_path)} | score(joined_path, environment)
    record_test_use(config, joined_path)
    if (joined_path / "run-id").exists():
        scores["ledger"] = open_ledger(joined_path).usage_totals.json()
    return scores | {"bounds": read_reference_bounds(joined_path), "looks": count_test_uses(config)}


def _find(path: Path) -> tuple[Path, list[Path]]:
    """Return the folder of the whole run, and the folder of each of its shards, which may not exist."""
    if len(path.parents) < 3:
        raise DataError(
            f"{path} is no run folder; name RUNS/TASK/NAME, or the folder of one of its shards"
        )
    runs = path.parents[1]
    run = path.relative_to(runs)
    if run_folder.SHARD.fullmatch(runs.name):
        runs = runs.parent
    counts = set()
    found = set()
    for config_file in runs.glob(f"*/{run}/config.json"):
        if named := run_folder.SHARD.fullmatch(config_file.parents[2].name):
            counts.add(int(named[2]))
            found.add(config_file.parent)
    if not counts:
        raise DataError(
            f"{path} has no shards; name RUNS/TASK/NAME, or the folder of a shard that sextant run "
            f"--shard K/N has made"
        )
    count = max(counts)
    if len(counts) > 1:
        raise RunConflict(
            f"{runs} has shards of {run} of {min(counts)} and of {count}; remove those of one"
        )
    shards = [runs / f"shard-{number}-of-{count}" / run for number in range(1, count + 1)]
    if wrong := found - set(shards):
        raise RunConflict(f"{min(wrong)} is no shard of {count}, or there twice; remove it")
    return runs / run, shards


def _check_complete(
    joined_path: Path, shards: Sequence[Path], shares: Sequence[Sequence[str]]
) -> None:
    """Raise RunIncomplete if a shard is missing, or has pending queries.

    DataError for a damaged shard.
    """
    owed = []
    pending = 0
    for number, (shard, share) in enumerate(zip(shards, shares, strict=True), start=1):
        outcomes = run_folder.read_outcomes(shard) if shard.exists() else {}
        if unanswered := sum(query_id not in outcomes for query_id in share):
            pending += unanswered
            missing = "" if shard.exists() else ", missing"
            owed.append(f"{number}/{len(shares)} ({unanswered}{missing})")
    if owed:
        raise RunIncomplete(
            f"{pending} of {queries(sum(map(len, shares)))} of {joined_path} "
            f"{choose_verb(pending)} pending, of --shard {', '.join(owed)}; the same commands go on"
        )


def _join_outcomes(
    joined: run_folder.RunFolder, shard: run_folder.RunFolder, query_ids: Sequence[str]
) -> None:
    """Append a shard's outcomes, unless the run has a later one of its own, as of `--again
    failed`.
    """
    shard_lines = set(files.iter_lines(shard.outcomes.path))
    with files.open_file(joined.path / run_folder.OUTCOMES_FILE, "ab") as file:
        for query_id in query_ids:
            line = _line(shard, query_id)
            joined_line = _line(joined, query_id)
            if joined_line is None or (joined_line in shard_lines and joined_line != line):
                file.write(line or b"")


def _join_opened(shard_paths: Iterable[Path]) -> dict[str, str]:
    """Return the files that the shards' program opened. RunConflict if one changed in between."""
    opened = dict[str, str]()
    for path in shard_paths:
        for name, digest in run_folder.read_opened(path).items():
            if opened.setdefault(name, digest) != digest:
                raise RunConflict(
                    f"{name} was another file for {path} than for shards before it; remove the "
                    f"shards that read it as it was, and run them again"
                )
    return opened


def _line(folder: run_folder.RunFolder, query_id: str) -> bytes | None:
    if query_id not in folder.outcomes:
        return None
    with folder.outcomes.path.open("rb") as file:
        file.seek(folder.outcomes.starts[query_id])
        return file.readline()
