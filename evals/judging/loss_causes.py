"""Have a model name why documents were lost, for a sample of each run's failures: evals.behaviour
--name-failures.

The kinds that are counted without a model stay as they are. What is asked is a stage
(evals/running/model_stage.py) in a folder judged-causes-DIGEST beside the first run; RUN.json there has
what the page shows with a run.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evals import run_folder
from evals.run_folder import load_environment
from evals.running import cost_estimate
from evals.running.model_stage import OF_RUNS, ModelStage, digest
from evals.running.request import SharedRequest
from evals.scoring import scored_run
from evals.scoring.behaviour import (
    KINDS,
    NAMED,
    Result,
    count_with_examples,
    fate_cutoff,
    list_failures,
    observe_run,
    read_same_queries,
)
from evals.text_tables import TextTable, render_terminal
from programs.llm_tasks.loss_explainer import CAUSES, Explainer
from tools.number_format import plural
from tools.records import Query
from tools.retrievers.base import NullRetriever
from tools.session import Toolbox

ARGUMENT = 300  # characters of a search or a note that are told
UNNAMED = "no usable answer"


def label_loss_causes(
    paths: Sequence[Path], request: SharedRequest, sample: int, *, dry_run: bool = False
) -> Result:
    """Return the causes of `sample` failures of each run, by its name; or what asking for
    them would take.
    """
    runs = read_same_queries(paths)
    seen = list(map(observe_run, runs))
    environment = load_environment(runs[0].config)
    system = Explainer(Toolbox(environment.documents, NullRetriever()))
    config = {key: runs[0].config[key] for key in OF_RUNS}
    where = runs[0].path.resolve().with_name(NAMED)
    stage = ModelStage(system, environment.documents, where, config, request)
    units = dict[str, Query]()
    asked = list[tuple[str, str, Result]]()  # name of the run, id of the unit, failure
    for run, own in zip(runs, seen, strict=True):
        failures = list_failures(run, own, [one for one in seen if one is not own])
        for kind, lost in sorted(
            failures, key=lambda row: digest(row[1]["query_id"], row[1]["unit"])
        )[:sample]:
            query = next(one for one in environment.queries if one.query_id == lost["query_id"])
            told, passages = _tell(run, lost, KINDS[kind].format(k=fate_cutoff(run)))
            name = f"{digest(lost['unit'], *told)[:8]}/{query.query_id}"
            read_first = frozenset(
                [passage for passage in passages if passage in environment.documents][:1]
            )
            units[name] = replace(query, query_id=name, candidates=read_first)
            system.losses[name] = told
            asked.append((run.name, name, lost))
    if dry_run:
        return {"forecast": stage.forecast(list(units.values()))}
    with stage.open() as ask:
        answers = {
            name: json.loads(row["answer"] or "{}")
            for name, row in ask(list(units.values())).items()
        }
    about = {"causes": CAUSES, "named_by": stage.model.name}
    found = dict[str, Result]()
    for run in runs:
        groups = defaultdict[str, list[Result]](list)
        for name, lost in ((name, lost) for of, name, lost in asked if of == run.name):
            groups[answers[name].get("cause", UNNAMED)].append(
                lost | {"because": answers[name].get("because", "")}
            )
        found[run.name] = {cause: count_with_examples(rows) for cause, rows in groups.items()}
        kept = about | {"failures": found[run.name]}
        run_folder.write(
            stage.path / f"{run.path.resolve().name}.json", json.dumps(kept, indent=2) + "\n"
        )
    return about | {"folder": str(stage.path), "named": found}


def _tell(run: scored_run.ScoredRun, lost: Result, fate: str) -> tuple[list[str], list[str]]:
    """Return the fate, all searches and notes, and what was done with the document; and its
    ids, the best first.
    """
    judged = run.judged[lost["query_id"]]
    lines = [fate]
    best = next(one.get("doc_id", "") for one in judged["relevant"] if one["unit"] == lost["unit"])
    parts = [
        best,
        lost["unit"],
        *(one for one, unit in judged.get("units", {}).items() if unit == lost["unit"]),
    ]
    for number, step in enumerate(run.outcomes[lost["query_id"]]["trace"]["steps"]):
        place = next(
            (place for place, doc_id in enumerate(step["doc_ids"], 1) if doc_id in parts), 0
        )
        if step["tool"] in ("search", "note", "stop") or place:
            what = f": the document is at place {place} of {len(step['doc_ids'])}" if place else ""
            shown = (
                f", {step['shown'][place - 1]} of its characters"
                if place and step.get("shown")
                else ""
            )
            lines.append(f"{number}. {step['tool']} {step['argument'][:ARGUMENT]}{what}{shown}")
    return lines, parts


def render_loss_causes(found: Result) -> str:
    """Return the causes as a person reads them."""
    if "forecast" in found:
        many = plural(found["forecast"]["queries"], "lost document")
        return "\n" + cost_estimate.render_estimate(
            found["forecast"], [f"{many} to be read, a call each"]
        )
    labels = [f"run {place}" for place, _ in enumerate(found["named"], 1)]
    named = found["named"].values()
    counts = {
        cause: [of.get(cause, {}).get("documents", 0) for of in named]
        for cause in (*CAUSES, UNNAMED)
    }
    rows = [[CAUSES.get(cause, cause), *map(str, row)] for cause, row in counts.items() if any(row)]
    title = f"why documents of a sample were lost, as {found['named_by']} reads the steps"
    return render_terminal(
        [
            "",
            TextTable(title, ["cause", *labels], rows) if rows else "no document was lost",
            found["folder"],
        ]
    )
