"""The language of --retriever: what it accepts, how it is written back, and what it says when it cannot."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.tools.errors import DataError, UsageError
from sextant.tools.retrievers import build, canonicalize, needs_pool
from sextant.tools.retrievers.expressions import RetrieverSpec, parse

SUBJECTS = st.text(string.ascii_letters + string.digits + "/.@:-_ ,()[]=", min_size=1).filter(
    lambda text: text.strip() == text
)
NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True)
VALUES = st.recursive(SUBJECTS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=3)
SPECS = st.recursive(
    st.builds(
        RetrieverSpec,
        NAMES,
        st.just("") | SUBJECTS,
        st.just(()),
        st.dictionaries(NAMES, VALUES, max_size=3),
    ),
    lambda inner: st.builds(
        RetrieverSpec,
        NAMES,
        st.just(""),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(NAMES, VALUES, max_size=2),
    ),
    max_leaves=5,
)


@settings(max_examples=50)
@given(SPECS)
def test_what_is_written_is_read_back_as_it_was(spec):
    assert parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("bm25", "bm25"),
        (" bm25 ( k1 = 1.20 , b=.75 ) ", "bm25(k1=1.2,b=0.75)"),
        ("bm25(b=0.75,k1=1.2)", "bm25(k1=1.2,b=0.75)"),
        ("bm25(k1=0.9,b=0.4)", "bm25"),
        ("dense:all-MiniLM-L6-v2", "dense"),
        ("dense:Qwen/Qwen3-Embedding-4B", "dense:Qwen/Qwen3-Embedding-4B"),
        ("chroma(dense)", "chroma:dense"),
        ("chroma:dense:all-MiniLM-L6-v2", "chroma:dense"),
        (
            "chroma(dense(encoder=int8),url=http://localhost:8000)",
            "chroma(dense(encoder=int8),url=http://localhost:8000)",
        ),
        ("fusion(bm25, dense, weights=[1, 2])", "fusion(bm25,dense,weights=[1.0,2.0])"),
        ("fusion(bm25,dense,method=rrf)", "fusion(bm25,dense)"),
        (
            "rerank(fusion(bm25,dense),cross:/models/m,depth=50)",
            "rerank(fusion(bm25,dense),cross:/models/m,depth=50)",
        ),
        ("rerank(bm25,late,depth=100)", "rerank(bm25,late)"),
        ('splade:"/a folder (new), here"', 'splade:"/a folder (new), here"'),
        (
            "api:text-embedding-3-small@http://127.0.0.1:8000/v1",
            "api:text-embedding-3-small@http://127.0.0.1:8000/v1",
        ),
    ],
)
def test_two_spellings_of_one_retriever_are_one(written, canonical):
    assert str(canonicalize(written)) == canonical
    assert canonicalize(canonical) == canonicalize(written)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("", "nothing where the name of a retriever is expected"),
        ("bm25(", "nothing where the name of a retriever"),
        ("bm25 dense", "'dense' where the end is expected"),
        ("bm25(k1=)", "')' where a value is expected"),
        ("bm25(k1=1,k1=2)", "gives k1 twice"),
        ("bm25(k2=1)", "bm25 has no option 'k2'; it has k1, b"),
        ("bm25(k1=much)", "bm25: k1 is 'much'; it should be a valid number"),
        ("bm25(k1=nan)", "not a finite number"),
        ("bm25(k1=[1,2])", "k1 is ('1', '2'); it should be a valid number"),
        ("bm25:model", "bm25 takes no model"),
        ("bm25(dense)", "has 1 retrievers in it; bm25 is made of 0"),
        ("dense(bm25)", "dense takes a model, as in dense:MODEL"),
        ("dense(encoder=int4)", "encoder is 'int4'; it should be 'float32' or 'int8'"),
        ("splade", "splade needs a model: splade:MODEL"),
        ("fusion(bm25)", "fusion is made of 2 or more"),
        ("rerank(bm25,depth=5)", "rerank is made of 2"),
        ("rerank(bm25,dense,depth=5.5)", "depth is '5.5'; it should be a valid integer"),
        ("chroma:bm25", "no embedder is called 'bm25'"),
        ("chroma", "chroma stores the vectors of one of dense, api"),
        ("fusion(bm25,dens)", "did you mean 'dense'"),
        ("bm52", "did you mean 'bm25'"),
    ],
)
def test_what_no_retriever_takes_is_refused_in_one_line(wrong, said):
    with pytest.raises(UsageError) as refused:
        canonicalize(wrong)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_what_ranks_only_pools_is_known_before_anything_is_built():
    for spec in (
        "pool_bm25",
        "cross:M",
        "rerank(pool_bm25,bm25)",
        "fusion(bm25,pool_bm25)",
        "lens(cross:M)",
    ):
        assert needs_pool(canonicalize(spec)), spec
    for spec in ("bm25", "rerank(bm25,cross:M)", "rerank(bm25,pool_bm25)", "fusion(bm25,bm25s)"):
        assert not needs_pool(canonicalize(spec)), spec


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("fusion(bm25,dense,weights=[1])", UsageError, "weights is [1.0]; give 2 numbers"),
        ("rerank(dense,bm25,depth=0)", UsageError, "rerank needs depth of at least 1, not 0"),
        ("rerank(dense,cross:/nowhere)", DataError, "there is no model folder /nowhere"),
        ("fusion(dense,splade:nobody/nothing)", DataError, "run `hf download nobody/nothing`"),
        ("rerank(bm25,late:./nowhere)", DataError, "there is no model folder"),
        (
            "fusion(bm25,dense:nvidia/NV-Embed-v2)",
            DataError,
            "run `hf download nvidia/NV-Embed-v2`",
        ),
        (
            "rerank(bm25,dense:BAAI/bge-reranker-v2-m3)",
            UsageError,
            "is a cross model, not a dense one",
        ),
        ("dense:~of-nobody/model", DataError, "there is no model folder ~of-nobody/model"),
        ("chroma:dense:/nowhere", DataError, "there is no model folder /nowhere"),
        ("chroma(dense,url=localhost)", UsageError, "as in url=http://host:8000"),
        ("fusion(dense,bm25(b=7))", UsageError, "b from 0 to 1"),
    ],
)
def test_what_cannot_be_built_is_said_before_anything_is(spec, error, said, corpus, tmp_path):
    with pytest.raises(error) as refused:
        build(spec, corpus, tmp_path)
    assert said in str(refused.value) and list(tmp_path.rglob("index.json")) == []


@pytest.mark.parametrize(
    "text", ["fusion(" * 3000 + "bm25" + ",bm25)" * 3000, "fusion(weights=" + "[" * 3000]
)
def test_what_is_nested_without_end_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="nested more than 50 deep"):
        canonicalize(text)
