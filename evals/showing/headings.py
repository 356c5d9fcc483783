"""The lines above every table: what was asked, and what answered."""

from typing import Any


def model(name: str) -> str:
    """A model's name; `offline` is none."""
    return "offline, no language model" if name == "offline" else name


def task_line(scores: dict[str, Any]) -> str:
    """The task, split and judgements of a run, and whether its data is invented."""
    kind = scores["data"]
    note = "mini: bundled, invented; not comparable with published figures" if kind == "mini" else kind
    judgements = f", {scores['judgements']} judgements" if scores.get("judgements", "gold") != "gold" else ""
    return f"{scores['task']}  {scores['split']} split{judgements}  ({note})"


def system_line(scores: dict[str, Any]) -> str:
    """The program, retriever and model of a run."""
    compiled = scores.get("compiled")
    prompts = f", compiled by {compiled['optimizer']} ({compiled['digest']})" if compiled else ""
    return f"{scores['program']} over {scores['retriever']}, model: {model(scores['lm'])}{prompts}"
