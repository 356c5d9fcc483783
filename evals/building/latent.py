"""The recipe `latent`: documents that share what none of them says, and queries that ask for it.

OBLIQ-Bench's Twitter-Conflict, WildChat-Errors and Math Meta-Program (section 3, appendices D.1 to D.3): who carries an
attribute, and which; equal ones get one label; each group is validated, gets a query, and every pair is graded again.
What is removed on the way stays in the corpus, as a near miss. Where this differs from the paper, docs/decisions/
building.md says so.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, NamedTuple

from evals.building import judged, queries
from evals.building.engine import Build, order, slices
from evals.building.recipe import Recipe
from evals.building.review import Item
from evals.building.units import Benchmark, Unit
from tools.corpus import Corpus
from tools.errors import DataError
from tools.models.prompting import lens
from tools.records import Document
from tools.retrievers.bm25 import BM25
from tools.text import words

BEGINNING = 300  # characters of a member that a validator is shown beside what was written down of it
OVERLAP = 8  # members that the parts of a large group share, so that they are judged by the same majority
WAVE = 8  # calls that are made at a time where each should know what those before it wrote
PARTIAL = 0.3  # share of a group beyond which, once removed, nothing says that the rest has one point


@dataclass(frozen=True)
class Attribute:
    """What documents share without saying it."""

    lens: Annotated[str, "stance, failure or proof: wordings for all of this; empty where they are your own"] = ""
    attribute: Annotated[str, "what is to be written down of a document"] = ""
    further: Annotated[dict[str, str], "what else is to be written down, by name"] = field(default_factory=dict)
    private: Annotated[list[str], "private fields of documents that are shown beside the text"] = field(
        default_factory=list
    )


@dataclass(frozen=True)
class Screen:
    """Which documents may be relevant; the others stay in the corpus as distractors."""

    kinds: Annotated[dict[str, str], "names of kinds, and what belongs to each; without any, all are read"] = field(
        default_factory=dict
    )
    eligible: Annotated[list[str], "the kinds that may be relevant"] = field(default_factory=list)
    batch: Annotated[int, "documents in a call"] = 15


@dataclass(frozen=True)
class Extract:
    """Writing down the attribute."""

    batch: Annotated[int, "documents in a call; 1 for long ones"] = 15
    chars: Annotated[int, "characters of each document that are read; 0 all"] = 0


@dataclass(frozen=True)
class Group:
    """Giving equal attributes one label."""

    relabel: Annotated[bool, "label the descriptions anew, beside labels in use; else the labels they came with"] = True
    batch: Annotated[int, "descriptions in a call that labels"] = 80
    labels: Annotated[int, "labels in a call that collapses"] = 150
    rounds: Annotated[int, "how often labels are collapsed at most"] = 3
    enough: Annotated[float, "share of labels that change, under which rounds end"] = 0.02
    merge: Annotated[int, "groups in a call that merges what is worded differently; 0 leaves that out"] = 8
    validate: Annotated[int, "members in a call that validates a group; 0 leaves that out"] = 40


@dataclass(frozen=True)
class Latent(Recipe):
    """The sections of the recipe."""

    attribute: Attribute = field(default_factory=Attribute)
    screen: Screen = field(default_factory=Screen)
    extract: Extract = field(default_factory=Extract)
    group: Group = field(default_factory=Group)
    write: queries.Write = field(default_factory=queries.Write)
    judge: judged.Judge = field(default_factory=judged.Judge)
    pool: judged.Pool = field(default_factory=judged.Pool)


class Note(NamedTuple):
    """What was written down of a document."""

    attribute: str
    label: str
    more: Sequence[str]


Notes = Mapping[str, Note]  # by doc_id
Groups = dict[str, list[str]]  # label -> documents, in the order of `order`


def make(build: Build) -> Benchmark:
    """Go through the stages. DataError, with the stage, where nothing is left."""
    recipe: Latent = build.recipe
    wording = recipe.attribute.attribute or lens(recipe.attribute.lens).annotate
    if not wording:
        raise DataError("recipe.toml: [attribute] has neither a lens nor an attribute; say what documents share")
    notes = _extract(build, wording, _screen(build, wording))
    build.limit_queries(len(notes) // max(1, recipe.limits.min_positives))
    groups = _collapse(build, notes, _label(build, notes))
    valid, near = _validate(build, notes, _merge(build, notes, groups))
    groups = _fit(build, valid)
    build.limit_queries(len(groups))
    drafts = [
        queries.Draft(label, members, [notes[one].attribute for one in members]) for label, members in groups.items()
    ]
    written = queries.write(build, recipe.write, drafts)
    index = BM25(Corpus(Document(one, note.attribute) for one, note in notes.items()))
    asked = list[judged.Asked]()
    for query, draft in written:  # a document may share the points of two groups, and has one label
        beside = [hit.doc_id for hit in index.search(draft.describe(), recipe.judge.near + len(draft.members))]
        beside = [one for one in beside if one not in draft.members][: recipe.judge.near]
        members = [one for one in draft.members if one not in query.excluded]
        some = dict.fromkeys((*members, *near.get(draft.label, ()), *beside))
        asked.append(judged.Asked(query, list(some), members=members))
    gold = judged.regrade(build, recipe.judge, recipe.attribute.lens, asked)
    kept = [(query, draft) for query, draft in written if query.query_id in gold]
    pooled = judged.pool(build, recipe.judge, recipe.pool, recipe.attribute.lens, [one for one, _ in kept], gold)
    return build.finish(
        [query for query, _ in kept],
        {"gold": gold} | ({"pooled": pooled} if pooled else {}),
        [{"query_id": query.query_id, "label": draft.label, "members": draft.members} for query, draft in kept],
        lens=recipe.attribute.lens,
    )


def _screen(build: Build, wording: str) -> list[str]:
    """Return the documents that may be relevant, each text once, in an order that is not the corpus's."""
    recipe: Latent = build.recipe
    source, told = build.source, {"attribute": wording, "kinds": dict(recipe.screen.kinds)}
    doc_ids = order(one for one in source.documents if one not in source.twins)
    if not recipe.screen.kinds:
        return doc_ids
    sorted_as = dict[str, str]()
    units = (
        Unit(some[0], told, [(one, build.text(one)) for one in some]) for some in slices(doc_ids, recipe.screen.batch)
    )
    for _, answer in build.ask("screen", units):
        rows = (answer or {}).get("sorted", {})
        sorted_as |= {one: row["kind"] for one, row in rows.items()}
    build.review("screening", sorted_as, lambda one: Item([("document", build.text(one))], values=list(told["kinds"])))
    eligible = [one for one in doc_ids if sorted_as.get(one) in recipe.screen.eligible]
    for kind, many in sorted(Counter(sorted_as.values()).items()):
        if kind not in recipe.screen.eligible:
            build.leave("screen", kind, many)
    build.count("screen", len(doc_ids), len(eligible))
    return eligible


def _extract(build: Build, wording: str, doc_ids: Sequence[str]) -> Notes:
    """Return what is written down of each document that has the attribute."""
    recipe: Latent = build.recipe
    told, notes = {"attribute": wording, "further": dict(recipe.attribute.further)}, dict[str, Note]()
    units = (
        Unit(some[0], told, [(one, build.text(one, recipe.extract.chars, recipe.attribute.private)) for one in some])
        for some in slices(doc_ids, recipe.extract.batch)
    )
    for _, answer in build.ask("extract", units, most=-(-len(build.source.documents) // recipe.extract.batch)):
        for one, row in (answer or {}).get("found", {}).items():
            if row["attribute"].strip():
                notes[one] = Note(row["attribute"].strip(), row["label"].strip(), row["more"])
    build.leave("extract", "attribute absent", len(doc_ids) - len(notes))
    right = dict.fromkeys(notes, "right")
    build.review(
        "annotation", right, lambda one: Item([("document", build.text(one)), ("annotation", notes[one].attribute)])
    )
    notes = {one: note for one, note in notes.items() if right[one] == "right"}
    build.count("extract", len(doc_ids), len(notes))
    return notes


def _label(build: Build, notes: Notes) -> dict[str, str]:
    """Return the label of each document: the one it came with, or one that other batches know, too."""
    recipe: Latent = build.recipe
    found = {one: note.label for one, note in notes.items() if note.label}
    if not recipe.group.relabel:
        return found
    found = {}
    batches = slices(list(notes), recipe.group.batch)
    waves = [batches[:1], *slices(batches[1:], WAVE)]
    for wave in waves:
        in_use = [label for label, _ in Counter(found.values()).most_common(recipe.group.batch)]
        units = [Unit(some[0], {"in_use": in_use}, [(one, notes[one].attribute) for one in some]) for some in wave]
        for _, answer in build.ask("label", units, most=-(-len(build.source.documents) // recipe.group.batch)):
            rows = (answer or {}).get("labels", {})
            found |= {one: row["label"].strip() for one, row in rows.items() if row["label"].strip()}
    build.count("label", len(notes), len(found))
    return found


def _collapse(build: Build, notes: Notes, labels: dict[str, str]) -> Groups:
    """Return groups of documents whose labels mean the same."""
    recipe: Latent = build.recipe
    canonical = {label: label for label in labels.values()}
    for turn in range(recipe.group.rounds):
        left = sorted(set(canonical.values()))
        examples = defaultdict[str, list[str]](list)
        for one, label in labels.items():
            examples[canonical[label]].append(notes[one].attribute)
        batches = _near(left[:: 1 if turn % 2 else -1], recipe.group.labels)
        units = [
            Unit(some[0], {"labels": {one: examples[one][:2] for one in some}}) for some in batches if len(some) > 1
        ]
        moved = dict[str, str]()
        for _, answer in build.ask(
            "collapse", units, most=recipe.group.rounds * (1 + len(notes) // recipe.group.labels)
        ):
            rows = (answer or {}).get("collapsed", ())
            moved |= {row["label"]: row["canonical"] for row in rows if row["label"] != row["canonical"]}
        canonical = {label: _follow(moved, one) for label, one in canonical.items()}
        if len(moved) <= recipe.group.enough * len(left):
            break
    groups: Groups = {}
    for one, label in labels.items():
        groups.setdefault(canonical[label], []).append(one)
    build.count("collapse", len(set(labels.values())), len(groups))
    return groups


def _follow(moved: Mapping[str, str], label: str) -> str:
    """Return where a chain of labels ends; of a circle, the first one in the alphabet."""
    seen = [label]
    while (after := moved.get(seen[-1])) and after not in seen:
        seen.append(after)
    return min(seen[seen.index(after) :]) if after else seen[-1]


def _near(labels: Sequence[str], size: int) -> list[list[str]]:
    """Cut labels into lots of at most `size`, those that share words together."""
    if len(labels) <= size:
        return [list(labels)]
    index = BM25(Corpus(Document(one, one) for one in labels))
    left, lots = dict.fromkeys(labels), list[list[str]]()
    while left:
        first = next(iter(left))
        found = [hit.doc_id for hit in index.search(first, 2 * size) if hit.doc_id in left]
        lots.append(list(dict.fromkeys([first, *found, *islice(left, size)]))[:size])
        for one in lots[-1]:
            del left[one]
    return lots


def _merge(build: Build, notes: Notes, groups: Groups) -> Groups:
    """Return the groups with those joined that two readings, in different company, call the same."""
    recipe: Latent = build.recipe
    size = recipe.group.merge
    if not size or len(groups) < 2:
        return groups
    shown = {
        label: "\n".join([label, *(notes[one].attribute for one in members[:5])]) for label, members in groups.items()
    }
    pairs = Counter[tuple[str, str]]()
    better = dict[tuple[str, str], str]()
    lots = [_near(list(groups)[::step], size) for step in (1, -1)]
    units = [Unit(some[0], {}, [(one, shown[one]) for one in some]) for lot in lots for some in lot if len(some) > 1]
    for unit, answer in build.ask("merge", units, most=2 * (1 + len(notes) // max(1, size))):
        for row in (answer or {}).get("merged", ()):
            ids = [
                unit.passages[int(one) - 1][0]
                for one in row["ids"]
                if one.isdigit() and 0 < int(one) <= len(unit.passages)
            ]
            for one in sorted(ids)[1:]:
                pairs[min(ids), one] += 1
                better[min(ids), one] = row["label"]
    moved = {second: first for (first, second), many in sorted(pairs.items()) if many > 1}
    joined: Groups = {}
    for label, members in groups.items():
        joined.setdefault(_follow(moved, label), []).extend(members)
    build.count("merge", len(groups), len(joined))
    return joined


def _validate(build: Build, notes: Notes, groups: Groups) -> tuple[Groups, Groups]:
    """Return the groups without the members that do not belong, and these."""
    recipe: Latent = build.recipe
    size, least = recipe.group.validate, recipe.limits.min_positives
    large = {label: order(members) for label, members in groups.items() if len(members) >= least}
    build.leave("validate", "groups too small", len(groups) - len(large))
    if not size:
        return large, {}
    kept: Groups = {}
    near: Groups = {}
    for turn in range(2):
        removed, better, parts = *_ask_who_belongs(build, notes, large), Groups()
        for label, members in large.items():
            gone, stay = removed[label], [one for one in members if one not in removed[label]]
            if len(gone) > PARTIAL * len(members) and turn:
                build.drop("validate", label, "no one point", f"{len(gone)} of {len(members)} members do not belong")
            elif len(gone) > PARTIAL * len(members):  # two points, maybe: each part has to hold by itself
                parts.setdefault(better[label], []).extend(stay)
                [(name, _)] = Counter(notes[one].label for one in gone).most_common(1)
                parts.setdefault(name or label, []).extend(gone)
            else:
                kept.setdefault(better[label], []).extend(stay)
                near.setdefault(better[label], []).extend(gone)
        large = {label: order(members) for label, members in parts.items()}
    for label in [label for label, members in kept.items() if len(members) < least]:
        build.drop("validate", label, "too few members are left")
        del kept[label]
    shown = {label: [*members[:6], *near.get(label, ())[:2]] for label, members in kept.items()}
    strange = {label: near.get(label, [])[:2] for label in kept}

    def show(label: str) -> Item:
        texts = [(one, build.text(one, BEGINNING)) for one in shown[label]]
        return Item([("label", label), *texts], values=shown[label])

    build.review("clusters", strange, show)
    kept = {label: [one for one in members if one not in strange[label]] for label, members in kept.items()}
    build.count("validate", len(groups), len(kept))
    return kept, near


def _ask_who_belongs(build: Build, notes: Notes, groups: Groups) -> tuple[Groups, dict[str, str]]:
    """Return the members of each group that do not belong to it, and a label for those that do."""
    recipe: Latent = build.recipe
    units = [
        Unit(
            (label, part),
            {"label": label},
            [(one, f"{notes[one].attribute}\n{build.text(one, BEGINNING)}") for one in part],
        )
        for label, members in groups.items()
        for part in slices(members, recipe.group.validate, OVERLAP)
    ]
    removed: Groups = {label: [] for label in groups}
    better = dict[str, str]()
    for unit, answer in build.ask("validate", units, most=1 + len(notes) // recipe.limits.min_positives):
        label, rows = unit.key[0], (answer or {}).get("members", {})
        removed[label] += [one for one, row in rows.items() if not row["belongs"] and one not in removed[label]]
        better.setdefault(label, ((answer or {}).get("better") or "").strip() or label)
    return removed, better


def _fit(build: Build, groups: Groups) -> Groups:
    """Return as many groups as there are to be queries: those whose members look least alike, and unlike each other.

    The paper chooses by variety of surface (D.3.4); this counts shared words.
    """
    recipe: Latent = build.recipe
    limits = recipe.limits
    fitting = {label: members for label, members in groups.items() if len(members) <= limits.max_positives}
    build.leave("select", "groups too large: their label says too little", len(groups) - len(fitting))
    variety = {
        label: _variety([{*words(build.text(one))} for one in members[:10]]) for label, members in fitting.items()
    }
    chosen: Groups = {}
    named, nearest = {label: {*words(label)} for label in fitting}, dict.fromkeys(fitting, 0.0)
    while len(chosen) < min(limits.queries, len(fitting)):
        left = (label for label in fitting if label not in chosen)
        best = max(left, key=lambda label: (variety[label] - nearest[label], label))
        chosen[best] = fitting[best]
        nearest = {label: max(near, _alike(named[label], named[best])) for label, near in nearest.items()}
    build.leave("select", "more groups than queries are wanted", len(fitting) - len(chosen))
    build.count("select", len(groups), len(chosen))
    if not chosen:
        raise DataError(f"no group is left after {build.describe()}; loosen recipe.toml, or look at dropped.jsonl")
    return chosen


def _alike(one: set[str], other: set[str]) -> float:
    """Return Jaccard's share of two sets of words."""
    return len(one & other) / max(1, len(one | other))


def _variety(texts: Sequence[set[str]]) -> float:
    pairs = [_alike(one, other) for place, one in enumerate(texts) for other in texts[:place]]
    return 1 - sum(pairs) / max(1, len(pairs))
