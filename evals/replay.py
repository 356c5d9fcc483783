"""What other searching would have brought: `python -m evals.replay RUN --retriever SPEC`. No model is asked.

The searches of a stored run are issued again, each distinct one once, with the text, instruction, exclusions and pool
that they had, on another retriever or to another depth; for every relevant document it is told in which search it came
back first, then and now. Left out: what a searcher would have done with other results. Its next search would have been
another one, so this says what a retriever could have given it, and not what it would have scored. Searches that only
ordered what had surfaced cannot surface anything, and are not issued again.
"""

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.measuring import scored
from tools.console.command import Parser, positive, put_out, run_and_leave
from tools.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from environments.base import Environment, Judgements
    from evals.running.engines import Engines
    from tools.records import Query
    from tools.retriever import Search
    from tools.retrievers.spec import Spec

Result = dict[str, Any]  # what `replay` returns and --json prints
Row = Mapping[str, Any]  # a step as it is on disk (tools/records.py)
CHUNK = 64  # queries whose searches are issued together, so that models encode in batches
SHOWN = 10  # documents gained and lost that are printed, each
TEXT = 70  # characters of a search that are printed


def replay(path: Path, retriever: str = "", depth: int | None = None) -> Result:
    """The searches of the run in `path` on `retriever`, each on its own where none is named, `depth` documents each.

    As many documents as then where no `depth` is given. DataError where the task's data is not at hand, or not the
    same; UsageError for a retriever that does not fit it.
    """
    from evals.running.configuration import environment_of

    run = scored.read(path)
    environment = environment_of(run.config)
    again = _Again(run.config, environment, retriever, depth)
    judgements = environment.judgements[environment.headline]
    tally = _Tally()
    for start in range(0, len(again.queries), CHUNK):
        queries = again.queries[start : start + CHUNK]
        then = [searches(run.outcomes[query.query_id]) for query in queries]
        for query, before, now in zip(queries, then, again.found(queries, then), strict=True):
            tally.add(query, before, now, judgements)
    if not tally.searches:
        raise UsageError(f"{path} has no search in its trajectories, so there is nothing to issue again")
    return {
        "run": run.name,
        **{key: run.scores[key] for key in ("task", "data", "split", "judgements", "program", "retriever", "lm")},
        "compiled": run.scores.get("compiled"),
        "replayed": {"retriever": again.name, "depth": depth, "distinct": again.distinct},
        **tally.json(),
    }


def searches(outcome: Mapping[str, Any]) -> list[Row]:
    """The steps of an outcome that can have surfaced something."""
    steps = outcome["trace"]["steps"]
    return [step for step in steps if step["tool"] == "search" and not step.get("refused") and not step.get("among")]


class _Again:
    """The searches of a run, on other engines."""

    def __init__(
        self, config: Mapping[str, Any], environment: "Environment", retriever: str, depth: int | None
    ) -> None:
        from evals.running.engines import Engines
        from tools import retrievers
        from tools.models.budget import Budget
        from tools.models.terms import Terms

        asked = retrievers.check(retriever) if retriever else None
        _refuse(asked, environment, pool=bool(config.get("pool")))
        # No budget, no call: a lens that wanted one is refused before.
        engines = Engines(environment, Terms(budget=Budget(calls=0)))
        self._engines, self._asked, self._depth = engines, asked, depth
        self._own = _own(config["retriever"])
        self.queries = _pooled(config, environment, engines).queries if config.get("pool") else environment.queries
        self.name = engines.build(asked).name if asked else ""
        self.distinct = 0

    def found(self, queries: "Sequence[Query]", steps: Sequence[Sequence[Row]]) -> list[list[list[str]]]:
        """What each search of each query brings now, best first."""
        wanted: dict[tuple[str, int], dict[Search, list[str]]] = {}
        keys = [[self._key(query, step) for step in of] for query, of in zip(queries, steps, strict=True)]
        for spec, k, search in (key for of in keys for key in of):
            wanted.setdefault((spec, k), {})[search] = []
        for (spec, k), asked in wanted.items():
            hits = self._engine(spec).search_many(list(asked), k)
            asked.update(zip(asked, ([hit.doc_id for hit in one] for one in hits), strict=True))
            self.distinct += len(asked)
        return [[wanted[spec, k][search] for spec, k, search in of] for of in keys]

    def _key(self, query: "Query", step: Row) -> tuple[str, int, "Search"]:
        """(retriever, depth, search) of a step of a query."""
        from tools.retriever import Search

        told = step.get("instruction") or query.objective
        k = self._depth or step.get("k") or len(step["doc_ids"])
        name = "" if self._asked else step.get("retriever", "")
        return name, k, Search(step["argument"], told, query.excluded, query.candidates)

    def _engine(self, name: str) -> Any:
        if self._asked:
            return self._engines.build(self._asked)
        from tools import retrievers

        try:
            spec = retrievers.check(self._own.get(name, ""))
        except UsageError:  # another program's, or one that this installation does not have
            what = name or "a retriever without a name"
            raise UsageError(f"the run searched with {what}, which cannot be made here; give --retriever") from None
        engine = self._engines.build(spec)
        if engine.name != name:
            raise UsageError(f"the run searched with {name}, and {spec} now is {engine.name}; give --retriever")
        return engine


def _refuse(asked: "Spec | None", environment: "Environment", *, pool: bool) -> None:
    """UsageError for a retriever that needs a model, or pools that the task has not."""
    from tools import retrievers

    for lens in retrievers.lenses(asked) if asked else ():
        if lens.options.get("model", "offline") != "offline":
            raise UsageError(f"{lens} asks a model about every search, and a replay asks none; name another retriever")
    pools = pool or all(query.candidates is not None for query in environment.queries)
    if asked and retrievers.needs_pool(asked) and not pools:
        raise UsageError(f"{asked} ranks candidate pools, and {environment.task} has none; name another retriever")


def _own(config: Mapping[str, Any]) -> dict[str, str]:
    """The complete name of each retriever of a run -> the expression that it was made from."""
    others = config.get("others") or {}
    return {config.get("with", ""): config["name"]} | {name: expression for expression, name in others.items()}


def _pooled(config: Mapping[str, Any], environment: "Environment", engines: "Engines") -> "Environment":
    """The environment with the pools that the run's `--pool` made. UsageError where they cannot be made again."""
    from evals.running import pools
    from tools import retrievers

    kept, own = config["pool"], retrievers.check(config["retriever"]["name"])
    what = f"{kept['kind']}:{kept['size']}"
    for text in (what, f"{what}({','.join(kept['of'])})"):
        try:
            pool = pools.read(text, own)
        except UsageError:  # a complete name is not always an expression
            continue
        made = [engines.build(part) for part in pool.parts]
        if pool.config([one.name for one in made], environment) == kept:
            return pools.pooled(environment, pool, made)
    names = ", ".join(kept["of"])
    raise UsageError(
        f"the run's pools were made with {names}, which cannot be told apart from here, or by an earlier version; "
        "replay another run"
    )


def surfaced(steps: Iterable[Row], found: Iterable[Sequence[str]], judgements: "Judgements", wanted: Any) -> Result:
    """Wanted unit -> where it came back first: hop, rank, search and document. `found` is what each step brought."""
    unit_of = judgements.unit_of or str
    first: Result = {}
    for step, doc_ids in zip(steps, found, strict=True):
        for rank, doc_id in enumerate(doc_ids, start=1):
            if (unit := unit_of(doc_id)) in wanted and unit not in first:
                hop = step.get("hop", 0)
                first[unit] = {"hop": hop, "rank": rank, "search": step["argument"], "doc_id": doc_id}
    return first


@dataclass(slots=True)
class _Tally:
    """What the queries of a run come to."""

    searches: int = 0
    same: int = 0  # searches that brought the same documents in the same order
    relevant: list[Result] = field(default_factory=list)  # a row for each relevant document
    recall: dict[str, list[float]] = field(default_factory=lambda: {"then": [], "now": []})
    hops: dict[int, int] = field(default_factory=dict)  # hop -> its searches

    def add(
        self, query: "Query", steps: Sequence[Row], found: Sequence[Sequence[str]], judgements: "Judgements"
    ) -> None:
        """One more query, with its searches and what they bring now."""
        stored = [step["doc_ids"] for step in steps]
        self.searches += len(steps)
        self.same += sum(list(before) == list(now) for before, now in zip(stored, found, strict=True))
        for step in steps:
            hop = step.get("hop", 0)
            self.hops[hop] = self.hops.get(hop, 0) + 1
        grades = judgements.recalled(query.query_id)
        if not grades:
            return  # recall is undefined
        then, now = (surfaced(steps, one, judgements, grades) for one in (stored, found))
        for unit, grade in sorted(grades.items(), key=lambda one: (-one[1], one[0])):
            about = {"query_id": query.query_id, "unit": unit, "grade": grade, "of": len(grades)}
            self.relevant.append(about | {"then": then.get(unit), "now": now.get(unit)})
        self.recall["then"].append(len(then) / len(grades))
        self.recall["now"].append(len(now) / len(grades))

    def json(self) -> Result:
        """All of it as plain data."""
        from evals.measuring.stats import paired

        counts = {
            "both": sum(bool(row["then"] and row["now"]) for row in self.relevant),
            "only_then": sum(bool(row["then"] and not row["now"]) for row in self.relevant),
            "only_now": sum(bool(row["now"] and not row["then"]) for row in self.relevant),
            "neither": sum(not row["then"] and not row["now"] for row in self.relevant),
        }
        many = len(self.recall["then"])
        means = {name: math.fsum(values) / many if many else None for name, values in self.recall.items()}
        difference = paired(self.recall["then"], self.recall["now"])._asdict() if many else None
        return {
            "searches": self.searches,
            "same": self.same,
            "documents": counts,
            "recall": means | {"paired": difference},
            "hops": [self._hop(hop, many) for hop in sorted(self.hops)],
            "relevant": self.relevant,
        }

    def _hop(self, hop: int, many: int) -> Result:
        """What came back first in a hop, then and now, and the recall of all up to it."""
        row: Result = {"hop": hop, "searches": self.hops[hop]}
        for when in ("then", "now"):
            known = [(one[when]["hop"], one["of"]) for one in self.relevant if one[when]]
            shares = [1 / of for at, of in known if at <= hop]
            row[when] = {
                "first": sum(at == hop for at, _ in known),
                "recall": math.fsum(shares) / many if many else None,
            }
        return row


def show(result: Result) -> None:
    """Print the tables."""
    from evals.showing.headings import system_line, task_line
    from evals.showing.tables import printed

    replayed, recall = result["replayed"], result["recall"]
    on = replayed["retriever"] or "the retriever that each had"
    depth = f"{replayed['depth']} documents each" if replayed["depth"] else "to the depth that each had"
    searched = f"{result['searches']} searches, {replayed['distinct']} distinct ones issued again on {on}, {depth}"
    parts: list[str | Table] = [task_line(result), system_line(result), f"{searched}; {result['same']} bring the same"]
    if recall["paired"] is None:
        put_out(printed([*parts, "none of the queries has a relevant document, so there is nothing to surface"]))
        return
    gained = [row for row in result["relevant"] if row["now"] and not row["then"]]
    lost = [row for row in result["relevant"] if row["then"] and not row["now"]]
    parts += ["", _counts(result["documents"]), _recall(recall), "", _hops(result["hops"])]
    for words, when, rows in (("gained", "now", gained), ("lost", "then", lost)):
        if rows:
            more = f", the {SHOWN} that came first" if len(rows) > SHOWN else ""
            parts += [f"{words}: {len(rows)} relevant documents{more}", _moved(rows, when)]
    parts += ["the searches are the run's: with other results, its searcher would have gone on otherwise"]
    put_out(printed(parts))


def _counts(counts: Mapping[str, int]) -> "Table":
    from evals.showing.tables import empty

    table, whole = empty("relevant documents that surfaced", "documents", "share"), sum(counts.values())
    words = {"both": "then and now", "only_then": "only then", "only_now": "only now", "neither": "neither"}
    for key, said in words.items():
        table.add_row(said, str(counts[key]), f"{counts[key] / whole:.4f}")
    return table


def _recall(recall: Result) -> str:
    one = recall["paired"]
    interval = "" if one["low"] is None else f" ({one['low']:+.4f} to {one['high']:+.4f})"
    p = "<0.001" if one["p"] < 0.001 else f"{one['p']:.3f}"
    means = f"{recall['then']:.4f} then, {recall['now']:.4f} now: {one['difference']:+.4f}{interval}, p {p}"
    return f"recall of all that surfaced: {means}; {one['wins']} queries won, {one['ties']} tied, {one['losses']} lost"


def _hops(rows: Sequence[Result]) -> "Table":
    from evals.showing.tables import empty

    table = empty("hop", "searches", "first then", "recall so far", "first now", "recall so far")
    for row in rows:
        cells = [[str(row[when]["first"]), f"{row[when]['recall']:.4f}"] for when in ("then", "now")]
        table.add_row(str(row["hop"] or "none"), str(row["searches"]), *cells[0], *cells[1])
    return table


def _moved(rows: Sequence[Result], when: str) -> "Table":
    from evals.showing.tables import empty, plain

    table = empty("query", "document", "search", "grade", "hop", "rank", words=3)
    for row in sorted(rows, key=lambda row: (row[when]["hop"], row[when]["rank"]))[:SHOWN]:
        at = row[when]
        text = at["search"] if len(at["search"]) <= TEXT else f"{at['search'][: TEXT - 4]} ..."
        names = (plain(one) for one in (row["query_id"], row["unit"], " ".join(text.split())))
        table.add_row(*names, f"{row['grade']:g}", str(at["hop"]), str(at["rank"]))
    return table


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m evals.replay", description="Issue the searches of a run again; no model is asked.")
    made.add_argument("run", type=Path, metavar="RUN", help="a run folder that has been scored")
    made.add_argument(
        "--retriever", default="", metavar="SPEC", help="for all searches; without one each has the one that it had"
    )
    made.add_argument("--depth", type=positive, metavar="K", help="documents a search; without it as many as it had")
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return made


def command(arguments: argparse.Namespace) -> int:
    """Replay and print."""
    result = replay(arguments.run, arguments.retriever, arguments.depth)
    if arguments.json:
        put_out(json.dumps(result) + "\n")
    else:
        show(result)
    return 0


if __name__ == "__main__":
    run_and_leave(parser(), command)
