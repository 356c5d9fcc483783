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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import NamedTuple

from scipy.stats import kendalltau

from sextant import environments
from sextant.environments.base import Environment, Grades, Judgements
from sextant.evals import run_folder
from sextant.evals.run_descriptions import describe_task
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
from sextant.tools.platform.number_format import choose_verb, number, plural
from sextant.tools.platform.result_table import ResultTable, render_terminal
from sextant.tools.records import JsonMapping, JsonObject, Query, total, usage_from_json, usage_json
from sextant.tools.retrievers.base import NullRetriever
from sextant.tools.session import Toolbox
from sextant_construction.agreement import agree
from sextant_construction.judge_correction import draw_true_grades, interval_of, measure_judge

CORRECTED_DRAWS = 200  # draws of true grades by which the means of runs are corrected
BATCH = 20  # documents of a query that are judged together
EXAMPLES = 8  # relevant documents that a judge is shown of a query
# what is judged: some of what the release has judged, and what it has not
SAMPLE = "sample"
POOL = "pool"
Wanted = Mapping[str, set[str]]  # query_id -> documents
Result = JsonObject  # what `judge_runs` returns and --json prints


class JudgingPool(NamedTuple):
    """The first documents of runs of a task."""

    runs: Sequence[scored_run.ScoredRun]
    environment: Environment
    rankings: Sequence[Mapping[str, Sequence[str]]]  # of each run, by query
    # query_id -> document -> the runs that have it among their first
    brought: Mapping[str, Mapping[str, set[int]]]
    release_grades: Grades  # by the release's judgements
    unit_of: Callable[[str], str] | None  # of MaxP: the document of a passage
    # query_id -> document -> its passage that came first in a run
    best: Mapping[str, Mapping[str, str]]

    def unjudged(self, ours: Grades) -> Wanted:
        """Return the documents that neither the release nor `ours` has judged, by query."""
        return {
            query_id: brought.keys() - self.release_grades[query_id] - ours.get(query_id, {}).keys()
            for query_id, brought in self.brought.items()
        }

    @property
    def highest(self) -> float:
        """The highest grade of the release."""
        grades = chain.from_iterable(row.values() for row in self.release_grades.values())
        return max(grades, default=HIGHEST)

    def to_release_grade(self, grade: float) -> float:
        """Return the release's grade for a judge's grade: 2 is its highest, 1 its lowest relevant
        grade, 0 is 0.

        So a document that is relevant in part counts as relevant in every metric and in the
        agreement.
        """
        lowest = self.judgements.relevant_from or min(1.0, self.highest)
        return self.highest if grade >= HIGHEST else lowest if grade >= 1 else 0.0

    @property
    def judgements(self) -> Judgements:
        """The release's headline judgements."""
        return self.environment.judgements[self.environment.headline]

    def join(self, ours: Grades) -> Judgements:
        """Return the release's judgements with `ours`, a judge's grades, as
        `to_release_grade` has them.
        """
        translated = {
            query_id: {doc_id: self.to_release_grade(grade) for doc_id, grade in grades.items()}
            for query_id, grades in ours.items()
        }
        return self.join_release_grades(translated)

    def join_release_grades(self, grades: Grades) -> Judgements:
        """Return the release's judgements with others in its own grades; the release's grades hold
        if both have a grade.
        """
        qrels = {
            query_id: grades.get(query_id, {}) | release_grades
            for query_id, release_grades in self.release_grades.items()
        }
        level = self.judgements.relevant_from
        return Judgements(qrels, unit_of=self.unit_of, relevant_from=level)

    def measure_means(self, judgements: Judgements) -> list[float]:
        """Return the mean of the headline metric of each run."""
        metric = self.environment.metric
        return [
            measure_unjudged([metric], judgements, ranked)[metric]["mean"]
            for ranked in self.rankings
        ]

    def read(self, query_id: str, documents: Iterable[str]) -> list[str]:
        """Return the texts that a judge reads for documents: themselves, or the passage that came first;
        without those lost.
        """
        ids = (self.best[query_id].get(document, document) for document in documents)
        return [doc_id for doc_id in ids if doc_id in self.environment.documents]

    def grades(self, outcomes: JsonMapping) -> dict[str, Grades]:
        """Return the grades that a judge gave, by the kind of pool."""
        grades_of: dict[str, Grades] = {SAMPLE: {}, POOL: {}}
        for name, row in outcomes.items():
            pool_type, _, query_id = name.split("/", 2)
            units = map(self.unit_of or str, row["ranking"])
            graded = grades_of[pool_type].setdefault(query_id, {})
            graded |= zip(
                units,
                row.get("scores") or (),
                strict=True,
            )
        return grades_of

    def compare(self, sample: Wanted, ours: Grades) -> list[tuple[float, float]]:
        """Return the release's grade and the judge's for each document of the sample that has both."""
        return [
            (self.release_grades[query_id][doc_id], ours[query_id][doc_id])
            for query_id, doc_ids in sample.items()
            for doc_id in sorted(doc_ids & ours.get(query_id, {}).keys())
        ]


def _is_of(config: run_folder.Config, task: str) -> bool:
    """Return whether a run is of a task, by the name that runs have or, for a user's own data, by
    its place.
    """
    if config["task"] == task:
        return True
    name, folder = environments.locate_task(task)
    return config["task"] == name or (
        folder is not None and config[run_folder.PROVENANCE]["folder"] == folder
    )


def build_judging_pool(paths: Sequence[Path], task: str, depth: int) -> JudgingPool:
    """Pool the first `depth` documents of the runs.

    UsageError for runs of another task, or of different data.
    """
    runs = [scored_run.read_scored_run(path) for path in scored_run.find_folders(paths)]
    for run in runs:
        comparable = all(
            (run.config | run.scores)[key] == (runs[0].config | runs[0].scores)[key]
            for key in ("data_fingerprint", "max_p", "relevant_from")
        )
        if not _is_of(run.config, task) or not comparable:
            raise UsageError(
                f"{run.name} is of {run.config['task']}, {run.config['split']} split, "
                f"{run.config['data']} data; give runs of one task, asked and scored alike on the "
                "same data"
            )
    environment = load_environment(runs[0].config, relevant_from=runs[0].scores["relevant_from"])
    if is_pairwise(environment.metric):
        raise UsageError(f"{environment.task} compares documents, and no judgements are missing")
    release_grades: Grades = {query.query_id: {} for query in environment.queries}
    unit_of = environment.judgements[environment.headline].unit_of if environment.max_p else None
    for judgements in environment.judgements.values():
        if judgements.unit_of is unit_of:
            for query_id, grades in release_grades.items():
                grades |= judgements.qrels.get(query_id, {})
    rankings = [
        {query_id: run.outcomes[query_id]["ranking"] for query_id in release_grades} for run in runs
    ]
    brought: dict[str, Mapping[str, set[int]]] = {}
    best = {}
    for query_id in release_grades:
        of_runs = [ranking[query_id] for ranking in rankings]
        runs_with = defaultdict[str, set[int]](set)
        for run_number, doc_ids in enumerate(of_runs):
            units = collapse_to_units(doc_ids, Judgements({}, unit_of=unit_of))
            for unit in units[:depth]:
                runs_with[unit].add(run_number)
        brought[query_id] = runs_with
        # Of each document, the passage at the best rank: the first that is met from below, last.
        by_rank = filter(None, chain.from_iterable(zip_longest(*of_runs)))
        passages = {unit_of(doc_id): doc_id for doc_id in reversed([*by_rank])} if unit_of else {}
        best[query_id] = passages
    return JudgingPool(
        runs,
        environment,
        rankings,
        brought,
        release_grades,
        unit_of,
        best,
    )


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
    name = name or re.sub(
        r"[^A-Za-z0-9.]+",
        "-",
        request.lm,
    ).strip("-")
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
    todo = _cut(
        system,
        pool,
        chosen,
        pool.grades(stage.outcomes),
    )
    if dry_run:
        documents = sum(
            len(query.candidates or ()) - len(system.examples[query.query_id]) for query in todo
        )
        return {"documents": documents, **stage.forecast(todo)}
    with stage.open() as ask:
        outcomes = ask([query for query in todo if query.query_id.startswith(SAMPLE)])
        agreement = _agree(pool, chosen, outcomes)
        print_stderr(describe_agreement(agreement))
        if chosen and not agreement["documents"]:
            sampled = plural(sum(map(len, chosen.values())), "sampled document")
            raise UnusableJudge(
                f"{request.lm} gave no usable grade for any of the {sampled}, so the others were "
                "not asked about; try another model, or see its answers in "
                f"{stage.path / 'outcomes.jsonl'}"
            )
        outcomes = ask(todo)
    by_kind = pool.grades(outcomes)
    grades = by_kind[POOL]
    judgements = {
        key: judgement
        for key, judgement in environment.judgements.items()
        if judgement.unit_of is pool.unit_of
    }
    judgements[name] = pool.join(grades)
    return {
        **{key: first.scores[key] for key in ("task", "data", "split")},
        "name": name,
        "folder": str(stage.path),
        "lm": stage.model.name,
        "prompt": stage.config["prompt"],
        "depth": depth,
        "agreement": agreement,
        "judged": sum(map(len, grades.values())),
        "left": sum(map(len, pool.unjudged(grades).values())),
        "usage": usage_json(total(usage_from_json(row["usage"]) for row in outcomes.values())),
        "metric": environment.metric,
        "runs": _score(pool, judgements),
        "left_out": leave_one_system_out(pool, grades),
        **_correct(pool, pool.compare(chosen, by_kind[SAMPLE]), grades),
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


def _correct(pool: JudgingPool, sample: Sequence[tuple[float, float]], grades: Grades) -> Result:
    """Return the judge's precision and recall among its `grades`, and the runs' means without its
    errors, which `sample` shows: pairs of the release's grade and the judge's.

    Both are estimates (judge_correction.py): "judge" is None, and "corrected" of each run, if
    nothing was judged, or if the sample has documents of a single grade.
    """
    # Grades stand in the order in which the judge answered, and a draw must not depend on that.
    keys = sorted((query_id, doc_id) for query_id, graded in grades.items() for doc_id in graded)
    judged = [int(grades[query_id][doc_id]) for query_id, doc_id in keys]
    if not judged or len({true for true, _ in sample}) < 2:
        return {"judge": None, "corrected": [None] * len(pool.runs)}
    draws = list(draw_true_grades([(true, int(grade)) for true, grade in sample], judged))
    means = []
    for true_grades in draws[:CORRECTED_DRAWS]:
        drawn: Grades = {}
        for (query_id, doc_id), grade in zip(
            keys,
            true_grades.tolist(),
            strict=True,
        ):
            drawn.setdefault(query_id, {})[doc_id] = grade
        means.append(pool.measure_means(pool.join_release_grades(drawn)))
    shares = measure_judge(judged, draws, pool.judgements.is_relevant)
    corrected = [interval_of(values)._asdict() for values in zip(*means, strict=True)]
    figures = {name: share and share._asdict() for name, share in shares._asdict().items()}
    return {"judge": figures, "corrected": corrected}


def _choose_sample(pool: JudgingPool, size: int) -> Wanted:
    """Return judged documents, half of them not relevant as far as there are such."""
    rows = [
        (query_id, doc_id, grade)
        for query_id, grades in pool.release_grades.items()
        for doc_id, grade in grades.items()
        if pool.read(query_id, [doc_id])
    ]
    rows.sort(key=lambda row: digest(*row[:2]))
    is_relevant = pool.judgements.is_relevant
    wrong = [row for row in rows if not is_relevant(row[2])][: size // 2]
    right = [row for row in rows if is_relevant(row[2])][: size - len(wrong)]
    chosen = defaultdict(set)
    for query_id, doc_id, _ in (*right, *wrong):
        chosen[query_id].add(doc_id)
    return chosen


def _cut(
    system: Judge,
    pool: JudgingPool,
    sample: Wanted,
    graded: Mapping[str, Grades],
) -> list[Query]:
    """Return the batches that are not graded, each as a query whose id says its kind; the
    judge gets their examples.
    """
    todo = []
    system.examples = {}
    wanted_of = {SAMPLE: sample, POOL: pool.unjudged({})}
    for pool_type, query in product(wanted_of, pool.environment.queries):
        query_id = query.query_id
        order = partial(digest, query_id)
        grades = pool.release_grades[query_id]
        best = [
            doc_id
            for doc_id in sorted(grades, key=order)
            if grades[doc_id] >= max(1, *grades.values()) and doc_id not in sample.get(query_id, ())
        ]
        shown = pool.read(query_id, best)[:EXAMPLES]
        ordered = sorted(wanted_of[pool_type].get(query_id, ()), key=order)
        known = graded[pool_type].get(query_id, {})
        for start in range(0, len(ordered), BATCH):
            batch = ordered[start : start + BATCH]
            ungraded = pool.read(query_id, (doc_id for doc_id in batch if doc_id not in known))
            if ungraded:
                name = f"{pool_type}/{digest(*ungraded)[:8]}/{query_id}"
                system.examples[name] = shown
                todo.append(replace(query, query_id=name, candidates=frozenset(ungraded + shown)))
    return todo


def _agree(
    pool: JudgingPool,
    sample: Wanted,
    outcomes: JsonMapping,
) -> Result:
    """Compare the judge with the release on documents that both have judged: relevant or not."""
    is_relevant = pool.judgements.is_relevant
    both = [
        (is_relevant(true), grade >= 1)
        for true, grade in pool.compare(sample, pool.grades(outcomes)[SAMPLE])
    ]
    theirs = sum(a for a, _ in both)
    called = sum(b for _, b in both)
    hits = both.count((True, True))
    words = ("not relevant", "relevant")
    alike = agree([[(words[a], words[b])] for a, b in both])
    mixed = 0 < theirs < len(both)  # the release may list relevant documents alone
    kappa = alike and alike.kappa
    spent = total(
        usage_from_json(row["usage"]) for name, row in outcomes.items() if name.startswith(SAMPLE)
    )
    return {
        "documents": len(both),
        "relevant": theirs,
        "kappa_undefined": alike.kappa_undefined if alike else "",
        "kappa": kappa and kappa.mean,
        "kappa_interval": kappa and [kappa.low, kappa.high],
        "precision": hits / called if mixed and called else None,
        "recall": hits / theirs if theirs else None,
        "usage": usage_json(spent),
    }


def describe_agreement(agreement: Result) -> str:
    """Return in a line how far the judge agrees with the release, and the cost of the sample."""
    kappa, precision, recall = (
        number(agreement[name], "{:.2f}") for name in ("kappa", "precision", "recall")
    )
    if interval := agreement["kappa_interval"]:
        kappa += f" ({interval[0]:.2f} to {interval[1]:.2f})"
    figures = f"kappa {kappa}, precision {precision}, recall {recall}"
    if reason := agreement.get("kappa_undefined"):
        figures += f" (kappa is undefined; of release and judge, {reason})"
    price = number(agreement["usage"]["list_usd"], "${:.4f} at list price", "price unknown")
    sample = (
        f"a sample of {plural(agreement['documents'], 'judged document')}, {agreement['relevant']} of "
        f"them relevant"
    )
    return (
        f"agreement with the release on {sample}: {figures}; "
        f"{plural(agreement['usage']['calls'], 'call')}, {price}"
    )


def describe_judge(result: Result) -> list[str]:
    """Return how right the judge was among its grades, by its errors on the sample; nothing
    if that is not known.
    """
    shares = result["judge"]
    if shares is None:
        return [
            "corrected means are not known: the sample has documents of one grade only, so errors "
            "cannot be told"
        ] * bool(result["judged"])
    texts = {
        name: f"{rate['mean']:.2f} ({rate['low']:.2f} to {rate['high']:.2f})"
        for name, rate in shares.items()
        if rate
    }
    relevant = texts.pop("relevant")
    rates = ", ".join(f"{name} {text}" for name, text in texts.items())
    return [
        f"among what was judged, by the errors on the sample: {rates}; {relevant} of it relevant"
    ]


def _score(pool: JudgingPool, judgements: Mapping[str, Judgements]) -> list[Result]:
    """Score every run by each of the judgements: a row a run."""
    names = pool.environment.metrics
    return [
        {key: run.scores.get(key) for key in (*scored_run.NAMED, "compiled")}
        | {
            "run": run.name,
            "by": {
                key: measure_unjudged(
                    names,
                    judged,
                    ranked,
                )
                for key, judged in judgements.items()
            },
        }
        for run, ranked in zip(pool.runs, pool.rankings, strict=True)
    ]


def leave_one_system_out(pool: JudgingPool, grades: Grades) -> list[Result]:
    """Show for each run the influence of the `grades` of documents that it alone brought (Zobel
    1998): a row a run.

    They are taken away, and the runs are ranked again: Kendall's tau with the ranking before, and
    the largest change of a run's mean, by the headline metric.
    """
    before = pool.measure_means(pool.join(grades))
    alone = []
    for run_number, run in enumerate(pool.runs):
        relevant = 0
        remaining: Grades = {query_id: {} for query_id in grades}
        for query_id, graded in grades.items():
            for doc_id, grade in graded.items():
                if pool.brought[query_id].get(doc_id) == {run_number}:
                    relevant += grade >= 1
                else:
                    remaining[query_id][doc_id] = grade
        after = pool.measure_means(pool.join(remaining))
        tau = kendalltau(before, after).statistic if len(before) > 1 else math.nan
        alone.append(
            {
                "run": run.name,
                "relevant": relevant,
                "tau": None if math.isnan(tau) else float(tau),
                "change": max(
                    abs(a - b)
                    for a, b in zip(
                        before,
                        after,
                        strict=True,
                    )
                ),
            }
        )
    return alone


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
    corrected_head = ["corrected"] * any(result["corrected"])
    heads = ["run", *result["runs"][0]["by"], *corrected_head, "judged", "if the rest were right"]
    heads += ["its own", "tau", "change"]
    parts = (result["runs"], result["left_out"], result["corrected"])
    rows = []
    for row, left_out, corrected in zip(*parts, strict=True):
        ours = row["by"][name][metric]
        cells = [Path(row["run"]).name]
        cells += [f"{by_metric[metric]['mean']:.4f}" for by_metric in row["by"].values()]
        if corrected:
            interval = f"({corrected['low']:.4f} to {corrected['high']:.4f})"
            cells.append(f"{corrected['mean']:.4f} {interval}")
        cells += [f"{ours[key]:.4f}" for key in ("judged", "right")]
        cells += [
            str(left_out["relevant"]),
            number(
                left_out["tau"],
                "{:.2f}",
                "-",
            ),
        ]
        rows.append([*cells, f"{left_out['change']:.4f}"])
    notes = [
        "grades: 2 counts as the release's highest, 1 as its lowest relevant one, in every figure",
        "its own: relevant documents that no other run brought; tau, change: Kendall's tau of the "
        f"runs by {name} with and without these judgements, and the largest change of a run's mean",
    ]
    if corrected_head:
        notes.append(
            f"corrected: {name} less the judge's errors on the sample, with a 95 % interval for "
            f"these queries"
        )
    return render_terminal(
        [
            describe_task(result),
            _describe_judged(result),
            describe_agreement(result["agreement"]),
            *describe_judge(result),
            "",
            ResultTable(f"{metric} by each of the judgements", heads, rows),
            *filter(None, [*notes, describe_judging(result["task"])]),
            result["folder"],
        ]
    )


def _describe_judged(result: Result) -> str:
    """Return in a line how many documents were judged, and by which model."""
    judge = result["lm"]
    if judge == "offline":
        judge = "offline, which counts words: a floor"
    documents = plural(result["judged"], "document")
    line = f"{result['name']}: {documents} judged by {judge}, prompt {result['prompt']}"
    left = result["left"]
    return f"{line}; {left} {choose_verb(left)} left, for want of a usable answer" if left else line
