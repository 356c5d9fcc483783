"""Cross-encoders of every family, tiny and random: what they read, and their scores against a forward pass by hand."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from safetensors.torch import load_file, save_file
from tiny_models import SHAPE

from sextant.tools.corpus import Corpus
from sextant.tools.errors import DataError, UsageError
from sextant.tools.records import Document
from sextant.tools.retrievers.base import Search
from sextant.tools.retrievers.neural import cross_encoder_model
from sextant.tools.retrievers.neural.cross_encoder import CrossEncoder
from sextant.tools.retrievers.neural.model_table import find_row

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

QUERY = "Why do octopuses have blue blood?"
WORDS = [
    "The octopus has three hearts and blue blood. Copper in haemocyanin makes the blood of an octopus blue.",
    "Iron in haemoglobin makes blood red. A giraffe has one heart of eleven kilograms.",
    "query: document: Query: Document: Relevant: (true/false) true false Yes No A: B: [INST] [/INST]",
    QUERY,
    find_row("FollowIR-7B", "cross").prompt,
    find_row("bge-reranker-v2-gemma", "cross").prompt,
    find_row("Qwen3-Reranker-0.6B", "cross").prompt,
]
HEAD = "BertForSequenceClassification"


def tokenizer(pattern: str, pair: str, marks: tuple[str, ...]):
    """Pieces of words after a "▁", as SentencePiece makes them, with the special tokens of a family around them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=[*marks], show_progress=False)
    made.train_from_iterator(WORDS * 3, trainer)
    named = [(mark, made.token_to_id(mark)) for mark in marks if mark in pattern + pair]
    made.post_processor = processors.TemplateProcessing(
        single=pattern, pair=pair, special_tokens=named
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def saved(folder: Path, model, words, longest: int = 512) -> Path:
    with torch.no_grad():
        for weights in model.parameters():  # the usual start is so even that all texts look alike
            if weights.dim() > 1:
                weights.normal_(0, 0.3)
    model.save_pretrained(folder)
    words.model_max_length = longest
    words.save_pretrained(folder)
    return folder


def xlm_roberta(folder):
    words = tokenizer("<s> $A </s>", "<s> $A </s> </s> $B </s>", ("<s>", "<pad>", "</s>", "<unk>"))
    settings = {
        "vocab_size": len(words),
        "num_labels": 1,
        "max_position_embeddings": 514,
        "pad_token_id": 1,
        **SHAPE,
    }
    model = transformers.XLMRobertaForSequenceClassification(
        transformers.XLMRobertaConfig(**settings)
    )
    return saved(folder, model, words, 1 << 30)


def t5(folder):
    words = tokenizer("$A </s>", "$A </s> $B </s>", ("<pad>", "</s>", "<unk>"))
    config = transformers.T5Config(
        vocab_size=len(words),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return saved(folder, transformers.T5ForConditionalGeneration(config), words, 1 << 30)


def enc_t5(folder):
    """T5's encoder with a classifier of two labels, as TART was published."""
    words = tokenizer("$A </s>", "$A </s> $B </s>", ("<pad>", "</s>", "<unk>", "<s>"))
    words.bos_token = "<s>"
    config = transformers.T5Config(
        vocab_size=len(words), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    saved(folder, transformers.T5EncoderModel(config), words, 512)
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"] = torch.randn(2, 32)
    weights["classifier.bias"] = torch.randn(2)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def causal(folder, family):
    words = tokenizer("<s> $A", "<s> $A <s> $B:1", ("<unk>", "<s>", "</s>"))
    head_dim = {"head_dim": 8} if family in ("Gemma", "Qwen3") else {}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(words),
        num_key_value_heads=2,
        max_position_embeddings=512,
        **head_dim,
        **SHAPE,
    )
    if family == "Llama":  # the last token of most texts, to see that it is not taken for padding
        config.pad_token_id = words.convert_tokens_to_ids(".")
    return saved(folder, getattr(transformers, f"{family}ForCausalLM")(config), words)


def rankllama(folder):
    """An adapter with a trained head, beside the base model that it names."""
    base = causal(folder / "Llama-2", "Llama")
    return tiny_models.adapter(
        folder / "adapter", base, head="AutoModelForSequenceClassification", trained="score"
    )


FAMILIES = {
    "bert": (lambda folder: tiny_models.bert(folder, positions=512, head=HEAD), ""),
    "xlm-roberta": (xlm_roberta, "BAAI/bge-reranker-v2-m3"),
    "t5": (t5, "castorini/monot5-3b-msmarco-10k"),
    "enc_t5": (enc_t5, "facebook/tart-full-flan-t5-xl"),
    "gemma": (lambda folder: causal(folder, "Gemma"), "BAAI/bge-reranker-v2-gemma"),
    "mistral": (lambda folder: causal(folder, "Mistral"), "jhu-clsp/FollowIR-7B"),
    "qwen3": (lambda folder: causal(folder, "Qwen3"), "Qwen/Qwen3-Reranker-0.6B"),
    "llama": (rankllama, "castorini/rankllama-v1-7b-lora-passage"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(7)
    return {family: make(place / family) for family, (make, _) in FAMILIES.items()}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def cross(folders, family, corpus):
    return CrossEncoder(corpus, None, str(folders[family]), like=FAMILIES[family][1])


def by_hand(folder, family, text):
    """The published code's score of QUERY and a document, in the library's plainest words."""
    read = transformers.AutoTokenizer.from_pretrained(
        folder.parent / "Llama-2" if family == "llama" else folder
    )

    def ids(*texts):
        return read(*texts, return_tensors="pt")["input_ids"]

    with torch.no_grad():
        if family in ("bert", "xlm-roberta"):
            model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
            inputs = read(QUERY, text, return_tensors="pt")
            if family == "xlm-roberta":
                inputs.pop("token_type_ids", None)
            return model(**inputs).logits.item()
        if family == "enc_t5":
            model = transformers.T5EncoderModel.from_pretrained(folder)
            texts = read(QUERY, text)["input_ids"]
            inputs = torch.tensor([[read.get_vocab()["<s>"], *texts]])
            first = model(input_ids=inputs).last_hidden_state[0, 0]
            weights = load_file(folder / "model.safetensors")
            logits = weights["classifier.weight"] @ first + weights["classifier.bias"]
            return torch.log_softmax(logits, 0)[1].item()
        if family == "llama":
            from peft import PeftModel

            kind, llama = transformers.AutoModelForSequenceClassification, folder.parent / "Llama-2"
            base = kind.from_pretrained(llama, num_labels=1)
            base.config.pad_token_id = None
            model = PeftModel.from_pretrained(base, folder).eval()
            return model(input_ids=ids(f"query: {QUERY}", f"document: {text}")).logits.item()
        if family == "t5":
            model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
            prompt = ids(f"Query: {QUERY} Document: {text} Relevant:")
            logits = model(input_ids=prompt, decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
            words = ["▁false", "▁true"]
        else:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
            row = find_row(FAMILIES[family][1], "cross")
            query = {"qwen3": row.query_text(QUERY)}.get(family, QUERY)
            prompt = row.prompt.replace("{query}", query).replace("{text}", text)
            logits = model(input_ids=ids(prompt)).logits[0, -1]
            words = ["no", "yes"] if family == "qwen3" else ["false", "true"]
        if family == "gemma":
            return logits[read.get_vocab()["Yes"]].item()
        return torch.log_softmax(logits[[read.get_vocab()[word] for word in words]], 0)[1].item()


class TestEveryFamily:
    def test_scores_are_those_of_the_published_code(self, cross, folders, family, corpus):
        hits = cross.search(QUERY, k=6)
        assert len({round(hit.score, 6) for hit in hits}) == 6  # it tells documents apart
        for hit in hits[::5]:
            assert hit.score == pytest.approx(
                by_hand(folders[family], family, corpus[hit.doc_id].text), abs=2e-5
            )

    def test_a_score_is_the_same_to_the_last_bit_in_any_batch_and_thread(
        self, cross, folders, family, corpus
    ):
        texts = [QUERY, "blue blood", "one heart"]
        alone = [
            CrossEncoder(corpus, None, str(folders[family]), like=FAMILIES[family][1]).search(
                text, k=2, among={doc_id}
            )
            for text in texts
            for doc_id in corpus
        ]
        batch = cross.search_many(
            [Search(text, "", (), {doc_id}) for text in texts for doc_id in corpus], k=2
        )
        assert batch == alone
        again = CrossEncoder(corpus, None, str(folders[family]), like=FAMILIES[family][1])
        with ThreadPoolExecutor(3) as pool:
            whole = list(pool.map(lambda text: again.search(text, k=6), texts))
        assert [sorted(hits) for hits in whole] == [
            sorted(chain(*alone[n : n + 6])) for n in (0, 6, 12)
        ]

    def test_a_long_document_is_cut_and_the_prompt_around_it_is_not(self, folders, family):
        start = "Copper makes blood blue."
        texts = {"short": start * 3, "long": start * 99, "longer": start * 99 + "Red iron."}
        corpus = Corpus(map(Document, texts, texts.values()))
        whole = CrossEncoder(corpus, None, str(folders[family]), like=FAMILIES[family][1])
        cut = CrossEncoder(
            corpus, None, str(folders[family]), like=FAMILIES[family][1], max_tokens=300
        )
        scores = {hit.doc_id: hit.score for hit in cut.search(QUERY, k=3)}
        assert scores["long"] == scores["longer"] != scores["short"]
        assert scores["short"] == next(
            hit.score for hit in whole.search(QUERY, k=3) if hit.doc_id == "short"
        )
        ids, _ = cut._encoder._cut(cut._encoder._tokens(QUERY, start * 99))
        fixed = cut._encoder._tokens(QUERY, "")
        assert len(ids) == 300
        kept = [id for id, of in zip(fixed.ids, fixed.parts, strict=True) if of is None]
        at_the_end = (
            kept[-1:]
            if family == "bert"
            else kept[-3:]
            if family in ("t5", "gemma", "mistral")
            else []
        )
        assert ids[len(ids) - len(at_the_end) :] == at_the_end

    def test_a_long_query_is_cut_at_three_quarters_and_counted(self, folders, family, corpus):
        cross = CrossEncoder(
            corpus, None, str(folders[family]), like=FAMILIES[family][1], max_tokens=300
        )
        assert cross.left_out(QUERY) == 0
        long = "copper " * 400
        lost = cross.left_out(long)
        tokens = cross._encoder._tokens(cross._row.query_text(long), "iron")
        assert lost == tokens.parts.count(0) - cross._encoder._most_of_query > 0
        ids, _ = cross._encoder._cut(tokens)
        assert len(ids) <= 300
        assert len(cross.search(long, k=6)) == 6


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({}, ""),
        ({0: "not_relevant", 1: "relevant"}, ""),
        ({0: "relevant", 1: "not_relevant"}, r"gives 2 numbers .* \(relevant, not_relevant\)"),
        ({0: "entailment", 1: "contradiction", 2: "neutral"}, "gives 3 numbers for a pair"),
    ],
)
def test_of_two_labels_the_second_is_relevant_unless_their_names_say_otherwise(
    names, said, tmp_path, corpus
):
    folder = tiny_models.bert(tmp_path / "m", positions=512, head=HEAD, num_labels=len(names) or 2)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.id2label = names or config.id2label
    config.save_pretrained(folder)
    if said:
        with pytest.raises(DataError, match=said):
            CrossEncoder(corpus, None, str(folder))
        return
    best = CrossEncoder(corpus, None, str(folder)).search(QUERY, k=6)[0]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    read = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = read(QUERY, corpus[best.doc_id].text, return_tensors="pt")
    with torch.no_grad():
        theirs = torch.log_softmax(model(**inputs).logits[0], 0)[1].item()
    assert best.score == pytest.approx(theirs, abs=1e-5)


def test_tart_reads_its_instruction_before_the_query_and_a_mark_before_both(folders):
    like = "facebook/tart-full-flan-t5-xl"
    cross = CrossEncoder(Corpus([]), None, str(folders["enc_t5"]), like=like)
    row = cross._row
    ids = cross._encoder._tokens(row.query_text(QUERY, "Find what bleeds"), "Copper.").ids
    read = transformers.AutoTokenizer.from_pretrained(folders["enc_t5"])
    pair = read(f"Find what bleeds [SEP] {QUERY}", "Copper.")["input_ids"]
    assert ids == [read.get_vocab()["<s>"], *pair]
    assert row.query_text(QUERY) == QUERY


def test_a_tokenizer_without_the_mark_is_refused(folders):
    like = "facebook/tart-full-flan-t5-xl"
    with pytest.raises(DataError, match="<s>"):
        cross_encoder_model.find_start(
            transformers.AutoTokenizer.from_pretrained(folders["t5"]), find_row(like, "cross")
        )


class TestWhatIsRead:
    def read(self, folders, family, query, document, instruction=""):
        cross = CrossEncoder(Corpus([]), None, str(folders[family]), like=FAMILIES[family][1])
        reader = cross._encoder
        row = cross._row
        tokens = reader._tokens(row.query_text(query, instruction), row.document_text(document))
        return tokens, [reader._tokenizer.id_to_token(id) for id in tokens.ids]

    def text(self, tokens):
        return "".join(tokens).replace("▁", " ")

    def test_an_instruction_reaches_followir_qwen_and_tart_and_no_other(self, folders):
        for family in FAMILIES:
            plain, _ = self.read(folders, family, "blue", "blood")
            told, words = self.read(folders, family, "blue", "blood", "Copper makes blood blue.")
            assert (plain.ids != told.ids) == (family in ("mistral", "enc_t5", "qwen3"))
            if family == "mistral":
                assert "Query: blue Copper makes blood blue." in self.text(words)

    def test_bert_tells_query_and_document_apart(self, folders):
        tokens, words = self.read(folders, "bert", "blue", "blood")
        assert words == ["[CLS]", "blue", "[SEP]", "blood", "[SEP]"]
        assert tokens.types == [0, 0, 0, 1, 1]


class TestRanking:
    def test_a_model_of_no_row_reads_as_much_as_its_positions_allow(self, folders):
        corpus = Corpus(
            [Document("a", "Copper makes blood blue." * 99)]
        )  # 604 tokens with the query
        cross = CrossEncoder(
            corpus, None, str(folders["xlm-roberta"])
        )  # 514 positions, of which two are never used
        assert len(cross._encoder._cut(cross._encoder._tokens(QUERY, corpus["a"].text))[0]) == 512
        assert len(cross.search(QUERY, k=1)) == 1

    def test_a_pair_is_scored_once(self, folders, corpus, monkeypatch):
        cross = CrossEncoder(corpus, None, str(folders["bert"]))
        read = []
        score = cross._encoder.score
        monkeypatch.setattr(
            cross._encoder, "score", lambda *pair: read.append(pair) or score(*pair)
        )
        first = cross.search(QUERY, k=6)
        assert cross.search(QUERY, k=6, among={"d1", "d2"}) == [
            hit for hit in first if hit.doc_id in ("d1", "d2")
        ]
        assert len(read) == 6


class TestRefusals:
    def test_a_model_without_a_trained_head(self, corpus, tmp_path):
        with pytest.raises(DataError, match="no trained classifier"):
            CrossEncoder(corpus, None, str(tiny_models.bert(tmp_path)))

    def test_an_adapter_without_a_trained_head(self, folders, corpus, tmp_path):
        from peft import LoraConfig, get_peft_model

        base = folders["llama"].parent / "Llama-2"
        model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
        get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path)
        with pytest.raises(DataError, match="no trained score"):
            CrossEncoder(corpus, None, str(tmp_path))

    def test_a_language_model_of_which_nobody_said_what_it_reads(self, folders, corpus):
        with pytest.raises(DataError, match="as like=: BAAI"):
            CrossEncoder(corpus, None, str(folders["mistral"]))

    def test_a_classifier_of_several_classes(self, corpus, tmp_path):
        with pytest.raises(DataError, match="3 numbers"):
            CrossEncoder(corpus, None, str(tiny_models.bert(tmp_path, head=HEAD, num_labels=3)))

    def test_a_prompt_whose_answer_the_tokenizer_does_not_have(self, corpus, tmp_path):
        folder = tiny_models.decoder(tmp_path, "Mistral", head="MistralForCausalLM")
        with pytest.raises(DataError, match="no token 'Yes'"):
            CrossEncoder(corpus, None, str(folder), like="BAAI/bge-reranker-v2-gemma")

    def test_a_length_that_the_prompt_alone_takes(self, folders, corpus):
        with pytest.raises(UsageError, match="takes 6 tokens here"):
            CrossEncoder(
                corpus,
                None,
                str(folders["t5"]),
                like="castorini/monot5-3b-msmarco-10k",
                max_tokens=6,
            )

    def test_a_score_that_is_no_number_names_the_document(self, corpus, tmp_path):
        folder = tiny_models.bert(tmp_path, head=HEAD)
        model = transformers.BertForSequenceClassification.from_pretrained(folder)
        with torch.no_grad():
            model.classifier.bias.fill_(np.nan)
        model.save_pretrained(folder)
        with pytest.raises(DataError, match="document 'd1'"):
            CrossEncoder(corpus, None, str(folder)).search("blue", k=1)
