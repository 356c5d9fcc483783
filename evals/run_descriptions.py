"""A run in words: its task, its system and its model, as tables and lines name them.

Names that tell several systems apart are in scoring/system_names.py.
"""

from sextant.programs import SCHEMES
from sextant.tools.platform.cli import strip_control_characters
from sextant.tools.records import JsonMapping

# How the `name` of a program begins that is an object and does not say who it is.
UNNAMED = "unnamed, "


def printable(text: object) -> str:
    """Text of a run as a reader may see it: no control characters, no half of a character."""
    return strip_control_characters(str(text).encode(errors="replace").decode())


def model_name(name: str, program: str = "") -> str:
    """Return a model's name as it is shown; agents outside have a model of their own."""
    if program.partition(":")[0] in SCHEMES:
        return "the agent's own"
    return "offline, no language model" if name == "offline" else name


def describe_resuming(config: JsonMapping) -> str:
    """Return what of a program is not seen, so that its user has to name what has changed."""
    program = config["program"]
    name = config.get("name", "")
    if name.startswith(UNNAMED):
        return (
            f"{program} is an object without a name, so each call is a new run; "
            f"evaluate(..., name=...) goes on"
        )
    if name or program.partition(":")[0] not in SCHEMES:
        return ""
    files = ", ".join(config.get("files", ()))
    seen = f"its line and {files}" if files else "its line"
    return f"of the agent, {seen} are seen; give --name for what else has changed"


def describe_task(scores: JsonMapping) -> str:
    """Return the task, split and judgements of a run, the level if it has one, and whether its
    data is invented.
    """
    task = scores["task"]
    split = scores["split"]
    judgements = scores.get("judgements", "gold")
    text = f"{task}  {'all splits' if split == 'all' else f'{split} split'}"
    if judgements != "gold":
        text += f", {judgements} judgements"
    if level := scores.get("relevant_from"):
        text += f", relevant from grade {level:g}"
    data = scores["data"]
    if data == "mini":
        data = "mini: bundled, invented; not comparable with published figures"
    return f"{text}  ({data})"


def describe_system(scores: JsonMapping) -> str:
    """Return the program, retriever and model of a run."""
    program = scores["program"]
    retriever = scores["retriever"]
    model = model_name(scores["lm"], program)
    system = f"{program} over {retriever}, model: {model}"
    compiled = scores.get("compiled")
    if not compiled:
        return system
    system += f", compiled by {compiled['optimizer']} ({compiled['digest']})"
    if "edited" in compiled:
        edited = compiled["edited"]
        file = strip_control_characters(compiled["file"])
        system += f", prompts: {file} (edited: {edited})"
    return system
