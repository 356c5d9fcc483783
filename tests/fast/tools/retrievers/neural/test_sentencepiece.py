"""Models whose folder has a SentencePiece file and no tokenizer.json, as T5's and those of Llama 2's time have."""

import json
from pathlib import Path

import pytest
import tiny_models
from tiny_models import DECODER, SHAPE

from sextant.tools.corpus import Corpus
from sextant.tools.records import Document
from sextant.tools.retrievers import build

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

CORPUS = Corpus(
    [
        Document("copper", "Copper in haemocyanin makes the blood of an octopus blue."),
        Document("iron", "Iron in haemoglobin makes blood red."),
        Document("giraffe", "A giraffe has one heart of eleven kilograms."),
    ]
)
QUERY = "why do octopuses have blue blood"
T5_SHAPE = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
T5_MARKS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
BERT_MARKS = {
    "pad_id": 0,
    "bos_id": 1,
    "eos_id": 2,
    "unk_id": 3,
    "bos_piece": "[CLS]",
    "eos_piece": "[SEP]",
}
ROBERTA_SHAPE = SHAPE | {"type_vocab_size": 1, "max_position_embeddings": 130, "pad_token_id": 1}
LLAMA_SETTINGS = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
}  # without a padding token

# Name of the folder, kind of retriever, class of the model, its shape, and pieces that it has beyond the file's;
# the file, how it is trained, and the tokenizer's settings.
FAMILIES = {
    "monoT5": (
        *("monot5-base-msmarco-10k", "cross", "T5ForConditionalGeneration", T5_SHAPE, 100),
        *("spiece.model", T5_MARKS, {}),
    ),
    "XLM-RoBERTa": (
        *("snowflake-arctic-embed-l-v2.0", "dense", "XLMRobertaModel", ROBERTA_SHAPE, 2),
        *("sentencepiece.bpe.model", {"unk_id": 0, "bos_id": 1, "eos_id": 2}, {}),
    ),
    "DeBERTa": (
        *("deberta", "cross", "DebertaV2ForSequenceClassification", SHAPE | {"num_labels": 1}, 1),
        *("spm.model", BERT_MARKS, {}),
    ),
    "Mistral": (
        *("e5-mistral-7b-instruct", "dense", "MistralModel", DECODER, 0),
        *("tokenizer.model", {"kind": "bpe", "byte_fallback": True}, LLAMA_SETTINGS),
    ),
    "Llama 2": (
        *("repllama", "late", "LlamaModel", DECODER, 0),
        *("tokenizer.model", {"kind": "bpe", "byte_fallback": True}, LLAMA_SETTINGS),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sentencepiece_file_alone_is_read_as_sentencepiece_reads_it(
    family, tmp_path, monkeypatch
):
    name, kind, model, shape, more, file, training, settings = FAMILIES[family]
    folder: Path = tmp_path / name
    folder.mkdir()
    count = tiny_models.pieces(folder / file, **training)
    tiny_models.random_model(folder, model, vocab_size=count + more, **shape)
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    retriever = build(f"{kind}:{folder}", CORPUS, home=tmp_path / "home")
    assert len(retriever.search(QUERY, k=3, among=CORPUS.doc_ids)) == 3
    if kind == "cross":
        pieces = retriever._encoder._tokenizer.encode(QUERY).tokens
    else:
        encoder = retriever._encoder if kind == "late" else retriever._embedder._encoder
        tokenizer = encoder.models["query"].tokenizer
        pieces = tokenizer.convert_ids_to_tokens(tokenizer(QUERY)["input_ids"])
    expected = sentencepiece.SentencePieceProcessor(model_file=str(folder / file)).encode(
        QUERY, out_type=str
    )
    assert expected[0].startswith("▁")
    marks = {"<s>", "</s>", "[CLS]", "[SEP]"}
    assert [piece for piece in pieces if piece not in marks] == expected
    assert pieces != expected  # the model's marks are there
