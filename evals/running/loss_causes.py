"""Have a model name the causes of lost documents, for a sample of each run's failures:
sextant behaviour --name-failures.

The kinds of failure that are counted without a model stay as they are. The model's answers are a
stage (evals/running/model_stage.py) in a folder judged-causes-DIGEST next to the first run; RUN.json
there has the causes that the page shows with a run.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sextant.evals import run_folder
from sextant.evals.run_folder import load_environment
from sextant.evals.running import cost_estimate
from sextant.evals.running.model_stage import OF_RUNS, ModelStage, digest
from sextant.evals.running.request import SharedRequest
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.behaviour import (
    KINDS,
    NAMED,
    Result,
    count_with_examples,
    fate_cutoff,
    list_failures,
    observe_run,
    read_same_queries,
)
from sextant.evals.scoring.system_names import name_systems
from sextant.programs.llm_tasks.loss_explainer import CAUSES, Explainer
from sextant.tools.platform.number_format import plural
from sextant.tools.platform.result_table import ResultTable, render_terminal
from sextant.tools.retrievers.base import NullRetriever
from sextant.tools.session import Toolbox

ARGUMENT = 300  # characters of a search or a note that are told
UNNAMED = "no usable answer"


def label_loss_causes(
    paths: Sequence[Path],
    request: SharedRequest,
    sample: int,
    *,
    dry_run: bool = False,
) -> Result:
    """Return the causes of `sample` failures of each run, by its name.

    `dry_run` returns the forecast of asking for them in place of that.
    """
    runs = read_same_queries(paths)
    behaviours = [observe_run(run) for run in runs]
    environment = load_environment(runs[0].config)
    system = Explainer(Toolbox(environment.documents, NullRetriever()))
    stage = ModelStage(
        system,
        environment.documents,
        runs[0].path.resolve().with_name(NAMED),
        {key: runs[0].config[key] for key in OF_RUNS},
        request,
    )
    query_of = environment.queries_by_id
    units = {}
    losses = defaultdict[str, list[tuple[str, Result]]](list)  # of each run, with their units
    for run, behaviour in zip(runs, behaviours, strict=True):
        for failure_type, failure in sorted(
            list_failures(
                run, behaviour, [other for other in behaviours if other is not behaviour]
            ),
            key=lambda row: digest(row[1]["query_id"], row[1]["unit"]),
        )[:sample]:
            query = query_of[failure["query_id"]]
            steps, doc_ids = _describe_steps(
                run, failure, KINDS[failure_type].format(k=fate_cutoff(run))
            )
            unit_id = f"{digest(failure['unit'], *steps)[:8]}/{query.query_id}"
            readable = [doc_id for doc_id in doc_ids if doc_id in environment.documents]
            units[unit_id] = replace(
                query,
                query_id=unit_id,
                candidates=frozenset(readable[:1]),
            )
            system.losses[unit_id] = steps
            losses[run.name].append((unit_id, failure))
    if dry_run:
        return {"forecast": stage.forecast(list(units.values()))}
    with stage.open() as ask:
        outcomes = ask(list(units.values()))
    answers = {unit_id: json.loads(row["answer"] or "{}") for unit_id, row in outcomes.items()}
    header = {"causes": CAUSES, "named_by": stage.model.name}
    causes_of = {}
    for run in runs:
        causes_of[run.name] = _group_by_cause(losses[run.name], answers)
        run_folder.write(
            stage.path / f"{run.path.resolve().name}.json",
            json.dumps(header | {"failures": causes_of[run.name]}, indent=2) + "\n",
        )
    return header | {
        "folder": str(stage.path),
        "systems": name_systems(runs),
        "named": causes_of,
    }


def _group_by_cause(losses: Sequence[tuple[str, Result]], answers: Mapping[str, Result]) -> Result:
    """Return cause -> its number of documents, with examples."""
    groups = defaultdict(list)
    for unit_id, failure in losses:
        answer = answers[unit_id]
        row = failure | {"because": answer.get("because", "")}
        groups[answer.get("cause", UNNAMED)].append(row)
    return {cause: count_with_examples(rows) for cause, rows in groups.items()}


def _describe_steps(
    run: scored_run.ScoredRun, failure: Result, fate: str
) -> tuple[list[str], list[str]]:
    """Return lines on the fate and on the steps that matter, and the ids of the lost document.

    A step matters if it is a search, a note or the stop, or if it had the document. The best of
    the ids comes first.
    """
    judged = run.judged[failure["query_id"]]
    unit = failure["unit"]
    best = next(row.get("doc_id", "") for row in judged["relevant"] if row["unit"] == unit)
    doc_ids = [best, unit]
    doc_ids += [doc_id for doc_id, name in judged.get("units", {}).items() if name == unit]
    lines = [fate]
    for number, step in enumerate(run.outcomes[failure["query_id"]]["trace"]["steps"]):
        position = next(
            (place for place, doc_id in enumerate(step["doc_ids"], start=1) if doc_id in doc_ids), 0
        )
        if step["tool"] not in ("search", "note", "stop") and not position:
            continue
        line = f"{number}. {step['tool']} {step['argument'][:ARGUMENT]}"
        if position:
            line += f": the document is at place {position} of {len(step['doc_ids'])}"
            if step.get("shown"):
                line += f", {step['shown'][position - 1]} of its characters"
        lines.append(line)
    return lines, doc_ids


def render_loss_causes(result: Result) -> str:
    """Return the causes as a person reads them."""
    if "forecast" in result:
        documents = plural(result["forecast"]["queries"], "lost document")
        return cost_estimate.render_estimate(
            result["forecast"], [f"{documents} to be read, a call each"]
        )
    rows = []
    for cause in (*CAUSES, UNNAMED):
        counts = [causes.get(cause, {}).get("documents", 0) for causes in result["named"].values()]
        if any(counts):
            rows.append(
                [
                    CAUSES.get(cause, cause),
                    *map(str, counts),
                ]
            )
    title = f"why documents of a sample were lost, as {result['named_by']} reads the steps"
    table: ResultTable | str = "no document was lost"
    if rows:
        table = ResultTable(title, ["cause", *result["systems"]], rows)
    return render_terminal([table, result["folder"]])
