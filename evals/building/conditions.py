"""The recipe `conditions`: documents that meet ever fewer of a query's conditions, one changed sentence at a time.

MultiConIR (section 3.2, appendix B): sentences of a document become conditions, queries ask for the first k of them,
and each sentence gets a changed one that fails its condition. Asked besides, which is ours: whether a query says its
conditions and no other, whether each sentence meets its own while the rest of the document does not, and whether the
changed one fails it.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, get_args

from environments import multiconir
from environments.base import DevSplit
from environments.own import SEED
from evals.building import release
from evals.building.engine import Build, order
from evals.building.ladders import differ, pad, repeated
from evals.building.recipe import Recipe, Release
from evals.building.review import Item
from evals.building.units import Benchmark, Unit
from programs.building.conditions import cut, halve, items, squeeze
from tools.console import plural
from tools.corpus import Corpus
from tools.errors import DataError
from tools.records import Document
from tools.text import sentences

REPAIRS = 2  # times that a query or a sentence is written again when its judge says that it is not what it should be
UNTOUCHED = ["fluent"]  # what people are to say of a changed sentence: nothing but that it reads well
Texts = dict[str, list[str]]  # doc_id -> its sentences, queries, conditions or changed sentences


@dataclass(frozen=True)
class Extract:
    """Which sentences of a document are its conditions."""

    domain: Annotated[str, "what a query looks for: a book, a case report"] = "a document"
    features: Annotated[str, "what it is looked for by: author, year, plot; symptoms, diagnosis, outcome"] = ""
    number: Annotated[int, "conditions of a document; those with fewer sentences are left out"] = 10
    chars: Annotated[int, "characters of each document that are read; 0 all"] = 30_000


@dataclass(frozen=True)
class Ask:
    """How queries are worded."""

    grow: Annotated[bool, "a query with a condition more begins as the one before; false writes each anew"] = True
    list: Annotated[str, "a query that lists its conditions, as an example; it may be empty"] = ""
    prose: Annotated[str, "a query in prose, as an example; it may be empty"] = ""


@dataclass(frozen=True)
class Spoil:
    """How sentences are changed so that they fail their condition."""

    strategy: Annotated[
        Literal["key", "decoy"], "key: change what is said by the key terms; decoy: let these belong to something else"
    ] = "key"
    example: Annotated[str, "a condition, a sentence, and what became of it; it may be empty"] = ""
    alone: Annotated[bool, "drop a document that meets a condition in another sentence as well"] = True


@dataclass(frozen=True)
class Ladder:
    """What is compared; another choice asks for little that was not asked for before."""

    protocol: Annotated[
        Literal["complexity", "monotonicity", "format", "search"], "as the variants of multiconir, with their metrics"
    ] = "format"
    frame: Annotated[Literal["sentences", "document"], "released texts: the sentences alone, or in place"] = "sentences"
    which: Annotated[Literal["last", "random"], "the condition of a query that fails, under complexity"] = "last"
    words: Annotated[int, "words to which texts are padded, as 512; 0 leaves them as they are"] = 0


@dataclass(frozen=True)
class Conditions(Recipe):
    """The sections of the recipe."""

    extract: Extract = field(default_factory=Extract)
    ask: Ask = field(default_factory=Ask)
    spoil: Spoil = field(default_factory=Spoil)
    ladder: Ladder = field(default_factory=Ladder)
    release: Release = field(default_factory=lambda: Release(metric="", metrics=[]))  # the protocol has its own


class Place(NamedTuple):
    """A condition of a document, or its first conditions; the first one is number 1."""

    doc_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.doc_id}, {self.number}"


Told = Mapping[Place, dict[str, Any]]  # inputs of what writes
Style = Literal["list", "prose"]


def make(build: Build) -> Benchmark:
    """Go through the stages. DataError, with the stage, where nothing is left."""
    recipe: Conditions = build.recipe
    read = kept = _extract(build)
    asked = dict[str, Texts]()  # style -> queries with 1, 2, ... conditions; of prose the last alone
    for style in get_args(Style)[: 2 if recipe.ladder.protocol == "format" else 1]:
        asked[style] = _write(build, style, kept)
        kept = {one: texts for one, texts in kept.items() if one in asked[style]}
    for stage in ("query_of_k", "covers"):
        build.count(stage, len(read), len(kept))
    wanted = {one: items(asked["list"][one][-1]) for one in kept}
    spoiled = _spoil(build, _hold(build, kept, wanted), wanted)
    for stage in ("spoil", "meets"):
        build.count(stage, len(kept), len(spoiled))
    ladders = dict(_climb(build, kept, spoiled))
    build.count("ladder", len(spoiled), len(ladders))
    if not ladders:
        raise DataError(f"no document is left after {build.describe()}; dropped.jsonl says why")
    return _finish(build, ladders, asked, wanted)


def _extract(build: Build) -> Texts:
    """Return the sentences of each document that state its conditions, in the document's order."""
    recipe: Conditions = build.recipe
    known = [one for one in order(build.source.documents) if one not in build.source.twins]
    told = {name: getattr(recipe.extract, name) for name in ("domain", "features", "number")}
    units, most, found = list[Unit](), _count_documents(build), Texts()
    for place, one in enumerate(known):
        text = build.text(one, recipe.extract.chars)
        if len(units) == most:
            build.leave("conditions", "more documents than queries are wanted", len(known) - place)
            break
        build.leave("conditions", "too few sentences", few := len(sentences(text)) < recipe.extract.number)
        units += [] if few else [Unit(one, {**told, "document": [text]})]
    for unit, answer in build.ask("conditions", units):
        if answer:
            whole = squeeze(unit.inputs["document"][0])
            found[unit.key] = sorted(map(squeeze, answer["sentences"]), key=whole.find)
    build.count("conditions", len(known), len(found))
    return found


def _count_documents(build: Build) -> int:
    """Return of how many documents queries are made at most."""
    recipe: Conditions = build.recipe
    each = {"complexity": recipe.extract.number, "format": 2}.get(recipe.ladder.protocol, 1)
    return min(max(1, recipe.limits.queries // each), len(build.source.documents))


def _write(build: Build, style: Style, kept: Texts) -> Texts:
    """Return queries of each document: with 1, 2, ... conditions as a list, with all of them in prose."""
    recipe: Conditions = build.recipe
    anew = style == "list" and recipe.ladder.protocol == "complexity" and not recipe.ask.grow
    about = {"domain": recipe.extract.domain, "style": style, "example": getattr(recipe.ask, style)}
    told = {
        Place(one, k): {**about, "sentences": texts[:k]}
        for one, texts in kept.items()
        for k in (range(1, len(texts) + 1) if anew else [len(texts)])
    }

    def show(place: Place, text: str) -> Unit:
        numbered = [(str(number), one) for number, one in enumerate(kept[place.doc_id], start=1)]
        return Unit(place, {"query": text}, numbered)

    def judge(place: Place, answer: Mapping[str, Any]) -> str:
        said = {int(number): row["stated"] for number, row in answer["stated"].items()}
        for number in range(1, len(kept[place.doc_id]) + 1):
            if said.get(number) is not (number <= place.number):
                return f"sentence {number} is {'not ' * (number <= place.number)}asked for"
        return f"it asks for more: {answer['beyond']}" * bool(answer["beyond"].strip())

    found = _settle(build, ("query_of_k", "covers"), told, show, judge)
    if style == "list" and not anew:
        return {one: [cut(text, k) for k in range(1, many + 1)] for (one, many), text in found.items()}
    return _gather(found, {one: len(texts) if anew else 1 for one, texts in kept.items()})


def _gather(found: Mapping[Place, str], many: Mapping[str, int]) -> Texts:
    """Return texts by document, of documents that have as many as they should."""
    by = {one: list[str]() for one in many}
    for place in sorted(found):
        by[place.doc_id].append(found[place])
    return {one: texts for one, texts in by.items() if len(texts) == many[one]}


def _settle(
    build: Build,
    stages: tuple[str, str],
    told: Told,
    show: Callable[[Place, str], Unit],
    judge: Callable[[Place, Mapping[str, Any]], str],
) -> dict[Place, str]:
    """Return what the first stage writes, where the second one, shown it, finds nothing wrong at last."""
    most = (2 + REPAIRS) * _count_documents(build) * build.recipe.extract.number  # of what judges once more: `_hold`
    writes, judges = stages
    wrong, drafts, done = dict.fromkeys(told, ""), dict[Place, str](), dict[Place, str]()
    for _ in range(1 + REPAIRS):
        units = [Unit(place, {**told[place], "wrong": why}) for place, why in wrong.items()]
        written = [(unit.key, answer) for unit, answer in build.ask(writes, units, most) if answer]
        drafts = {place: next(iter(answer.values())).strip() for place, answer in written}
        before, wrong = wrong, {}
        for unit, answer in build.ask(judges, [show(place, text) for place, text in drafts.items()], most):
            if answer and (build.ahead or not (why := judge(unit.key, answer))):
                done[unit.key] = drafts[unit.key]
            elif answer:
                wrong[unit.key] = "\n".join(filter(None, [before[unit.key], f"{drafts[unit.key]}: {why}"]))
    for place, why in wrong.items():
        build.drop(judges, str(place), f"not right after {plural(REPAIRS, 'repair')}", why)
    return done


def _hold(build: Build, kept: Texts, wanted: Texts) -> Texts:
    """Return the documents each of whose sentences meets its condition, while the others do not."""
    units, lost = list[Unit](), set[str]()
    for one, texts in kept.items():
        for place, condition in enumerate(wanted[one]):
            rest = [("rest", _frame(build, one, texts, {place: ""}))] * build.recipe.spoil.alone
            units.append(Unit(Place(one, place + 1), {"condition": condition}, [("own", texts[place]), *rest]))
    for unit, answer in build.ask("meets", units, _count_documents(build) * build.recipe.extract.number):
        met = {one for one, row in answer["met"].items() if row["met"]} if answer else set[str]()
        if met == {"own"} or build.ahead:
            continue
        lost.add(unit.key.doc_id)
        if answer:
            why = "the rest of the document meets it, too" if "rest" in met else "the sentence does not meet it"
            build.drop("meets", str(unit.key), why, unit.inputs["condition"])
    return {one: texts for one, texts in kept.items() if one not in lost}


def _spoil(build: Build, kept: Texts, wanted: Texts) -> Texts:
    """Return a changed sentence for each one of a document, which fails its condition; of documents that have all."""
    recipe: Conditions = build.recipe
    told = dict[Place, dict[str, Any]]()
    for one, texts in kept.items():
        for number, (sentence, condition) in enumerate(zip(texts, wanted[one], strict=not build.ahead), start=1):
            others = [other for other in wanted[one] if other != condition]
            about = {"condition": condition, "sentence": sentence, "others": others}
            about |= {"strategy": recipe.spoil.strategy, "example": recipe.spoil.example}
            told[Place(one, number)] = {**about, "keep": halve(sentence, build.statistics)}

    def show(place: Place, text: str) -> Unit:
        return Unit(place, {"condition": told[place]["condition"]}, [("changed", text)])

    def judge(place: Place, answer: Mapping[str, Any]) -> str:
        return "it meets the condition all the same" if answer["met"].get("changed", {"met": True})["met"] else ""

    def item(place: Place) -> Item:
        about = told[place]
        shown = {"condition": about["condition"], "original": about["sentence"], "changed": found[place]}
        return Item([*shown.items()])

    found = {place: squeeze(text) for place, text in _settle(build, ("spoil", "meets"), told, show, judge).items()}
    said = dict.fromkeys(found, UNTOUCHED)
    build.review("negatives", said, item)
    for place in [place for place in found if said[place] != UNTOUCHED]:
        build.drop("meets", str(place), "people say that the changed sentence will not do", found.pop(place))
    return _gather(found, {one: len(texts) for one, texts in kept.items()})


def _frame(build: Build, doc_id: str, some: Sequence[str], new: Mapping[int, str]) -> str:
    """Return the text that is released, with other sentences in the place of those that are `new`, by number."""
    if build.recipe.ladder.frame == "sentences":
        return " ".join(filter(None, (new.get(number, one) for number, one in enumerate(some))))
    text = build.text(doc_id)
    for number, other in new.items():
        place = r"\s+".join(map(re.escape, some[number].split()))
        text = re.sub(place, lambda _, other=other: other, text, count=1)  # type: ignore[misc]
    return text


def _climb(build: Build, kept: Texts, spoiled: Texts) -> Iterator[tuple[str, list[str]]]:
    """Yield the texts of each document: all conditions met, then what its protocol compares with that.

    Under complexity these fail one condition of 1, 2, ...; else they fail the last one, the last two, ...
    """
    ladder = build.recipe.ladder
    for one, changed in spoiled.items():
        many = len(changed)
        if ladder.protocol == "complexity":
            fail = [[_choose(one, k) if ladder.which == "random" else k - 1] for k in range(1, many + 1)]
        else:
            fail = [list(range(many - failed, many)) for failed in range(1, many + 1)]
        texts = [_frame(build, one, kept[one], {number: changed[number] for number in some}) for some in ([], *fail)]
        pairs = [(texts[0], text) for text in texts[1:]] if ladder.protocol == "complexity" else list(pairwise(texts))
        if steps := [step for pair in pairs if (step := differ(*pair)) != 1]:
            build.drop("ladder", one, "two neighbours do not differ in one sentence", f"in {steps[0]}")
        elif again := repeated(texts[0]):
            build.drop("ladder", one, "a sentence stands there twice", again[0])
        else:
            yield one, [pad(text, ladder.words) for text in texts]


def _choose(doc_id: str, k: int) -> int:
    return int(hashlib.sha256(f"{doc_id}:{k}".encode("utf-8", "surrogatepass")).hexdigest(), 16) % k


def _finish(build: Build, ladders: Texts, asked: Mapping[str, Texts], wanted: Texts) -> Benchmark:
    recipe: Conditions = build.recipe
    protocol, said = recipe.ladder.protocol, recipe.release
    told = f"The query lists conditions on {recipe.extract.domain}. Wanted is what meets all of them."
    draft = multiconir.Draft(said.objective or told, "")
    record = dict[str, str]()  # query id -> document
    for one, texts in ladders.items():
        listed, found = asked["list"][one], [draft.document(text, _name(text)) for text in texts]
        if protocol == "complexity":
            for k, text in enumerate(listed, start=1):
                draft.ask_pair(f"{one}-q{k}", text, k, found[0], found[k])
        elif protocol == "format":
            draft.ask_formats(one, listed[-1], asked["prose"][one][-1], found)
        elif protocol == "search":
            draft.ask(one, listed[-1], {found[0]: 1.0}, pooled=False)
        else:
            draft.ask_ladder(f"{one}-q{len(listed)}", listed[-1], found)
        record |= {query.query_id: one for query in draft.queries[len(record) :]}
    metrics = said.metrics or list(multiconir.list_metrics(protocol, recipe.extract.number))
    rows = [{"query_id": query_id, "document": one, "conditions": wanted[one]} for query_id, one in record.items()]
    made = build.finish(
        draft.queries,
        {"gold": draft.grades},
        rows,
        objective=draft.objective,
        metrics=metrics,
        metric=said.metric or metrics[0],
    )
    made = made._replace(
        documents=Corpus(Document(doc_id, text) for doc_id, text in draft.documents.items()),
        comparisons=draft.comparisons,
        twins=draft.twins,
    )
    return release.split(made, DevSplit(SEED, said.dev), record) if said.dev else made


def _name(text: str) -> str:
    """Return an id that does not tell how many conditions a document meets."""
    return f"d-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
