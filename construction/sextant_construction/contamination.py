"""The part of a task that a model knows by heart, after BIRCO (section 3.3, appendix I), and the
task without it.

    sextant build contamination --task whatsthatbook --lm MODEL --out FOLDER

programs/closed_book.py guesses the target of a query, without the corpus. The kind of guess decides
what counts as known:

title    a query if a guess is the title of a wanted document, or nearly. A document if its title is guessed from
         its text; it is taken out as well, and so are queries that want no other. A title is apart from the text
mask     a query if a guess and a wanted document share a run of five words that the query does not have
text     a query if people say that its guess nearest to a wanted document is the same, or else a judge, from a
         cosine of `SAME_COSINE` on; `answer` is the same for questions

Guesses are kept next to the runs, and the same command goes on with them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
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
from sextant.programs.base import Program
from sextant.programs.closed_book import ClosedBook, longest_run
from sextant.programs.llm_tasks.relevance_judge import HIGHEST, Judge
from sextant.tools import retrievers
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.platform import cli_options
from sextant.tools.platform.cli import add_json_option, positive, print_result
from sextant.tools.platform.files import InputFilePath, sextant_home
from sextant.tools.platform.number_format import plural, queries
from sextant.tools.platform.result_table import ResultTable, render_terminal
from sextant.tools.records import Document, Hit, JsonMapping, JsonObject, Query, Submission
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
QUERY = "query/"  # of ids: a query for which documents are guessed
DOCUMENT = "document/"  # of ids: a document of which the title is guessed
ENCODER = "dense"  # by which guesses are compared, without --retriever
NEARLY = 0.9  # of two titles: how much is common of the letters of their words, put in order
SAME_COSINE = 0.9
# What a guess is beside the wanted document, as on the sheet for people -> its category in BIRCO's
# Table 3.
CATEGORIES = {"same": "0: agrees", "other": "1: another, and right", "worse": "2: not as good"}
CATEGORIES["open"] = "1, 2 or undecided"
WANTED_DOCUMENTS_REMOVED = "what it wants is taken out"
Nearest = Mapping[
    str, tuple[str, Hit]
]  # query id -> the guess that is nearest to a document wanted for it, and that


class MemoryTest(Program):
    """Guesses of what queries want, and of the title of each document that is given as a query."""

    target: str = ""
    document: str = ""
    works: InputFilePath = InputFilePath("")

    def __post_init__(self) -> None:
        self.wanted = ClosedBook(
            self.toolbox, target=self.target, document=self.document, works=self.works
        )
        self.titles = ClosedBook(self.toolbox, target="title", document=self.document)
        self.offline = self.wanted.offline  # type: ignore[misc]

    def forward(self, query: Query) -> Submission:
        """Guess for a query, whose id begins with QUERY, or a document."""
        return (self.wanted if query.query_id.startswith(QUERY) else self.titles)(query=query)


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
        self.texts = environment.documents
        unit_of = judgements.unit_of if environment.max_p else None
        self.unit_of: Callable[[str], str] = unit_of or str
        query_of = {query.query_id: query for query in environment.queries}
        chosen = stable_order(query_of)[:sample]
        self.queries = {query_id: query_of[query_id] for query_id in chosen}
        passages_of = defaultdict(list)  # of what is judged, documents or their passages
        for doc_id in self.texts:
            passages_of[self.unit_of(doc_id)].append(doc_id)
        self.wanted = {
            query_id: [
                doc_id
                for unit in judgements.relevant(query_id)
                for doc_id in passages_of.get(unit, ())
            ]
            for query_id in chosen
        }
        gold = dict.fromkeys(chain.from_iterable(self.wanted.values()))
        self.gold = {doc_id: self.texts[doc_id] for doc_id in gold}
        titled = any(document.title for document in self.gold.values())
        if guess_type == "title" and not titled:
            raise UsageError(
                f"documents of {environment.task} have no titles; give --kind mask, text or answer"
            )
        self.kind = guess_type or ("title" if titled else "mask")
        # The documents whose titles are guessed
        self.titled = []
        if self.kind == "title":
            documents = self.gold.values() if sample else self.texts.stream()
            self.titled = [document.doc_id for document in documents if document.title]

    def stage(
        self, role: str, program: MemoryTest | Judge, documents: Corpus, lm: str
    ) -> ModelStage:
        """Return the stage that asks a model about this task, in a folder next to its runs."""
        config = {
            "task": self.environment.task,
            "data_fingerprint": self.environment.fingerprint,
            "kind": self.kind,
            "files": hash_input_files({"works": self.works}),
        }
        identity = config | {"program": role, "lm": {"name": lm}}
        run_path = run_folder.run_path(self.request.runs, identity)
        path = run_path.with_name(f"{JUDGED}by-heart-{role}")
        name = f"{type(program).__module__}:{type(program).__name__}"
        request = replace(self.request, program=name, lm=lm)
        return ModelStage(program, documents, path, config, request)

    def guess(self) -> tuple[ModelStage, dict[Query, list[str]]]:
        """Return the stage that guesses, and its inputs (queries, titled texts) -> the wanted documents."""
        target, kind = KINDS[self.kind]
        document = kind.format(self.environment.hints.get("document") or "a document")
        toolbox = Toolbox(self.texts, NullRetriever())
        program = MemoryTest(toolbox, target=target, document=document, works=self.works)
        query_inputs = [
            replace(query, query_id=f"{QUERY}{key}", candidates=None)
            for key, query in self.queries.items()
        ]
        titles = {Query(f"{DOCUMENT}{key}", self.texts[key].text): [key] for key in self.titled}
        stage = self.stage(
            "guess",
            program,
            self.texts,
            self.request.lm,
        )
        return stage, dict(
            zip(
                query_inputs,
                self.wanted.values(),
                strict=True,
            )
        ) | titles

    def find_nearest(self, guesses: Mapping[str, Sequence[str]]) -> Nearest:
        """Return each query's guess that is nearest to a wanted document, by --retriever, or dense."""
        built = retrievers.build(
            retrievers.canonicalize(self.request.retriever or ENCODER),
            Corpus(self.gold.values()),
            sextant_home(),
            resources=evaluate.make_resources(self.request),
        )
        nearest = {}
        for query_id, wanted in self.wanted.items():
            texts = guesses[f"{QUERY}{query_id}"]
            results = built.search_many([Search(text, among=wanted) for text in texts], 1)
            pairs = [
                (text, hit)
                for text, hits in zip(
                    texts,
                    results,
                    strict=True,
                )
                for hit in hits
            ]
            if pairs:
                nearest[query_id] = max(pairs, key=lambda pair: pair[1].score)
        return nearest

    def judge(self, lm: str, nearest: Nearest) -> dict[str, str]:
        """Return a judge's verdicts on guesses; it grades each next to the wanted document of its query."""
        examples = {query_id: hit.doc_id for query_id, (_, hit) in nearest.items()}
        guesses = [Document(f"guess of {key}", text) for key, (text, _) in nearest.items()]
        wanted = [self.gold[doc_id] for doc_id in dict.fromkeys(examples.values())]
        documents = Corpus([*guesses, *wanted])
        toolbox = Toolbox(documents, NullRetriever())
        program = Judge(toolbox, lens=self.environment.hints.get("lens", ""))
        program.examples = {query_id: [doc_id] for query_id, doc_id in examples.items()}
        units = [
            replace(self.queries[key], candidates=frozenset([f"guess of {key}", doc_id]))
            for key, doc_id in examples.items()
        ]
        with self.stage("grade", program, documents, lm).open() as ask:
            outcomes = ask(units)
        verdicts = {}
        for query_id, (_, hit) in nearest.items():
            if grades := outcomes[query_id].get("scores"):
                right = "same" if hit.score >= SAME_COSINE else "other"
                verdicts[query_id] = right if grades[0] == HIGHEST else "worse"
        return verdicts

    def ask_people(
        self,
        out: Path,
        nearest: Nearest,
        judged: Mapping[str, str],
    ) -> dict[str, str]:
        """Offer guesses to people in `out`, and return their answers."""
        items = {}
        for key, (text, hit) in nearest.items():
            shown = [
                ("query", self.queries[key].text),
                ("by heart", text),
                ("the task's", self.gold[hit.doc_id].text),
            ]
            items[key] = human_review.Item(shown, judged.get(key))
        human_review.offer(out, "contamination", items.values())
        answers = human_review.answers(out)
        names = {key: human_review.identify("contamination", item) for key, item in items.items()}
        return {key: str(answers[name]) for key, name in names.items() if name in answers}

    def write(
        self,
        removed: Collection[str],
        units: frozenset[str],
        out: Path,
    ) -> None:
        """Write the task without `removed` queries, and the judged `units` that are taken out, into `out`/release."""
        gone = units | {text for text in self.texts if self.unit_of(text) in units}
        kept_ids = [
            query.query_id
            for query in self.environment.queries
            if f"{QUERY}{query.query_id}" not in removed
        ]
        if not kept_ids:
            raise UsageError(
                f"the model knows all of {self.environment.task} by heart, so nothing is left of it"
            )
        remainder = self.environment.asking(query_ids=kept_ids)
        qrels = {name: judgement.qrels for name, judgement in remainder.judgements.items()}
        settings: JsonObject = {
            "name": f"{remainder.task.rpartition('/')[2]}-not-by-heart",
            "objective": remainder.queries[0].objective,
        }
        if remainder.max_p:
            qrels = {remainder.headline: qrels[remainder.headline]}
            settings["max_p"] = remainder.separator
        settings |= {
            "metrics": list(remainder.metrics),
            "depth": remainder.depth,
            **remainder.hints,
        }
        documents = remainder.documents
        if gone:
            stream = documents.stream()
            documents = Corpus(document for document in stream if document.doc_id not in gone)
        benchmark = Benchmark(
            documents,
            [replace(query, excluded=query.excluded - gone) for query in remainder.queries],
            qrels,
            settings,
            remainder.comparisons,
            release.find_dev(self.request.task, self.request.data) & set(kept_ids),
            twins=remainder.twins,
        )
        provenance = {
            "source": remainder.task,
            "models": {"knew what was taken out": self.request.lm},
        }
        benchmark = release.drop_documents(benchmark, dict.fromkeys(kept_ids, gone))
        release.write_release(benchmark, out, provenance)


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
    ordered = [" ".join(sorted(words)) for words in (guessed, title)]
    alike = SequenceMatcher(
        None,
        ordered[0],
        ordered[1],
        autojunk=False,
    ).ratio()
    return f"the title of {wanted.doc_id}" if alike >= NEARLY else ""


def measure(trial: ContaminationTest, judge: str, out: Path | None, *, dry_run: bool) -> JsonObject:
    """Return the known part of a task, as --json prints it; write the task without it to `out`."""
    stage, wanted_of = trial.guess()
    if dry_run:
        return {
            "documents": len(trial.titled),
            **stage.forecast(list(wanted_of)),
        }
    with stage.open() as ask:
        outcomes = ask(list(wanted_of))
    guesses = {
        query.query_id: (outcomes[query.query_id].get("answer") or "").splitlines()
        for query in wanted_of
    }
    removed = {}  # query or document -> the first sign that a guess gives it away
    if trial.kind in ("title", "mask"):
        for query, wanted in wanted_of.items():
            signs = (
                recall(trial.kind, text, trial.texts[doc_id], query.text)
                for text, doc_id in product(guesses[query.query_id], wanted)
            )
            if sign := next(filter(None, signs), ""):
                removed[query.query_id] = sign
        verdicts = {key: "same" for key in trial.queries if f"{QUERY}{key}" in removed}
    else:
        nearest = trial.find_nearest(guesses)
        verdicts = trial.judge(judge, nearest) if judge else {}
        verdicts |= trial.ask_people(out, nearest, verdicts) if out else {}
        for key, verdict in verdicts.items():
            if verdict == "same":
                removed[f"{QUERY}{key}"] = f"the same as {nearest[key][1].doc_id}"
    # A judged unit is taken out if a text of it is known.
    gone = frozenset(
        trial.unit_of(name.removeprefix(DOCUMENT)) for name in removed if name.startswith(DOCUMENT)
    )
    for key, wanted in trial.wanted.items():
        if wanted and gone.issuperset(map(trial.unit_of, wanted)):
            removed.setdefault(f"{QUERY}{key}", WANTED_DOCUMENTS_REMOVED)
    if out:
        trial.write(removed, gone, out)
    counts = Counter(verdicts.get(key, "open") for key in trial.queries)
    return {
        **{key: getattr(trial.environment, key) for key in ("task", "data", "split")},
        "kind": trial.kind,
        "lm": trial.request.lm,
        "queries": len(trial.queries),
        "documents": len(trial.titled),
        "removed": removed,
        "categories": {key: counts[key] for key in CATEGORIES},
        "failed": sum(bool(outcomes[name]["error"]) for name in guesses),
        "guesses": str(stage.path),
        "out": out and str(out),
    }


def render_contamination(result: JsonMapping) -> str:
    """Return the result as a person reads it."""
    if "dry_run" in result:
        titles = f"{plural(result['documents'], 'title')} of documents among them"
        heading = f"{result['queries']} to be guessed, {titles}"
        return cost_estimate.render_estimate(dict(result), [heading])
    query_count = result["queries"]
    removed = result["removed"]
    documents = sum(name.startswith(DOCUMENT) for name in removed)
    unanswerable = sum(reason == WANTED_DOCUMENTS_REMOVED for reason in removed.values())
    given_away = len(removed) - documents - unanswerable
    counts = {
        f"queries that a guess gives away ({result['kind']})": given_away,
        "documents whose title is guessed from their text": documents,
        "queries that want only such documents": unanswerable,
    }
    for key, count in result["categories"].items():
        counts[f"Table 3, category {CATEGORIES[key]}"] = count
    cells = []
    for name, count in counts.items():
        total = result["documents"] if name.startswith("documents") else query_count
        share = f"{count / total:.1%}" if total else "-"
        cells.append(
            [
                name,
                f"{count:,}",
                f"{total:,}",
                share,
            ]
        )
    unusable = f"{result['failed']} without a usable guess count as not known"
    written = f"the task without them: {result['out']}/release"
    return render_terminal(
        [
            f"{describe_task(dict(result))}  {queries(query_count)}",
            f"what is known by heart to {model_name(result['lm'])}",
            *([unusable] if result["failed"] else []),
            ResultTable("", ["", "number", "of", "share"], cells),
            *([written] if result["out"] else []),
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
