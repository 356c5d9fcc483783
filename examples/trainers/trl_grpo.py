"""Train a tiny random model with TRL's GRPOTrainer on one of our queries: the plumbing, on the CPU, in a minute.

    pip install '.[trl]' && python examples/trainers/trl_grpo.py

Each word of this model is a whole call of a tool, so that it calls tools without having learnt to write. A real run
names a model that can, and leaves `make_model` and `generation_kwargs` out.
"""

import json
import tempfile
from pathlib import Path

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from sextant.evals.serving.rl_training import open_training
from sextant.evals.serving.trl import make_dataset, make_factory


def make_model(calls):
    """Return two small layers over bytes and `calls`, a tokenizer, and the numbers of those calls and the end."""
    marks = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|endoftext|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(
        models.BPE({letter: number for number, letter in enumerate(letters)}, merges=[])
    )
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    texts = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': said})}\n</tool_call>\n"
        for name, said in calls
    ]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in texts])
    tokenizer.chat_template = (
        Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    ).read_text()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    words = tokenizer.convert_tokens_to_ids([*texts, "<|im_end|>"])
    return (
        Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads)),
        tokenizer,
        words,
    )


def train(folder, calls, steps=3, **fields):
    """Return the trainer after `steps`; its state.log_history has the rewards."""
    world = open_training(**fields)
    model, tokenizer, words = make_model(calls)
    others = sorted({*range(len(tokenizer))} - {*words})
    config = trl.GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=3000,
        max_tool_calling_iterations=1,
        generation_kwargs={"suppress_tokens": others, "max_new_tokens": 3},
        max_steps=steps,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(
        model=model,
        args=config,
        processing_class=tokenizer,
        train_dataset=make_dataset(world),
        environment_factory=make_factory(world),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    searches = "engineer on call, the pager was mine that night", "a colleague who nodded"
    calls = [("search", {"query": text, "k": 3}) for text in searches]
    with tempfile.TemporaryDirectory() as folder:
        trainer = train(folder, calls, task="congress", data="mini", query_ids=("MINI-q02",))
    for line in trainer.state.log_history[:-1]:
        print(
            {
                name: line[name]
                for name in ("step", "reward", "reward_std", "grad_norm", "tools/call_frequency")
            }
        )
