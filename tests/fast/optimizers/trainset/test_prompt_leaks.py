"""Text of wanted documents and judged queries in a compiled prompt is found, against a search of all pairs."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sextant.environments import load
from sextant.optimizers.trainset.prompt_leaks import LeakSource, collect_passages, find_leaks
from sextant.optimizers.trainset.splits import split_dev
from sextant.tools.text import tokens

SECRET = (
    "the clerk read the names of nineteen ferries aloud and nobody in the room could say "
    "which of them still sailed"
)


def passage(text, owner="D1", split="train", kind="gold document"):
    return LeakSource(kind, split, owner, text)


def test_a_quotation_longer_than_the_bound_is_found_with_where_it_stands_and_whose_it_is():
    prompt = {
        "reader.next_search instructions": "Write a search.",
        "reader.next_search demo 2": f"An example: {SECRET.upper()}, and so on.",
    }
    passages = [
        passage(f"Before that, {SECRET}. After it came lunch."),
        passage("Something else.", owner="D2"),
    ]
    (found,) = find_leaks(prompt, passages)
    assert found == {
        "piece": "reader.next_search demo 2",
        "kind": "gold document",
        "split": "train",
        "owner": "D1",
        "text": SECRET,
        "length": 21,
    }


def own(training):
    parts = (("train", training.train), ("validation", training.validation))
    return [
        one
        for split, queries in parts
        for one in collect_passages(split, queries, training.environment)
    ]


def of_test(task):
    test = load(task, "mini", "test")
    return collect_passages("test", test.queries, test)


few_words = st.lists(st.sampled_from("abc"), max_size=25).map(" ".join)


@settings(max_examples=300)
@given(
    texts=st.dictionaries(st.sampled_from("xyz"), few_words),
    texts_of=st.lists(few_words, max_size=3),
    bound=...,
)
@example(texts={"x": "a a a a a"}, texts_of=["a a a"], bound=2)
def test_lengths_are_those_of_the_longest_common_run_of_all_pairs(texts, texts_of, bound: int):
    bound = abs(bound) % 6
    passages = [passage(text, owner=f"D{number}") for number, text in enumerate(texts_of)]
    expected = {
        (piece, f"D{number}"): longest
        for piece, text in texts.items()
        for number, other in enumerate(texts_of)
        if (longest := longest_common_run(text.split(), other.split())) > bound
    }
    found = find_leaks(texts, passages, bound=bound)
    assert {(leak["piece"], leak["owner"]): leak["length"] for leak in found} == expected
    for leak in found:
        assert len(leak["text"].split()) == leak["length"]
        assert (
            leak["text"] in texts[leak["piece"]]
            and leak["text"] in texts_of[int(leak["owner"][1:])]
        )


def longest_common_run(one, other):
    """By the textbook's table: the length of the run that ends with word i of the one and word j of the other."""
    best, above = 0, [0] * (len(other) + 1)
    for word in one:
        row = [0] * (len(other) + 1)
        for j, match in enumerate(other, start=1):
            row[j] = above[j - 1] + 1 if word == match else 0
        best, above = max(best, *row), row
    return best


def test_the_passages_of_a_handle_are_its_queries_and_what_is_wanted_for_them():
    training = split_dev("congress", "mini")
    found = own(training)
    for split, queries in (("train", training.train), ("validation", training.validation)):
        mine = [one for one in found if one.split == split]
        asked = [(one.owner, one.text) for one in mine if one.kind == "query"]
        assert asked == [(query.query_id, query.text) for query in queries]
        judged = [training.environment.qrels[query.query_id] for query in queries]
        wanted = {doc_id for grades in judged for doc_id, grade in grades.items() if grade >= 1}
        documents = [one for one in found if one.split == split and one.kind == "gold document"]
        assert sorted(one.owner for one in documents) == sorted(wanted)
        assert all(training.environment.documents[one.owner].text in one.text for one in documents)
    assert {one.split for one in found} == {"train", "validation"}


def test_a_demo_of_train_is_told_from_text_of_test():
    training = split_dev("congress", "mini")
    test = load("congress", "mini", "test")
    texts = {
        "demo 1": training.train[0].text,
        "instructions": f"Look for this: {test.queries[0].text}",
    }
    found = find_leaks(texts, [*own(training), *of_test("congress")])
    assert {(leak["piece"], leak["kind"], leak["split"], leak["owner"]) for leak in found} == {
        ("demo 1", "query", "train", training.train[0].query_id),
        ("instructions", "query", "test", test.queries[0].query_id),
    }
    longest = max(len(tokens(text)) for text in (training.train[0].text, test.queries[0].text))
    assert found[0]["split"] == "test" and max(leak["length"] for leak in found) == longest


def test_the_instructions_of_the_programs_quote_no_miniature():
    import dspy

    from sextant.programs import decompose, multihop, query_rewriting

    signatures = {
        name: signature.instructions
        for module in (decompose, multihop, query_rewriting)
        for name, signature in vars(module).items()
        if isinstance(signature, type) and issubclass(signature, dspy.Signature)
    }
    assert signatures
    for task in ("congress", "writing", "set_ops", "relic", "books:complexity"):
        passages = [*own(split_dev(task, "mini")), *of_test(task)]
        assert find_leaks(signatures, passages, bound=8) == []
