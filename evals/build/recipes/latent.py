"""The recipe `latent`: documents that share what none of them says, and queries that ask for it.

OBLIQ-Bench's Twitter-Conflict, WildChat-Errors and Math Meta-Program (section 3, appendices D.1 to
D.3): who carries an attribute, and which; equal ones get one label; each group is validated, gets a
query, and every pair is graded again. What is removed on the way stays in the corpus, as a near
miss. Where this differs from the paper, docs/decisions/ building.md says so.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, NamedTuple

from evals.build import pool_judging, queries
from evals.build.human_review import Item
from evals.build.pipeline import BuildPipeline, nearest_texts, overlapping_slices, stable_order
from evals.build.recipe import Recipe
from evals.build.types import Benchmark, StageInput
from tools.errors import DataError
from tools.lenses import get_lens
from tools.text import content_words

BEGINNING = (
    300  # characters of a member that a validator is shown beside what was written down of it
)
OVERLAP = (
    8  # members that the parts of a large group share, so that they are judged by the same majority
)
WAVE = 8  # calls that are made at a time where each should know what those before it wrote
PARTIAL = (
    0.3  # share of a group beyond which, once removed, nothing says that the rest has one point
)


@dataclass(frozen=True)
class Attribute:
    """What documents share without saying it."""

    lens: Annotated[
        str, "stance, failure or proof: wordings for all of this; empty where they are your own"
    ] = ""
    attribute: Annotated[str, "what is to be written down of a document"] = ""
    further: Annotated[dict[str, str], "what else is to be written down, by name"] = field(
        default_factory=dict
    )
    private: Annotated[list[str], "private fields of documents that are shown beside the text"] = (
        field(default_factory=list)
    )


@dataclass(frozen=True)
class ScreenSettings:
    """Which documents may be relevant; the others stay in the corpus as distractors."""

    kinds: Annotated[
        dict[str, str], "names of kinds, and what belongs to each; without any, all are read"
    ] = field(default_factory=dict)
    eligible: Annotated[list[str], "the kinds that may be relevant"] = field(default_factory=list)
    batch: Annotated[int, "documents in a call"] = 15


@dataclass(frozen=True)
class ExtractSettings:
    """Writing down the attribute."""

    batch: Annotated[int, "documents in a call; 1 for long ones"] = 15
    chars: Annotated[int, "characters of each document that are read; 0 all"] = 0


@dataclass(frozen=True)
class GroupSettings:
    """Giving equal attributes one label."""

    relabel: Annotated[
        bool, "label the descriptions anew, beside labels in use; else the labels they came with"
    ] = True
    batch: Annotated[int, "descriptions in a call that labels"] = 80
    labels: Annotated[int, "labels in a call that collapses"] = 150
    rounds: Annotated[int, "how often labels are collapsed at most"] = 3
    enough: Annotated[float, "share of labels that change, under which rounds end"] = 0.02
    merge: Annotated[
        int, "groups in a call that merges what is worded differently; 0 leaves that out"
    ] = 8
    validate: Annotated[int, "members in a call that validates a group; 0 leaves that out"] = 40


@dataclass(frozen=True)
class LatentRecipe(Recipe):
    """The sections of the recipe."""

    attribute: Attribute = field(default_factory=Attribute)
    screen: ScreenSettings = field(default_factory=ScreenSettings)
    extract: ExtractSettings = field(default_factory=ExtractSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    write: queries.WriteSettings = field(default_factory=queries.WriteSettings)
    judge: pool_judging.GradingSettings = field(default_factory=pool_judging.GradingSettings)
    pool: pool_judging.PoolingSettings = field(default_factory=pool_judging.PoolingSettings)


class AttributeNote(NamedTuple):
    """What was written down of a document."""

    attribute: str
    label: str


Notes = Mapping[str, AttributeNote]  # by doc_id
Groups = dict[str, list[str]]  # label -> documents, in the order of `stable_order`


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError, with the stage, where nothing is left."""
    recipe: LatentRecipe = build.recipe
    wording = recipe.attribute.attribute or get_lens(recipe.attribute.lens).annotate
    if not wording:
        raise DataError(
            "recipe.toml: [attribute] has neither a lens nor an attribute; say what documents share"
        )
    notes = _extract(build, wording, _screen(build, wording))
    build.limit_queries(len(notes) // max(1, recipe.limits.min_positives))
    groups = _collapse(build, notes, _label(build, notes))
    valid, near = _validate(build, notes, _merge(build, notes, groups))
    groups = _fit(build, valid)
    build.limit_queries(len(groups))
    drafts = [
        queries.QueryDraft(label, of, [notes[one].attribute for one in of])
        for label, of in groups.items()
    ]
    written = queries.write(build, recipe.write, drafts)
    find = nearest_texts({one: note.attribute for one, note in notes.items()})
    asked = list[pool_judging.GradingRequest]()
    for query, draft in written:  # a document may share the points of two groups, and has one label
        found = find(draft.describe(), recipe.judge.near + len(draft.members))
        beside = [one for one in found if one not in draft.members][: recipe.judge.near]
        members = [member for member in draft.members if member not in query.excluded]
        some = dict.fromkeys((*members, *near.get(draft.label, ()), *beside))
        asked.append(pool_judging.GradingRequest(query, list(some), members=members))
    gold = pool_judging.regrade(build, recipe.attribute.lens, asked)
    kept = [(query, draft) for query, draft in written if query.query_id in gold]
    left = [query for query, _ in kept]
    judgements = {"gold": gold} | pool_judging.pool(build, recipe.attribute.lens, left, gold)
    made_of = [
        {"query_id": query.query_id, "label": draft.label, "members": draft.members}
        for query, draft in kept
    ]
    attribute = _word_for_index(recipe.attribute.attribute)
    return build.finish(left, judgements, made_of, lens=recipe.attribute.lens, attribute=attribute)


def _word_for_index(attribute: str) -> str:
    """Return an attribute's own wording as the retriever `get_lens` takes it: one line, no `"`, more than one word.

    It stands in that retriever's name, in "...", and a single word there is the name of a lens.
    """
    wording = " ".join(attribute.replace('"', "'").split())
    if wording and " " not in wording:
        return f"what to write down: {wording}"
    return wording


def _screen(build: BuildPipeline, wording: str) -> list[str]:
    """Return the documents that may be relevant, each text once, in an order that is not the corpus's."""
    screen: ScreenSettings = build.recipe.screen
    doc_ids = stable_order(
        document for document in build.source.documents if document not in build.source.twins
    )
    if not screen.kinds:
        return doc_ids
    told = {"attribute": wording, "kinds": dict(screen.kinds)}
    sorted_as = dict[str, str]()
    units = (
        StageInput(some[0], told, build.passages(some))
        for some in overlapping_slices(doc_ids, screen.batch)
    )
    for _, answer in build.ask("screen", units):
        sorted_as |= {one: row["kind"] for one, row in answer.get("sorted", {}).items()}
    build.review(
        "screening",
        sorted_as,
        lambda one: Item([("document", build.text(one))], values=list(screen.kinds)),
    )
    eligible = [doc_id for doc_id in doc_ids if sorted_as.get(doc_id) in screen.eligible]
    for one, kind in sorted_as.items():
        if kind not in screen.eligible:
            build.drop("screen", one, kind)
    build.count("screen", len(doc_ids), len(eligible))
    return eligible


def _extract(build: BuildPipeline, wording: str, doc_ids: Sequence[str]) -> Notes:
    """Return what is written down of each document that has the attribute."""
    section = build.recipe.extract
    shown = build.recipe.attribute
    told = {"attribute": wording, "further": dict(shown.further)}
    notes = dict[str, AttributeNote]()
    batches = overlapping_slices(doc_ids, section.batch)
    units = (
        StageInput(some[0], told, build.passages(some, section.chars, shown.private))
        for some in batches
    )
    for _, answer in build.ask(
        "extract", units, most=-(-len(build.source.documents) // section.batch)
    ):
        for one, row in answer.get("found", {}).items():
            if row["attribute"].strip():
                notes[one] = AttributeNote(row["attribute"].strip(), row["label"].strip())
            else:
                build.drop("extract", one, "attribute absent")

    def show(one: str) -> Item:
        return Item([("document", build.text(one)), ("annotation", notes[one].attribute)])

    right = dict.fromkeys(notes, "right")
    build.review("annotation", right, show)
    left = {one: note for one, note in notes.items() if right[one] == "right"}
    build.drop_all(
        "extract",
        [one for one in notes if one not in left],
        "people find fault with its annotation",
    )
    build.count("extract", len(doc_ids), len(left))
    return left


def _label(build: BuildPipeline, notes: Notes) -> dict[str, str]:
    """Return the label of each document: the one it came with, or one that other batches know, too."""
    group: GroupSettings = build.recipe.group
    if not group.relabel:
        return {one: note.label for one, note in notes.items() if note.label}
    found = dict[str, str]()
    batches = overlapping_slices(list(notes), group.batch)
    for wave in [batches[:1], *overlapping_slices(batches[1:], WAVE)]:
        in_use = [label for label, _ in Counter(found.values()).most_common(group.batch)]
        units = [
            StageInput(some[0], {"in_use": in_use}, [(one, notes[one].attribute) for one in some])
            for some in wave
        ]
        for _, answer in build.ask(
            "label", units, most=-(-len(build.source.documents) // group.batch)
        ):
            labels = {one: row["label"].strip() for one, row in answer.get("labels", {}).items()}
            found |= {one: label for one, label in labels.items() if label}
    build.count("label", len(notes), len(found))
    return found


def _collapse(build: BuildPipeline, notes: Notes, labels: dict[str, str]) -> Groups:
    """Return groups of documents whose labels mean the same."""
    group: GroupSettings = build.recipe.group
    canonical = {label: label for label in labels.values()}
    most = group.rounds * (1 + len(notes) // group.labels)
    for turn in range(group.rounds):
        left = sorted(set(canonical.values()))
        examples = defaultdict[str, list[str]](list)
        for one, label in labels.items():
            examples[canonical[label]].append(notes[one].attribute)
        batches = [
            some for some in _near(left[:: 1 if turn % 2 else -1], group.labels) if len(some) > 1
        ]
        units = [
            StageInput(some[0], {"labels": {one: examples[one][:2] for one in some}})
            for some in batches
        ]
        moved = dict[str, str]()
        for _, answer in build.ask("collapse", units, most):
            rows = answer.get("collapsed", ())
            moved |= {
                row["label"]: row["canonical"] for row in rows if row["label"] != row["canonical"]
            }
        canonical = {label: _follow(moved, one) for label, one in canonical.items()}
        if len(moved) <= group.enough * len(left):
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
    find = nearest_texts({label: label for label in labels})
    left = dict.fromkeys(labels)
    lots = list[list[str]]()
    while left:
        first = next(iter(left))
        found = [one for one in find(first, 2 * size) if one in left]
        lots.append(list(dict.fromkeys([first, *found, *islice(left, size)]))[:size])
        for one in lots[-1]:
            del left[one]
    return lots


def _merge(build: BuildPipeline, notes: Notes, groups: Groups) -> Groups:
    """Return the groups with those joined that two readings, in different company, call the same."""
    size: int = build.recipe.group.merge
    if not size or len(groups) < 2:
        return groups
    described = {
        one: "\n".join([one, *(notes[doc].attribute for doc in of[:5])])
        for one, of in groups.items()
    }
    pairs = Counter[tuple[str, str]]()
    lots = [some for step in (1, -1) for some in _near(list(groups)[::step], size) if len(some) > 1]
    units = [StageInput(some[0], {}, [(one, described[one]) for one in some]) for some in lots]
    for unit, answer in build.ask("merge", units, most=2 * (1 + len(notes) // size)):
        shown = {str(number): label for number, (label, _) in enumerate(unit.passages, start=1)}
        for row in answer.get("merged", ()):
            ids = sorted(shown[one] for one in row["ids"] if one in shown)
            pairs.update((ids[0], id_) for id_ in ids[1:])
    moved = {second: first for (first, second), many in sorted(pairs.items()) if many > 1}
    joined: Groups = {}
    for label, members in groups.items():
        joined.setdefault(_follow(moved, label), []).extend(members)
    build.count("merge", len(groups), len(joined))
    return joined


def _validate(build: BuildPipeline, notes: Notes, groups: Groups) -> tuple[Groups, Groups]:
    """Return the groups without the members that do not belong, and these."""
    size = build.recipe.group.validate
    least = build.recipe.limits.min_positives
    large = {
        label: stable_order(members) for label, members in groups.items() if len(members) >= least
    }
    build.drop_all(
        "validate", [label for label in groups if label not in large], "groups too small"
    )
    if not size:
        return large, {}
    kept: Groups = {}
    near: Groups = {}
    for turn in range(2):
        removed, better, parts = *_ask_who_belongs(build, notes, large), Groups()
        for label, members in large.items():
            gone = removed[label]
            stay = [one for one in members if one not in removed[label]]
            if len(gone) > PARTIAL * len(members) and turn:
                build.drop(
                    "validate",
                    label,
                    "no one point",
                    f"{len(gone)} of {len(members)} members do not belong",
                )
            elif len(gone) > PARTIAL * len(
                members
            ):  # two points, maybe: each part has to hold by itself
                parts.setdefault(better[label], []).extend(stay)
                [(name, _)] = Counter(notes[one].label for one in gone).most_common(1)
                parts.setdefault(name or label, []).extend(gone)
            else:
                kept.setdefault(better[label], []).extend(stay)
                near.setdefault(better[label], []).extend(gone)
        large = {label: stable_order(members) for label, members in parts.items()}
    for label in [label for label, members in kept.items() if len(members) < least]:
        build.drop("validate", label, "too few members are left")
        del kept[label]
    shown = {label: [*members[:6], *near.get(label, ())[:2]] for label, members in kept.items()}
    strange = {label: near.get(label, [])[:2] for label in kept}
    build.review(
        "clusters", strange, lambda label: build.choice("label", label, shown[label], BEGINNING)
    )
    kept = {
        label: [member for member in members if member not in strange[label]]
        for label, members in kept.items()
    }
    build.count("validate", len(groups), len(kept))
    return kept, near


def _ask_who_belongs(
    build: BuildPipeline, notes: Notes, groups: Groups
) -> tuple[Groups, dict[str, str]]:
    """Return the members of each group that do not belong to it, and a label for those that do."""
    units = list[StageInput]()
    limits = build.recipe.limits
    for label, members in groups.items():
        for part in overlapping_slices(members, build.recipe.group.validate, OVERLAP):
            shown = [
                (one, f"{notes[one].attribute}\n{text}")
                for one, text in build.passages(part, BEGINNING)
            ]
            units.append(StageInput((label, part), {"label": label}, shown))
    removed: Groups = {label: [] for label in groups}
    better = dict[str, str]()
    for unit, answer in build.ask("validate", units, most=1 + len(notes) // limits.min_positives):
        label = unit.key[0]
        rows = answer.get("members", {})
        removed[label] += [
            one for one, row in rows.items() if not row["belongs"] and one not in removed[label]
        ]
        better.setdefault(label, answer.get("better", "").strip() or label)
    return removed, better


def _fit(build: BuildPipeline, groups: Groups) -> Groups:
    """Return as many groups as there are to be queries: those whose members look least alike, and unlike each other.

    The paper chooses by variety of surface (D.3.4); this counts shared words.
    """
    limits = build.recipe.limits
    fitting = {
        label: members for label, members in groups.items() if len(members) <= limits.max_positives
    }
    too_large = [label for label in groups if label not in fitting]
    build.drop_all("select", too_large, "groups too large: their label says too little")
    texts = {
        label: [{*content_words(build.text(member))} for member in members[:10]]
        for label, members in fitting.items()
    }
    variety = {label: _variety(some) for label, some in texts.items()}
    chosen: Groups = {}
    named = {label: {*content_words(label)} for label in fitting}
    nearest = dict.fromkeys(fitting, 0.0)
    while len(chosen) < min(limits.queries, len(fitting)):
        left = (label for label in fitting if label not in chosen)
        best = max(left, key=lambda label: (variety[label] - nearest[label], label))
        chosen[best] = fitting[best]
        nearest = {
            label: max(near, queries.jaccard(named[label], named[best]))
            for label, near in nearest.items()
        }
    unwanted = [label for label in fitting if label not in chosen]
    build.drop_all("select", unwanted, "more groups than queries are wanted")
    build.count("select", len(groups), len(chosen))
    build.demand(chosen, "group", "loosen recipe.toml, or look at dropped.jsonl")
    return chosen


def _variety(texts: Sequence[set[str]]) -> float:
    pairs = [
        queries.jaccard(text, other) for place, text in enumerate(texts) for other in texts[:place]
    ]
    return 1 - sum(pairs) / max(1, len(pairs))
