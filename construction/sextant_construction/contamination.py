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
from itertools import product
from pathlib import Path
from typing import Any

from sextant.evals import run_folder
from sextant.evals.run_descriptions import describe_task, model_name
from sextant.evals.running import cost_estimate, evaluate
from sextant.evals.running.model_stage import ModelStage
from sextant.evals.running.request import Request, SharedRequest, hash_input_files
from sextant.evals.running.resolve import check_prices
from sextant.evals.scoring.scored_run import JUDGED
from sextant.programs.base import Program
from sextant.programs.closed_book import ClosedBook, longest_run
from sextant.programs.llm_tasks.relevance_judge import HIGHEST, Judge
from sextant.tools import retrievers
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UsageError
from sextant.tools.models.model_spec import check_key
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
        self.environment = evaluate.load_task(request)[1]
        judgements = self.environment.judgements[self.environment.headline]
        self.texts = self.environment.documents
        unit_of = judgements.unit_of if self.environment.max_p else None
        self.unit_of: Callable[[str], str] = unit_of or str
        query_of = {query.query_id: query for query in self.environment.queries}
        self.queries = {
            query_id: query_of[query_id] for query_id in stable_order(query_of)[:sample]
        }
        relevant = {query_id: judgements.relevant(query_id) for query_id in self.queries}
        passages_of = defaultdict(list)  # of what is judged, documents or their passages
        for doc_id in self.texts:
            passages_of[self.unit_of(doc_id)].append(doc_id)
        self.wanted = {
            key: [doc_id for unit in units for doc_id in passages_of.get(unit, ())]
            for key, units in relevant.items()
        }
        self.gold = {
            doc_id: self.texts[doc_id] for wanted in self.wanted.values() for doc_id in wanted
        }
        titled = any(document.title for document in self.gold.values())
        if guess_type == "title" and not titled:
            raise UsageError(
                f"documents of {self.environment.task} have no titles; give --kind mask, text or "
                f"answer"
            )
        self.kind = guess_type or ("title" if titled else "mask")
        chosen = (
            (self.gold.values() if sample else self.texts.stream()) if self.kind == "title" else ()
        )
        self.titled = [document.doc_id for document in chosen if document.title]

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
        run_path = run_folder.run_path(
            self.request.runs, config | {"program": role, "lm": {"name": lm}}
        )
        request = replace(
            self.request, program=f"{type(program).__module__}:{type(program).__name__}", lm=lm
        )
        return ModelStage(
            program, documents, run_path.with_name(f"{JUDGED}by-heart-{role}"), config, request
        )

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
        stage = self.stage("guess", program, self.texts, self.request.lm)
        return stage, dict(zip(query_inputs, self.wanted.values(), strict=True)) | titles

    def find_nearest(self, guesses: Mapping[str, Sequence[str]]) -> Nearest:
        """Return each query's guess that is nearest to a wanted document, by --retriever, or dense."""
        encoder = retrievers.canonicalize(self.request.retriever or ENCODER)
        nearest = {}
        built = retrievers.build(
            encoder,
            Corpus(self.gold.values()),
            sextant_home(),
            resources=evaluate.make_resources(self.request),
        )
        for query_id, wanted in self.wanted.items():
            texts = guesses[f"{QUERY}{query_id}"]
            hits = built.search_many([Search(text, among=wanted) for text in texts], 1)
            if best := [
                (text, hit)
                for text, text_hits in zip(texts, hits, strict=True)
                for hit in text_hits
            ]:
                nearest[query_id] = max(best, key=lambda pair: pair[1].score)
        return nearest

    def judge(self, lm: str, nearest: Nearest) -> dict[str, str]:
        """Return a judge's verdicts on guesses; it grades each next to the wanted document of its query."""
        guess_documents = [Document(f"guess of {key}", text) for key, (text, _) in nearest.items()]
        documents = Corpus(
            [
                *guess_documents,
                *{hit.doc_id: self.gold[hit.doc_id] for _, hit in nearest.values()}.values(),
            ]
        )
        program = Judge(
            Toolbox(documents, NullRetriever()), lens=self.environment.hints.get("lens", "")
        )
        program.examples = {key: [hit.doc_id] for key, (_, hit) in nearest.items()}
        pools = {
            key: frozenset([f"guess of {key}", hit.doc_id]) for key, (_, hit) in nearest.items()
        }
        with self.stage("grade", program, documents, lm).open() as ask:
            outcomes = ask(
                [replace(self.queries[key], candidates=pool) for key, pool in pools.items()]
            )
        verdicts = {}
        for key, (_, hit) in nearest.items():
            if grades := outcomes[key].get("scores"):
                right = "same" if hit.score >= SAME_COSINE else "other"
                verdicts[key] = right if grades[0] == HIGHEST else "worse"
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
            shown = {
                "query": self.queries[key].text,
                "by heart": text,
                "the task's": self.gold[hit.doc_id].text,
            }
            items[key] = human_review.Item(list(shown.items()), judged.get(key))
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
        gone = (
            units | {text for text in self.texts if self.unit_of(text) in units} if units else units
        )
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
        dev = release.find_dev(self.request.task, self.request.data)
        judgements = (
            {remainder.headline: remainder.judgements[remainder.headline]}
            if remainder.max_p
            else remainder.judgements
        )
        name = f"{remainder.task.rpartition('/')[2]}-not-by-heart"
        settings: JsonObject = {
            "name": name,
            "objective": remainder.queries[0].objective,
        }
        settings |= {"max_p": remainder.separator} if remainder.max_p else {}
        settings |= {
            "metrics": list(remainder.metrics),
            "depth": remainder.depth,
            **remainder.hints,
        }
        documents = (
            Corpus(
                document for document in remainder.documents.stream() if document.doc_id not in gone
            )
            if gone
            else remainder.documents
        )
        masked_queries = [
            replace(query, excluded=query.excluded - gone) for query in remainder.queries
        ]
        qrels = {name: judgement.qrels for name, judgement in judgements.items()}
        benchmark = Benchmark(
            documents,
            masked_queries,
            qrels,
            settings,
            remainder.comparisons,
            dev & set(kept_ids),
            twins=remainder.twins,
        )
        provenance = {
            "source": remainder.task,
            "models": {"knew what was taken out": self.request.lm},
        }
        release.write_release(
            release.drop_documents(benchmark, dict.fromkeys(kept_ids, gone)), out, provenance
        )


def recall(guess_type: str, guess: str, wanted: Document, shown: str) -> str:
    """Return the sign by which a guess gives `wanted` away, or ""; `shown` words are no memory."""
    guessed, title, shown_tokens = (tokens(text) for text in (guess, wanted.title, shown))
    if guess_type == "mask":
        run = longest_run(guessed, tokens(wanted.text), shown_tokens)
        return f"a run of {plural(run, 'word')} of {wanted.doc_id}" if run else ""
    copied = f" {' '.join(title)} " in f" {' '.join(shown_tokens)} "
    alike = SequenceMatcher(
        None, " ".join(sorted(guessed)), " ".join(sorted(title)), autojunk=False
    ).ratio()
    return f"the title of {wanted.doc_id}" if title and not copied and alike >= NEARLY else ""


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
    guesses = {}
    failed = 0
    for query in wanted_of:
        outcome = outcomes[query.query_id]
        guesses[query.query_id] = (outcome.get("answer") or "").splitlines()
        failed += bool(outcome["error"])
    if trial.kind in ("title", "mask"):
        removed = _find_recalled(trial, wanted_of, guesses)
        verdicts = {key: "same" for key in trial.queries if f"{QUERY}{key}" in removed}
    else:
        nearest = trial.find_nearest(guesses)
        verdicts = trial.judge(judge, nearest) if judge else {}
        verdicts |= trial.ask_people(out, nearest, verdicts) if out else {}
        removed = {
            f"{QUERY}{key}": f"the same as {nearest[key][1].doc_id}"
            for key, verdict in verdicts.items()
            if verdict == "same"
        }
    # A judged unit is taken out if a text of it is known.
    gone = frozenset(
        trial.unit_of(name.partition("/")[2]) for name in removed if name.startswith(DOCUMENT)
    )
    for key, wanted in trial.wanted.items():
        if wanted and all(trial.unit_of(doc_id) in gone for doc_id in wanted):
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
        "failed": failed,
        "guesses": str(stage.path),
        "out": out and str(out),
    }


def _find_recalled(
    trial: ContaminationTest,
    wanted_of: Mapping[Query, Sequence[str]],
    guesses: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Return the queries and documents that a guess gives away, each with the first sign of it."""
    removed = {}
    for query, wanted in wanted_of.items():
        for text, doc_id in product(guesses[query.query_id], wanted):
            sign = recall(trial.kind, text, trial.texts[doc_id], query.text)
            if sign:
                removed[query.query_id] = sign
                break
    return removed


def render_contamination(result: JsonMapping) -> str:
    """Return the result as a person reads it."""
    if "dry_run" in result:
        titles = f"{plural(result['documents'], 'title')} of documents among them"
        return cost_estimate.render_estimate(
            dict(result), [f"{result['queries']} to be guessed, {titles}"]
        )
    query_count = result["queries"]
    removed = result["removed"]
    documents = sum(name.startswith(DOCUMENT) for name in removed)
    unanswerable = sum(reason == WANTED_DOCUMENTS_REMOVED for reason in removed.values())
    rows = [
        (
            f"queries that a guess gives away ({result['kind']})",
            len(removed) - documents - unanswerable,
            query_count,
        )
    ]
    rows += [("documents whose title is guessed from their text", documents, result["documents"])]
    rows += [("queries that want only such documents", unanswerable, query_count)]
    rows += [
        (
            f"Table 3, category {CATEGORIES[key]}",
            count,
            query_count,
        )
        for key, count in result["categories"].items()
    ]
    cells = [
        [
            name,
            f"{count:,}",
            f"{total:,}",
            f"{count / total:.1%}" if total else "-",
        ]
        for name, count, total in rows
    ]
    lines = [
        f"{describe_task(dict(result))}  {queries(query_count)}",
        f"what is known by heart to {model_name(result['lm'])}",
    ]
    lines += [f"{result['failed']} without a usable guess count as not known"] * bool(
        result["failed"]
    )
    written = [f"the task without them: {result['out']}/release"] if result["out"] else []
    return render_terminal(
        [
            *lines,
            ResultTable("", ["", "number", "of", "share"], cells),
            *written,
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
    if arguments.out and arguments.sample:
        raise UsageError("--sample only measures; leave it out to write the task")
    fixed = {"program": "sextant.programs.closed_book:ClosedBook", "split": "all"}
    request = cli_options.from_options(Request, vars(arguments) | fixed)
    judges = [arguments.judge] if arguments.judge else []
    check_prices(
        request, [request.lm, *judges], [retrievers.canonicalize(request.retriever or ENCODER)]
    )
    if judges and not arguments.dry_run:
        check_key(arguments.judge, request.headers)
    trial = ContaminationTest(request, arguments.kind, arguments.sample, arguments.works)
    result = measure(
        trial,
        arguments.judge,
        arguments.out,
        dry_run=arguments.dry_run,
    )
    print_result(result, render_contamination, as_json=arguments.json)
    return 7 if result.get("failed") else 0
