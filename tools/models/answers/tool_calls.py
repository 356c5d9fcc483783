"""The type of an output field with calls of tools, where the model has no interface for tools.

DSPy's own type describes itself to the model with an example of a call, which small models copy as
their answer. Ours says the same in words. A field of DSPy's type is read all the same
(tools/models/answers/fields.py).
"""

from typing import Any

import dspy


class ToolCalls(dspy.ToolCalls):
    """Calls of tools, each with the name of the tool and its arguments."""

    @classmethod
    def description(cls) -> str:
        """Return the description of the type that stands in prompts."""
        return (
            "A JSON object with `tool_calls`, a list of calls. A call has `name`, the name of a "
            "tool, and `args`, an object with the arguments of the tool by their names."
        )


def is_tool_calls(annotation: Any) -> bool:
    """Return whether an output field has calls of tools."""
    return isinstance(annotation, type) and issubclass(annotation, dspy.ToolCalls)
