"""Count tokens of texts and prompts with OpenAI's o200k_base, whichever the model.

Other tokenizers count differently, so a tenth of a window stays free (prompting.py).
"""

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sextant.tools.platform.temporary_changes import changed_environment

Message = dict[str, Any]  # of the chat protocol: "role", "content", "tool_calls", ...

_MESSAGE_TOKENS = 8  # tokens of a message in addition to its text, at most
# Only Anthropic's models need a mark to cache a prompt, and cache none with fewer tokens
# (https://docs.claude.com/en/docs/build-with-claude/prompt-caching). Other providers cache equal
# beginnings by themselves.
_LEAST_CACHED = 1024
# tiktoken's name for the file of o200k_base: the SHA-1 of its address.
_ENCODING_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"


def count_tokens(text: str) -> int:
    """Count the tokens of `text`; without the tokenizer, return an upper bound."""
    encoding = _encoding()
    if encoding is None:
        # A token of text in a Latin script has some four bytes.
        return len(text.encode("utf-8", "replace")) // 2
    return len(encoding.encode(text, disallowed_special=()))


@cache
def _encoding() -> Any:
    """Return the tokenizer from the file that LiteLLM ships, or None: tiktoken by itself would download it."""
    spec = importlib.util.find_spec("litellm")  # not imported, because that takes seconds
    if not spec or not spec.origin:
        return None
    folder = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    if not (folder / _ENCODING_FILE).is_file():
        return None
    import tiktoken  # few commands count tokens

    with changed_environment({"TIKTOKEN_CACHE_DIR": str(folder)}, override=True):
        return tiktoken.get_encoding("o200k_base")


def count_prompt_tokens(messages: Sequence[Message], room: int = 0) -> int:
    """Return a prompt's tokens, or an upper bound if that fits `room`.

    The bound is the number of bytes: a token has at least one, and counting tokens is slow.
    """
    texts = [str(message["content"]) for message in messages]
    overhead = _MESSAGE_TOKENS * len(texts)
    bound = overhead + sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if bound <= room:
        return bound
    return overhead + sum(count_tokens(text) for text in texts)


def mark_cacheable_prefix(
    model: str,
    messages: Sequence[Message],
    *,
    grows: bool,
) -> list[Message]:
    """Return messages with a mark for the provider's cache, if the model needs a mark.

    The mark is on the last message that is sent again: of a conversation, which `grows`, the very
    last, and of a prompt the message before the query.
    """
    marked = list(messages)
    index = len(messages) - (1 if grows else 2)
    if index < 0 or "claude" not in model:
        return marked
    text = marked[index]["content"]
    if not isinstance(text, str) or not text:
        return marked
    prefix = "\n".join(str(message["content"]) for message in marked[: index + 1])
    # English has some four characters a token, so the beginning is enough.
    if count_tokens(prefix[: 8 * _LEAST_CACHED]) >= _LEAST_CACHED:
        block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        marked[index] = marked[index] | {"content": [block]}
    return marked
