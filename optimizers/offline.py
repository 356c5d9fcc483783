"""What the engine without a model answers to DSPy's optimizers: having no words of its own, what it is shown.

With it every optimizer runs from end to end without key or network, and finds no better instruction, because there is
none to find. What it answers to a program, the program says (programs/base.py).
"""

import re
from collections.abc import Mapping
from typing import Any

from tools.models.offline.engine import Rules
from tools.text import TermStatistics


def same_instruction(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """Return the instruction that is to be improved; of several attempts the last one, which scored best."""
    for name in ("basic_instruction", "current_instruction", "instruction"):
        if name in inputs:
            return str(inputs[name])
    attempts = re.findall(r"Instruction #\d+: (.*?)(?=\n*(?:Prefix|Instruction) #|\Z)", _joined(inputs), re.DOTALL)
    return attempts[-1].strip() if attempts else ""


def _joined(inputs: Mapping[str, Any]) -> str:
    attempts = inputs.get("attempted_instructions", "")
    return attempts if isinstance(attempts, str) else "\n".join(map(str, attempts))


def nothing(inputs: Mapping[str, Any], statistics: TermStatistics) -> str:
    """Answer nothing: no description of program or data, no rule."""
    return ""


def no_advice(inputs: Mapping[str, Any], statistics: TermStatistics) -> dict[str, str]:
    """Answer no advice for any predictor."""
    return {}


RULES: Rules = {
    # COPRO and MIPROv2; GEPA
    "proposed_instruction": same_instruction,
    "proposed_prefix_for_output_field": nothing,
    "new_instruction": same_instruction,
    "shortened_instruction": same_instruction,
    # what MIPROv2 asks about data and program
    "observations": nothing,
    "summary": nothing,
    "program_description": nothing,
    "module_description": nothing,
    # SIMBA
    "discussion": nothing,
    "module_advice": no_advice,
    # InferRules
    "reasoning": nothing,
    "natural_language_rules": nothing,
}
