"""The recipe `latent`: documents that share an unstated trait, and queries that ask for it.

OBLIQ-Bench's Twitter-Conflict, WildChat-Errors and Math Meta-Program (section 4, appendices D.1 to
D.3): stages find who carries an attribute, and which; equal attributes get one label; each group is
validated, gets a query, and every pair is graded again. Documents that are removed on the way stay
in the corpus, as near misses. construction/docs/building.md says how this differs from the paper.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field

from sextant.environments.base import Grades
from sextant.evals.scoring.text_similarity import jaccard
from sextant.tools.errors import DataError
from sextant.tools.lenses import get_lens
from sextant.tools.records import Query
from sextant.tools.text import content_words
from sextant_construction import pool_judging, queries
from sextant_construction.human_review import Item
from sextant_construction.pipeline import (
    BuildPipeline,
    nearest_texts,
    overlapping_slices,
    stable_order,
)
from sextant_construction.recipe import Recipe
from sextant_construction.types import Benchmark, StageInput

# As benchmark.toml has it: it stands in the name of a retriever, where a word alone is a lens
ATTRIBUTE = r'^([^"]*\S\s+\S[^"]*)?$'
# Readings in which labels are collapsed, at most
ROUNDS = 3
# Characters of a member that a validator is shown next to its attribute.
BEGINNING = 300
# Members that the parts of a large group share, so that they are judged by the same majority.
OVERLAP = 8
# Calls that are made at a time if each should know the labels of those before it.
WAVE = 8
# Share of a group from which on, once removed, nothing says that the remaining members have one
# point.
PARTIAL = 0.3


@dataclass(frozen=True)
class AttributeSettings:
    """A trait that documents share without stating it."""

    lens: Annotated[
        str, "stance, failure or proof: wordings for all of this; empty where they are your own"
    ] = ""
    attribute: Annotated[
        str,
        "what is to be written down of a document: two words or more",
        Field(pattern=ATTRIBUTE),
    ] = ""
    further: Annotated[dict[str, str], "what else is to be written down, by name"] = field(
        default_factory=dict
    )
    private: Annotated[
        Sequence[str], "private fields of documents that are shown beside the text"
    ] = ()


@dataclass(frozen=True)
class ScreenSettings:
    """Which documents may be relevant; the others stay in the corpus as distractors."""

    kinds: Annotated[
        dict[str, str], "names of kinds, and what belongs to each; without any, all are read"
    ] = field(default_factory=dict)
    eligible: Annotated[Sequence[str], "the kinds that may be relevant"] = ()
    batch: Annotated[int, "documents in a call"] = 15


@dataclass(frozen=True)
class ExtractSettings:
    """Writing down the attribute."""

    batch: Annotated[int, "documents in a call; 1 for long ones"] = 15
    label_words: Annotated[str, "how many words a label has"] = "three to eight"


@dataclass(frozen=True)
class GroupSettings:
    """Giving equal attributes the same label."""

    relabel: Annotated[
        bool, "label the descriptions anew, beside labels in use; else the labels they came with"
    ] = True
    batch: Annotated[int, "descriptions in a call that labels"] = 80
    labels: Annotated[int, "labels in a call that collapses"] = 150
    merge: Annotated[
        int, "groups in a call that merges what is worded differently; 0 leaves that out"
    ] = 8
    validate: Annotated[int, "members in a call that validates a group; 0 leaves that out"] = 40


@dataclass(frozen=True)
class LatentRecipe(Recipe):
    """The sections of the recipe."""

    attribute: AttributeSettings = AttributeSettings()
    screen: ScreenSettings = ScreenSettings()
    extract: ExtractSettings = ExtractSettings()
    group: GroupSettings = GroupSettings()
    write: queries.WriteSettings = queries.WriteSettings()
    judge: pool_judging.GradingSettings = pool_judging.GradingSettings()
    pool: pool_judging.PoolingSettings = pool_judging.PoolingSettings()

    def preset(self) -> Self:
        """Return the recipe with the values of the paper's task that has its lens, if any."""
        sections = PRESETS.get(self.attribute.lens, {})
        changed = {
            name: replace(getattr(self, name), **values) for name, values in sections.items()
        }
        return replace(self, **changed)


# What the paper's tasks have in place of the defaults, by lens and section: `new` writes it into
# recipe.toml.
PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # Section 4 and appendix D.1
    "stance": {
        "screen": {
            "kinds": {
                "implied": "it takes a position that it does not state",
                "stated": "it states its position or feeling outright",
                "news": "it reports or passes on news",
            },
            "eligible": ["implied"],
        },
        "group": {"merge": 0, "validate": 0},
        "write": {"words": [10, 15]},
    },
    # Appendix D.2: a conversation a call, whose labels are collapsed as they are
    "failure": {
        "extract": {"batch": 1},
        "group": {"relabel": False, "merge": 0, "validate": 0},
        "write": {"style": "a researcher's: Find conversations where the AI ..."},
    },
    # Appendix D.3.1: six fields, of which the attribute and its label are two
    "proof": {
        "attribute": {
            "further": {
                "skeleton": (
                    "the outline of the proof, in no words of its field: count pairs in two ways, "
                    "compare the sums; or: take the smallest counterexample, make a smaller one"
                ),
                "insight": "in a sentence, the observation that unlocks the problem",
                "family": (
                    "algebra, combinatorics, geometry, number theory, real analysis, linear "
                    "algebra, probability or game theory"
                ),
                "difficulty": "easy, medium or hard",
            },
            "private": ["solution"],
        },
        "extract": {"batch": 1, "label_words": "at most twenty"},
        "group": {"relabel": False},
        "write": {"of": "member"},
    },
}


class AttributeNote(NamedTuple):
    """The attribute of a document, in words, and its label."""

    attribute: str
    label: str


Notes = Mapping[str, AttributeNote]  # by doc_id
Groups = dict[str, list[str]]  # label -> documents, in the order of `stable_order`


def build_benchmark(build: BuildPipeline) -> Benchmark:
    """Go through the stages. DataError, with the stage, if nothing is left."""
    recipe: LatentRecipe = build.recipe
    lens = recipe.attribute.lens
    wording = recipe.attribute.attribute or get_lens(lens).annotate
    if not wording:
        raise DataError(
            "recipe.toml: [attribute] has neither a lens nor an attribute; say what documents share"
        )
    notes = _extract(build, wording, _screen(build, wording))
    build.limit_queries(len(notes) // max(1, recipe.limits.min_positives))
    groups = _collapse(build, notes, _label(build, notes))
    groups = _validate(build, notes, _merge(build, notes, groups))
    groups = _select_groups(build, groups)
    build.limit_queries(len(groups))
    drafts = [
        queries.QueryDraft(
            label,
            members,
            [notes[doc_id].attribute for doc_id in members],
        )
        for label, members in groups.items()
    ]
    written = queries.write(build, recipe.write, drafts)
    gold = _grade_groups(build, notes, written)
    accepted = {query: draft for query, draft in written if query.query_id in gold}
    pooled = pool_judging.pool(build, lens, [*accepted], gold)
    provenance = [
        {"query_id": query.query_id, "label": draft.label, "members": draft.members}
        for query, draft in accepted.items()
    ]
    return build.finish(
        [*accepted],
        {"gold": gold, **pooled},
        provenance,
        lens=lens,
        attribute=" ".join(recipe.attribute.attribute.split()),
    )


def _grade_groups(
    build: BuildPipeline,
    notes: Notes,
    written: Sequence[tuple[Query, queries.QueryDraft]],
) -> Grades:
    """Return the grades of each query's group, and of documents described alike.

    A document may share the points of two groups, and has one label: so documents outside of the
    group are graded, too.
    """
    recipe: LatentRecipe = build.recipe
    find_nearest = nearest_texts({doc_id: note.attribute for doc_id, note in notes.items()})
    requests = []
    for query, draft in written:
        nearest = find_nearest(draft.describe(), recipe.judge.near + len(draft.members))
        outside = [doc_id for doc_id in nearest if doc_id not in draft.members]
        members = [member for member in draft.members if member not in query.excluded]
        candidates = [*members, *outside[: recipe.judge.near]]
        requests.append(pool_judging.GradingRequest(query, candidates, members=members))
    return pool_judging.regrade(build, recipe.attribute.lens, requests)


def _screen(build: BuildPipeline, wording: str) -> list[str]:
    """Return the documents that may be relevant, each text once, in `stable_order`."""
    screen: ScreenSettings = build.recipe.screen
    doc_ids = build.distinct_documents()
    if not screen.kinds:
        return doc_ids
    inputs = {"attribute": wording, "kinds": dict(screen.kinds)}
    batches = map(build.passages, overlapping_slices(doc_ids, screen.batch))
    rows = build.ask_rows("screen", batches, inputs)
    category_of = {doc_id: row["kind"] for doc_id, row in rows}
    categories = list(screen.kinds)
    build.review(
        "screening",
        category_of,
        lambda doc_id: Item([("document", build.text(doc_id))], values=categories),
    )
    eligible = [doc_id for doc_id in doc_ids if category_of.get(doc_id) in screen.eligible]
    for doc_id, category in category_of.items():
        if category not in screen.eligible:
            build.drop("screen", doc_id, category)
    build.count("screen", len(doc_ids), len(eligible))
    return eligible


def _extract(build: BuildPipeline, wording: str, doc_ids: Sequence[str]) -> Notes:
    """Return the note on each document that has the attribute."""
    settings: ExtractSettings = build.recipe.extract
    attribute: AttributeSettings = build.recipe.attribute
    inputs = {
        "attribute": wording,
        "further": dict(attribute.further),
        "label_words": settings.label_words,
    }
    batches = (
        build.passages(batch, private=attribute.private)
        for batch in overlapping_slices(doc_ids, settings.batch)
    )
    notes = {}
    most = math.ceil(len(build.source.documents) / settings.batch)
    for doc_id, row in build.ask_rows("extract", batches, inputs, most):
        description = row["attribute"].strip()
        if description:
            notes[doc_id] = AttributeNote(description, row["label"].strip())
        else:
            build.drop("extract", doc_id, "attribute absent")
    verdicts = dict.fromkeys(notes, "right")
    build.review(
        "annotation",
        verdicts,
        lambda doc_id: Item(
            [("document", build.text(doc_id)), ("annotation", notes[doc_id].attribute)]
        ),
    )
    wrong = [doc_id for doc_id, verdict in verdicts.items() if verdict != "right"]
    build.drop_all("extract", wrong, "people find fault with its annotation")
    for doc_id in wrong:
        del notes[doc_id]
    build.count("extract", len(doc_ids), len(notes))
    return notes


def _label(build: BuildPipeline, notes: Notes) -> dict[str, str]:
    """Return the label of each document: it came with the note, or other batches know it, too."""
    group: GroupSettings = build.recipe.group
    if not group.relabel:
        return {doc_id: note.label for doc_id, note in notes.items() if note.label}
    labels: dict[str, str] = {}
    batches = overlapping_slices(list(notes), group.batch)
    most = math.ceil(len(build.source.documents) / group.batch)
    for wave in [batches[:1], *overlapping_slices(batches[1:], WAVE)]:
        in_use = [label for label, _ in Counter(labels.values()).most_common(group.batch)]
        described = [[(doc_id, notes[doc_id].attribute) for doc_id in batch] for batch in wave]
        rows = build.ask_rows("label", described, {"in_use": in_use}, most)
        labels |= {doc_id: row["label"].strip() for doc_id, row in rows if row["label"].strip()}
    build.count("label", len(notes), len(labels))
    return labels


def _collapse(
    build: BuildPipeline,
    notes: Notes,
    labels: dict[str, str],
) -> Groups:
    """Return groups of documents whose labels mean the same."""
    group: GroupSettings = build.recipe.group
    canonical = {label: label for label in labels.values()}
    most = ROUNDS * (1 + len(notes) // group.labels)
    for turn in range(ROUNDS):
        # Every other round goes through the labels from the other end, so that the lots differ.
        remaining = sorted(set(canonical.values()), reverse=turn % 2 == 0)
        examples = defaultdict(list)
        for doc_id, label in labels.items():
            examples[canonical[label]].append(notes[doc_id].attribute)
        units = []
        for lot in _cut_into_lots(remaining, group.labels):
            inputs = {"labels": {label: examples[label][:2] for label in lot}}
            units.append(StageInput(lot[0], inputs))
        moved = {
            row["label"]: row["canonical"]
            for _, answer in build.ask("collapse", units, most)
            for row in answer.get("collapsed", ())
            if row["label"] != row["canonical"]
        }
        canonical = {label: _follow(moved, target) for label, target in canonical.items()}
        if not moved:
            break
    groups: Groups = {}
    for doc_id, label in labels.items():
        groups.setdefault(canonical[label], []).append(doc_id)
    build.count(
        "collapse",
        len(set(labels.values())),
        len(groups),
    )
    return groups


def _follow(moved: Mapping[str, str], label: str) -> str:
    """Return the end of a chain of labels; of a circle, the first label in the alphabet."""
    chain = [label]
    while (after := moved.get(chain[-1])) and after not in chain:
        chain.append(after)
    if not after:
        return chain[-1]
    return min(chain[chain.index(after) :])


def _cut_into_lots(labels: Sequence[str], size: int) -> list[list[str]]:
    """Cut labels into lots of at most `size`; labels that share words come together.

    A lot of a single label is left out: there is nothing to compare it with.
    """
    if len(labels) <= size:
        return [list(labels)] if len(labels) > 1 else []
    find_nearest = nearest_texts({label: label for label in labels})
    remaining = dict.fromkeys(labels)
    lots = []
    while remaining:
        first = next(iter(remaining))
        nearest = [label for label in find_nearest(first, 2 * size) if label in remaining]
        lot = list(
            dict.fromkeys(
                [
                    first,
                    *nearest,
                    *islice(remaining, size),
                ]
            )
        )[:size]
        lots.append(lot)
        for label in lot:
            del remaining[label]
    return [lot for lot in lots if len(lot) > 1]


def _merge(build: BuildPipeline, notes: Notes, groups: Groups) -> Groups:
    """Return the groups with those joined that two readings, in different company, call the same."""
    size: int = build.recipe.group.merge
    if not size or len(groups) < 2:
        return groups
    described = {
        label: "\n".join([label, *(notes[doc_id].attribute for doc_id in members[:5])])
        for label, members in groups.items()
    }
    units = []
    for step in (1, -1):
        for lot in _cut_into_lots(list(groups)[::step], size):
            units.append(
                StageInput(
                    lot[0],
                    {},
                    [(label, described[label]) for label in lot],
                )
            )
    readings = Counter[tuple[str, str]]()
    for unit, answer in build.ask(
        "merge",
        units,
        most=2 * (1 + len(notes) // size),
    ):
        shown = {str(number): label for number, (label, _) in enumerate(unit.passages, start=1)}
        for row in answer.get("merged", ()):
            labels = sorted(shown[number] for number in row["ids"] if number in shown)
            readings.update((labels[0], label) for label in labels[1:])
    moved = {second: first for (first, second), times in sorted(readings.items()) if times > 1}
    joined: Groups = {}
    for label, members in groups.items():
        joined.setdefault(_follow(moved, label), []).extend(members)
    build.count("merge", len(groups), len(joined))
    return joined


def _validate(build: BuildPipeline, notes: Notes, groups: Groups) -> Groups:
    """Return the groups without the members that do not belong.

    Of a group that loses more than `PARTIAL`, nothing says that the others have one point, nor of a
    group that loses too many: they are dropped.
    """
    least = build.recipe.limits.min_positives
    large = {label: members for label, members in groups.items() if len(members) >= least}
    small = [label for label in groups if label not in large]
    build.drop_all("validate", small, "groups too small")
    if not build.recipe.group.validate:
        return {label: stable_order(members) for label, members in large.items()}
    units = []
    for label, members in large.items():
        for batch in overlapping_slices(
            stable_order(members), build.recipe.group.validate, OVERLAP
        ):
            passages = [
                (doc_id, f"{notes[doc_id].attribute}\n{text}")
                for doc_id, text in build.passages(batch, BEGINNING)
            ]
            units.append(StageInput(label, {"label": label}, passages))
    removed = defaultdict[str, set[str]](set)
    better: dict[str, str] = {}
    for unit, answer in build.ask("validate", units, most=1 + len(notes) // least):
        rows = answer.get("members", {})
        removed[unit.key] |= {doc_id for doc_id, row in rows.items() if not row["belongs"]}
        better.setdefault(unit.key, answer.get("better", "").strip() or unit.key)
    valid = defaultdict[str, set[str]](set)
    strangers = defaultdict[str, set[str]](set)
    for label, members in large.items():
        staying = {*members} - removed[label]
        if len(removed[label]) > PARTIAL * len(members) or len(staying) < least:
            evidence = f"{len(removed[label])} of {len(members)} members do not belong"
            build.drop("validate", label, "no one point", evidence)
        else:
            valid[better[label]] |= staying
            strangers[better[label]] |= removed[label]
    found = {label: stable_order(members) for label, members in valid.items()}
    _ask_people(build, found, strangers)
    build.count("validate", len(groups), len(found))
    return found


def _ask_people(
    build: BuildPipeline, groups: Groups, strangers: Mapping[str, Collection[str]]
) -> None:
    """Take out of the groups those whom people find strange among the first members."""
    strange = {label: stable_order(strangers[label])[:2] for label in groups}
    shown = {label: [*members[:6], *strange[label]] for label, members in groups.items()}
    build.review(
        "clusters",
        strange,
        lambda label: build.choice("label", label, shown[label], BEGINNING),
    )
    for label, named in strange.items():
        groups[label] = [member for member in groups[label] if member not in named]


def _select_groups(build: BuildPipeline, groups: Groups) -> Groups:
    """Return up to `limits.queries` groups: those whose members look least alike.

    The paper chooses by variety of surface (D.3.4); this counts shared words.
    """
    limits = build.recipe.limits
    fitting = {
        label: members for label, members in groups.items() if len(members) <= limits.max_positives
    }
    too_large = [label for label in groups if label not in fitting]
    build.drop_all("select", too_large, "groups too large: their label says too little")
    variety = {}
    for label, members in fitting.items():
        words = [{*content_words(build.text(member))} for member in members[:10]]
        similarities = [
            jaccard(text, earlier)
            for position, text in enumerate(words)
            for earlier in words[:position]
        ]
        variety[label] = 1 - sum(similarities) / max(1, len(similarities))
    best = sorted(fitting, key=lambda label: (variety[label], label), reverse=True)
    chosen = {label: fitting[label] for label in best[: limits.queries]}
    unwanted = [label for label in fitting if label not in chosen]
    build.drop_all("select", unwanted, "more groups than queries are wanted")
    build.count("select", len(groups), len(chosen))
    build.demand(chosen, "group", "loosen recipe.toml, or look at dropped.jsonl")
    return chosen
