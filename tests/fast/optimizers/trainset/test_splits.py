"""What an optimizer is given of a task: which queries, how divided, and that nothing of test can be reached from it."""

import copy
import dataclasses
import gc
import itertools
import json
import math
import random
import types

import pytest
from conftest import lines

from sextant.environments import load
from sextant.environments.base import DevSplit
from sextant.evals.scoring.text_similarity import FEW, RUN, compare, similarities
from sextant.optimizers.trainset.splits import NEAR, split_dev
from sextant.tools.corpus import Corpus
from sextant.tools.errors import UnknownName, UsageError
from sextant.tools.text import content_words

# At least one task of each suite, with pools, MaxP, comparisons, twins, merged texts and exclusions among them.
TASKS = "congress wildchat writing set_ops legal_qa:document relic arguana:corpus books:complexity people:format"


def test_dev_is_divided_in_the_order_of_a_hash_and_nothing_is_lost_or_in_both_parts():
    training = split_dev("congress", "mini")
    dev = {query.query_id for query in load("congress", "mini", "dev").queries}
    train, validation = (
        {query.query_id for query in part} for part in (training.train, training.validation)
    )
    assert (len(train), len(validation)) == (6, 6)
    assert train | validation == dev and not train & validation
    # The same rule as that of a dev split, which is tested with ids written out.
    assert train == set(DevSplit("0", 0.5).choose(sorted(dev), "dev"))


@pytest.mark.parametrize(
    ("share", "limit", "sizes"),
    [
        (0.5, None, (6, 6)),
        (0.75, None, (9, 3)),
        (0.01, None, (1, 11)),
        (0.99, None, (11, 1)),
        (0.5, 2, (1, 1)),
    ],
)
def test_each_part_has_its_share_and_at_least_one_query(share, limit, sizes):
    training = split_dev("congress", "mini", share=share, limit=limit)
    assert (len(training.train), len(training.validation)) == sizes


def test_the_division_and_its_digest_depend_on_seed_share_limit_and_data_and_on_nothing_else(
    folder,
):
    same = split_dev("congress", "mini", seed=3)
    assert same == dataclasses.replace(
        split_dev("congress", "mini", seed=3), environments=same.environments
    )
    others = [
        split_dev("congress", "mini"),
        split_dev("congress", "mini", seed=4),
        split_dev("congress", "mini", seed=3, share=0.4),
        split_dev("congress", "mini", seed=3, limit=11),
        split_dev("congress", "mini", seed=3, instruction="none"),
        split_dev("writing", "mini", seed=3),
    ]
    digests = [training.digest for training in (same, *others)]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 8 and int(digest, 16) >= 0 for digest in digests)


def ask(folder, texts, wanted=None):
    """Write a task with these queries, each of which wants one document, or those of `wanted`."""
    place = folder / "tip-of-tongue/congress/queries+qrels"
    wanted = wanted or {query_id: (f"D{number % 7}",) for number, query_id in enumerate(texts)}
    lines(
        place / "queries.jsonl",
        [json.dumps({"_id": query_id, "text": text}) for query_id, text in texts.items()],
    )
    rows = [f"{query_id}\t{doc_id}\t1" for query_id in texts for doc_id in wanted[query_id]]
    lines(place / "qrels.tsv", ["query-id\tcorpus-id\tscore", *rows])


def unlike(ids):
    return {one: f"Something about thing{one}, and of what became of other{one}?" for one in ids}


def ask_in_groups(folder, needs):
    """A task of 100 queries, of which so many in turn want the same two documents; query_id -> those documents."""
    pairs = list(itertools.combinations([f"D{n}" for n in range(7)], 2))[:needs]
    wanted = {f"Q{n:02}": pairs[n % needs] for n in range(100)}
    ask(folder, unlike(wanted), wanted)
    return wanted


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        (
            {f"Q{n}": f"Thing {n}" for n in range(2)},
            r"has no dev queries \(of 2 in all\); use another task",
        ),
        (
            {f"Q{n}": f"Thing {n}" for n in range(5)},
            r"has 1 dev query, .* needs at least 2",
        ),
        (
            {f"Q{n}": "A ferry in the fog." for n in range(10)},
            r"has 2 dev queries, 2 of them near repeats of a test query",
        ),
    ],
)
def test_too_few_dev_queries_are_refused_in_one_line_that_says_how_many_there_are(
    folder, queries, said
):
    ask(folder, queries)
    with pytest.raises(UsageError, match=said) as refused:
        split_dev("congress", str(folder))
    assert "\n" not in str(refused.value) and "another task" in str(refused.value)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.95])
@pytest.mark.parametrize("needs", [2, 3, 7, 20])
def test_queries_that_want_the_same_documents_are_in_one_part(folder, needs, share):
    wanted = ask_in_groups(folder, needs)
    for seed in range(3):
        training = split_dev("congress", str(folder), seed=seed, share=share)
        train, validation = (
            [query.query_id for query in part] for part in (training.train, training.validation)
        )
        needed = [{wanted[query_id] for query_id in part} for part in (train, validation)]
        assert not needed[0] & needed[1] and all(needed)
        assert len({*train, *validation}) == len(train) + len(validation) == 20
        largest = max(
            sum(wanted[one] == need for one in (*train, *validation)) for need in wanted.values()
        )
        assert len(needed[0]) == 1 or len(train) <= round(share * 20)
        assert len(needed[1]) == 1 or len(train) > round(share * 20) - largest
        assert not training.one_need


def test_where_all_want_the_same_they_are_divided_all_the_same_and_it_is_said(folder):
    ask_in_groups(folder, 1)
    for training in (split_dev("congress", str(folder)), split_dev("books:complexity", "mini")):
        assert training.one_need
        assert len(training.train) == len(training.validation) > 1


CLIP = "My coworker mentioned a clip that she shows to trainees about how to make a powerful person feel small"
OTHERS = [
    "Somebody asks a farmer about the price of a harvest that never came in, and he laughs",
    "A long evening where an engineer explains why the bridge was closed to lorries",
    "There was a nurse who counted beds aloud until the room went quiet",
    CLIP,
]


@pytest.mark.parametrize(
    "repeat",
    [
        CLIP,
        CLIP.replace(" ", "\n  ").replace(",", ";"),
        CLIP.replace("coworker", "colleague").replace("powerful", "mighty"),
        " ".join(reversed(CLIP.split())),
        "feel small, a powerful person: how to make. A clip that my coworker shows to trainees, she mentioned",
        CLIP
        + ". I think it was from a hearing some years ago, late in the day, with half of the seats empty.",
        "Please help me find this, it is driving me mad and I have looked everywhere already. "
        + CLIP,
        " ".join(CLIP.split()[5:]),
    ],
)
def test_a_changed_cut_lengthened_or_reordered_query_nearly_repeats_it(repeat):
    assert similarities([repeat], OTHERS)[0] >= NEAR


def test_equal_texts_are_wholly_alike_even_without_words():
    for text in (CLIP, "x = y", "?", "of the", "是"):
        assert similarities([text], ["z = w", text]) == [1.0]


def test_what_every_query_of_a_task_begins_with_makes_no_repeat():
    topics = [" ".join(f"{letter}{n}" for letter in "abcd") for n in range(30)]
    asked = [f"Find problems that can be solved with the same idea as {topic}" for topic in topics]
    assert max(similarities(asked[:10], asked[10:])) < NEAR


def test_similarities_are_those_of_all_pairs_by_the_definition():
    generator = random.Random(5)
    vocabulary = [f"w{n}" for n in range(30)]
    texts = [" ".join(generator.choices(vocabulary, k=generator.randint(1, 25))) for _ in range(25)]
    dev, test = texts[:10], texts[10:]
    expected = [max(similarity(one, other, dev + test) for other in test) for one in dev]
    assert similarities(dev, test) == pytest.approx(expected)
    assert any(value >= NEAR for value in expected) and any(value < NEAR for value in expected)
    assert [row.tolist() for row in compare(texts)] == [
        pytest.approx([similarity(one, other, texts) for other in texts]) for one in texts
    ]


def similarity(one, other, everything):
    """The definition at the top of evals/scoring/text_similarity.py, written again."""
    shares = []
    for features, weigh in ((runs_of, min), (lambda text: set(content_words(text)), max)):
        counted = [features(text) for text in everything]
        count = max(len(everything), FEW)

        def weight(found, counted=counted, count=count):
            total = 0.0
            for feature in found:
                having = sum(feature in features for features in counted)
                total += math.log(1 + (count - having + 0.5) / (having + 0.5))
            return total

        a, b = features(one), features(other)
        shares.append(weight(a & b) / weigh(weight(a), weight(b)))
    return max(shares)


def runs_of(text):
    found = content_words(text)
    return {tuple(found[n : n + RUN]) for n in range(max(1, len(found) - RUN + 1))}


def test_a_near_repeat_is_left_out_of_dev_and_said_without_the_test_query(folder):
    topics = {
        f"Q{n}": " ".join(f"{letter}{n}" for letter in ("alpha", "beta", "gamma", "delta"))
        for n in range(40)
    }
    ask(folder, topics)
    dev, test = (load("congress", str(folder), split) for split in ("dev", "test"))
    assert not split_dev("congress", str(folder)).left_out
    copied, original = dev.queries[3].query_id, test.queries[5].text
    ask(folder, topics | {copied: f"{original} and more"})
    training = split_dev("congress", str(folder))
    assert list(training.left_out) == [copied]
    assert NEAR <= training.left_out[copied] <= 1
    assert copied not in {query.query_id for query in training.environment.queries}
    assert len(training.train) + len(training.validation) == len(dev.queries) - 1
    assert copied not in training.environment.qrels
    assert not known_of(test, training)


def known_of(test, handle):
    """Ids and texts of queries of `test` that are reached from `handle` by following references.

    Not followed are modules, types, the globals of functions, and documents, which dev and test share.
    """
    documents = test.documents
    everybody = set(documents) | {document.text for document in documents.values()}
    secret = {text for query in test.queries for text in (query.query_id, query.text)} - everybody
    seen, todo = {}, [handle]
    while todo:
        thing = todo.pop()
        if id(thing) not in seen and not isinstance(thing, types.ModuleType | type | Corpus):
            seen[id(thing)] = thing
            own = (
                [thing.__closure__, thing.__defaults__]
                if isinstance(thing, types.FunctionType)
                else None
            )
            todo += own or gc.get_referents(thing)
    return secret & {thing for thing in seen.values() if isinstance(thing, str)}


@pytest.mark.parametrize("task", TASKS.split())
def test_nothing_of_test_is_reached_from_the_handle_nor_got_at_by_its_own_means(task):
    training, test = split_dev(task, "mini"), load(task, "mini", "test")
    environment = training.environment
    assert not training.left_out and environment.fingerprint, "what is lazy has been asked for"
    assert not known_of(test, (training, dataclasses.asdict(training)))
    if task == "congress":  # whose queries are no documents
        assert known_of(test, (training, [load(task, "mini", "all")])), "it would be found"
    assert copy.deepcopy(training) is training, "a corpus is not copied"

    ours = {query.query_id for query in (*training.train, *training.validation)}
    theirs = {query.query_id for query in test.queries}
    assert not ours & theirs
    for query_id in theirs:
        with pytest.raises(UnknownName) as refused:
            environment.asking(query_ids=[query_id])
        # The message repeats what was asked and may offer ids, of ours alone.
        assert not theirs & {
            word.strip("',;?") for word in str(refused.value).partition("called")[2].split()[1:]
        }
    for split in ("dev", "test", "all"):
        widened = environment.narrow(DevSplit("any", 0.5), split)
        assert {query.query_id for query in widened.queries} | set(widened.qrels) <= ours
    assert {query.query_id for query in environment.queries} == ours and environment.split == "dev"
    for judgements in environment.judgements.values():
        assert set(judgements.qrels) <= ours and set(judgements.binary or ()) <= ours
    assert (
        set(environment.comparisons) <= ours
        and {*environment.twins, *environment.twins.values()} <= ours
    )
