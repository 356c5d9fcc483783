"""How far a finished benchmark can be trusted: figures about its queries, judgements and texts,
each next to a bound.

    sextant build check FOLDER_OR_TASK --retrievers dense --lm MODEL

release.py has the rules that must hold; a figure here is worth a look, and breaks nothing.
Searches and a verifier's answers are ordinary runs: the same command goes on with them.
construction/docs/build.md explains the figures.
"""

import random
import re
from argparse import ArgumentTypeError
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline

from sextant.environments import task_card
from sextant.environments.base import POOLED, EmptySplit, Environment
from sextant.evals.run_descriptions import describe_task, model_name
from sextant.evals.running import cost_estimate, evaluate
from sextant.evals.running.request import Request
from sextant.evals.running.resolve import check_prices
from sextant.evals.scoring import comparison, scored_run
from sextant.evals.scoring.metrics import measure_unjudged
from sextant.evals.scoring.statistics import ALPHA, Interval
from sextant.evals.scoring.text_similarity import compare
from sextant.programs import FLOOR, VERIFIER
from sextant.tools import retrievers
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.models.model_spec import check_key
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import add_json_option, print_result
from sextant.tools.platform.files import sextant_home
from sextant.tools.platform.number_format import number, plural, queries
from sextant.tools.platform.result_table import render_terminal, tabulate
from sextant.tools.records import JsonMapping, JsonObject
from sextant.tools.retrievers.expressions import Expressions
from sextant.tools.text import sentences
from sextant_construction import condition_ladders, llm_judge, pool_comparison, recipe, release
from sextant_construction.agreement import interval_cell
from sextant_construction.pipeline import stable_order

NDCG = "nDCG@10"
WIN = "Win"
POOL = 300  # documents of the verifier's pool (OBLIQ-Bench, section 5)
TOP = 10  # documents of each system that a pool is made of
PAIRS = 100  # that a second judge grades again
ALIKE = 0.5  # similarity of queries
# of a classifier: pairs of texts at most, folds, pairs at least
TEXTS = 2000
FOLDS = 5
LEAST = 10
SHOWN = 20  # documents and queries that --json lists of a figure
# Options of a run that a check sets itself.
WITHOUT = {
    "program",
    "task",
    "retriever",
    "parameters",
    "k",
    "limit",
    "query_ids",
    "pool",
    "compiled",
    "prompts",
    "cassette",
    "again",
    "metrics",
    "instruction",
    "shard",
}


# Whether a text is a positive or an original, and the query or record that it is of
Label = tuple[bool, str]


class Threshold(NamedTuple):
    """A figure's title and bound, and the sentence for a value on the wrong side of it."""

    title: str
    value: float
    at: str  # "most" or "least"
    wrong: str


EASY = "the query's own words lead to what is wanted"
BOUNDS = {
    "recall": Threshold("R@10 of BM25", 0.5, "most", EASY),
    "ndcg": Threshold("nDCG@10 of BM25", 0.5, "most", EASY),
    "first": Threshold("first hits of BM25 that are relevant", 0.5, "most", EASY),
    "win": Threshold(
        "Win of BM25", 0.5, "least", "words lead astray: a sign of how the negatives were made"
    ),
    "gap": Threshold(
        "V - R: verifier less best search", 0.1, "least", "ill-posed queries, or wrong judgements"
    ),
    "tau": Threshold(
        "order of systems, one left out of the pool",
        0.9,
        "least",
        "the order hangs on who was pooled",
    ),
    "change": Threshold(
        "change of a mean, one left out of the pool", 0.02, "most", "figures hang on who was pooled"
    ),
    "judged": Threshold(
        "least Judged@10 of a system", 0.5, "least", "much of a ranking was never looked at"
    ),
    "power": Threshold(
        "smallest difference that is found", 0.1, "most", "too few queries for smaller ones"
    ),
    "twins": Threshold(
        "equal texts with a lower grade", 0, "most", "one of two grades is wrong, or missing"
    ),
    "alike": Threshold("queries that nearly repeat another", 0, "most", "they count twice"),
    "across": Threshold(
        "dev queries that nearly repeat a test query",
        0,
        "most",
        "what is learnt on dev is tested on",
    ),
    "steps": Threshold(
        "records not of one sentence a step", 0, "most", "conditions fail together, or none does"
    ),
    "foreign": Threshold(
        "records asked for a number they lack", 0, "most", "a condition contradicts its document"
    ),
    "repeated": Threshold(
        "records with a sentence twice", 0, "most", "where one is changed, the other still stands"
    ),
    "generator": Threshold(
        "AUC of a classifier of words, length aside",
        0.8,
        "most",
        "their wording gives positives away",
    ),
    "kappa": Threshold(
        "kappa of a second judge", 0.6, "least", "the judgements are one judge's taste"
    ),
}


class CheckFigure(NamedTuple):
    """A figure of a benchmark, or why there is none."""

    name: str
    value: Interval | float | None
    says: str = ""
    details: Any = None  # its parts, as JSON has them
    floor: bool = False  # whether it may be better than this

    def json(self, bounds: Mapping[str, float]) -> JsonObject:
        """Return the figure next to its bound; `fine` is None if that cannot be told."""
        title, usual, at, wrong = BOUNDS[self.name]
        bound = bounds.get(self.name, usual)
        value, low, high = (
            self.value if isinstance(self.value, Interval) else (self.value, None, None)
        )
        fine = None
        if value is not None:
            fine = value <= bound if at == "most" else value >= bound
        if self.floor and not fine:
            fine = None
        return {
            "name": self.name,
            "what": title,
            "value": value,
            "low": low,
            "high": high,
            "bound": bound,
            "at": at,
            "fine": fine,
            "says": "; ".join(filter(None, [wrong * (fine is False), self.says])),
            "found": self.details,
        }


class CheckedBenchmark:
    """A benchmark that is looked at, with the runs that this takes."""

    def __init__(self, request: Request, names: Sequence[str]) -> None:
        """`request` has the task, the verifier's model and the budget; `names` are retrievers, the first is BM25."""
        self.names = names
        environment = self.environment = evaluate.load_task(request)[1]
        self.judgements = environment.judgements[environment.headline]
        # Documents are compared; none is searched for.
        self.compares = environment.metric.startswith((WIN, "Flip"))
        metrics = (WIN,) if self.compares else (NDCG, "R@10", "P@1")
        self.metric = metrics[0]
        self.request = replace(request, metrics=metrics)

    @property
    def verifier(self) -> Request:
        """The request of a verifier, who gets everything relevant, or each query's own pool."""
        pool = f"oracle:{min(POOL, len(self.environment.documents))}({','.join(self.names)})"
        pooled = all(query.candidates is not None for query in self.environment.queries)
        return replace(self.request, program=VERIFIER, pool=None if pooled else pool)

    @cached_property
    def searches(self) -> dict[str, scored_run.ScoredRun]:
        """A run of each retriever alone."""
        request = replace(self.request, lm="offline")
        return {name: run(replace(request, retriever=name)) for name in self.names}


def run(request: Request) -> scored_run.ScoredRun:
    """Return an ordinary run, scored."""
    result = evaluate.run_request(request)
    if result.problem:
        raise result.problem
    return scored_run.read_scored_run(result.folder)


def find_ease(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield how far BM25 alone gets."""
    metrics = subject.searches[subject.names[0]].scores["metrics"]
    named = {"recall": "R@10", "ndcg": NDCG, "first": "P@1"}
    for name, metric in ({"win": WIN} if subject.compares else named).items():
        yield CheckFigure(name, Interval(*(metrics[metric][key] for key in Interval._fields)))


def find_gap(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield the gap between recognising and finding (OBLIQ-Bench, section 3)."""
    verified = run(subject.verifier)
    best = max(subject.searches.values(), key=lambda run: run.mean(NDCG) or 0.0)
    [gap] = comparison.compare_pairs([best.path, verified.path], NDCG)
    value = Interval(gap["difference"], gap["low"], gap["high"])
    details = {"R": best.mean(NDCG), "V": verified.mean(NDCG), "retriever": best.retriever}
    floor = subject.request.lm == "offline"
    says = "a floor: offline counts words" if floor else ""
    yield CheckFigure("gap", value, says, details, floor)


def find_pool_bias(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield how much depends on who was pooled, by taking away the positives of each system alone.

    After Zobel 1998.
    """
    pooled = subject.environment.judgements.get(POOLED, subject.judgements)
    if pooled is subject.judgements:
        yield CheckFigure("tau", None, "no judgements called pooled beside gold ones")
        return
    paths = [run.path for run in subject.searches.values()]
    pool = llm_judge.build_judging_pool(paths, subject.request.task, TOP)
    gold, every = (
        {
            (query_id, doc_id): grade
            for query_id in qrels
            for doc_id, grade in qrels[query_id].items()
        }
        for qrels in (subject.judgements.qrels, pooled.qrels)
    )
    added = {pair: grade for pair, grade in every.items() if pair not in gold}
    rows = llm_judge.leave_one_system_out(pool._replace(release=gold), added)
    taus = [row["tau"] for row in rows if row["tau"] is not None]
    says = "" if taus else "all systems have one mean"
    yield CheckFigure("tau", min(taus, default=None), says, rows)
    yield CheckFigure("change", max(row["change"] for row in rows))
    shares = {
        name: measure_unjudged([NDCG], pooled, ranking)[NDCG]["judged"]
        for name, ranking in zip(subject.names, pool.rankings, strict=True)
    }
    yield CheckFigure("judged", min(shares.values()), details=shares)


def find_power(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield the difference that is found in 80 % of cases as the first of all pairs of systems, the largest of them."""
    paths = [run.path for run in subject.searches.values()]
    rows = comparison.compare_pairs(paths, subject.metric)
    detectable = [row["detectable"] for row in rows if row["detectable"] is not None]
    differ = sum((row["p_holm"] or 1) < ALPHA for row in rows)
    says = f"{differ} of {plural(len(rows), 'pair')} of systems differ (Holm)"
    if not rows:
        says = "it takes two --retrievers"
    yield CheckFigure("power", max(detectable, default=None), says)


def find_twins(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield relevant documents whose text stands elsewhere, where the query ranks it, with a lower grade."""
    repeats = subject.environment.documents.repeats()
    copies = defaultdict[str, set[str]](set)
    for doc_id, original in repeats.items():
        copies[original] |= {original, doc_id}
    judgements = subject.judgements
    unit = judgements.unit_of or str
    wrong = []
    for query in subject.environment.queries:
        grades = judgements.qrels.get(query.query_id, {})
        for doc_id, grade in judgements.relevant(query.query_id).items():
            elsewhere = copies[repeats.get(doc_id, doc_id)] - query.excluded
            if query.candidates is not None:
                elsewhere &= query.candidates
            wrong += [
                [query.query_id, doc_id, copy]
                for copy in sorted(elsewhere)
                if unit(copy) != unit(doc_id) and grades.get(copy, 0) < grade
            ]
    says = f"{plural(len(repeats), 'document')} with another's text"
    yield CheckFigure("twins", len(wrong), says, wrong[:SHOWN])


def find_alike(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield queries that are alike. The steps of a ladder are not: they want the same."""
    queries = subject.environment.queries
    wanted = [subject.judgements.relevant(query.query_id) for query in queries]
    alike = []
    for place, row in enumerate(compare([query.text for query in queries])):
        others = [int(other) for other in np.flatnonzero(row >= ALIKE) if other != place]
        if subject.compares:
            others = [other for other in others if wanted[other] != wanted[place]]
        if others:
            alike.append(queries[place].query_id)
    yield CheckFigure("alike", len(alike), f"similarity from {ALIKE:g}", alike[:SHOWN])


def find_across(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield dev queries that nearly repeat a test query, whichever of the splits is looked at."""
    try:
        dev, test = (
            evaluate.load_task(replace(subject.request, split=split))[1].queries
            for split in ("dev", "test")
        )
    except EmptySplit:
        yield CheckFigure("across", None, "there are no queries for dev")
        return
    rows = compare([query.text for query in dev], [query.text for query in test])
    repeats = [
        [query.query_id, test[int(row.argmax())].query_id]
        for query, row in zip(dev, rows, strict=True)
        if row.max() >= ALIKE
    ]
    says = f"similarity from {ALIKE:g}; {len(dev)} dev and {plural(len(test), 'test query', 'test queries')}"
    yield CheckFigure("across", len(repeats), says, repeats[:SHOWN])


def find_ladders(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield the defects of records of ever fewer conditions, as MultiConIR's."""
    rows = condition_ladders.check_ladders(subject.environment)
    for name in ("steps", "foreign", "repeated") if rows else ():
        fine = {1} if name == "steps" else set()
        found = [[row.doc_id, *getattr(row, name)] for row in rows]
        shown = [[doc_id, *defects] for doc_id, *defects in found if {*defects} != fine]
        says = f"{len(shown)} of {plural(len(rows), 'record')}"
        yield CheckFigure(name, len(shown) / len(rows), says, shown[:SHOWN])


def find_generator(subject: CheckedBenchmark) -> Iterator[CheckFigure]:
    """Yield how well a classifier of words tells texts of queries that it has not seen, length aside.

    Kinds of text are often told by length alone, which says nothing of their wording. So the figure is over pairs of
    texts of both kinds, of each of which as many words and pairs of words are seen (`match_lengths`).
    """
    texts = (_find_spoiled if subject.compares else _find_positives)(subject.environment)
    ordered = stable_order(texts)
    positives = [text for text in ordered if texts[text][0]]
    distractors = [text for text in ordered if not texts[text][0]]
    pairs = match_lengths(positives, distractors)[:TEXTS]
    labels = [texts[text] for pair in pairs for text in pair]
    says = "original from spoiled sentences" if subject.compares else "positives from distractors"
    says += f", {plural(len(pairs), 'pair')}"
    value = None
    # What is of one query is in one fold.
    if (
        len(pairs) >= LEAST
        and len({query_id for positive, query_id in labels if positive}) >= FOLDS
    ):
        ngrams = [ngrams for pair in pairs for ngrams in _show_alike(*pair)]
        kinds, groups = zip(*labels, strict=True)
        logistic = LogisticRegression(max_iter=1000, class_weight="balanced")
        aucs = cross_val_score(
            make_pipeline(TfidfVectorizer(analyzer=list, sublinear_tf=True), logistic),
            ngrams,
            kinds,
            groups=groups,
            cv=StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0),
            scoring="roc_auc",
        )
        value = None if np.isnan(aucs).any() else float(aucs.mean())
    if value is None:
        says += f" are too few: it takes {LEAST} from {FOLDS} queries"
    counts = [len(positives), len(distractors)]
    yield CheckFigure("generator", value, says, counts)


def match_lengths(texts: Sequence[str], distractors: Sequence[str]) -> list[tuple[str, str]]:
    """Return each text with the other text that is nearest in length, and in no other pair.

    A text is in no pair if the nearest is more than twice as long, or less than half as long.
    """
    remaining = sorted((len(_list_ngrams(text)), text) for text in distractors)
    pairs = []
    for text in texts:
        length = len(_list_ngrams(text))
        after = bisect(remaining, (length, ""))
        near = remaining[max(0, after - 1) : after + 1]
        if not near:
            break
        nearest = min(near, key=lambda other: abs(other[0] - length))
        if length <= 2 * nearest[0] <= 4 * length:
            pairs.append((text, nearest[1]))
            remaining.remove(nearest)
    return pairs


def _show_alike(*pair: str) -> Iterator[list[str]]:
    """Yield as many words and pairs of words of each text of a pair, drawn at random and the same at every call."""
    ngram_lists = [_list_ngrams(text) for text in pair]
    size = min(map(len, ngram_lists))
    for text, ngrams in zip(pair, ngram_lists, strict=True):
        yield random.Random(text).sample(ngrams, size)


def _list_ngrams(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


def _find_spoiled(environment: Environment) -> dict[str, Label]:
    """Return sentence -> whether it is the original, and of which record.

    Sentences are those that only one of two compared documents has.
    """
    labels: dict[str, Label] = {}
    for comparisons in environment.comparisons.values():
        for _, *pair in comparisons:
            better, worse = (
                dict.fromkeys(sentences(environment.documents[key].text)) for key in pair
            )
            for text in (better.keys() ^ worse.keys()) - labels.keys():
                labels[text] = (text in better, comparisons[0].better)
    return labels


def _find_positives(environment: Environment) -> dict[str, Label]:
    """Return text -> whether it is relevant to a query, and to which query; of others, in whose
    pool it is.
    """
    unit = environment.judgements[environment.headline].unit_of or str
    labels: dict[str, Label] = {}
    wanted: dict[str, str] = {}
    pools: dict[str, str] = {}
    for query in environment.queries:
        for judgement in environment.judgements.values():
            wanted |= dict.fromkeys(judgement.relevant(query.query_id), query.query_id)
        pools |= dict.fromkeys(query.candidates or (), query.query_id)
    for document in environment.documents.stream():
        doc_id = document.doc_id
        query_id = wanted.get(doc_id) or wanted.get(unit(doc_id), "")
        if query_id or not pools or doc_id in pools:
            group = query_id or pools.get(doc_id, doc_id)
            labels.setdefault(document.text, (bool(query_id), group))
    return labels


def find_kappa(subject: CheckedBenchmark, spec: str) -> CheckFigure:
    """Return how far a second judge agrees with the benchmark, on pairs of which half are not relevant."""
    program = "sextant.programs.llm_tasks.relevance_judge:Judge"
    request = replace(subject.request, program=program, lm=spec)
    runs = [run.path for run in subject.searches.values()]
    agreement = llm_judge.judge_runs(request, runs, depth=0, sample=PAIRS)["agreement"]
    says = llm_judge.describe_agreement(agreement)
    return CheckFigure("kappa", agreement["kappa"], says, agreement)


def check_benchmark(
    request: Request,
    names: Sequence[str],
    judge: str = "",
    bounds: Mapping[str, float] = {},
) -> JsonObject:
    """Return all figures of a benchmark, as --json prints them; `bounds` are those that differ from
    the defaults.
    """
    subject = CheckedBenchmark(request, names)
    kinds = [find_ease, find_gap, find_pool_bias, find_power, find_twins]
    kinds += [find_alike, find_across, find_ladders, find_generator]
    if subject.compares:
        kinds.remove(find_gap)  # nothing is searched for
    figures = [figure.json(bounds) for find_figures in kinds for figure in find_figures(subject)]
    if judge:
        figures.append(find_kappa(subject, judge).json(bounds))
    return {
        **{key: getattr(subject.environment, key) for key in ("task", "data", "split")},
        "queries": len(subject.environment.queries),
        "metric": subject.metric,
        "lm": request.lm,
        "systems": {name: run.mean(subject.metric) for name, run in subject.searches.items()},
        "figures": figures,
    }


def render_checks(result: JsonMapping) -> str:
    """Return the figures as a person reads them."""
    rows = []
    for row in result["figures"]:
        form = "{}" if isinstance(row["value"], int) else "{:.4f}"
        rows.append(
            {
                "": row["name"],
                "figure": row["what"],
                "value": interval_cell(row["value"], row["low"], row["high"], form),
                "at": f"{row['at']} {row['bound']:g}",
                "is": {True: "fine", False: "look", None: "-"}[row["fine"]],
                "says": row["says"],
            }
        )
    systems = ", ".join(f"{name} {number(mean)}" for name, mean in result["systems"].items())
    broken = [f"broken: {problem}" for problem in result["broken"]]
    return render_terminal(
        [
            f"{describe_task(dict(result))}  {queries(result['queries'])}",
            f"{result['metric']}: {systems}; the verifier's model: {model_name(result['lm'])}",
            *(broken or ["everything holds that must"]),
            tabulate("", rows),
        ]
    )


def bound(text: str) -> tuple[str, float]:
    """An argument type: NAME=X, a bound of a figure."""
    name, value = cli_options.parse_name_value(text)
    if name not in BOUNDS:
        raise ArgumentTypeError(str(UnknownName("figure", name, BOUNDS)))
    return name, float(value)


def check_models(
    request: Request, judge: str, specs: Sequence[retrievers.RetrieverSpec], *, sends: bool
) -> None:
    """Raise UsageError if a price is needed and missing, or the key of a `judge` that is asked."""
    judges = [judge] if judge else []
    check_prices(request, [request.lm, *judges], specs)
    if judge and sends:
        check_key(judge, request.headers)


def add_options(parser: Any) -> None:
    """Add the options of `check` to a command line."""
    add = parser.add_argument
    add("place", metavar="FOLDER_OR_TASK", help="a build, a folder with data, or a task's name")
    add(
        "--retrievers",
        default="",
        metavar="SPECS",
        help="systems to look with beside BM25, e.g. dense",
    )
    add(
        "--judge",
        default="",
        metavar="SPEC",
        help=f"a second judge, who grades {PAIRS} judged pairs again",
    )
    add(
        "--bound",
        type=bound,
        action="append",
        default=[],
        metavar="NAME=X",
        help="of a figure in place of its own; repeatable",
    )
    add("--dry-run", action="store_true", help="say what the verifier will take; nothing is sent")
    add(
        "--pools",
        action="store_true",
        help="only make its pools again, by BM25 and --retrievers, and compare them",
    )
    add_json_option(parser)
    cli_options.add_options(parser, Request, without=WITHOUT)


def command(arguments: Any) -> int:
    """Look, print; exit code 3 if a rule that must hold is broken."""
    path = Path(arguments.place)
    folder = path.parent if path.name == release.RELEASE else path
    built = (folder / release.RELEASE).is_dir()
    if (path / recipe.FILE).exists() and not built:
        raise UsageError(f"{path} has no release yet; sextant build run {path}")
    options = {"program": FLOOR, "task": arguments.place}
    if built:
        options["task"] = str(folder / release.RELEASE)
        if arguments.runs == Path("runs"):  # not among the runs that are compared
            options["runs"] = folder / "checks"
    request = cli_options.from_options(Request, vars(arguments) | options)
    specs = list(map(retrievers.canonicalize, ["bm25", *Expressions(arguments.retrievers).each()]))
    names = list(dict.fromkeys(map(str, specs)))
    sends = not (arguments.pools or arguments.dry_run)
    check_models(request, arguments.judge, specs, sends=sends)
    if arguments.pools:
        _print_pools(request, names, as_json=arguments.json)
        return 0
    if arguments.dry_run:
        forecast = cost_estimate.forecast(CheckedBenchmark(request, names).verifier)
        print_result(forecast, cost_estimate.render_estimate, as_json=arguments.json)
        return 0
    if built:
        # Of records that others made, a figure tells as much.
        has_recipe = (folder / recipe.FILE).exists()
        broken = release.check_release(folder, [condition_ladders.find_broken] * has_recipe)
    else:
        findings = task_card.run_checks(request.task, request.data)
        broken = [f"{finding.what}: {finding.said}" for finding in findings if not finding.fine]
    result = check_benchmark(request, names, arguments.judge, dict(arguments.bound))
    print_result(result | {"broken": broken}, render_checks, as_json=arguments.json)
    return DataError.exit_code if broken else 0


def _print_pools(request: Request, names: Sequence[str], *, as_json: bool) -> None:
    """Print the comparison of the released pools with pools made again."""
    environment = evaluate.load_task(request)[1]
    home = sextant_home()
    resources = evaluate.make_resources(request)
    searchers = {
        name: retrievers.build(name, environment.documents, home, resources=resources)
        for name in names
    }
    rows = pool_comparison.compare_pools(environment, searchers)
    render = partial(pool_comparison.render_pool_comparison, environment)
    print_result(rows, render, as_json=as_json)
