"""Why an answer ended, in the words of OpenAI's Chat Completions, whatever its server calls it.

"stop", "length" (the limit of tokens), "tool_calls", "content_filter" and so on. Two words are
ours, for answers of which the rest was not waited for: "repetition" (of itself, or of the tools'
descriptions) and "timeout" (the limit of --call-timeout, while the model went on writing). The text
of all three kinds of cut answers is used as far as it goes.
"""

LENGTH = "length"
REPETITION = "repetition"
TIMEOUT = "timeout"
_CUT = (LENGTH, REPETITION, TIMEOUT)
# Other words for an answer that was cut off at its limit, in lower case: of Mistral, Anthropic,
# Gemini, Cohere, Bedrock, Hugging Face's TGI and the Responses API, which gateways pass on.
_LENGTH_WORDS = (
    "max_tokens",
    "max_output_tokens",
    "max_completion_tokens",
    "max_new_tokens",
    "max_length",
    "model_length",
    "model_context_window_exceeded",
    "token_limit",
    "incomplete",
    "truncated",
)


def read_finish_reason(reason: object, tokens: int | None = None, limit: int | None = None) -> str:
    """Return a server's reason in our words.

    Without one, it is told by the number of `tokens` of the answer and their `limit`; None for
    numbers that are not known.
    """
    if not reason:
        is_full = tokens is not None and limit is not None and tokens >= limit
        return LENGTH if is_full else "stop"
    word = str(reason)
    plain = word.lower().replace("-", "_")
    return LENGTH if plain == LENGTH or plain in _LENGTH_WORDS else word


def is_cut(finish: str) -> bool:
    """Return whether an answer ended before the model had ended it."""
    return finish in _CUT
