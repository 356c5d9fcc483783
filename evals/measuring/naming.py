"""Have a model name why documents were lost, for a sample of each run's failures: evals.behaviour --name-failures.

The kinds that are counted without a model stay as they are. What is asked is a stage (evals/running/asking.py) in a
folder judged-causes-DIGEST beside the first run; RUN.json there has what the page shows with a run.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals import folder as run_folder
from evals.measuring.behaviour import EXAMPLES, KINDS, NAMED, Result, cutoff, list_failures, observe, read
from evals.running import forecast
from evals.running.asking import OF_RUNS, Stage
from evals.running.configuration import load_environment
from evals.running.request import Common
from evals.showing.tables import Grid, printed
from programs.explaining import CAUSES, Explainer, Loss
from tools.console import plural
from tools.records import Query
from tools.retriever import NoRetriever
from tools.session import Toolbox

ARGUMENT = 300  # characters of a search or a note that are told


def name_failures(paths: Sequence[Path], request: Common, sample: int, *, dry_run: bool = False) -> Result:
    """Return the causes of `sample` failures of each run, by its name; or what asking for them would take."""
    runs = read(paths)
    seen, environment = list(map(observe, runs)), load_environment(runs[0].config)
    queries = {query.query_id: query for query in environment.queries}
    system = Explainer(Toolbox(environment.documents, NoRetriever()))
    config = {key: runs[0].config[key] for key in OF_RUNS}
    stage = Stage(system, environment.documents, runs[0].path.resolve().with_name(NAMED), config, request)
    units, asked, losses = dict[str, Query](), defaultdict[str, dict[str, Result]](dict), dict[str, Loss]()
    for run, own in zip(runs, seen, strict=True):
        others = [one for one in seen if one is not own]
        rows = sorted(list_failures(run, own, others), key=lambda row: _order(row[1]["query_id"], row[1]["unit"]))
        for kind, failure in rows[:sample]:
            query_id, unit = failure["query_id"], failure["unit"]
            outcome, judged = run.outcomes[query_id], run.judged[query_id]
            document = next((one.get("doc_id") for one in judged["relevant"] if one["unit"] == unit), None) or unit
            known = [document] if document in environment.documents else []
            parts = {document, unit, *(doc_id for doc_id, of in judged.get("units", {}).items() if of == unit)}
            loss = Loss(KINDS[kind].format(k=cutoff(run)), list(_tell(outcome["trace"]["steps"], parts)))
            name = f"{_order(document, json.dumps(loss))[:8]}/{query_id}"
            units[name] = replace(queries[query_id], query_id=name, candidates=frozenset(known))
            losses[name], asked[run.name][name] = loss, failure
    system.losses = losses
    if dry_run:
        return {"forecast": stage.forecast(list(units.values()))}
    with stage.open() as ask:
        outcomes = ask(list(units.values()))
    about, found = {"causes": CAUSES, "named_by": stage.model.name}, dict[str, Result]()
    for run in runs:
        found[run.name] = _group(asked[run.name], outcomes)
        kept = about | {"failures": found[run.name]}
        run_folder.write(stage.path / f"{run.path.resolve().name}.json", json.dumps(kept, indent=2) + "\n")
    return about | {"folder": str(stage.path), "named": found}


def render(found: Result) -> str:
    """Return the causes as a person reads them."""
    if "forecast" in found:
        many = plural(found["forecast"]["queries"], "lost document")
        return "\n" + forecast.render(found["forecast"], [f"{many} to be read, a call each"])
    labels = [f"run {place}" for place, _ in enumerate(found["named"], 1)]
    counts = {
        said: [of.get(cause, {}).get("documents", 0) for of in found["named"].values()]
        for cause, said in (CAUSES | {"": "no usable answer"}).items()
    }
    rows = [[said, *map(str, row)] for said, row in counts.items() if any(row)]
    title = f"why documents of a sample were lost, as {found['named_by']} reads the steps"
    return printed(["", Grid(title, ["cause", *labels], rows), found["folder"]])


def _order(*parts: str) -> str:  # the same on every machine
    return hashlib.sha256(":".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _group(asked: Mapping[str, Result], outcomes: Mapping[str, Any]) -> Result:
    """Return each cause with how many failures have it, and some of them; "" is where no answer could be used."""
    groups = defaultdict[str, list[Result]](list)
    for name, failure in asked.items():
        answer = json.loads(outcomes[name]["answer"] or "{}")
        groups[answer.get("cause", "")].append(failure | {"because": answer.get("because", "")})
    return {
        cause: {"documents": len(groups[cause]), "examples": groups[cause][:EXAMPLES]}
        for cause in (*CAUSES, "")
        if cause in groups
    }


def _tell(steps: Sequence[Mapping[str, Any]], parts: Collection[str]) -> Iterator[str]:
    """Yield all searches and notes, and what else was done with `parts` of a document, with the steps' numbers."""
    for number, step in enumerate(steps):
        place = next((place for place, doc_id in enumerate(step["doc_ids"], 1) if doc_id in parts), 0)
        said, tool = step["argument"][:ARGUMENT], step["tool"]
        if tool == "search":
            brought = f"brought the document at place {place}" if place else "did not bring the document"
            yield f"{number}. search {said!r}: {step.get('refused') or brought}"
        elif tool == "note" or tool == "stop":
            yield f"{number}. {tool}: {said}"
        elif place:
            shown = step.get("shown") or ()
            how = f", {shown[place - 1]} of its {step['lengths'][place - 1]} characters" if shown else ""
            yield f"{number}. {tool}: the document was among {len(step['doc_ids'])}, at place {place}{how}"
