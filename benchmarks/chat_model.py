"""A chat model made on the spot, for benchmarks/servers.py: random weights from a seed, as
transformers has it.

It is a Llama of two layers with a tokenizer of its own, trained on the miniatures, and a chat
template that takes tools. What it writes means nothing, and it hardly ever stops: every answer runs
to its limit. So a run against it shows what Sextant does with a model that ends badly.
benchmarks/gguf_model.py writes it for llama.cpp.
"""

import itertools
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sextant import environments

ENTRIES = 4_000  # of the vocabulary
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SPECIAL = ("<pad>", "<|im_start|>", "<|im_end|>", "<|end|>")  # their numbers are 0, 1, 2, 3
PADDING = 0
END = 2
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% "
    "endfor %}<|im_end|>\n"
    "{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content "
    "or '' }}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson "
    "}}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make(folder: Path, window: int, seed: int = 0) -> Path:
    """Save the model as transformers has it in `folder`, unless it is there; return the folder."""
    if (folder / "chat_template.jinja").exists():  # it is written last
        return folder
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=ENTRIES,
        max_position_embeddings=window,
        pad_token_id=PADDING,
        bos_token_id=None,
        eos_token_id=END,
        tie_word_embeddings=False,
        num_key_value_heads=2,
        **SHAPE,
    )
    model: Any = LlamaForCausalLM(config)
    model.eval()
    with torch.no_grad():
        for weights in (
            model.parameters()
        ):  # the usual start is so even that every answer is one word again and again
            if weights.dim() > 1:
                weights.normal_(0, 0.3)
    model.save_pretrained(folder)
    tokenizer = _tokenizer()
    tokenizer.model_max_length = window
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    """Return pieces of bytes, as GPT-2 has them, trained on the texts of a miniature and its
    queries.
    """
    environment = environments.load("congress", "mini", "all")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES,
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    queries = (query.text for query in environment.queries)
    made.train_from_iterator(itertools.chain(environment.documents.texts(), queries), trainer)
    made_of: Any = PreTrainedTokenizerFast
    return made_of(tokenizer_object=made, eos_token=SPECIAL[END], pad_token=SPECIAL[PADDING])
