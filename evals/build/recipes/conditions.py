"""The recipe `conditions`: documents that meet ever fewer of a query's conditions, one changed
sentence at a time.

MultiConIR (section 3.2, appendix B): sentences of a document become conditions, queries ask for all
of them or for the first k, and each sentence gets a changed one that fails its condition. Asked
besides, which is ours: whether a query says its conditions and no other, whether each sentence
meets its own while the rest of the document does not, and whether the changed one fails it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Annotated, Any, Literal

from environments import multiconir
from evals.build.condition_ladders import (
    count_different_sentences,
    pad_with_filler,
    repeated_sentences,
)
from evals.build.human_review import Item
from evals.build.pipeline import BuildPipeline, stable_order
from evals.build.recipe import Recipe, ReleaseSettings
from evals.build.types import Benchmark, StageInput
from programs.build_stages.conditions import squeeze
from tools.corpus import Corpus, digest_text
from tools.records import Document
from tools.text import sentences

# Times that a query or a sentence is written again when its judge says that it is not what it
# should be
REPAIRS = 2
UNTOUCHED = [
    "fluent"
]  # what people are to say of a changed sentence: nothing but that it reads well
# What is wrong where what a judge is shown meets a condition, or does not; no other change helps
# the first two.
HOPELESS = {
    "original": "the sentence does not meet it",
    "rest": "the rest of the document meets it, too",
}
WRONG = HOPELESS | {"changed": "it meets the condition all the same"}
Texts = dict[str, list[str]]  # doc_id -> its sentences, conditions or changed sentences
Fields = Mapping[str, Any]  # inputs of what writes, or its outputs


@dataclass(frozen=True)
class LadderSettings:
    """Which sentences of a document are its conditions, how they are changed, and what is compared."""

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
    words: Annotated[int, "words to which texts are padded, as 512; 0 leaves them as they are"] = 0


@dataclass(frozen=True)
class ConditionsRecipe(Recipe):
    """The sections of the recipe."""

    ladder: LadderSettings = field(default_factory=LadderSettings)
    release: ReleaseSettings = field(
        default_factory=lambda: ReleaseSettings(metric="", metrics=[])
    )  # the protocol has its own


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError, with the stage, where nothing is left."""
    kept = _extract(build)
    asked = _write(build, kept)
    wanted = {one: list(map(squeeze, made["conditions"])) for one, made in asked.items()}
    ladders = dict(_climb(build, kept, _spoil(build, kept, wanted)))
    build.count("ladder", len(asked), len(ladders))
    build.demand(ladders, "document")
    return _finish(build, ladders, wanted, {one: made["prose"] for one, made in asked.items()})


def _extract(build: BuildPipeline) -> Texts:
    """Return the sentences of each document that state its conditions, in the document's order."""
    ladder = build.recipe.ladder
    told = {name: getattr(ladder, name) for name in ("domain", "features", "number")}
    known = [one for one in stable_order(build.source.documents) if one not in build.source.twins]
    long = (one for one in known if len(sentences(build.text(one))) >= ladder.number)
    units = [
        StageInput(one, {**told, "document": [build.text(one)]})
        for one in islice(long, _count_documents(build))
    ]
    taken = {unit.key for unit in units}
    unused = [one for one in known if one not in taken]
    build.drop_all("conditions", unused, "too few sentences, or more than queries are wanted")
    found = Texts()
    for unit, answer in build.ask("conditions", units):
        if answer:
            found[unit.key] = sorted(
                map(squeeze, answer["sentences"]), key=squeeze(*unit.inputs["document"]).find
            )
    build.count("conditions", len(known), len(found))
    return found


def _count_documents(build: BuildPipeline) -> int:
    """Return of how many documents queries are made at most."""
    ladder = build.recipe.ladder
    queries = int(build.recipe.limits.queries)
    each = ladder.number if ladder.protocol == "complexity" else 2
    return min(max(1, queries // each), len(build.source.documents))


def _write(build: BuildPipeline, kept: Texts) -> dict[str, Fields]:
    """Return the conditions of each document, and a query in prose for all of them."""
    told = {
        one: {"domain": build.recipe.ladder.domain, "sentences": texts}
        for one, texts in kept.items()
    }

    def show(one: str, made: Fields) -> StageInput:
        numbered = [(str(number), text) for number, text in enumerate(kept[one], start=1)]
        return StageInput(
            one, {"queries": ["\n".join(made["conditions"]), made["prose"]]}, numbered
        )

    return _settle(build, "query_of_k", "covers", told, show, 1)


def _spoil(build: BuildPipeline, kept: Texts, wanted: Texts) -> Texts:
    """Return a changed sentence for each one of a document, which fails its condition; of documents that have all."""
    told = dict[str, Fields]()
    rest = dict[str, str]()
    about = {name: getattr(build.recipe.ladder, name) for name in ("strategy", "example")}
    names = {one: [f"{one}, {number}" for number in range(1, len(kept[one]) + 1)] for one in wanted}
    for one, conditions in wanted.items():
        for name, sentence, condition in zip(
            names[one], kept[one], conditions, strict=not build.ahead
        ):
            others = [other for other in conditions if other != condition]
            told[name] = {**about, "condition": condition, "sentence": sentence, "others": others}
            rest[name] = " ".join(text for text in kept[one] if text != sentence)

    def show(name: str, made: Fields) -> StageInput:
        shown = [
            ("original", told[name]["sentence"]),
            ("rest", rest[name]),
            ("changed", made["spoiled"]),
        ]
        return StageInput(name, {"condition": told[name]["condition"]}, shown)

    found = _settle(build, "spoil", "meets", told, show, build.recipe.ladder.number)
    said = dict.fromkeys(found, UNTOUCHED)
    shown = {name: show(name, made) for name, made in found.items()}
    build.review(
        "negatives", said, lambda one: Item([*shown[one].inputs.items(), *shown[one].passages[::2]])
    )
    for name in [name for name in found if said[name] != UNTOUCHED]:
        build.drop(
            "ladder",
            name,
            "people say that the changed sentence will not do",
            found.pop(name)["spoiled"],
        )
    return {
        one: [squeeze(found[name]["spoiled"]) for name in of]
        for one, of in names.items()
        if {*of} <= {*found}
    }


def _settle(
    build: BuildPipeline,
    writes: str,
    judges: str,
    told: Mapping[str, Fields],
    show: Callable[[str, Fields], StageInput],
    each: int,
) -> dict[str, Fields]:
    """Return what a stage writes, where another one, shown it, finds nothing wrong at last; `each`: of a document."""
    most = (1 + REPAIRS) * _count_documents(build) * each
    wrong = dict.fromkeys(told, "")
    done = dict[str, Fields]()
    for _ in range(1 + REPAIRS):
        units = [StageInput(one, {**told[one], "wrong": why}) for one, why in wrong.items()]
        drafts = {unit.key: answer for unit, answer in build.ask(writes, units, most) if answer}
        before = wrong
        wrong = {}
        for unit, answer in build.ask(
            judges, [show(one, draft) for one, draft in drafts.items()], most
        ):
            why = _find_wrong(unit, answer) if answer and not build.ahead else ""
            if why in HOPELESS.values():
                build.drop(judges, unit.key, why, unit.inputs["condition"])
            elif why:
                wrong[unit.key] = (
                    f"{before[unit.key]}\n{[*drafts[unit.key].values()]}: {why}".lstrip()
                )
            elif answer:
                done[unit.key] = drafts[unit.key]
    for one, why in wrong.items():
        build.drop(judges, one, f"not right after {REPAIRS} repairs", why)
    for stage in (writes, judges):
        build.count(stage, len(told), len(done))
    return done


def _find_wrong(unit: StageInput, answer: Fields) -> str:
    """Return what a judge finds wrong; a passage that it left out is not as it should be."""
    rows, *more = answer.values()
    for name, _ in unit.passages:
        if name not in rows or rows[name]["holds"] is (name in ("changed", "rest")):
            return WRONG.get(name, f"sentence {name} is not asked for")
    return f"it asks for more: {more[0]}" if more and more[0].strip() else ""


def _climb(build: BuildPipeline, kept: Texts, spoiled: Texts) -> Iterator[tuple[str, list[str]]]:
    """Yield the texts of each document: all conditions met, then what its protocol compares with that.

    Under complexity these fail condition 1, 2, ... alone; else they fail the last one, the last two, ...
    """
    ladder = build.recipe.ladder
    many = build.recipe.ladder.number
    single = ladder.protocol == "complexity"
    fail = [{k} if single else {*range(many - 1 - k, many)} for k in range(many)]
    for one, changed in spoiled.items():
        pairs = list(enumerate(zip(kept[one], changed, strict=True)))
        texts = [
            " ".join(two[number in some] for number, two in pairs) for some in (set[int](), *fail)
        ]
        steps = zip(repeat(texts[0]) if single else texts, texts[1:], strict=False)
        if any(map(repeated_sentences, texts)) or any(
            count_different_sentences(*step) != 1 for step in steps
        ):
            build.drop("ladder", one, "a sentence stands there twice, or two are one")
        else:
            yield one, [pad_with_filler(text, ladder.words) for text in texts]


def _finish(
    build: BuildPipeline, ladders: Texts, wanted: Texts, prose: Mapping[str, str]
) -> Benchmark:
    ladder = build.recipe.ladder
    said = build.recipe.release
    told = f"The query lists conditions on {ladder.domain}. Wanted is what meets all of them."
    # query id -> document
    draft = multiconir.EnvironmentDraft(said.objective or told, "")
    record = dict[str, str]()
    for one, texts in ladders.items():
        # Ids do not tell how many conditions a document meets.
        found = [draft.document(text, f"d-{digest_text(text).hex()[:12]}") for text in texts]
        lines = [
            f"Wanted: {ladder.domain}",
            *(f"{number}. {text}" for number, text in enumerate(wanted[one], start=1)),
        ]
        if ladder.protocol == "complexity":
            for k, text in enumerate(found[1:], start=1):
                draft.ask_pair(f"{one}-q{k}", "\n".join(lines[: k + 1]), k, found[0], text)
        else:
            draft.ask_formats(one, "\n".join(lines), prose[one], found)
        record |= {query.query_id: one for query in draft.queries[len(record) :]}
    metrics = said.metrics or list(multiconir.list_metrics(ladder.protocol, ladder.number))
    rows = [
        {"query_id": query_id, "document": one, "conditions": wanted[one]}
        for query_id, one in record.items()
    ]
    made = build.finish(
        draft.queries,
        {"gold": draft.grades},
        rows,
        record,
        objective=draft.objective,
        metrics=metrics,
    )
    documents = Corpus(Document(doc_id, text) for doc_id, text in draft.documents.items())
    return made._replace(documents=documents, comparisons=draft.comparisons, twins=draft.twins)
