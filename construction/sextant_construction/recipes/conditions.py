"""The recipe `conditions`: documents that meet ever fewer of a query's conditions, by a changed
sentence each.

MultiConIR (section 3.2, appendix B): sentences of a document become conditions, queries ask for all
of them or for the first k, and each sentence gets a changed sentence that fails its condition. In
addition to the paper, a judge is asked whether a query says its conditions and no other, whether
each sentence meets its own while the remaining document does not, and whether the changed sentence
fails it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Any, Literal

from sextant.environments import multiconir
from sextant.tools.corpus import Corpus, digest_text
from sextant.tools.records import Document
from sextant.tools.text import sentences
from sextant_construction.condition_ladders import (
    count_different_sentences,
    repeated_sentences,
)
from sextant_construction.human_review import Item
from sextant_construction.pipeline import BuildPipeline
from sextant_construction.recipe import Recipe, ReleaseSettings
from sextant_construction.stages.conditions import squeeze
from sextant_construction.types import Benchmark, StageInput

# Times that a query or a sentence is written again if its judge finds fault with it.
REPAIRS = 2
# The only answer of people by which a changed sentence stays: it reads well.
UNTOUCHED = ["fluent"]
# Two queries of each style (appendix B, Table 5), in our words.
LIST_EXAMPLES = (
    "Wanted: a book that meets these conditions: 1. It is set in a lighthouse. 2. Its narrator is "
    "a child. 3. It was first printed in 1931.",
    "Wanted: a case report in which all of this holds: 1. The patient is over seventy. 2. The pain "
    "began after a fall.",
)
PROSE_EXAMPLES = (
    "I am looking for a book first printed in 1931 that is set in a lighthouse and told by a child.",
    "Is there a case report about somebody over seventy whose pain began after a fall?",
)
# Faults of the passages that a judge is shown, by name; no other change helps these two.
HOPELESS = {
    "original": "the sentence does not meet it",
    "rest": "the rest of the document meets it, too",
}
FAULTS = HOPELESS | {"changed": "it meets the condition all the same"}
Texts = dict[str, list[str]]  # doc_id -> its sentences, conditions or changed sentences
Fields = Mapping[str, Any]  # inputs or outputs of a stage that writes, by name


@dataclass(frozen=True)
class LadderSettings:
    """Which sentences of a document are its conditions, how they are changed, and which pairs are
    compared.
    """

    domain: Annotated[str, "what a query looks for: a book, a case report"] = "a document"
    features: Annotated[
        str, "what it is looked for by: author, year, plot; symptoms, diagnosis, outcome"
    ] = ""
    number: Annotated[int, "conditions of a document; those with fewer sentences are left out"] = 10
    strategy: Annotated[
        Literal["key", "decoy"],
        "key: change what is said by the key terms; decoy: let these belong to something else",
    ] = "key"
    example: Annotated[str, "a condition, a sentence, and what became of it; it may be empty"] = ""
    protocol: Annotated[
        Literal["format", "complexity"], "as the variants of multiconir, with their metrics"
    ] = "format"


@dataclass(frozen=True)
class ConditionsRecipe(Recipe):
    """The sections of the recipe."""

    ladder: LadderSettings = LadderSettings()
    # Without metrics: the protocol has its own.
    release: ReleaseSettings = ReleaseSettings(metric="", metrics=[])


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError, with the stage, if nothing is left."""
    originals = _extract(build)
    queries = _write(build, originals)
    conditions = {}
    prose = {}
    for doc_id, query in queries.items():
        conditions[doc_id] = [squeeze(condition) for condition in query["conditions"]]
        prose[doc_id] = query.get("prose", "")
    ladders = dict(_make_ladders(build, originals, _spoil(build, originals, conditions)))
    build.count("ladder", len(queries), len(ladders))
    build.demand(ladders, "document")
    return _finish(build, ladders, conditions, prose)


def _extract(build: BuildPipeline) -> Texts:
    """Return the sentences of each document that state its conditions, in the document's order."""
    ladder: LadderSettings = build.recipe.ladder
    inputs = {name: getattr(ladder, name) for name in ("domain", "features", "number")}
    doc_ids = build.distinct_documents()
    units = list[StageInput]()
    most = _count_documents(build)
    for doc_id in doc_ids:
        text = build.text(doc_id)
        if len(units) < most and len(sentences(text)) >= ladder.number:
            units.append(StageInput(doc_id, {**inputs, "document": [text]}))
        else:
            reason = "too few sentences, or more than queries are wanted"
            build.drop("conditions", doc_id, reason)
    originals = {}
    for unit, answer in build.ask("conditions", units):
        if answer:
            document = squeeze(*unit.inputs["document"])
            stated = [squeeze(sentence) for sentence in answer["sentences"]]
            originals[unit.key] = sorted(stated, key=document.find)
    build.count("conditions", len(doc_ids), len(originals))
    return originals


def _count_documents(build: BuildPipeline) -> int:
    """Return of how many documents queries are made at most."""
    ladder: LadderSettings = build.recipe.ladder
    queries = int(build.recipe.limits.queries)
    queries_per_document = ladder.number if ladder.protocol == "complexity" else 2
    return min(max(1, queries // queries_per_document), len(build.source.documents))


def _write(build: BuildPipeline, originals: Texts) -> dict[str, Fields]:
    """Return the conditions of each document, and a query in prose for all of them if it is used."""
    ladder: LadderSettings = build.recipe.ladder
    inputs = {
        doc_id: {"domain": ladder.domain, "sentences": texts} for doc_id, texts in originals.items()
    }
    writes = {"query_of_k": {"examples": LIST_EXAMPLES}}
    if ladder.protocol == "format":
        writes["prose"] = {"examples": PROSE_EXAMPLES}

    def show(doc_id: str, query: Fields) -> StageInput:
        numbered = [(str(number), text) for number, text in enumerate(originals[doc_id], start=1)]
        wordings = ["\n".join(query["conditions"])]
        if "prose" in query:
            wordings.append(query["prose"])
        return StageInput(doc_id, {"queries": wordings}, numbered)

    return _repair_until_right(build, writes, "covers", inputs, show, 1)


def _spoil(build: BuildPipeline, originals: Texts, conditions: Texts) -> Texts:
    """Return a changed sentence for each sentence of a document, which fails its condition.

    Documents of which a sentence could not be changed are left out.
    """
    ladder: LadderSettings = build.recipe.ladder
    inputs = {}
    names_of = defaultdict(list)
    for doc_id, stated in conditions.items():
        # A dry run has invented conditions, maybe of another number.
        pairs = zip(originals[doc_id], stated, strict=not build.ahead)
        for number, (sentence, condition) in enumerate(pairs, start=1):
            name = f"{doc_id}, {number}"
            names_of[doc_id].append(name)
            inputs[name] = {
                "strategy": ladder.strategy,
                "example": ladder.example,
                "condition": condition,
                "sentence": sentence,
                "others": [other for other in stated if other != condition],
            }

    def show(name: str, draft: Fields) -> StageInput:
        sentence = inputs[name]["sentence"]
        texts = originals[name.rpartition(", ")[0]]
        passages = [
            ("original", sentence),
            ("rest", " ".join(text for text in texts if text != sentence)),
            ("changed", draft["spoiled"]),
        ]
        return StageInput(name, {"condition": inputs[name]["condition"]}, passages)

    def show_to_people(name: str) -> Item:
        unit = show(name, spoiled[name])
        original, _, changed = unit.passages
        return Item([*unit.inputs.items(), original, changed])

    spoiled = _repair_until_right(
        build,
        {"spoil": {}},
        "meets",
        inputs,
        show,
        ladder.number,
    )
    verdicts = dict.fromkeys(spoiled, UNTOUCHED)
    build.review("negatives", verdicts, show_to_people)
    for name, verdict in verdicts.items():
        if verdict != UNTOUCHED:
            sentence = spoiled.pop(name)["spoiled"]
            reason = "people say that the changed sentence will not do"
            build.drop("ladder", name, reason, sentence)
    return {
        doc_id: [squeeze(spoiled[name]["spoiled"]) for name in names]
        for doc_id, names in names_of.items()
        if spoiled.keys() >= {*names}
    }


def _repair_until_right(
    build: BuildPipeline,
    writes: Mapping[str, Fields],
    judges: str,
    inputs: Mapping[str, Fields],
    show: Callable[[str, Fields], StageInput],
    units_per_document: int,
) -> dict[str, Fields]:
    """Return the drafts of the stages `writes` in which the stage `judges` finds no fault.

    Each stage that writes has inputs of its own, and outputs that are a part of a draft. `show`
    turns a draft into a unit for the judge. A draft with a fault is written again, up to `REPAIRS`
    times.
    """
    most = (1 + REPAIRS) * _count_documents(build) * units_per_document
    history = dict.fromkeys(inputs, "")  # drafts so far, and the fault of each
    right = {}
    for _ in range(1 + REPAIRS):
        drafts: dict[str, Fields] = {name: {} for name in history}
        for stage, further in writes.items():
            units = [
                StageInput(
                    name,
                    {
                        **inputs[name],
                        **further,
                        "wrong": history[name],
                    },
                )
                for name in drafts
            ]
            answers = build.ask(stage, units, most)
            drafts = {unit.key: drafts[unit.key] | answer for unit, answer in answers if answer}
        to_judge = [show(name, draft) for name, draft in drafts.items()]
        before = history
        history = {}
        for unit, answer in build.ask(judges, to_judge, most):
            name = unit.key
            draft = drafts[name]
            fault = _find_fault(unit, answer) if answer and not build.ahead else ""
            if fault in HOPELESS.values():
                build.drop(judges, name, fault, unit.inputs["condition"])
            elif fault:
                history[name] = f"{before[name]}\n{[*draft.values()]}: {fault}".lstrip()
            elif answer:
                right[name] = draft
    for name, past in history.items():
        build.drop(
            judges,
            name,
            f"not right after {REPAIRS} repairs",
            past,
        )
    for stage in (*writes, judges):
        build.count(stage, len(inputs), len(right))
    return right


def _find_fault(unit: StageInput, answer: Fields) -> str:
    """Return the fault that a judge finds, or ""; a passage that it left out is a fault, too."""
    rows, *further_outputs = answer.values()
    for name, _ in unit.passages:
        should_hold = name not in ("changed", "rest")
        if name not in rows or rows[name]["holds"] is not should_hold:
            return FAULTS.get(name, f"sentence {name} is not asked for")
    for beyond in further_outputs[:1]:
        if beyond.strip():
            return f"it asks for more: {beyond}"
    return ""


def _make_ladders(
    build: BuildPipeline, originals: Texts, changed: Texts
) -> Iterator[tuple[str, list[str]]]:
    """Yield the texts of each document: all conditions met, then those that are compared with it.

    Under complexity these fail condition 1, 2, ... alone; else they fail the last condition, the
    last two, ...
    """
    ladder: LadderSettings = build.recipe.ladder
    single = ladder.protocol == "complexity"
    failed: list[Collection[int]] = [()]  # the conditions that each text fails, from 0
    for k in range(ladder.number):
        failed.append([k] if single else range(ladder.number - 1 - k, ladder.number))
    for doc_id, spoiled in changed.items():
        sentence_pairs = list(zip(originals[doc_id], spoiled, strict=True))
        texts = [
            " ".join(pair[number in fails] for number, pair in enumerate(sentence_pairs))
            for fails in failed
        ]
        # A step, from the text before it or from the first, changes exactly one sentence.
        before = repeat(texts[0]) if single else texts
        steps = map(count_different_sentences, before, texts[1:])
        if {*steps} == {1} and not any(map(repeated_sentences, texts)):
            yield doc_id, texts
        else:
            build.drop("ladder", doc_id, "a sentence stands there twice, or two are one")


def _finish(
    build: BuildPipeline,
    ladders: Texts,
    conditions: Texts,
    prose: Mapping[str, str],
) -> Benchmark:
    """Return the benchmark: documents of the ladders, their queries and comparisons."""
    ladder: LadderSettings = build.recipe.ladder
    release: ReleaseSettings = build.recipe.release
    objective = release.objective or (
        f"The query lists conditions on {ladder.domain}. Wanted is what meets all of them."
    )
    draft = multiconir.EnvironmentDraft(objective, "")
    document_of: dict[str, str] = {}  # query_id -> document
    for doc_id, texts in ladders.items():
        # Ids do not tell how many conditions a document meets.
        steps = [draft.document(text, f"d-{digest_text(text).hex()[:12]}") for text in texts]
        lines = [f"Wanted: {ladder.domain}"]
        lines += [f"{number}. {text}" for number, text in enumerate(conditions[doc_id], start=1)]
        if ladder.protocol == "complexity":
            for k, step in enumerate(steps[1:], start=1):
                text = "\n".join(lines[: k + 1])
                draft.ask_pair(
                    f"{doc_id}-q{k}",
                    text,
                    k,
                    steps[0],
                    step,
                )
        else:
            draft.ask_formats(
                doc_id,
                "\n".join(lines),
                prose[doc_id],
                steps,
            )
        for query in draft.queries[len(document_of) :]:
            document_of[query.query_id] = doc_id
    provenance = [
        {"query_id": query_id, "document": doc_id, "conditions": conditions[doc_id]}
        for query_id, doc_id in document_of.items()
    ]
    benchmark = build.finish(
        draft.queries,
        {"gold": draft.grades},
        provenance,
        document_of,
        objective=objective,
        metrics=release.metrics or multiconir.list_metrics(ladder.protocol, ladder.number),
    )
    documents = Corpus(Document(doc_id, text) for doc_id, text in draft.documents.items())
    return benchmark._replace(documents=documents, comparisons=draft.comparisons, twins=draft.twins)
