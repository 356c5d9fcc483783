"""Marks in a prompt up to where it repeats, for Anthropic's models: they cache what is marked, and nothing else.

Others cache by themselves what begins alike: OpenAI, DeepSeek, Gemini. A prompt begins with its instructions and
demonstrations and ends with the query, and a conversation only grows, so both are served. Marks are no part of a
request's identity: they are made when it is sent. Left out: caches that are kept for an hour.
"""

from collections.abc import Sequence

from tools.models.prompting import Message, tokens

LEAST = 1024  # tokens; what is shorter is not cached (https://docs.claude.com/en/docs/build-with-claude/prompt-caching)


def wanted(model: str) -> bool:
    """Whether a provider caches prompts of the model where they are marked."""
    return "claude" in model.lower()


def mark(messages: Sequence[Message], *, grows: bool) -> list[Message]:
    """Return the messages with a mark on the last one that comes again: of a conversation that `grows`, the very last.

    Of a prompt that is the one before the query.
    """
    marked = list(messages)
    place = len(marked) - 1 - (not grows)
    repeats = "\n".join(str(message["content"] or "") for message in marked[: place + 1])[: 8 * LEAST]
    if place >= 0 and isinstance(text := marked[place]["content"], str) and text and tokens(repeats) >= LEAST:
        part = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        marked[place] = marked[place] | {"content": [part]}
    return marked
