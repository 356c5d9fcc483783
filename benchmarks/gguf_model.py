"""Write the model of benchmarks/chat_model.py as llama.cpp reads it: `python gguf_model.py FOLDER
FILE.gguf`.

For benchmarks/servers.py, which runs it where llama.cpp's own writer is installed (the package
gguf). Sextant is not installed there, so nothing of it is imported.
"""

import json
import sys
from pathlib import Path

import gguf
from safetensors.numpy import load_file

# transformers' name of a weight -> that of llama.cpp
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
}


def write(source: Path, target: Path) -> None:
    """Write the model in `source` as llama.cpp reads it."""
    config = json.loads((source / "config.json").read_bytes())
    tokenizer = json.loads((source / "tokenizer.json").read_bytes())
    beside = target.with_suffix(".part")
    writer = gguf.GGUFWriter(beside, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    pieces = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    control = gguf.TokenType.CONTROL
    normal = gguf.TokenType.NORMAL
    writer.add_token_types([control if piece in special else normal for piece in pieces])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["eos_token_id"])  # it has to be one; none is added
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_chat_template((source / "chat_template.jinja").read_text())
    for name, weights in load_file(source / "model.safetensors").items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.rename(target)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
