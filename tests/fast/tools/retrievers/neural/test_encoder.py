"""What reaches a model, and what becomes of its hidden states, against transformers itself and ten lines of NumPy."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from safetensors.torch import load_file, save_file

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UnknownName, UsageError
from sextant.tools.records import Document
from sextant.tools.retrievers import build
from sextant.tools.retrievers.base import Search
from sextant.tools.retrievers.neural.dense import SentenceEmbedder
from sextant.tools.retrievers.neural.model_table import digest_weights, find_folder, find_row, rows

torch = pytest.importorskip("torch")

INSTRUCTION = "Find what bleeds blue"
QUERY = "Why do octopuses have blue blood?"
DOCUMENT = "Copper makes the blood of an octopus blue."
ENCODERS = ("Roberta", "XLMRoberta", "MPNet", "Gte", "JinaEmbeddingsV3")
DECODERS = ("Llama", "Mistral", "Qwen2", "Qwen3")
DENSE = [row.name for row in rows().values() if row.kind == "dense"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of tiny models by family, each made once."""
    home = tmp_path_factory.mktemp("models")
    folders = {"Bert": tiny_models.bert(home / "Bert", positions=512)}
    for family in ENCODERS:
        folders[family] = tiny_models.encoder(home / family, family, positions=512)
    for family in DECODERS:
        folders[family] = tiny_models.decoder(home / family, family, positions=512)
    return folders


def hidden(folder: Path, ids, *, both_ways: bool = False):
    """The last hidden states of one text from transformers itself, shape (tokens, 32)."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    attention = torch.ones(1, len(ids), dtype=torch.long)
    if both_ways:  # a mask of four dimensions is used as it is: 0 is added everywhere
        attention = torch.zeros(1, 1, len(ids), len(ids))
    with torch.inference_mode():
        return (
            model(input_ids=torch.tensor([ids]), attention_mask=attention)
            .last_hidden_state[0]
            .numpy()
        )


def unit(vector):
    return vector / np.linalg.norm(vector)


def change(settings: Path, **changed) -> None:
    """Write a JSON file of settings anew with some of them changed."""
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changed))


def transformer(embedder: SentenceEmbedder, task: str = "document"):
    return embedder._encoder.models[task][0]


def read(embedder: SentenceEmbedder, search: Search | str) -> list[int]:
    """The token ids that reach the transformer, for a query or a document."""
    seen, task = [], "document" if isinstance(search, str) else "query"
    model = transformer(embedder, task).model
    forward = model.forward
    model.forward = lambda **inputs: seen.append(inputs["input_ids"]) or forward(**inputs)
    if isinstance(search, str):
        embedder.documents([search])
    else:
        embedder.queries([search])
    del model.forward
    [ids] = seen
    return ids[0].tolist()


def words(embedder: SentenceEmbedder, ids: list[int]) -> str:
    return transformer(embedder).tokenizer.decode(ids)


# The table


def test_every_row_of_the_table_can_be_read_and_says_where_it_is_from():
    assert len(DENSE) > 15
    for row in rows().values():
        assert row.source and row.needs, row.name
        assert row.document.format(text="x").count("x"), row.name


def test_an_instruction_reaches_the_models_that_were_trained_with_one_and_no_others():
    for name in DENSE:
        row = find_row(name, "dense")
        with_one, without = row.query_text(QUERY, INSTRUCTION), row.query_text(QUERY)
        assert (
            (INSTRUCTION in with_one)
            == ("{instruction}" in row.query + row.prompt)
            == (with_one != without)
        ), name
        assert QUERY in with_one and QUERY in without
        assert "{" not in with_one + without and "Instruct" not in without
        assert INSTRUCTION not in row.document_text(DOCUMENT)


@pytest.mark.parametrize(
    ("name", "query", "plain", "document"),
    [
        # CRUMB, Table 5
        ("snowflake-arctic-embed-l-v2.0", "query: I\nQ", "query: Q", "D"),
        ("gte-Qwen2-1.5B-instruct", "Instruct: I\nQuery: Q", "Q", "D"),
        ("promptriever-llama3.1-8b-instruct-v1", "query: Q I", "query: Q", "passage: D"),
        ("Lion-DS-1B-llama3-marco-mntp", "Q", "Q", "D"),
        # the models' cards
        ("e5-large-v2", "query: Q", "query: Q", "passage: D"),
        ("Qwen3-Embedding-0.6B", "Instruct: I\nQuery:Q", "Q", "D"),
        ("GritLM-7B", "<|user|>\nI\n<|embed|>\nQ", "<|embed|>\nQ", "<|embed|>\nD"),
    ],
)
def test_formats_are_those_of_the_papers(name, query, plain, document):
    row = find_row(name, "dense")
    assert row.query_text("Q", "I") == query
    assert row.query_text("Q") == plain
    assert row.document_text("D") == document


def test_a_folder_with_the_name_of_a_known_model_is_that_model(tmp_path):
    assert find_row(str(tmp_path / "e5-large-v2"), "dense").name == "intfloat/e5-large-v2"
    cached = "/x/models--intfloat--e5-large-v2/snapshots/0123abc"
    assert find_row(cached, "dense").name == "intfloat/e5-large-v2"
    assert (
        find_row(str(tmp_path / "mine"), "dense", like="e5-large-v2").name == "intfloat/e5-large-v2"
    )
    assert find_row(str(tmp_path / "mine"), "dense").query == "{query}"


def test_a_row_of_another_kind_or_a_row_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="cross:BAAI/bge-reranker-v2-m3"):
        find_row("bge-reranker-v2-m3", "dense")
    with pytest.raises(UnknownName, match="e5-large-v2"):
        find_row("x", "dense", like="e5-large-v3")


# Models whose classes are ours


@pytest.fixture(scope="module")
def nv_embed(made, tmp_path_factory):
    """A tiny NV-Embed, in the form in which its weights are published, of the tiny Mistral."""
    folder = tmp_path_factory.mktemp("nv") / "NV-Embed-v2"
    shutil.copytree(made["Mistral"], folder)
    generator = torch.Generator().manual_seed(5)

    def draw(*shape):
        return torch.randn(shape, generator=generator) * 0.3

    block = "latent_attention_model.cross_attend_blocks"
    weights = {
        f"embedding_model.{name}": tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    weights["latent_attention_model.latents"] = draw(6, 32)
    shapes = {
        "0.fn.to_q.weight": (2 * 16, 32),
        "0.fn.to_kv.weight": (4 * 16, 32),
        "0.fn.to_out.weight": (32, 2 * 16),
        "1.fn.net.0.weight": (256, 32),
        "1.fn.net.0.bias": (256,),
        "1.fn.net.2.weight": (32, 128),
        "1.fn.net.2.bias": (32,),
    }
    for norm in ("0.norm", "0.norm_context", "1.norm"):
        shapes |= {f"{norm}.weight": (32,), f"{norm}.bias": (32,)}
    weights |= {f"{block}.{name}": draw(*shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    text_config = json.loads((folder / "config.json").read_text()) | {"model_type": "bidir_mistral"}
    latent = {"num_latents_value": 6, "num_cross_heads": 2, "cross_dim_head": 16}
    latent |= {"hidden_dim": 32, "latent_dim": 32, "model_type": "latent_attention"}
    config = {
        "model_type": "nvembed",
        "architectures": ["NVEmbedModel"],
        "auto_map": {"AutoModel": "modeling_nvembed.NVEmbedModel"},
        "text_config": text_config,
        "latent_attention_config": latent,
    }
    (folder / "config.json").write_text(json.dumps(config))
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder, {name.removeprefix(f"{block}."): one.numpy() for name, one in weights.items()}


def normal(vectors, weights, name):
    centred = vectors - vectors.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def latent_attention(tokens, weights):
    """NV-Embed's layer over a text's hidden states, shape (tokens, 32), as its paper has it."""
    context = normal(weights["latent_attention_model.latents"], weights, "0.norm_context")
    queries = normal(tokens, weights, "0.norm") @ weights["0.fn.to_q.weight"].T
    keys, values = np.split(context @ weights["0.fn.to_kv.weight"].T, 2, axis=1)
    heads = []
    for head in (slice(0, 16), slice(16, 32)):
        scores = np.exp(queries[:, head] @ keys[:, head].T / 4)
        heads.append(scores / scores.sum(1, keepdims=True) @ values[:, head])
    attended = np.hstack(heads) @ weights["0.fn.to_out.weight"].T + tokens
    wide = normal(attended, weights, "1.norm") @ weights["1.fn.net.0.weight"].T
    kept, gates = np.split(wide + weights["1.fn.net.0.bias"], 2, axis=1)
    gated = kept * torch.nn.functional.gelu(torch.tensor(gates)).numpy()
    return gated @ weights["1.fn.net.2.weight"].T + weights["1.fn.net.2.bias"] + attended


def test_nv_embed_attends_both_ways_and_to_its_latents_and_leaves_the_instruction_out(
    nv_embed, made
):
    folder, weights = nv_embed
    embedder = SentenceEmbedder(str(folder))
    ids = read(embedder, DOCUMENT)
    assert words(embedder, ids) == f"<s>{DOCUMENT}</s>"
    layer = latent_attention(hidden(made["Mistral"], ids, both_ways=True), weights)
    [vector] = embedder.documents([DOCUMENT])
    assert vector == pytest.approx(unit(layer.mean(0)), abs=2e-5)

    search = Search(QUERY, INSTRUCTION)
    ids = read(embedder, search)
    assert words(embedder, ids) == f"<s>Instruct: {INSTRUCTION}\nQuery: {QUERY}</s>"
    layer = latent_attention(hidden(made["Mistral"], ids, both_ways=True), weights)
    before = len(ids) - len(read(embedder, Search(QUERY))) + 1
    [vector] = embedder.queries([search])
    assert any(
        vector == pytest.approx(unit(layer[start:].mean(0)), abs=2e-5)
        for start in (before - 1, before, before + 1)
    )


def test_nv_embed_without_its_latents_is_refused(nv_embed, tmp_path):
    folder = shutil.copytree(nv_embed[0], tmp_path / "NV-Embed-v2")
    weights = load_file(folder / "model.safetensors")
    del weights["latent_attention_model.latents"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="latents"):
        SentenceEmbedder(str(folder)).documents([DOCUMENT])


def test_simlm_takes_the_first_tokens_vector(made, tmp_path):
    folder = shutil.copytree(made["Bert"], tmp_path / "simlm-base-msmarco-finetuned")
    embedder = SentenceEmbedder(str(folder))
    ids = read(embedder, DOCUMENT)
    [vector] = embedder.documents([DOCUMENT])
    assert vector == pytest.approx(unit(hidden(folder, ids)[0]), abs=2e-5)
    assert words(embedder, read(embedder, Search("blue", INSTRUCTION))) == "[CLS] blue [SEP]"


# What reaches the model


def test_query_and_document_reach_the_model_in_their_formats(made):
    embedder = SentenceEmbedder(str(made["Llama"]), like="gte-Qwen2-1.5B-instruct")
    instructed = words(embedder, read(embedder, Search(QUERY, INSTRUCTION)))
    assert instructed == f"<s>Instruct: {INSTRUCTION}\nQuery: {QUERY}</s>"
    assert words(embedder, read(embedder, Search(QUERY))) == f"<s>{QUERY}</s>"
    assert words(embedder, read(embedder, DOCUMENT)) == f"<s>{DOCUMENT}</s>"
    uninstructed = SentenceEmbedder(str(made["Llama"]))
    assert words(uninstructed, read(uninstructed, Search(QUERY, INSTRUCTION))) == f"<s>{QUERY}"


def test_text_beyond_the_row_s_length_is_cut_and_counted_and_special_tokens_are_not(made):
    embedder = SentenceEmbedder(str(made["Llama"]), like="Lion-DS-1B-llama3-marco-mntp")
    tokenizer = transformer(embedder).tokenizer
    text = "blue blood " * 300
    whole = tokenizer(text).input_ids
    assert read(embedder, text) == whole[:192]
    assert embedder.left_out(text) == len(whole) - 192
    assert embedder.left_out(QUERY) == 0
    with_eos = SentenceEmbedder(str(made["Llama"]), like="promptriever-llama3.1-8b-instruct-v1")
    reached = read(with_eos, "blue blood " * 2000)
    assert len(reached) == 512 and reached[-1] == tokenizer.eos_token_id
    assert with_eos.left_out(text) == len(tokenizer(f"query: {text}").input_ids) + 1 - 512


def test_positions_that_a_family_reserves_are_not_used(tmp_path):
    folder = tiny_models.encoder(tmp_path / "m", "Roberta", positions=32)
    change(folder / "tokenizer_config.json", model_max_length=10**9)
    embedder = SentenceEmbedder(str(folder))
    assert len(read(embedder, "blue blood " * 99)) == 32
    assert np.isfinite(embedder.documents(["blue blood " * 99])).all()


# What becomes of the hidden states


@pytest.mark.parametrize(
    ("family", "like", "both_ways", "pooled"),
    [
        *(
            (family, "", False, lambda states: unit(states.mean(axis=0)))
            for family in ("Bert", *ENCODERS, "Qwen3")
        ),
        ("Bert", "sup-simcse-roberta-large", False, lambda states: unit(states[0])),
        (
            "Llama",
            "Lion-DS-1B-llama3-marco-mntp",
            True,
            lambda states: np.mean([unit(one) for one in states], axis=0),
        ),
    ],
)
def test_every_family_loads_and_its_states_are_averaged_unless_the_row_says_otherwise(
    made, family, like, both_ways, pooled
):
    embedder = SentenceEmbedder(str(made[family]), like=like)
    states = hidden(made[family], read(embedder, DOCUMENT), both_ways=both_ways)
    assert embedder.documents([DOCUMENT])[0] == pytest.approx(pooled(states), abs=1e-5)


def test_last_token_pooling_takes_the_last_hidden_state_whatever_side_a_tokenizer_pads(
    tmp_path, made
):
    folder = shutil.copytree(made["Mistral"], tmp_path / "m")
    change(folder / "tokenizer_config.json", padding_side="left")
    embedder = SentenceEmbedder(str(folder), like="e5-mistral-7b-instruct")
    vectors = embedder.documents(
        [DOCUMENT, "blue", "The octopus has three hearts and blue blood, and more."]
    )
    states = hidden(folder, read(embedder, DOCUMENT))
    assert vectors[0] == pytest.approx(unit(states[-1]), abs=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_a_bidirectional_decoder_attends_both_ways_and_another_does_not(made, family):
    causal = SentenceEmbedder(str(made[family]))
    both = SentenceEmbedder(str(made[family]), like="gte-Qwen2-1.5B-instruct")
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]])
    with torch.inference_mode():
        first, second = transformer(causal).model(ids).last_hidden_state[:, 0]
        assert torch.equal(first, second)
        states = transformer(both).model(ids).last_hidden_state
    assert not torch.allclose(*states[:, 0], atol=1e-3)
    expected = hidden(made[family], [5, 6, 7, 8], both_ways=True)
    assert states[0].numpy() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("GritLM-7B", QUERY, DOCUMENT),
        (
            "LLM2Vec-Meta-Llama-3-8B-Instruct-mntp-supervised",
            f" {QUERY}<|eot_id|>",
            f"{DOCUMENT}<|eot_id|>",
        ),
    ],
)
def test_what_stands_before_a_text_is_read_and_left_out_of_the_mean(
    tmp_path, made, name, query, document
):
    folder = shutil.copytree(made["Llama"], tmp_path / name)
    embedder = SentenceEmbedder(str(folder))
    asked, tokenizer = Search(QUERY, INSTRUCTION), transformer(embedder).tokenizer
    for kept, ids, vector in (
        (query, read(embedder, asked), embedder.queries([asked])[0]),
        (document, read(embedder, DOCUMENT), embedder.documents([DOCUMENT])[0]),
    ):
        ending = tokenizer(kept, add_special_tokens=False).input_ids
        assert ids[-len(ending) :] == ending and len(ids) > len(ending)
        states = hidden(folder, ids, both_ways=True)[-len(ending) :]
        assert vector == pytest.approx(unit(states.mean(axis=0)), abs=1e-4)


def test_an_adapter_of_another_base_model_or_without_one_is_refused(tmp_path, made):
    folder = tiny_models.adapter(tmp_path / "mine", tiny_models.decoder(tmp_path / "base", "Llama"))
    shallow = shutil.copytree(tmp_path / "base", tmp_path / "shallow")
    change(shallow / "config.json", num_hidden_layers=1)
    for base, said in (
        (tmp_path / "no", "is an adapter of the model"),
        ("", "does not say of which model"),
        (shallow, "made for another base model"),
    ):
        change(folder / "adapter_config.json", base_model_name_or_path=str(base))
        with pytest.raises(DataError, match=said):
            SentenceEmbedder(str(folder)).documents([DOCUMENT])


def test_an_adapter_is_merged_with_the_base_model_that_it_names(tmp_path, made):
    folder = tiny_models.adapter(tmp_path / "mine", made["Llama"])
    vector, plain = (
        SentenceEmbedder(str(place)).documents([DOCUMENT])[0] for place in (folder, made["Llama"])
    )
    from peft import PeftModel
    from transformers import AutoModel

    reference = PeftModel.from_pretrained(AutoModel.from_pretrained(made["Llama"]), folder).eval()
    ids = read(SentenceEmbedder(str(made["Llama"])), DOCUMENT)
    with torch.inference_mode():
        states = reference(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    assert vector == pytest.approx(unit(states.mean(axis=0)), abs=1e-5)
    assert vector @ plain < 0.99


def test_queries_and_documents_go_through_the_adapters_of_their_tasks(tmp_path, made):
    folder = shutil.copytree(made["Llama"], tmp_path / "m")
    tiny_models.adapter(folder / "retrieval_query", made["Llama"], seed=1)
    tiny_models.adapter(folder / "retrieval_passage", made["Llama"], seed=2)
    embedder = SentenceEmbedder(str(folder), like="jina-embeddings-v3-hf")
    query, document = embedder.queries([Search(DOCUMENT)])[0], embedder.documents([DOCUMENT])[0]
    for vector, task in ((query, "retrieval_query"), (document, "retrieval_passage")):
        alone = SentenceEmbedder(str(folder / task)).documents([DOCUMENT])[0]
        assert vector == pytest.approx(alone, abs=1e-5)
    assert query @ document < 0.99


# sentence-transformers' folders


OWN = """
import os, pathlib
from transformers import BertConfig, BertModel
pathlib.Path(os.environ["RAN"]).touch()
class Config(BertConfig):
    model_type = "own"
class Model(BertModel):
    config_class = Config
"""


@pytest.mark.parametrize(
    ("kind", "name", "head"),
    [
        ("dense", "gte-large-en-v1.5", "BertModel"),
        ("late", "gte-large-en-v1.5", "BertModel"),
        ("splade", "any", "BertForMaskedLM"),
        ("cross", "any", "BertForSequenceClassification"),
    ],
)
def test_a_model_s_own_code_is_run_only_where_its_digest_is_given(
    kind, name, head, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    folder = tiny_models.bert(tmp_path / name, head=head)
    classes = {"AutoConfig": "own.Config"} | {
        f"Auto{kind}": "own.Model" for kind in ("Model", head[4:])
    }
    change(folder / "config.json", model_type="own", auto_map=classes)
    (folder / "own.py").write_text(OWN)
    corpus = Corpus([Document("d", DOCUMENT)])

    def built(option=""):
        return build(f"{kind}:{folder}{option}", corpus, tmp_path / "home")

    with pytest.raises(DataError, match="Python code of its own") as refused:
        built().search("octopus", k=1, among=frozenset("d"))
    assert not (tmp_path / "ran").exists()
    allowed = re.search(r"run_code=\w{16}", str(refused.value))[0]
    if head == "BertModel":  # all that this code can be
        retriever = built(f"({allowed})")
        assert (
            retriever.search("octopus", k=1)
            and (tmp_path / "ran").exists()
            and allowed in retriever.name
        )
    (folder / "own.py").write_text(f"{OWN}\n")
    with pytest.raises(UsageError, match="is not the code of"):
        built(f"({allowed})")


def test_a_sentence_transformers_folder_keeps_its_own_pooling_length_and_prompts(tmp_path, made):
    from sentence_transformers import SentenceTransformer

    folder = tiny_models.sentence_transformer(
        shutil.copytree(made["Bert"], tmp_path / "m"),
        longest=9,
        prompts={"query": "query: ", "document": "passage: "},
    )
    embedder = SentenceEmbedder(str(folder))
    model = SentenceTransformer(str(folder), device="cpu")
    assert embedder.documents([DOCUMENT])[0] == pytest.approx(
        model.encode_document(DOCUMENT), abs=1e-6
    )
    assert embedder.queries([Search(QUERY)])[0] == pytest.approx(
        model.encode_query(QUERY), abs=1e-6
    )
    assert len(read(embedder, DOCUMENT)) == 9


def test_a_folder_for_inner_products_keeps_the_lengths_of_its_vectors(tmp_path, made):
    from sentence_transformers import SentenceTransformer

    folder = tiny_models.sentence_transformer(shutil.copytree(made["Bert"], tmp_path / "m"))
    (folder / "modules.json").write_text(
        json.dumps(json.loads((folder / "modules.json").read_text())[:2])
    )
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"similarity_fn_name": "dot"})
    )
    [vector] = SentenceEmbedder(str(folder)).documents([DOCUMENT])
    assert np.linalg.norm(vector) > 2
    assert vector == pytest.approx(
        SentenceTransformer(str(folder), device="cpu").encode(DOCUMENT), abs=1e-5
    )


def table_of_tokens(seed=0, width=32):
    """A module with a vector for each token and no model, as StaticEmbedding and model2vec have it."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(find_folder("all-MiniLM-L6-v2") / "tokenizer.json"))
    torch.manual_seed(seed)
    weights = torch.randn(tokenizer.get_vocab_size(), width)
    return StaticEmbedding(tokenizer, embedding_weights=weights)


def routed(made, shape):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Router, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(1)
    model = [Transformer(str(made["Bert"])), Pooling(32)]
    light = {"query": [table_of_tokens()], "document": model}
    two_heads = {"query": [Dense(32, 8)], "document": [Dense(32, 8)]}
    modules = {
        "a table of tokens": [table_of_tokens()],
        "two tables": [Router({"query": [table_of_tokens(1)], "document": [table_of_tokens(2)]})],
        "a light query": [Router(light, default_route="document")],
        "two heads": [*model, Router(two_heads, default_route="document")],
    }
    return SentenceTransformer(modules=modules[shape], prompts={"query": "query: "}, device="cpu")


@pytest.mark.parametrize("shape", ["a table of tokens", "two tables", "a light query", "two heads"])
def test_models_that_read_queries_otherwise_than_documents_are_as_the_library_has_them(
    shape, tmp_path, made
):
    from sentence_transformers import SentenceTransformer

    routed(made, shape).save(str(tmp_path / "m"))
    model = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    embedder = SentenceEmbedder(str(tmp_path / "m"))
    vectors = embedder.documents([DOCUMENT, "", "?!", "血"])
    assert vectors[0] == pytest.approx(
        model.encode_document(DOCUMENT, normalize_embeddings=True), abs=1e-6
    )
    assert embedder.queries([Search(QUERY)])[0] == pytest.approx(
        model.encode_query(QUERY, normalize_embeddings=True), abs=1e-6
    )
    assert not vectors[1].any() and embedder.left_out(QUERY) == 0
    weights = next((tmp_path / "m").rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot be loaded"):
        SentenceEmbedder(str(tmp_path / "m")).documents([DOCUMENT])


def test_a_folder_for_distances_is_refused(tmp_path, made):
    folder = tiny_models.sentence_transformer(shutil.copytree(made["Bert"], tmp_path / "m"))
    change(folder / "config_sentence_transformers.json", similarity_fn_name="euclidean")
    with pytest.raises(UsageError, match=r'by euclidean distances; .*"similarity_fn_name": "cos'):
        SentenceEmbedder(str(folder))


# The same to the last bit


def test_a_query_has_the_same_bits_alone_in_a_batch_and_in_threads():
    from sentence_transformers import SentenceTransformer

    embedder = SentenceEmbedder()
    searches = [Search(text) for text in (*tiny_models.TEXTS, "blue", "red", "word " * 400)]
    together = embedder.queries(searches)
    alone = [embedder.queries([search])[0] for search in searches]
    assert np.array_equal(together, alone)
    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(lambda search: embedder.queries([search])[0], searches * 2))
    assert np.array_equal(at_once, [*alone, *alone])
    library = SentenceTransformer(str(find_folder("all-MiniLM-L6-v2")), device="cpu")
    expected = library.encode([search.text for search in searches])
    assert (together * expected).sum(axis=1) == pytest.approx(1, abs=1e-6)
    assert embedder.left_out("word " * 400) == 400 + 2 - 256


def test_a_long_text_is_cut_and_counted_in_threads(made):
    embedder, text = SentenceEmbedder(str(made["Bert"])), "blue blood " * 300
    alone, left_out = embedder.queries([Search(text)])[0], embedder.left_out(text)
    assert left_out > 0
    with ThreadPoolExecutor(8) as pool:
        at_once = list(
            pool.map(
                lambda _: (embedder.queries([Search(text)])[0], embedder.left_out(text)), range(50)
            )
        )
    assert all(many == left_out and np.array_equal(vector, alone) for vector, many in at_once)


# Texts and folders that are not as they should be


@pytest.mark.parametrize("like", ["", "e5-large-v2"])  # whose format surrounds a text
def test_a_text_of_no_tokens_is_the_zero_vector_and_half_a_surrogate_pair_is_none(made, like):
    vectors = SentenceEmbedder(str(made["Bert"]), like=like).documents(
        ["", "\x00\x01", "blue \ud83d blood"]
    )
    assert not vectors[:2].any() and vectors[2].any() and np.isfinite(vectors).all()


def test_a_model_that_was_downloaded_is_found_by_its_name_with_its_folder_s_prompts(
    tmp_path, made, monkeypatch
):
    folder = shutil.copytree(made["Bert"], tmp_path / "models--me--mine" / "snapshots" / "abc")
    tiny_models.sentence_transformer(folder, prompts={"query": "query: ", "document": "passage: "})
    shutil.copytree(folder, folder.with_name("another"))
    (tmp_path / "models--me--mine" / "refs").mkdir()
    (tmp_path / "models--me--mine" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert find_folder("me/mine") == folder
    row = find_row("me/mine", "dense")
    assert (row.query, row.document) == ("query: {query}", "passage: {text}")
    assert find_row("me/mine", "api").query == "{query}", "a server's model is not in a folder"
    old = shutil.copytree(made["Bert"], tmp_path / "models--bert-old" / "snapshots" / "abc")
    (tmp_path / "models--bert-old" / "refs").mkdir()
    (tmp_path / "models--bert-old" / "refs" / "main").write_text("abc")
    assert find_folder("bert-old") == old, "of the hub's oldest, whose names have no owner"
    with pytest.raises(DataError, match="`hf download sentence-transformers/x` or `hf download x`"):
        find_folder("x")


@pytest.mark.parametrize(
    ("name", "kept", "message"),
    [
        ("config.json", None, "cannot be loaded: Unrecognized model"),
        ("model.safetensors", None, "cannot be loaded: Error no file named model.safetensors"),
        ("tokenizer.json", None, "lacks a tokenizer"),
        ("1_Pooling/config.json", None, "cannot be loaded"),
        ("config.json", -2, "cannot be loaded: .*config.json' is not a valid JSON file"),
        ("modules.json", -2, "cannot be loaded"),
        ("config_sentence_transformers.json", -2, "config_sentence_transformers.json is damaged"),
        ("modules.json", None, "has 1_Pooling and lacks modules.json"),
        ("model.safetensors", -100, "cannot be loaded: .*not fully covered"),
    ],
)
def test_half_a_model_folder_is_refused_and_what_is_missing_is_named(
    tmp_path, made, name, kept, message
):
    """A file is missing, or has lost so many bytes at its end."""
    folder = tiny_models.sentence_transformer(shutil.copytree(made["Bert"], tmp_path / "m"))
    if kept is None:
        (folder / name).unlink()
        if "/" in name:
            (folder / name).parent.rmdir()
    else:
        (folder / name).write_bytes((folder / name).read_bytes()[:kept])
    with pytest.raises(DataError, match=message) as refused:
        SentenceEmbedder(str(folder)).documents([DOCUMENT])
    assert "\n" not in str(refused.value)


def test_an_encoder_that_nobody_said_how_to_pool_says_that_it_takes_the_mean(tmp_path, capsys):
    folder = tiny_models.bert(tmp_path / "m")
    SentenceEmbedder(str(folder)).documents([DOCUMENT])
    assert f"{folder} has no modules.json: a vector is the mean" in capsys.readouterr().err
    SentenceEmbedder(str(folder), like="princeton-nlp/sup-simcse-roberta-large").documents(["a"])
    SentenceEmbedder(str(tiny_models.sentence_transformer(folder))).documents([DOCUMENT])
    assert "modules.json" not in capsys.readouterr().err


def test_a_cross_encoder_makes_no_vectors(tmp_path):
    folder = tiny_models.bert(tmp_path / "m", head="BertForSequenceClassification", num_labels=1)
    with pytest.raises(UsageError, match=r"makes no vectors; write rerank\(bm25,cross:"):
        SentenceEmbedder(str(folder))


def test_weights_that_lack_a_layer_are_refused(tmp_path, made):
    folder = shutil.copytree(made["Bert"], tmp_path / "m")
    change(folder / "config.json", num_hidden_layers=3)
    with pytest.raises(DataError, match=r"the weights in .* lack .*layer\.2"):
        SentenceEmbedder(str(folder)).documents([DOCUMENT])


# Names and keys


def test_the_name_pins_the_weights_and_other_weights_are_refused(tmp_path, made):
    folder = shutil.copytree(made["Bert"], tmp_path / "m")
    embedder = SentenceEmbedder(str(folder))
    digest = digest_weights(folder)
    assert embedder.name == f"dense:{folder}(weights={digest})"
    assert SentenceEmbedder(str(folder), weights=digest).name == embedder.name
    (folder / "README.md").write_text("says nothing about the vectors")
    assert digest_weights(folder) == digest
    change(folder / "config.json", layer_norm_eps=0.5)
    with pytest.raises(DataError, match=f"are {digest_weights(folder)}, not {digest}"):
        SentenceEmbedder(str(folder), weights=digest)


def test_the_digest_of_an_adapter_covers_its_base_model(tmp_path, made):
    base = shutil.copytree(made["Llama"], tmp_path / "base")
    folder = tiny_models.adapter(tmp_path / "mine", base)
    before = SentenceEmbedder(str(folder)).name
    tiny_models.decoder(base, "Llama", positions=512, seed=9)
    assert SentenceEmbedder(str(folder)).name != before


def test_whatever_shapes_a_document_s_vector_is_in_the_key(made):
    keys = [
        json.dumps(SentenceEmbedder(str(made["Llama"]), like=like).key(), sort_keys=True)
        for like in (
            "",
            "GritLM-7B",
            "Lion-DS-1B-llama3-marco-mntp",
            "e5-large-v2",
            "e5-mistral-7b-instruct",
        )
    ]
    assert len(set(keys)) == len(keys)


# 8 bits


def test_eight_bits_are_near_the_exact_vectors(tmp_path, made):
    vectors = SentenceEmbedder(str(made["MPNet"]), encoder="int8", home=tmp_path).documents(
        [DOCUMENT, QUERY]
    )
    exact = SentenceEmbedder(str(made["MPNet"])).documents([DOCUMENT, QUERY])
    assert (vectors * exact).sum(axis=1) == pytest.approx(1, abs=0.02)


def test_weights_that_are_no_numbers_have_no_8_bits(tmp_path, made):
    folder = shutil.copytree(made["Bert"], tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"layer\.1\.output\.dense\.weight .* NaN"):
        SentenceEmbedder(str(folder), encoder="int8", home=tmp_path).documents([DOCUMENT])


def test_eight_bits_are_refused_for_other_families(tmp_path, made):
    with pytest.raises(UsageError, match="is for the families bert"):
        SentenceEmbedder(str(made["Llama"]), encoder="int8", home=tmp_path).documents([DOCUMENT])
