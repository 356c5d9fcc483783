"""A run in words: its task, its system and its model, as tables and lines name them."""

from typing import Any

from programs import SCHEMES
from tools.cli import strip_control_characters


def model_name(name: str, program: str = "") -> str:
    """Return a model's name as it is shown; agents outside have a model of their own."""
    if program.partition(":")[0] in SCHEMES:
        return "the agent's own"
    return "offline, no language model" if name == "offline" else name


def describe_task(scores: dict[str, Any]) -> str:
    """Return the task, split and judgements of a run, and whether its data is invented."""
    text = f"{scores['task']}  {scores['split']} split"
    if scores.get("judgements", "gold") != "gold":
        text += f", {scores['judgements']} judgements"
    data = scores["data"]
    if data == "mini":
        data = "mini: bundled, invented; not comparable with published figures"
    return f"{text}  ({data})"


def describe_system(scores: dict[str, Any]) -> str:
    """Return the program, retriever and model of a run."""
    model = model_name(scores["lm"], scores["program"])
    system = f"{scores['program']} over {scores['retriever']}, model: {model}"
    if compiled := scores.get("compiled"):
        system += f", compiled by {compiled['optimizer']} ({compiled['digest']})"
        if "edited" in compiled:
            file = strip_control_characters(compiled["file"])
            system += f", prompts: {file} (edited: {compiled['edited']})"
    return system
