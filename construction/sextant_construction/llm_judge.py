"""Have a model judge the unjudged documents among the first of runs, and score the runs by that,
too.

A judge is a run of programs/llm_tasks/relevance_judge.py in a folder next to the first run,
judged-NAME-DIGEST, with a batch of a query's documents in the place of a query: it says who judged,
goes on from its end, and pays nothing twice. The release's judgements stay as they are, and hold if
both have a document. If a task scores passages by their documents (MaxP), a judgement is of the
document, and its passage that a run placed best is read.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from scipy.stats import kendalltau

from sextant import environments
from sextant.environments.base import Environment, Grades, Judgements
from sextant.evals.run_descriptions import describe_task, model_name
from sextant.evals.run_folder import load_environment
from sextant.evals.running import cost_estimate
from sextant.evals.running.model_stage import OF_RUNS, ModelStage, digest
from sextant.evals.running.request import SharedRequest, parse_parameters
from sextant.evals.scoring import scored_run
from sextant.evals.scoring.metrics import collapse_to_units, is_pairwise, measure_unjudged
from sextant.programs.compiled import read as read_compiled
from sextant.programs.deviations import describe_judging
from sextant.programs.llm_tasks.relevance_judge import HIGHEST, Judge
from sextant.tools.errors import SextantError, UsageError
from sextant.tools.platform.cli import print_stderr
from sextant.tools.platform.number_format import number, plural
from sextant.tools.platform.result_table import figure_cell, render_terminal, tabulate
from sextant.tools.records import JsonMapping, JsonObject, Query, total, usage_from_json, usage_json
from sextant.tools.retrievers.base import NullRetriever
from sextant.tools.session import Toolbox
from sextant_construction.agreement import agree, interval_cell
from sextant_construction.judge_correction import draw_true_grades, interval_of, measure_judge

CORRECTED_DRAWS = 200  # draws of true grades by which the means of runs are corrected
BATCH = 20  # documents of a query that are judged together
EXAMPLES = 8  # relevant documents that a judge is shown of a query
# what is judged: some of what the release has judged, and what it has not
SAMPLE = "sample"
POOL = "pool"
Pair = tuple[str, str]  # a query's id and a judged document's, or that of the parent of passages
Graded = Mapping[Pair, float]
Result = JsonObject  # what `judge_runs` returns and --json prints


class JudgingPool(NamedTuple):
    """The first documents of runs of a task."""

    runs: Sequence[scored_run.ScoredRun]
    environment: Environment
    rankings: Sequence[Mapping[str, Sequence[str]]]  # of each run, by query
    brought: Mapping[Pair, set[int]]  # the runs that have it among their first documents
    release: Graded  # by the release's judgements
    unit_of: Callable[[str], str] | None  # of MaxP: the document of a passage
    best: Mapping[Pair, str]  # the passage of a document that came first in a run

    @property
    def judgements(self) -> Judgements:
        """The release's headline judgements."""
        return self.environment.judgements[self.environment.headline]

    @property
    def unjudged(self) -> list[Pair]:
        """What runs brought and the release has not judged."""
        return [pair for pair in self.brought if pair not in self.release]

    def translate(self, ours: Graded) -> Graded:
        """Return a judge's grades as the release's: 2 is its highest, 1 its lowest relevant grade,
        0 is 0.

        So a document that is relevant in part counts as relevant in every metric and in the
        agreement.
        """
        highest = max(self.release.values(), default=HIGHEST)
        lowest = self.judgements.relevant_from or min(1.0, highest)
        scale = (0.0, lowest, highest)
        return {pair: scale[int(grade)] for pair, grade in ours.items()}

    def join(self, grades: Graded) -> Judgements:
        """Return the release's judgements with others in its own grades; the release's grades hold
        if both have a grade.
        """
        qrels: Grades = {query.query_id: {} for query in self.environment.queries}
        for (query_id, doc_id), grade in {**grades, **self.release}.items():
            if query_id in qrels:
                qrels[query_id][doc_id] = grade
        level = self.judgements.relevant_from
        return Judgements(qrels, unit_of=self.unit_of, relevant_from=level)

    def measure_means(self, grades: Graded) -> list[float]:
        """Return the mean of the headline metric of each run, with further grades."""
        metric = self.environment.metric
        judgements = self.join(grades)
        return [
            measure_unjudged([metric], judgements, ranked)[metric]["mean"]
            for ranked in self.rankings
        ]

    def read(self, pairs: Iterable[Pair]) -> list[str]:
        """Return the texts that a judge reads: the documents, or the passages that came first; without
        those lost.
        """
        doc_ids = (self.best.get(pair, pair[1]) for pair in pairs)
        return [doc_id for doc_id in doc_ids if doc_id in self.environment.documents]

    def grades(self, outcomes: JsonMapping, kind: str) -> Graded:
        """Return the grades that a judge gave, of the sample or of the pool."""
        graded: dict[Pair, float] = {}
        for name, row in outcomes.items():
            batch_kind, _, query_id = name.split("/", 2)
            if batch_kind == kind:
                pairs = ((query_id, (self.unit_of or str)(doc_id)) for doc_id in row["ranking"])
                graded |= zip(pairs, row.get("scores") or (), strict=True)
        return graded


def build_judging_pool(paths: Sequence[Path], task: str, depth: int) -> JudgingPool:
    """Pool the first `depth` documents of the runs.

    UsageError for runs of another task, or of different data.
    """
    runs = [scored_run.read_scored_run(path) for path in scored_run.find_folders(paths)]
    first = runs[0]
    wanted = {"task": environments.locate_task(task)[0]}
    for key in ("data_fingerprint", "max_p", "relevant_from"):
        wanted[key] = (first.config | first.scores)[key]
    for run in runs:
        if not wanted.items() <= (run.config | run.scores).items():
            raise UsageError(
                f"{run.name} is of {run.config['task']}, {run.config['split']} split, "
                f"{run.config['data']} data; give runs of one task, asked and scored alike on the "
                "same data"
            )
    environment = load_environment(first.config, relevant_from=first.scores["relevant_from"])
    if is_pairwise(environment.metric):
        raise UsageError(f"{environment.task} compares documents, and no judgements are missing")
    unit_of = environment.judgements[environment.headline].unit_of if environment.max_p else None
    query_ids = [query.query_id for query in environment.queries]
    release = {
        (query_id, doc_id): grade
        for judgements in environment.judgements.values()
        if judgements.unit_of is unit_of
        for query_id in query_ids
        for doc_id, grade in judgements.qrels.get(query_id, {}).items()
    }
    rankings = [
        {query_id: run.outcomes[query_id]["ranking"] for query_id in query_ids} for run in runs
    ]
    brought = defaultdict[Pair, set[int]](set)
    best: dict[Pair, str] = {}
    by_unit = Judgements({}, unit_of=unit_of)
    for query_id in query_ids:
        of_runs = [ranking[query_id] for ranking in rankings]
        for run_number, doc_ids in enumerate(of_runs):
            for unit in collapse_to_units(doc_ids, by_unit)[:depth]:
                brought[query_id, unit].add(run_number)
        for doc_id in filter(None, chain.from_iterable(zip_longest(*of_runs))):
            best.setdefault((query_id, (unit_of or str)(doc_id)), doc_id)
    return JudgingPool(runs, environment, rankings, brought, release, unit_of, best)


def judge_runs(
    request: SharedRequest,
    paths: Sequence[Path],
    *,
    name: str = "",
    depth: int = 10,
    sample: int = 50,
    dry_run: bool = False,
    compiled: Path | None = None,
) -> Result:
    """Judge the unjudged documents among the first `depth` of the runs in `paths`, after a
    sample of judged ones.

    `request` has the task, the model and the budget, `compiled` the judge's prompts, if they are
    not its own. SextantError if some documents are left; grades so far are kept.
    """
    pool = build_judging_pool(paths, request.task, depth)
    environment = pool.environment
    name = name or re.sub(r"[^A-Za-z0-9.]+", "-", request.lm).strip("-")
    if name in environment.judgements or not re.fullmatch(r"[\w.-]+", name):
        raise UsageError(
            f"--name {name!r}: it is letters, digits, '.', '_' and '-', and not the release's own"
        )
    system, values = _make_judge(request, environment, compiled)
    first = pool.runs[0]
    config = {key: first.config[key] for key in OF_RUNS}
    config |= {"parameters": values, "rule": system.rule}
    path = first.path.resolve().with_name(f"{scored_run.JUDGED}{name}")
    stage = ModelStage(system, environment.documents, path, config, request)
    chosen = _choose_sample(pool, sample)
    sampled = _cut(pool, SAMPLE, chosen, chosen, stage.outcomes)
    todo = sampled | _cut(pool, POOL, pool.unjudged, chosen, stage.outcomes)
    system.examples = {query.query_id: shown for query, shown in todo.items()}
    if dry_run:
        documents = sum(len(query.candidates or ()) - len(todo[query]) for query in todo)
        return {"documents": documents, **stage.forecast(list(todo))}
    with stage.open() as ask:
        outcomes = ask(list(sampled))
        known = pool.grades(outcomes, SAMPLE)
        both = [(pool.release[pair], known[pair]) for pair in chosen if pair in known]
        agreement = _agree(pool, both)
        print_stderr(describe_agreement(agreement))
        if chosen and not both:
            raise UnusableJudge(
                f"{request.lm} gave no usable grade for any of the "
                f"{plural(len(chosen), 'sampled document')}, so the others were not asked about; "
                f"try another model, or see its answers in {stage.path / 'outcomes.jsonl'}"
            )
        outcomes = ask(list(todo))
    return {
        **{key: first.scores[key] for key in ("task", "data", "split")},
        "name": name,
        "folder": str(stage.path),
        "lm": stage.model.name,
        "prompt": stage.config["prompt"],
        "agreement": agreement,
        "usage": usage_json(total(usage_from_json(row["usage"]) for row in outcomes.values())),
        **_score(pool, name, pool.grades(outcomes, POOL), both),
    }


def _make_judge(
    request: SharedRequest, environment: Environment, compiled: Path | None
) -> tuple[Judge, JsonObject]:
    """Return the judge, by its own prompts or compiled ones, and its parameters."""
    prompts = read_compiled(compiled) if compiled else None
    values = parse_parameters(
        request.program_label, Judge, request.parameters, prompts.parameters if prompts else {}
    )
    values["lens"] = values["lens"] or environment.hints.get("lens", "")
    system = Judge(Toolbox(environment.documents, NullRetriever()), **values)
    if prompts:
        prompts.check(request.program_label, system, str(compiled))
        prompts.prompts_alone(str(compiled)).assemble(system)
    return system, values


class UnusableJudge(SextantError):
    """A model gave no usable grade for any document of the sample."""

    exit_code = 7


def _score(
    pool: JudgingPool, name: str, grades: Graded, sample: Sequence[tuple[float, float]]
) -> Result:
    """Return the runs by each of the judgements, a judge's `grades` joined to the release's under its
    name, and what these can be trusted for.
    """
    translated = pool.translate(grades)
    judgements = {
        key: judgement
        for key, judgement in pool.environment.judgements.items()
        if judgement.unit_of is pool.unit_of
    }
    judgements[name] = pool.join(translated)
    rows = []
    for run, ranked in zip(pool.runs, pool.rankings, strict=True):
        by = {
            key: measure_unjudged(pool.environment.metrics, judged, ranked)
            for key, judged in judgements.items()
        }
        rows.append({"run": run.name, "by": by})
    return {
        "judged": len(grades),
        "left": sum(pair not in grades for pair in pool.unjudged),
        "metric": pool.environment.metric,
        "runs": rows,
        "left_out": leave_one_system_out(pool, translated),
        **_correct(pool, sample, grades),
    }


def _correct(pool: JudgingPool, sample: Sequence[tuple[float, float]], grades: Graded) -> Result:
    """Return the judge's precision and recall among its `grades`, and the runs' means without its
    errors, which `sample` shows: pairs of the release's grade and the judge's.

    Both are estimates (judge_correction.py): "judge" is None, and "corrected" of each run, if
    nothing was judged, or if the sample has documents of a single grade.
    """
    pairs = sorted(grades)  # whatever the order of the answers, draws are the same
    judged = [int(grades[pair]) for pair in pairs]
    if not judged or len({true for true, _ in sample}) < 2:
        return {"judge": None, "corrected": [None] * len(pool.runs)}
    draws = list(draw_true_grades([(true, int(grade)) for true, grade in sample], judged))
    means = [
        pool.measure_means(dict(zip(pairs, true_grades.tolist(), strict=True)))
        for true_grades in draws[:CORRECTED_DRAWS]
    ]
    shares = measure_judge(judged, draws, pool.judgements.is_relevant)
    corrected = [interval_of(values)._asdict() for values in zip(*means, strict=True)]
    figures = {name: share and share._asdict() for name, share in shares._asdict().items()}
    return {"judge": figures, "corrected": corrected}


def _choose_sample(pool: JudgingPool, size: int) -> list[Pair]:
    """Return judged documents, half of them not relevant as far as there are such."""
    pairs = [pair for pair in pool.release if pool.read([pair])]
    pairs.sort(key=lambda pair: digest(*pair))
    is_relevant = pool.judgements.is_relevant
    wrong = [pair for pair in pairs if not is_relevant(pool.release[pair])][: size // 2]
    right = [pair for pair in pairs if is_relevant(pool.release[pair])][: size - len(wrong)]
    return right + wrong


def _cut(
    pool: JudgingPool,
    kind: str,
    wanted: Iterable[Pair],
    sample: Collection[Pair],
    outcomes: JsonMapping,
) -> dict[Query, list[str]]:
    """Return the batches of what is `wanted` and not graded, each as a query whose id says its kind,
    with the examples that the judge gets: the best documents that are not in the sample.
    """
    known = pool.grades(outcomes, kind)
    wanted_of = _sort_by_query(wanted)
    judged_of = _sort_by_query(pool.release)
    batches = {}
    for query in pool.environment.queries:
        judged = judged_of[query.query_id]
        highest = max([1.0, *(pool.release[pair] for pair in judged)])
        best = [pair for pair in judged if pool.release[pair] >= highest and pair not in sample]
        shown = pool.read(best)[:EXAMPLES]
        ordered = wanted_of[query.query_id]
        for start in range(0, len(ordered), BATCH):
            batch = ordered[start : start + BATCH]
            if ungraded := pool.read(pair for pair in batch if pair not in known):
                name = f"{kind}/{digest(*ungraded)[:8]}/{query.query_id}"
                candidates = frozenset(ungraded + shown)
                batches[replace(query, query_id=name, candidates=candidates)] = shown
    return batches


def _sort_by_query(pairs: Iterable[Pair]) -> defaultdict[str, list[Pair]]:
    """Return the pairs of each query, in the order of their digests."""
    of_query = defaultdict[str, list[Pair]](list)
    for pair in sorted(pairs, key=lambda pair: digest(*pair)):
        of_query[pair[0]].append(pair)
    return of_query


def _agree(pool: JudgingPool, grades: Sequence[tuple[float, float]]) -> Result:
    """Compare the judge with the release on documents that both have judged: relevant or not.

    `grades` are the release's and the judge's.
    """
    both = [(pool.judgements.is_relevant(true), grade >= 1) for true, grade in grades]
    relevant = sum(true for true, _ in both)
    called = sum(said for _, said in both)
    hits = both.count((True, True))
    mixed = 0 < relevant < len(both)  # the release may list relevant documents alone
    alike = agree([[(str(true), str(said))] for true, said in both])
    kappa = alike and alike.kappa
    return {
        "documents": len(both),
        "relevant": relevant,
        "kappa": kappa and kappa.mean,
        "kappa_interval": kappa and [kappa.low, kappa.high],
        "precision": hits / called if mixed and called else None,
        "recall": hits / relevant if relevant else None,
    }


def describe_agreement(agreement: Result) -> str:
    """Return in a line how far the judge agrees with the release."""
    precision, recall = (number(agreement[name], "{:.2f}") for name in ("precision", "recall"))
    kappa: str = interval_cell(agreement["kappa"], *(agreement["kappa_interval"] or ()))
    if agreement["documents"] and agreement["kappa"] is None:
        kappa = "undefined, as all are alike to the release or to the judge"
    return (
        f"agreement with the release on a sample of {plural(agreement['documents'], 'judged document')}, "
        f"{agreement['relevant']} of them relevant: kappa {kappa}, precision {precision}, "
        f"recall {recall}"
    )


def describe_judge(result: Result) -> str:
    """Return how right the judge was among its grades, by its errors on the sample; "" if nothing
    was judged.
    """
    if not result["judged"]:
        return ""
    shares = result["judge"] or {}
    rates = [f"{name} {interval_cell(**rate)}" for name, rate in shares.items() if rate]
    unknown = "not known, nor are corrected means: the sample has documents of one grade only"
    return f"among what was judged, by the errors on the sample: {', '.join(rates) or unknown}"


def leave_one_system_out(pool: JudgingPool, grades: Graded) -> list[Result]:
    """Show for each run the influence of the `grades` of documents that it alone brought (Zobel
    1998): a row a run. They are the release's grades.

    They are taken away, and the runs are ranked again: Kendall's tau with the ranking before, and
    the largest change of a run's mean, by the headline metric.
    """
    before = pool.measure_means(grades)
    rows = []
    for run_number, run in enumerate(pool.runs):
        own = {pair for pair in grades if pool.brought.get(pair) == {run_number}}
        after = pool.measure_means(
            {pair: grade for pair, grade in grades.items() if pair not in own}
        )
        tau = kendalltau(before, after).statistic if len(before) > 1 else math.nan
        rows.append(
            {
                "run": run.name,
                "tau": None if math.isnan(tau) else float(tau),
                "change": max(abs(old - new) for old, new in zip(before, after, strict=True)),
            }
        )
    return rows


def render_judgements(result: Result) -> str:
    """Return the grades given, or to be given, and the runs by each of the judgements, as a
    person reads it.
    """
    if "dry_run" in result:
        batches = plural(result["queries"], "batch", "batches")
        heading = f"{plural(result['documents'], 'document')} to be judged in {batches}"
        return cost_estimate.render_estimate(result, [heading])
    metric = result["metric"]
    name = result["name"]
    judged = plural(result["judged"], "document")
    if left := result["left"]:
        judged += f", {left} left for want of a usable answer,"
    rows = []
    parts = (result["runs"], result["left_out"], result["corrected"])
    for row, alone, corrected in zip(*parts, strict=True):
        rows.append(
            {
                "run": Path(row["run"]).name,
                **{key: figure_cell(by[metric]["mean"]) for key, by in row["by"].items()},
                "corrected": corrected and interval_cell(**corrected, form="{:.4f}"),
                "tau": figure_cell(alone["tau"], "{:.2f}"),
                "change": figure_cell(alone["change"]),
            }
        )
    return render_terminal(
        [
            describe_task(result),
            f"{name}: {judged} judged by {model_name(result['lm'])}, prompt {result['prompt']}",
            describe_agreement(result["agreement"]),
            describe_judge(result),
            "",
            tabulate(f"{metric} by each of the judgements", rows),
            "grades: 2 counts as the release's highest, 1 as its lowest relevant one, in every figure",
            f"tau, change: of the runs by {name} without the judgements that one of them alone brought, "
            "Kendall's tau with their order before, and the largest change of a mean",
            f"corrected: {name} less the judge's errors on the sample, with a 95 % interval for "
            "these queries",
            describe_judging(result["task"]),
            result["folder"],
        ]
    )
