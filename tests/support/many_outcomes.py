"""A large run for tests of speed: `make` writes its folder, and returns the environment that scores it.

A few hundred trajectories are drawn and repeated under other query ids, so that making the run takes less time than
what is measured on it.
"""

import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import run_folders
from foreign_runs import world

from environments.base import Environment, Judgements
from evals.folder import digest, file_digests, seal, seal_scores
from evals.measuring.scoring import score
from tools.corpus import Corpus
from tools.records import Document, Query, Step, Trace, Usage, trace_json, usage_json

DISTINCT = 200  # trajectories
RANKED = 100
DOC_IDS = [f"hearing-{number:05d}_p{number % 97:04d}" for number in range(5_000)]
CONFIG = run_folders.CONFIG | {
    **{"task": "made/up", "depth": RANKED, "program": "wanderer", "parameters": {}, "lm": {"name": "made/up-1"}}
}


def make(path: Path, queries: int, steps: int, *, seed: int = 0, scored: bool = True) -> Environment:
    """A run of so many queries in `path`, each a trajectory of so many steps.

    With `scored`, its scores are those of the trajectories drawn, repeated with them; `queries` is then a multiple of
    DISTINCT, or below it, which leaves the means as they are. Intervals are those of the trajectories drawn.
    """
    random = Random(seed)
    drawn = [_outcome(random, steps) for _ in range(min(queries, DISTINCT))]
    query_ids = [f"q{number:05d}" for number in range(queries)]
    environment = _environment(query_ids, [gold for _, gold in drawn])
    _write(path, query_ids, [outcome for outcome, _ in drawn], environment, seed)
    if scored:
        _score(path, environment, len(drawn))
    return environment


def _write(path: Path, query_ids: list[str], drawn: list[dict], environment: Environment, seed: int) -> None:
    path.mkdir(parents=True)
    config = CONFIG | {"data_fingerprint": environment.fingerprint, "seed": seed}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rows = [json.dumps(outcome)[1:] for outcome in drawn]
    with (path / "outcomes.jsonl").open("wb") as file:
        for number, query_id in enumerate(query_ids):
            line = f'{{"query_id": "{query_id}", {rows[number % len(rows)]}'
            file.write(seal(line.encode(), digest(config)) + b"\n")


_ID = "QUERY-ID"


def _repeat(path: Path, query_ids: list[str], rows: list[str], head: str = "") -> None:
    """A file with a row for each query, in turn."""
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        for number, query_id in enumerate(query_ids):
            file.write(rows[number % len(rows)].replace(_ID, query_id))


def _score(path: Path, environment: Environment, drawn: int) -> None:
    """Score the first queries, and say the same of all."""
    query_ids = [query.query_id for query in environment.queries]
    if len(query_ids) % drawn:
        raise ValueError(f"{len(query_ids)} is no multiple of {drawn}")
    with TemporaryDirectory() as place:
        part = Path(place) / path.name
        part.mkdir()
        shutil.copy(path / "config.json", part)
        with (path / "outcomes.jsonl").open(encoding="utf-8") as file:
            (part / "outcomes.jsonl").write_text("".join(islice(file, drawn)), encoding="utf-8")
        scores = score(part, environment.asking(limit=drawn))
        head, *table = (part / "scores.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        attributed = (part / "attribution.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    named = list(zip(query_ids[:drawn], table, attributed, strict=True))
    _repeat(path / "scores.csv", query_ids, [row.replace(query_id, _ID) for query_id, row, _ in named], head)
    _repeat(path / "attribution.jsonl", query_ids, [row.replace(query_id, _ID) for query_id, _, row in named])
    times = len(query_ids) // drawn
    scores["queries"] = len(query_ids)
    scores["losses"]["queries"] *= times
    scores["losses"]["documents"] = {fate: times * many for fate, many in scores["losses"]["documents"].items()}
    scores["usage"] = {key: value and times * value for key, value in scores["usage"].items()}
    scores["made_of"] |= file_digests(path, tuple(scores["made_of"].keys() - {"config"}))
    (path / "scores.json").write_text(json.dumps(seal_scores(scores), indent=2), encoding="utf-8")


def _environment(query_ids: list[str], gold: list[list[str]]) -> Environment:
    qrels = {
        query_id: dict.fromkeys(gold[number % len(gold)], 1.0 + number % 2) for number, query_id in enumerate(query_ids)
    }
    return world(
        documents=Corpus(Document(doc_id, f"What the committee heard, as {doc_id}.") for doc_id in DOC_IDS),
        queries=tuple(Query(query_id, f"{query_id}: who spoke of the orchard? " * 8) for query_id in query_ids),
        judgements={"gold": Judgements(qrels)},
        metrics=("nDCG@10", "R@10", "R@100", "RR@10"),
        depth=RANKED,
    )


def _outcome(random: Random, steps: int) -> tuple[dict, list[str]]:
    """(an outcome without its query's id, its relevant documents)."""
    made = list(_steps(random, steps))
    ranking = list(dict.fromkeys(doc_id for step in made for doc_id in step.doc_ids))
    ranking = list(dict.fromkeys(ranking + _some(random, RANKED)))[:RANKED]
    usage = Usage(steps, 0, 900 * steps, 80 * steps, 0.0004 * steps, 0.0004 * steps)
    gold = sorted({*random.sample(ranking, 2), random.choice(DOC_IDS)})
    return {
        "ranking": ranking,
        "answer": "",
        "trace": trace_json(Trace("", made, ["the orchard was in the county"])),
        "usage": usage_json(usage),
        "error": None,
        "seconds": 1.5 * steps,
    }, gold


def _steps(random: Random, steps: int) -> Iterator[Step]:
    seen: list[str] = []
    for number in range(steps - 1):
        hop, usage = number // 4 + 1, Usage(1, 0, 900, 80, 0.0004, 0.0004)
        if number % 4 in (0, 1):
            seen = _some(random, random.randint(10, 20))
            text = f"orchard county committee testimony {number} " * 3
            yield Step("search", text, tuple(seen), hop, 1.5 * number, 1.5, usage, retriever="bm25(k1=0.9,b=0.4)", k=20)
        elif number % 4 == 2:
            shown, lengths = (300,) * len(seen), (1500,) * len(seen)
            yield Step("judge", "", tuple(seen), hop, 1.5 * number, 1.5, usage, shown=shown, lengths=lengths)
        else:
            yield Step("select", "", tuple(seen[:4]), hop, 1.5 * number, 1.5, usage)
    yield Step("stop", "done", started=1.5 * steps)


def _some(random: Random, many: int) -> list[str]:
    start = random.randrange(len(DOC_IDS) - many)
    return (
        random.sample(DOC_IDS[start : start + 3 * many], many) if start + 3 * many < len(DOC_IDS) else DOC_IDS[-many:]
    )
