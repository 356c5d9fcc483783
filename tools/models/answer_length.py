"""The most tokens that a good answer to a predictor has.

    self.read_passages = predict(ReadPassages, tokens=400, each=10)

The tokens are those of the texts in the answer; names of fields are added, and for each passage
that the call shows its id and `each`. Where a paper states a limit, that is the number. The request
is sent with this limit (tools/models/language_model.py), unless the model thinks before it answers.
"""

from collections.abc import Mapping
from typing import Any

import dspy

_FIELD_TOKENS = 16  # of a field's marker with its name, or of its name in a JSON object


def predict(signature: Any, tokens: int, each: int = 0) -> dspy.Predict:
    """Return DSPy's predictor with the most tokens of a good answer.

    `each` is the number of tokens that a passage adds to those of its id.
    """
    predictor = dspy.Predict(signature)
    predictor.answer_tokens = tokens
    predictor.answer_tokens_each = each
    return predictor


def max_answer_tokens(predictor: Any, inputs: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a good answer to these inputs; None for a predictor without limit."""
    tokens: int | None = getattr(predictor, "answer_tokens", None)
    if tokens is None:
        return None
    tokens += _FIELD_TOKENS * (len(predictor.signature.output_fields) + 1)
    each: int = predictor.answer_tokens_each
    if each:
        for passage in inputs.get("passages") or ():
            # A character has a token at most; tokenizers of many models split digits.
            tokens += len(passage.id) + each
    return tokens
