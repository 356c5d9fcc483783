"""The queries of a task whose answers a model knows by heart, after BIRCO (section 3.3, appendix I), and
the task without them.

    sextant build contamination --task whatsthatbook --lm MODEL --out FOLDER

programs/closed_book.py guesses the target of a query, without the corpus. The kind of guess decides
which queries are known:

title    a guess is the title of a wanted document, or nearly
mask     a guess and a wanted document share a run of five words that the query does not have
text     people say that the guess nearest to a wanted document is the same, or else a judge, from a cosine of
         `SAME_COSINE` on; `answer` is the same for questions

Guesses are kept next to the runs, and the same command goes on with them. Left out: documents that a
model recognises by their text; all stay.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import chain, product
from pathlib import Path
from typing import Any

from sextant.evals import run_folder
from sextant.evals.run_descriptions import describe_task, model_name
from sextant.evals.running import cost_estimate, evaluate
from sextant.evals.running.model_stage import ModelStage
from sextant.evals.running.request import Request, SharedRequest, hash_input_files
from sextant.evals.scoring.scored_run import JUDGED
from sextant.programs.closed_book import ClosedBook, longest_run
from sextant.programs.llm_tasks.relevance_judge import HIGHEST, Judge
from sextant.tools import retrievers
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import add_json_option, positive, print_result
from sextant.tools.platform.files import InputFilePath, sextant_home
from sextant.tools.platform.number_format import plural, queries
from sextant.tools.platform.result_table import figure_cell, render_terminal, tabulate
from sextant.tools.records import Document, Hit, JsonMapping, JsonObject
from sextant.tools.retrievers.base import NullRetriever, Search
from sextant.tools.session import Toolbox
from sextant.tools.text import tokens
from sextant_construction import checks, human_review, release
from sextant_construction.pipeline import stable_order
from sextant_construction.types import Benchmark

# What is guessed -> the target of the program (programs/closed_book.py), and what it is told that a
# document is; {} is the task's own word for it.
KINDS = {
    "title": ("titles", "{}"),
    "text": ("text", "{}"),
    "mask": ("quotations", "{}"),
    "answer": ("text", "{}, which answers a question, or says what is known of it"),
}
ENCODER = "dense"  # by which guesses are compared, without --retriever
NEARLY = 0.9  # of two titles: how much is common of the letters of their words, put in order
SAME_COSINE = 0.9
# What a guess is beside the wanted document, as on the sheet for people -> its category in BIRCO's
# Table 3.
CATEGORIES = {
    "same": "0: agrees",
    "other": "1: another, and right",
    "worse": "2: not as good",
    "open": "1, 2 or undecided",
}
# query id -> the guess that is nearest to a document wanted for it, and that document
Nearest = Mapping[str, tuple[str, Hit]]


class ContaminationTest:
    """A task that a model is tried on."""

    def __init__(
        self,
        request: Request,
        guess_type: str,
        sample: int | None,
        works: str = "",
    ) -> None:
        """`sample` is a number of queries, in the order of a hash; `guess_type` "" depends on the
        documents. `works` is a file with the work that each query quotes.
        """
        self.request = request
        self.works = InputFilePath(works)
        environment = self.environment = evaluate.load_task(request)[1]
        judgements = environment.judgements[environment.headline]
        chosen = stable_order(environment.queries_by_id)[:sample]
        self.queries = environment.asking(query_ids=chosen).queries_by_id
        units = {query_id: judgements.relevant(query_id) for query_id in chosen}
        documents_of = environment.list_documents(chain.from_iterable(units.values()))
        self.wanted = {
            query_id: [
                environment.documents[doc_id]
                for unit in wanted
                for doc_id in documents_of.get(unit, ())
            ]
            for query_id, wanted in units.items()
        }
        titled = any(document.title for document in chain.from_iterable(self.wanted.values()))
        if guess_type == "title" and not titled:
            raise UsageError(
                f"documents of {environment.task} have no titles; give --kind mask, text or answer"
            )
        self.kind = guess_type or ("title" if titled else "mask")

    def stage(
        self, role: str, program: ClosedBook | Judge, documents: Corpus, lm: str
    ) -> ModelStage:
        """Return the stage that asks a model about this task, in a folder next to its runs."""
        config = {
            "task": self.environment.task,
            "data_fingerprint": self.environment.fingerprint,
            "kind": self.kind,
            "files": hash_input_files({"works": self.works}),
        }
        place = run_folder.place_of_task(self.request.runs, self.environment.task)
        path = place / f"{JUDGED}by-heart-{role}"
        name = f"{type(program).__module__}:{type(program).__name__}"
        request = replace(self.request, program=name, lm=lm)
        return ModelStage(program, documents, path, config, request)

    def guess(self) -> ModelStage:
        """Return the stage that guesses what each query wants."""
        target, kind = KINDS[self.kind]
        documents = self.environment.documents
        program = ClosedBook(
            Toolbox(documents, NullRetriever()),
            target=target,
            document=kind.format(self.environment.hints.get("document") or "a document"),
            works=self.works,
        )
        return self.stage("guess", program, documents, self.request.lm)

    def find_nearest(self, guesses: Mapping[str, Sequence[str]]) -> Nearest:
        """Return each query's guess that is nearest to a wanted document, by --retriever, or dense."""
        built = retrievers.build(
            retrievers.canonicalize(self.request.retriever or ENCODER),
            Corpus(chain.from_iterable(self.wanted.values())),
            sextant_home(),
            resources=evaluate.make_resources(self.request),
        )
        nearest = {}
        for query_id, wanted in self.wanted.items():
            among = [document.doc_id for document in wanted]
            texts = guesses[query_id]
            results = built.search_many([Search(text, among=among) for text in texts], 1)
            pairs = [(text, hit) for text, hits in zip(texts, results, strict=True) for hit in hits]
            if pairs:
                nearest[query_id] = max(pairs, key=lambda pair: pair[1].score)
        return nearest

    def judge(self, lm: str, nearest: Nearest) -> dict[str, str]:
        """Return a judge's verdicts on guesses; it grades each next to the wanted document of its query."""
        guesses = {key: Document(f"guess of {key}", text) for key, (text, _) in nearest.items()}
        wanted = {hit.doc_id for _, hit in nearest.values()}
        documents = Corpus(
            [*guesses.values(), *(self.environment.documents[name] for name in sorted(wanted))]
        )
        toolbox = Toolbox(documents, NullRetriever())
        program = Judge(toolbox, lens=self.environment.hints.get("lens", ""))
        program.examples = {key: [hit.doc_id] for key, (_, hit) in nearest.items()}
        units = [
            replace(self.queries[key], candidates=frozenset([guesses[key].doc_id, hit.doc_id]))
            for key, (_, hit) in nearest.items()
        ]
        with self.stage("grade", program, documents, lm).open() as ask:
            outcomes = ask(units)
        verdicts = {}
        for query_id, (_, hit) in nearest.items():
            if grades := outcomes[query_id].get("scores"):
                right = "same" if hit.score >= SAME_COSINE else "other"
                verdicts[query_id] = right if grades[0] == HIGHEST else "worse"
        return verdicts

    def ask_people(self, out: Path, nearest: Nearest, judged: Mapping[str, str]) -> dict[str, str]:
        """Offer guesses to people in `out`, and return their answers."""
        items = {}
        for key, (text, hit) in nearest.items():
            wanted = self.environment.documents[hit.doc_id].text
            shown = [("query", self.queries[key].text), ("by heart", text), ("the task's", wanted)]
            items[key] = human_review.Item(shown, judged.get(key))
        human_review.offer(out, "contamination", items.values())
        answers = human_review.answers(out)
        names = {key: human_review.identify("contamination", item) for key, item in items.items()}
        return {key: str(answers[name]) for key, name in names.items() if name in answers}

    def write(self, removed: Collection[str], out: Path) -> None:
        """Write the task without `removed` queries into `out`/release. UsageError if none is left."""
        whole = self.environment
        kept_ids = [query_id for query_id in whole.queries_by_id if query_id not in removed]
        if not kept_ids:
            raise UsageError(
                f"the model knows all of {whole.task} by heart, so nothing is left of it"
            )
        rest = whole.asking(query_ids=kept_ids)
        qrels = {name: judgement.qrels for name, judgement in rest.judgements.items()}
        settings: JsonObject = {
            "name": f"{rest.task.rpartition('/')[2]}-not-by-heart",
            "objective": rest.queries[0].objective,
            "metrics": list(rest.metrics),
            "depth": rest.depth,
            **rest.hints,
        }
        if rest.max_p:
            qrels = {rest.headline: rest.qrels}
            settings["max_p"] = rest.separator
        benchmark = Benchmark(
            rest.documents,
            rest.queries,
            qrels,
            settings,
            rest.comparisons,
            release.find_dev(self.request.task, self.request.data) & {*kept_ids},
            twins=rest.twins,
        )
        models = {"knew what was taken out": self.request.lm}
        release.write_release(benchmark, out, {"source": rest.task, "models": models})


def recall(guess_type: str, guess: str, wanted: Document, shown: str) -> str:
    """Return the sign by which a guess gives `wanted` away, or ""; `shown` words are no memory."""
    guessed = tokens(guess)
    shown_tokens = tokens(shown)
    if guess_type == "mask":
        run = longest_run(guessed, tokens(wanted.text), shown_tokens)
        return f"a run of {plural(run, 'word')} of {wanted.doc_id}" if run else ""
    title = tokens(wanted.title)
    if not title or f" {' '.join(title)} " in f" {' '.join(shown_tokens)} ":
        return ""
    first, second = (" ".join(sorted(words)) for words in (guessed, title))
    alike = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return f"the title of {wanted.doc_id}" if alike >= NEARLY else ""


def measure(trial: ContaminationTest, judge: str, out: Path | None, *, dry_run: bool) -> JsonObject:
    """Return the known queries of a task, as --json prints them; write the task without them to `out`."""
    stage = trial.guess()
    asked = [replace(query, candidates=None) for query in trial.queries.values()]
    if dry_run:
        return stage.forecast(asked)
    with stage.open() as ask:
        outcomes = ask(asked)
    guesses = {key: (outcomes[key].get("answer") or "").splitlines() for key in trial.queries}
    removed = {}  # query -> the first sign that a guess gives a wanted document away
    if trial.kind in ("title", "mask"):
        for key, query in trial.queries.items():
            signs = (
                recall(trial.kind, text, document, query.text)
                for text, document in product(guesses[key], trial.wanted[key])
            )
            if sign := next(filter(None, signs), ""):
                removed[key] = sign
        verdicts = dict.fromkeys(removed, "same")
    else:
        nearest = trial.find_nearest(guesses)
        verdicts = trial.judge(judge, nearest) if judge else {}
        verdicts |= trial.ask_people(out, nearest, verdicts) if out else {}
        for key, verdict in verdicts.items():
            if verdict == "same":
                removed[key] = f"the same as {nearest[key][1].doc_id}"
    if out:
        trial.write(removed, out)
    counts = Counter(verdicts.get(key, "open") for key in trial.queries)
    return {
        **{key: getattr(trial.environment, key) for key in ("task", "data", "split")},
        "kind": trial.kind,
        "lm": trial.request.lm,
        "queries": len(trial.queries),
        "removed": removed,
        "categories": {key: counts[key] for key in CATEGORIES},
        "failed": sum(bool(outcomes[key]["error"]) for key in guesses),
        "guesses": str(stage.path),
        "out": out and str(out),
    }


def render_contamination(result: JsonMapping) -> str:
    """Return the result as a person reads it."""
    if "dry_run" in result:
        return cost_estimate.render_estimate(
            dict(result), [f"{queries(result['queries'])} to be guessed"]
        )
    counts = {f"given away by a guess ({result['kind']})": len(result["removed"])}
    for key, count in result["categories"].items():
        counts[f"Table 3, category {CATEGORIES[key]}"] = count
    total = result["queries"]
    rows = [
        {"queries": name, "number": count, "share": figure_cell(count / total, "{:.1%}")}
        for name, count in counts.items()
    ]
    notes = []
    if result["failed"]:
        notes.append(f"{result['failed']} without a usable guess count as not known")
    if result["out"]:
        notes.append(f"the task without them: {result['out']}/release")
    return render_terminal(
        [
            f"{describe_task(dict(result))}  {queries(total)}",
            f"what is known by heart to {model_name(result['lm'])}",
            tabulate("", rows),
            *notes,
            f"guesses: {result['guesses']}",
        ]
    )


def add_options(parser: Any) -> None:
    """Add the options of `contamination` to a command line."""
    add = parser.add_argument
    add(
        "--kind",
        choices=KINDS,
        default="",
        help="what is guessed; titles where documents have some, else mask",
    )
    add(
        "--works",
        default="",
        metavar="FILE",
        help='JSON Lines {"_id": QUERY, "work": TITLE}: the work that each masked text quotes',
    )
    add("--sample", type=positive, metavar="N", help="only measure, on N queries")
    add(
        "--judge",
        default="",
        metavar="SPEC",
        help="a model that says of texts and answers whether they are the same",
    )
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write the task without what is known into FOLDER/release",
    )
    add("--dry-run", action="store_true", help="say what it will take; nothing is sent")
    add_json_option(parser)
    cli_options.add_options(
        parser, SharedRequest, without={*checks.WITHOUT} - {"task", "retriever"}
    )


def command(arguments: Any) -> int:
    """Have the model guess, compare, write, print; exit code 7 if some guesses could not be used."""
    out = arguments.out
    judge = arguments.judge
    dry_run = arguments.dry_run
    if out and arguments.sample:
        raise UsageError("--sample only measures; leave it out to write the task")
    fixed = {"program": "sextant.programs.closed_book:ClosedBook", "split": "all"}
    request = cli_options.from_options(Request, vars(arguments) | fixed)
    encoder = retrievers.canonicalize(request.retriever or ENCODER)
    checks.check_models(request, judge, [encoder], sends=not dry_run)
    trial = ContaminationTest(request, arguments.kind, arguments.sample, arguments.works)
    result = measure(trial, judge, out, dry_run=dry_run)
    print_result(result, render_contamination, as_json=arguments.json)
    return 7 if result.get("failed") else 0
