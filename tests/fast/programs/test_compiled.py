"""A compiled program as a file: what is written is what is read, and what does not fit is refused with the reason."""

import json

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.programs.compiled import (
    NAME,
    Compiled,
    NearestDemonstrations,
    NeighbourExample,
    Prompt,
    get_prompts,
    read,
    write,
)
from sextant.programs.multihop import MultiHop
from sextant.tools.errors import DataError, UsageError
from sextant.tools.records import Query
from sextant.tools.retrievers.lexical.bm25 import BM25
from sextant.tools.session import Toolbox

# Any text: control characters, emoji, line ends of all kinds, and halves of surrogate pairs. Two halves that happen to
# make a pair are the one place where JSON cannot tell two texts from one, so only low halves are drawn.
TEXT = st.text(
    st.characters(max_codepoint=0xFF) | st.sampled_from("\u2028\udc80\udfff🦆"), max_size=8
)
VALUE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
DEMO = st.dictionaries(
    TEXT, VALUE | st.lists(VALUE, max_size=2) | st.dictionaries(TEXT, VALUE, max_size=1), max_size=2
)
TEXTS, DEMOS = st.lists(TEXT, max_size=2), st.lists(DEMO, max_size=2)
DESCRIPTIONS = st.dictionaries(TEXT, TEXT, max_size=1)
PROMPT = st.builds(Prompt, TEXT, DEMOS.map(tuple), TEXT, TEXTS.map(tuple), TEXT, DESCRIPTIONS)
NEIGHBOUR = st.builds(NeighbourExample, TEXT, TEXT, st.dictionaries(TEXT, DEMOS, max_size=1))


def compiled(**more):
    prompts, near = (
        st.dictionaries(TEXT, PROMPT, max_size=2),
        st.lists(NEIGHBOUR, max_size=1).map(tuple),
    )
    kept = {"neighbours": near, "nearest": st.integers(0, 9), "origin": DEMO}
    return st.builds(Compiled, TEXT, DEMO, TEXT, prompts, **kept, **more)


@settings(max_examples=40)
@given(compiled(members=st.lists(compiled(), max_size=2).map(tuple)), st.data())
def test_what_is_written_is_what_is_read_a_torn_file_is_damaged_and_an_edited_one_says_so(
    tmp_path_factory, found, data
):
    file = tmp_path_factory.mktemp("state") / NAME
    write(file, found)
    again, whole = read(file.parent), file.read_bytes()
    assert again == found and again.digest() == found.digest()
    write(file, again)
    assert file.read_bytes() == whole
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 3))])
    with pytest.raises(DataError, match="torn"):
        read(file)
    body = json.loads(whole)
    body[data.draw(st.sampled_from(["program", "retriever"]))] += "x"
    file.write_text(json.dumps(body))
    edited = read(file)
    assert edited.origin["edited"] == "after it was compiled" and edited.digest() != found.digest()


def program(corpus):
    return MultiHop(Toolbox(corpus, BM25(corpus)))


def made(corpus, **changes):
    """multihop as it is, compiled with instructions and a demonstration."""
    prompts = {
        name: Prompt(
            f"Do {name}.",
            ({"objective": "o", "description": "d"},),
            one.signature,
            one.fields,
            one.before,
        )
        for name, one in get_prompts(program(corpus)).items()
    }
    return Compiled(
        **{"program": "multihop", "parameters": {}, "retriever": "bm25", "prompts": prompts}
        | changes
    )


def changed(corpus, **fields):
    """The same with one field of one prompt changed."""
    found = made(corpus)
    one = found.prompts["reader.next_search"]
    values = {name: getattr(one, name) for name in Prompt.__slots__} | fields
    return made(corpus, prompts={**found.prompts, "reader.next_search": Prompt(**values)})


def test_what_fits_is_taken_up(corpus, tmp_path):
    write(tmp_path / NAME, made(corpus))
    found, taken = read(tmp_path), program(corpus)
    found.check("multihop", taken, "the file")
    found.assemble(taken)
    assert {
        name: predictor.signature.instructions for name, predictor in taken.named_predictors()
    } == {
        "reader.next_search": "Do reader.next_search.",
        "reader.read_passages": "Do reader.read_passages.",
    }
    for predictor in taken.predictors():
        assert predictor.demos == [{"objective": "o", "description": "d"}]
    # What the file was compiled for is kept; the signature's own words are replaced.
    for name, prompt in get_prompts(taken).items():
        assert prompt.instructions == found.prompts[name].instructions


def test_each_way_not_to_fit_is_refused_with_its_reason(corpus):
    for found, name, reason in (
        (made(corpus), "rewrite", "was compiled for --program multihop, not rewrite"),
        (
            changed(corpus, signature="Search"),
            "multihop",
            "the signature of reader.next_search changed",
        ),
        (changed(corpus, fields=("in words: str",)), "multihop", "the fields of .* changed"),
        (changed(corpus, before="00000000"), "multihop", "the instructions of .* changed"),
        (
            made(corpus, prompts={"searcher": Prompt("?")}),
            "multihop",
            "no predictor of multihop is called 'searcher'",
        ),
        (made(corpus, prompts={}), "multihop", "has no prompt for 'reader.next_search'"),
        (
            made(corpus, members=(made(corpus, program="rewrite"),)),
            "multihop",
            "for --program rewrite",
        ),
    ):
        with pytest.raises(UsageError, match=reason):
            found.check(name, program(corpus), "the file")


def test_a_state_that_dspy_saved_is_told_from_a_damaged_file(tmp_path):
    file = tmp_path / "state.json"
    dspy.Predict("question -> words").save(str(file))
    with pytest.raises(
        UsageError, match=r"was saved by DSPy; load it .* self.load\('state.json'\)"
    ):
        read(file)


@pytest.mark.parametrize(
    ("name", "then"),
    [("dspy", "2.6.1"), ("dspy", "4.0.0"), ("format", "2"), ("sextant", "99.1"), ("dspy", 3)],
)
def test_another_version_is_refused_before_what_it_holds_is_looked_at(name, then, corpus, tmp_path):
    write(tmp_path / NAME, made(corpus))
    body = json.loads((tmp_path / NAME).read_text())
    body["versions"][name] = then
    del body["retriever"]  # another version may not have it
    (tmp_path / NAME).write_text(json.dumps(body))
    with pytest.raises(UsageError, match=f"was compiled with {name} {then}"):
        read(tmp_path)


def test_an_ensemble_and_neighbours_come_back_from_a_file(corpus, tmp_path):
    near = (
        NeighbourExample("q1", "octopus blood", {"reader.next_search": [{"description": "one"}]}),
    )
    two = made(corpus, members=(made(corpus), changed(corpus, instructions="Otherwise.")))
    for found in (two, made(corpus, neighbours=near, nearest=1)):
        write(tmp_path / NAME, found)
        system = read(tmp_path).assemble(program(corpus))
        if found.members:
            first, second = (
                dict(member.named_predictors())["reader.next_search"] for member in system.programs
            )
            assert first.signature.instructions == "Do reader.next_search."
            assert second.signature.instructions == "Otherwise."
        else:
            assert isinstance(system, NearestDemonstrations)


def test_a_training_query_is_not_shown_its_own_demonstration(corpus):
    near = [
        NeighbourExample(
            f"q{n}", "octopus blood", {"reader.next_search": [{"description": str(n)}]}
        )
        for n in range(3)
    ]
    shown = []

    class Watched(dspy.Module):
        def __init__(self):
            super().__init__()
            self.reader = dspy.Module()
            self.reader.next_search = dspy.Predict("description -> search")

        def forward(self, query):
            shown.append([demo["description"] for demo in self.reader.next_search.demos])

    system = NearestDemonstrations(Watched(), near, 2)
    for query_id in ("q0", "q1", "q2", "other"):
        system(query=Query(query_id, "octopus blood"))
    assert [sorted(one) for one in shown[:3]] == [["1", "2"], ["0", "2"], ["0", "1"]] and len(
        shown[3]
    ) == 2
    assert system.program.reader.next_search.demos == []  # the shared program is as it was
