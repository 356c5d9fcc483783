"""Models of every family, made on the spot: random weights from a seed, two layers, 32 numbers wide.

Each function fills a folder as a model hub would have it, to be loaded by the real code. They rank nothing sensibly.
"""

import json
import re
import string
from pathlib import Path

TEXTS = (
    "The octopus has three hearts and blue blood.",
    "Copper in haemocyanin makes the blood of an octopus blue.",
    "Iron in haemoglobin makes blood red. A giraffe has one heart of eleven kilograms.",
    "query: passage: Instruct: Query: Represent this sentence for searching relevant passages",
    "Given a query, retrieve documents that answer it. Why do octopuses have blue blood?",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9 < > | / . , ! _",
)
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
DECODER = SHAPE | {
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def bert(
    folder: Path, *, positions: int = 64, seed: int = 0, head: str = "", **settings: int
) -> Path:
    """A BERT with WordPiece. `head` names another class of transformers, e.g. "BertForMaskedLM"."""
    return _save(folder, head or "BertModel", _wordpiece(), positions, seed, SHAPE | settings)


def encoder(folder: Path, family: str, *, positions: int = 64, seed: int = 0) -> Path:
    """An encoder of one of: Roberta, XLMRoberta, MPNet, Gte, JinaEmbeddingsV3. The first three count from 2."""
    counts_from_two = family in ("Roberta", "XLMRoberta", "MPNet")
    shape = SHAPE | {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "type_vocab_size": 1}
    if family == "MPNet":
        del shape["type_vocab_size"]
    tokenizer = _byte_level("<s> $A </s>", ("<s>", "<pad>", "</s>", "<unk>"))
    return _save(
        folder,
        f"{family}Model",
        tokenizer,
        positions + 2 * counts_from_two,
        seed,
        shape,
        longest=positions,
    )


def decoder(
    folder: Path, family: str, *, positions: int = 64, seed: int = 0, head: str = ""
) -> Path:
    """A decoder of one of: Llama, Mistral, Qwen2, Qwen3. Its tokenizer puts <s> before a text, and nothing after."""
    tokenizer = _byte_level("<s> $A", ("<pad>", "<s>", "</s>", "<unk>"))
    return _save(folder, head or f"{family}Model", tokenizer, positions, seed, DECODER)


def adapter(
    folder: Path, base: Path, *, seed: int = 1, head: str = "AutoModel", trained: str = "lora_"
) -> Path:
    """An adapter (peft) for a decoder in `base`, which its configuration names; it changes what the model gives.

    With `trained="score"`, it has a trained head of one number, too.
    """
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    options = {"task_type": "SEQ_CLS"} if trained == "score" else {}
    model = getattr(transformers, head).from_pretrained(
        base, **({"num_labels": 1} if options else {})
    )
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **options))
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_" in name or trained in name:
                weights.normal_(0, 0.3)
    adapted.save_pretrained(folder)
    return folder


def sentence_transformer(
    folder: Path, *, pooling: str = "cls", longest: int = 16, prompts: dict | None = None
) -> Path:
    """`folder`, which holds a model, as sentence-transformers has it, with a pooling and a length of its own."""
    kinds = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": longest, "do_lower_case": False})
    )
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts or {}})
    )
    (folder / "1_Pooling").mkdir()
    settings = {"word_embedding_dimension": 32, f"pooling_mode_{pooling}_tokens": True}
    if pooling == "cls":
        settings = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return folder


def pieces(file: Path, kind: str = "unigram", **options) -> int:
    """A trained SentencePiece file; returns how many pieces it has. `kind` is "unigram" or "bpe"."""
    import io

    import sentencepiece

    model = io.BytesIO()
    words = [*TEXTS, "Query: Document: Relevant: true false"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words),
        model_writer=model,
        model_type=kind,
        vocab_size=400,
        hard_vocab_limit=False,
        user_defined_symbols=["▁true", "▁false"],
        minloglevel=2,
        **options,
    )
    file.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size()


def random_model(folder: Path, name: str, **settings) -> None:
    """A model of a class of transformers, without a tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, name)
    made = model(model.config_class(**settings)).eval()
    with torch.no_grad():
        for weights in made.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.3)
    made.save_pretrained(folder)


def _wordpiece():
    """Lower-cased words and pieces of them, [CLS] text [SEP]. Not trained: the trainer breaks ties at random."""
    from transformers import BertTokenizerFast

    words = re.findall(r"\w+|[^\w\s]", " ".join(TEXTS).lower())
    characters = string.ascii_lowercase + string.digits + string.punctuation
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *characters,
        *(f"##{one}" for one in characters),
    ]
    ids = {token: id_ for id_, token in enumerate(dict.fromkeys([*vocabulary, *sorted(words)]))}
    return BertTokenizerFast(vocab=ids)


def _byte_level(pattern: str, marks: tuple[str, ...]):
    """Pieces of words with the blank before them, as GPT-2, Llama 3 and Qwen have it; the ids of `marks` are 0, 1..."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS * 2,
        trainers.BpeTrainer(
            vocab_size=500, special_tokens=[*marks], initial_alphabet=alphabet, show_progress=False
        ),
    )
    named = [(mark, made.token_to_id(mark)) for mark in marks if mark in pattern]
    made.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=named)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )


def _save(
    folder: Path, model: str, tokenizer, positions: int, seed: int, shape: dict, longest: int = 0
) -> Path:
    import torch
    import transformers

    torch.manual_seed(seed)
    made = getattr(transformers, model)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": positions, "num_labels": 1}
    config = made.config_class(**sizes | shape)
    made = made(config).eval()
    with torch.no_grad():
        for weights in made.parameters():  # the usual start is so even that all texts look alike
            if weights.dim() > 1:
                weights.normal_(0, 0.3)
    made.save_pretrained(folder)
    tokenizer.model_max_length = longest or positions
    tokenizer.save_pretrained(folder)
    return folder
