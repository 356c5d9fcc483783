"""Learned sparse retrieval against the formula and the library, over models that are loaded as a user's are."""

import json

import numpy as np
import pytest
import tiny_models

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError
from sextant.tools.records import Document
from sextant.tools.retrievers import build, canonicalize, validate
from sextant.tools.retrievers.neural import learned_sparse

QUERIES = [
    "why is the blood of an octopus blue",
    "one heart",
    "how many hearts has a giraffe, and of what weight?",
]


@pytest.fixture(scope="module")
def splade(tmp_path_factory):
    """A masked language model, as the first SPLADE models were published; few terms of a text weigh anything."""
    folder = tiny_models.bert(tmp_path_factory.mktemp("models") / "splade", head="BertForMaskedLM")
    lower_the_logits(folder, 3.5)
    return folder


def lower_the_logits(folder, by):
    import torch
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        model.cls.predictions.bias -= by
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A decoder with its language model's head."""
    return tiny_models.decoder(
        tmp_path_factory.mktemp("models") / "llama", "Llama", head="LlamaForCausalLM"
    )


def weights(folder, text, head="AutoModelForMaskedLM", adapter=None, divisor=1.0):
    """SPLADE's formula, over logits for which every token saw every other."""
    import torch
    import transformers
    from peft import PeftModel

    ids = transformers.AutoTokenizer.from_pretrained(folder)(
        text, truncation=True, max_length=64, return_tensors="pt"
    )
    model = getattr(transformers, head).from_pretrained(folder, attn_implementation="eager").eval()
    if adapter:
        model = PeftModel.from_pretrained(model, adapter)
    length = ids["input_ids"].shape[1]
    with torch.inference_mode():
        logits = (
            model(ids["input_ids"], attention_mask=torch.zeros(1, 1, length, length))
            .logits[0]
            .numpy()
        )
    return np.log1p(np.maximum(logits / divisor, 0)).max(axis=0).astype(np.float64)


def expected(folder, corpus, query, **options):
    asked = weights(folder, query, **options)
    scores = {
        id_: float(asked @ weights(folder, text, **options))
        for id_, text in zip(corpus, corpus.texts(), strict=True)
    }
    return {doc_id: score for doc_id, score in scores.items() if score > 0}


def by_id(hits):
    return {hit.doc_id: hit.score for hit in hits}


@pytest.mark.parametrize("query", QUERIES)
def test_scores_are_the_inner_products_of_spladed_logits(corpus, splade, query):
    hits = build(f"splade:{splade}", corpus).search(query, k=6)
    assert by_id(hits) == pytest.approx(expected(splade, corpus, query), rel=1e-4, abs=1e-6)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize("looked_up", [False, True])  # the weights of a query's terms
def test_a_saved_sparse_encoder_is_loaded_as_it_is(looked_up, corpus, splade, tmp_path):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    prompts = {"query": "query: ", "document": "passage: "}
    library = SparseEncoder(str(splade), device="cpu", prompts=prompts)
    library[1].pooling_strategy = "sum"  # so that a pooling of our own would give other scores
    if looked_up:
        table = SparseStaticEmbedding(library.tokenizer)
        routes = Router({"query": [table], "document": [*library]}, default_route="document")
        library = SparseEncoder(modules=[routes], device="cpu", prompts=prompts)
    library.save(str(tmp_path / "saved"))
    documents = library.encode_document(
        list(corpus.texts()), convert_to_sparse_tensor=False, batch_size=1
    ).numpy()
    query = library.encode_query(QUERIES[0], convert_to_sparse_tensor=False).numpy()
    scores = dict(zip(corpus, (documents @ query).tolist(), strict=True))
    hits = build(f"splade:{tmp_path / 'saved'}", corpus).search(QUERIES[0], k=6)
    assert by_id(hits) == pytest.approx(
        {id_: score for id_, score in scores.items() if score > 0}, rel=1e-4
    )


@pytest.mark.parametrize("adapted", [False, True])
def test_a_decoder_like_lion_attends_to_both_sides_and_its_logits_are_divided(
    corpus, llama, tmp_path, adapted
):
    adapter = (
        tiny_models.adapter(tmp_path / "lion", llama, head="AutoModelForCausalLM")
        if adapted
        else None
    )
    how = {
        "head": "AutoModelForCausalLM",
        "adapter": adapter,
        "divisor": tiny_models.SHAPE["hidden_size"] ** 0.25,
    }
    retriever = build(f"splade:{adapter or llama}(like=hzeng/Lion-SP-1B-llama3-marco-mntp)", corpus)
    assert by_id(retriever.search(QUERIES[0], k=6)) == pytest.approx(
        expected(llama, corpus, QUERIES[0], **how), rel=1e-4
    )


def test_only_documents_that_share_a_term_are_hits(splade, tmp_path):
    documents = Corpus(
        [
            Document("a", "blue blood"),
            Document("b", "copper"),
            Document("c", "one heart of a giraffe"),
        ]
    )
    found = [
        len(build(f"splade:{splade}", documents).search(text, k=3))
        for text in (*QUERIES, "copper", "blue", "a")
    ]
    assert found == [
        len(expected(splade, documents, text)) for text in (*QUERIES, "copper", "blue", "a")
    ]
    assert 0 < min(found) < 3
    silent = tiny_models.bert(tmp_path / "silent", head="BertForMaskedLM")
    lower_the_logits(silent, 100.0)
    with pytest.raises(DataError, match="no term of any document"):
        build(f"splade:{silent}", documents)


def test_equal_texts_are_read_once_and_tie_by_id(splade, tmp_path, monkeypatch):
    text = "Copper makes the blood of an octopus blue."
    documents = Corpus(
        [Document("b", text), Document("a", text), Document("c", "One heart."), Document("0", text)]
    )
    read = encodings(monkeypatch)
    retriever = build(f"splade:{splade}", documents, tmp_path)
    assert sorted(read) == sorted({text, "One heart."})
    hits = [hit for hit in retriever.search("blue blood", k=4) if hit.doc_id != "c"]
    assert [hit.doc_id for hit in hits] == ["0", "a", "b"] and len({hit.score for hit in hits}) == 1
    assert [hit.doc_id for hit in retriever.search("blue blood", k=1, among={"a", "b"})] == ["a"]


def encodings(monkeypatch, fail=lambda text: False):
    """The texts of documents that models read from now on; NaN for those that are to fail."""
    read, weigh = [], learned_sparse.LearnedSparse._weigh

    def listen(self, texts, task, *done):
        read.extend(texts if task == "document" else [])
        made = weigh(self, texts, task, *done)
        return (
            made * np.array([[np.nan if fail(text) else 1] for text in texts], dtype=np.float32)
        ).tocsr()

    monkeypatch.setattr(learned_sparse.LearnedSparse, "_weigh", listen)
    return read


def test_a_build_goes_on_after_its_last_whole_block(corpus, splade, tmp_path, monkeypatch):
    whole = build(f"splade:{splade}", corpus).search(QUERIES[0], k=6)
    monkeypatch.setattr(learned_sparse, "_BLOCK_TEXTS", 2)
    by_length = sorted(corpus.texts(), key=len, reverse=True)
    with (
        monkeypatch.context() as patch,
        pytest.raises(DataError, match="NaN or infinity for the document 'd"),
    ):
        encodings(patch, fail=lambda text: text == by_length[4])
        build(f"splade:{splade}", corpus, tmp_path)
    [draft] = (tmp_path / "indexes").glob(".*.draft")
    (draft / "block-2.npz").write_bytes(b"torn")
    read = encodings(monkeypatch)
    retriever = build(f"splade:{splade}", corpus, tmp_path)
    assert sorted(read) == sorted(by_length[2:])
    assert retriever.search(QUERIES[0], k=6) == whole
    assert build(f"splade:{splade}", corpus, tmp_path).search(QUERIES[0], k=6) == whole
    assert sorted(read) == sorted(by_length[2:])


def test_a_length_in_the_table_is_never_more_than_the_model_takes(corpus, llama):
    odd = Corpus([*corpus.values(), Document("long", "heart " * 300)])
    retriever = build(f"splade:{llama}(like=hzeng/Lion-SP-1B-llama3-marco-mntp)", odd)
    assert retriever.search("heart " * 300, k=7) == retriever.search("heart " * 301, k=7)
    assert retriever.left_out("heart " * 301) == retriever.left_out("heart " * 300) + 1 > 200


def test_no_model_is_given_a_head_of_random_weights_or_other_weights_than_its_own(
    corpus, splade, llama, tmp_path
):
    with pytest.raises(DataError, match="not 00000000"):
        build(f"splade:{splade}(weights=00000000)", corpus)
    plain = tiny_models.bert(tmp_path / "plain")
    with pytest.raises(DataError, match=r"BertModel.*no sparse encoder"):
        validate(canonicalize(f"fusion(dense,splade:{plain})"))  # before anything is embedded
    with pytest.raises(DataError, match=r"LlamaForCausalLM.*no sparse encoder"):
        build(f"splade:{llama}", corpus)
    with pytest.raises(DataError, match="is a SentenceTransformer, not a SparseEncoder"):
        (plain / "modules.json").write_text(json.dumps([{"type": "Transformer", "path": ""}]))
        build(f"splade:{plain}", corpus)


def test_a_language_model_whose_head_is_missing_is_refused(corpus, tmp_path):
    folder = tiny_models.bert(tmp_path / "headless")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertForMaskedLM"]})
    )
    with pytest.raises(DataError, match="lack"):
        build(f"splade:{folder}", corpus)
