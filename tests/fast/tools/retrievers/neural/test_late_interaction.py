"""MaxSim against ten lines of NumPy, over models that are loaded as a user's are, and the store of token vectors."""

import json
import logging
import multiprocessing
import os

import numpy as np
import pytest
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, RunIncomplete
from sextant.tools.records import Document
from sextant.tools.retrievers import build
from sextant.tools.retrievers.neural import late_interaction
from sextant.tools.retrievers.neural.late_interaction import TokenVectors

QUERIES = [
    "why is the blood of an octopus blue",
    "one heart",
    "how many hearts has a giraffe, and of what weight?",
]


@pytest.fixture(scope="module")
def colbert(tmp_path_factory):
    """A small ColBERT: marked queries of 12 tokens with expansion, documents of 16 tokens, no punctuation."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    folder = tmp_path_factory.mktemp("models") / "colbert"
    expansion = {"strategy": "fixed", "attend": False, "length": 12}
    bert = Transformer(
        str(tiny_models.bert(folder / "bert")), query_expansion=expansion, document_length=16
    )
    torch.manual_seed(1)
    project = Dense(
        32,
        24,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )
    mask, norm = (
        MultiVectorMask(skiplist_words=[".", ","]),
        Normalize(module_input_name="token_embeddings"),
    )
    prompts = {"query": "query: ", "document": "passage: "}
    MultiVectorEncoder(modules=[bert, project, mask, norm], prompts=prompts, device="cpu").save(
        str(folder / "saved")
    )
    return folder / "saved"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.bert(tmp_path_factory.mktemp("models") / "plain")


def maxsim(query, document):
    query, document = query.astype(np.float64), document.astype(np.float64)
    return sum(max(float(one @ other) for other in document) for one in query)


def reference(folder, texts, queries):
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu")
    documents = [model.encode_document(text, convert_to_numpy=True) for text in texts]
    return [
        [maxsim(model.encode_query(query, convert_to_numpy=True), each) for each in documents]
        for query in queries
    ]


def by_id(hits):
    return {hit.doc_id: hit.score for hit in hits}


def test_scores_are_maxsim_over_the_vectors_of_the_model(corpus, colbert):
    retriever = build(f"late:{colbert}", corpus)
    expected = reference(colbert, corpus.texts(), QUERIES)
    for query, scores in zip(QUERIES, expected, strict=True):
        hits = retriever.search(query, k=6)
        assert by_id(hits) == pytest.approx(dict(zip(corpus, scores, strict=True)), rel=0.01)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_a_plain_encoder_is_used_with_its_own_token_vectors(corpus, bert):
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(bert), AutoModel.from_pretrained(bert).eval()

    def vectors(text):
        with torch.inference_mode():
            states = model(
                **tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
            ).last_hidden_state[0]
        return torch.nn.functional.normalize(states, dim=-1).numpy()

    texts = zip(corpus, corpus.texts(), strict=True)
    expected = {doc_id: maxsim(vectors(QUERIES[0]), vectors(text)) for doc_id, text in texts}
    assert by_id(build(f"late:{bert}", corpus).search(QUERIES[0], k=6)) == pytest.approx(
        expected, rel=0.01
    )


def test_without_a_model_the_bundled_one_finds_what_shares_no_word():
    documents = Corpus(
        [
            Document("cat", "A kitten sleeps on the sofa."),
            Document("tax", "Revenue rules for firms."),
        ]
    )
    hits = build("late", documents).search("feline nap", k=2)
    assert [hit.doc_id for hit in hits] == ["cat", "tax"] and hits[0].score > 1.2 * hits[1].score


def encodings(retriever, monkeypatch):
    """The texts of documents that the model reads from now on."""
    read, encode = [], retriever._encoder.encode

    def listen(texts, task):
        read.extend(texts if task == "document" else [])
        return encode(texts, task)

    monkeypatch.setattr(retriever._encoder, "encode", listen)
    return read


def test_only_the_documents_of_a_pool_are_encoded_and_each_text_once(
    corpus, colbert, tmp_path, monkeypatch
):
    twice = Corpus([*corpus.values(), Document("again", corpus["d2"].text)])
    retriever = build(f"late:{colbert}", twice, tmp_path)
    read = encodings(retriever, monkeypatch)
    pool = {"d2", "d3", "again"}
    first = retriever.search(QUERIES[0], k=3, among=pool)
    assert sorted(read) == sorted({twice[doc_id].text for doc_id in pool})
    retriever.search(QUERIES[1], k=9)
    assert len(read) == len(set(read)) == 6
    other = build(
        f"late:{colbert}", Corpus(list(corpus.values())[1:]), tmp_path
    )  # another corpus, the same texts
    assert other.search(QUERIES[0], k=3, among=pool) == [
        hit for hit in first if hit.doc_id != "again"
    ]
    assert len(read) == 6


def test_what_was_encoded_before_an_error_is_kept(corpus, colbert, tmp_path, monkeypatch):
    retriever = build(f"late:{colbert}", corpus, tmp_path)
    encode = retriever._encoder.encode

    def fail(texts, task):
        alone = [
            (place, vectors)
            for batch in encode(texts, task)
            for place, vectors in zip(*batch, strict=True)
        ]
        for number, (place, vectors) in enumerate(alone):
            yield [place], [vectors * (np.nan if task == "document" and number == 4 else 1)]

    with (
        monkeypatch.context() as patch,
        pytest.raises(DataError, match=r"NaN or infinity for the document 'd\d'"),
    ):
        patch.setattr(retriever._encoder, "encode", fail)
        retriever.search(QUERIES[0], k=6)
    whole = build(f"late:{colbert}", corpus).search(QUERIES[0], k=6)
    again = build(f"late:{colbert}", corpus, tmp_path)
    read = encodings(again, monkeypatch)
    assert again.search(QUERIES[0], k=6) == whole
    assert len(read) == 2


def test_tokens_that_an_expanded_query_has_no_room_for_are_counted(corpus, colbert):
    retriever = build(f"late:{colbert}", corpus)
    assert retriever.left_out("one heart") == 0
    assert retriever.left_out("heart " * 20) == retriever.left_out("heart " * 21) - 1 > 0


def test_a_model_of_another_kind_is_refused_and_not_given_random_weights(corpus, bert, tmp_path):
    folder = tiny_models.bert(tmp_path / "cross")
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "CrossEncoder"})
    )
    with pytest.raises(DataError, match="CrossEncoder"):
        build(f"late:{folder}", corpus)
    with pytest.raises(DataError, match="not 00000000"):
        build(f"late:{bert}(weights=00000000)", corpus)


class TestStore:
    """The token vectors on disk, without a model."""

    def texts(self, *lengths, dimension=8, seed=0):
        made = (
            np.random.default_rng(seed)
            .standard_normal((sum(lengths), dimension))
            .astype(np.float32)
        )
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        return dict(zip(map(digest, lengths), np.split(made, np.cumsum(lengths)[:-1]), strict=True))

    def fill(self, kept, texts):
        asked = []

        def encode(missing):
            for position in missing:
                asked.append(list(texts)[position])
                yield position, texts[asked[-1]]

        kept.hold(list(texts), encode)
        return asked

    def test_scores_are_those_of_the_formula(self, tmp_path, monkeypatch):
        monkeypatch.setattr(late_interaction, "_BLOCK_TOKENS", 128)
        monkeypatch.setattr(late_interaction, "_QUERY_TOKENS", 32)
        texts, kept = self.texts(3, 1, 100, 0, 200, 7, dimension=64), TokenVectors(tmp_path)
        self.fill(kept, texts)
        queries = [
            *self.texts(4, 20, 60, dimension=64, seed=1).values(),
            np.zeros((0, 64), np.float32),
        ]
        scores = kept.maxsim(queries, list(texts))
        for query, row in zip(queries, scores, strict=True):
            expected = [maxsim(query, text) if len(text) else 0.0 for text in texts.values()]
            assert row == pytest.approx(expected, rel=5e-3, abs=1e-2)

    @settings(max_examples=25)
    @given(arrays(np.float32, (9, 16), elements=st.floats(-100, 100, width=32)), st.integers(1, 8))
    def test_a_score_is_the_same_to_the_last_bit_whatever_is_scored_with_it(
        self, tmp_path_factory, numbers, cut
    ):
        kept = TokenVectors(tmp_path_factory.mktemp("store"))
        texts = self.texts(2, 40, 300, 5, dimension=16)
        self.fill(kept, texts)
        queries = [numbers[:cut], numbers[cut:], numbers]
        together = kept.maxsim(queries, list(texts))
        for row, query in zip(together, queries, strict=True):
            assert row.tolist() == [float(kept.maxsim([query], [each])[0, 0]) for each in texts]

    @pytest.mark.parametrize("file", ["records", "vectors"])
    @pytest.mark.parametrize("cut", [1, 30])
    def test_a_torn_end_costs_only_the_last_text(self, tmp_path, file, cut):
        texts = self.texts(3, 4, 5)
        self.fill(TokenVectors(tmp_path), texts)
        os.truncate(tmp_path / file, (tmp_path / file).stat().st_size - cut)
        again = TokenVectors(tmp_path)
        assert self.fill(again, texts) == [digest(5)]
        assert self.fill(TokenVectors(tmp_path), texts) == []
        query = np.ones((1, 8), np.float32)
        assert again.maxsim([query], [digest(5)])[0, 0] == pytest.approx(
            maxsim(query, texts[digest(5)]), rel=0.02
        )

    def test_altered_bytes_are_encoded_again(self, tmp_path, caplog):
        texts = self.texts(3, 4, 5)
        self.fill(TokenVectors(tmp_path), texts)
        with (tmp_path / "vectors").open("r+b") as file:
            file.seek(20)
            file.write(b"\x55\x55")
        with caplog.at_level(logging.INFO, "sextant"):
            assert self.fill(TokenVectors(tmp_path), texts) == [digest(3)]
        assert "damaged" in caplog.text
        assert self.fill(TokenVectors(tmp_path), texts) == []

    def test_processes_that_want_the_same_texts_encode_them_once(self, tmp_path):
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            counts = pool.map(fill_from_a_process, [tmp_path] * 4, chunksize=1)
        assert sum(counts) == 30

    def test_a_full_disk_ends_the_run_and_the_next_one_goes_on(self, tmp_path, monkeypatch):
        texts, kept = self.texts(3, 4, 5), TokenVectors(tmp_path)

        def full(descriptor, content, offset):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch, pytest.raises(RunIncomplete, match="No space left"):
            patch.setattr(os, "pwrite", full)
            self.fill(kept, texts)
        assert len(self.fill(kept, texts)) == 3


def digest(number):
    return number.to_bytes(16, "little")


def fill_from_a_process(folder):
    tests = TestStore()
    return len(tests.fill(TokenVectors(folder), tests.texts(*range(1, 31))))
