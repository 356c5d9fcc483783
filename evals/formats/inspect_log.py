"""Logs of Inspect AI in the form that import_run reads, as evals/serving/inspect.py writes them.

Left out: the packed form (.eval), which `inspect log dump FILE` and `inspect eval --log-format
json` write as JSON.
"""

from pathlib import Path
from typing import NamedTuple

from evals.scoring.score_run import trec_lines
from tools import files, schemas
from tools.errors import DataError
from tools.records import JsonObject

# Bytes of a log that are read at most.
MAX_BYTES = 1 << 30


class ConvertedLog(NamedTuple):
    """The model of a log, and the files that were written from it."""

    model: str
    rankings: Path
    trajectories: Path


def convert_inspect_log(log: Path, folder: Path) -> ConvertedLog:
    """Write the rankings and trajectories of a log into `folder`.

    DataError for a file that is no log of a task of Sextant's as JSON.
    """
    try:
        content = schemas.parse_json_exact(JsonObject, files.read_input(log, MAX_BYTES))
        rows = [_make_row(sample) for sample in content["samples"]]
        model = str(content["eval"]["model"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DataError(
            f"{log} is no log of one of our tasks in Inspect, as JSON; inspect log dump makes one; "
            f"a ranking is a TREC run file, in columns"
        ) from None
    rankings = folder / f"{log.stem}.trec"
    with rankings.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(trec_lines(row["query_id"], row.get("ranking", ()), "inspect"))
    trajectories = folder / f"{log.stem}.jsonl"
    with trajectories.open("wb") as lines:
        for row in rows:
            lines.write(files.dumps(row).encode("utf-8", "backslashreplace") + b"\n")
    return ConvertedLog(model, rankings, trajectories)


def _make_row(sample: JsonObject) -> JsonObject:
    row = {
        "query_id": sample["id"],
        "usage": _sum_usage(sample),
        "seconds": sample.get("total_time"),
    }
    if error := sample.get("error"):
        return row | {"steps": [], "error": error["message"]}
    outcomes = list[JsonObject]()
    for score in sample["scores"].values():
        metadata = score.get("metadata") or {}
        if "outcome" in metadata:
            outcomes.append(metadata["outcome"])
    [outcome] = outcomes
    return outcome | row


def _sum_usage(sample: JsonObject) -> dict[str, int]:
    by_model = sample.get("model_usage", {}).values()
    return {
        "calls": sum(message["role"] == "assistant" for message in sample["messages"]),
        "input_tokens": sum(usage["input_tokens"] for usage in by_model),
        "output_tokens": sum(usage["output_tokens"] for usage in by_model),
    }
