"""Logs of Inspect AI in the form that import_run reads, as evals/serving/inspect.py writes them.

Left out: the packed form (.eval), which `inspect log dump FILE` and `inspect eval --log-format
json` write as JSON.
"""

from pathlib import Path
from typing import NamedTuple

from sextant.evals.scoring.score_run import trec_lines
from sextant.tools import schemas
from sextant.tools.errors import DataError
from sextant.tools.platform import files
from sextant.tools.records import JsonObject

# Bytes of a log that are read at most.
MAX_BYTES = 1 << 30


class ConvertedLog(NamedTuple):
    """The model of a log, and the files that were written from it."""

    model: str
    rankings: Path
    trajectories: Path
    notes: list[str]  # what else a reader of the run should know


def convert_inspect_log(log: Path, folder: Path, epoch: int | None = None) -> ConvertedLog:
    """Write the rankings and trajectories of a log's `epoch` into `folder`.

    DataError for a file that is no log of a task of Sextant's as JSON, and for several epochs if
    none is named.
    """
    try:
        content = schemas.parse_json_exact(JsonObject, files.read_input(log, MAX_BYTES))
        samples = content["samples"]
        epochs = sorted({sample.get("epoch", 1) for sample in samples})
        chosen = [sample for sample in samples if epoch in (None, sample.get("epoch", 1))]
        rows = [_make_row(sample) for sample in chosen]
        model = str(content["eval"]["model"])
        status = str(content["status"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DataError(
            f"{log} is no log of one of our tasks in Inspect, as JSON; inspect log dump makes one; "
            f"a ranking is a TREC run file, in columns"
        ) from None
    if (len(epochs) > 1 and epoch is None) or not rows:
        listed = ", ".join(map(str, epochs)) or "none"
        raise DataError(f"{log} has the epochs {listed}; import one of them with --epoch N")
    rankings = folder / f"{log.stem}.trec"
    with rankings.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(trec_lines(row["query_id"], row.get("ranking", ()), "inspect"))
    trajectories = folder / f"{log.stem}.jsonl"
    with trajectories.open("wb") as lines:
        for row in rows:
            lines.write(files.dumps(row).encode(errors="backslashreplace") + b"\n")
    return ConvertedLog(
        model,
        rankings,
        trajectories,
        [] if status == "success" else [f"Inspect's log ends with the status {status!r}"],
    )


def _make_row(sample: JsonObject) -> JsonObject:
    row = {
        "query_id": sample["id"],
        "usage": _sum_usage(sample),
        "seconds": sample.get("total_time"),
    }
    if error := sample.get("error"):
        return row | {"steps": [], "error": error["message"]}
    if not sample.get("scores"):
        return row | {"steps": [], "error": "a sample without a score in Inspect's log"}
    outcomes = list[JsonObject]()
    for score in sample["scores"].values():
        metadata = score.get("metadata") or {}
        if "outcome" in metadata:
            outcomes.append(metadata["outcome"])
    [outcome] = outcomes
    return outcome | row


def _sum_usage(sample: JsonObject) -> dict[str, int]:
    by_model = sample.get("model_usage", {}).values()

    def count(*names: str) -> int:
        return sum(usage.get(name) or 0 for usage in by_model for name in names)

    # Inspect leaves what was cached out of input_tokens; older logs of some providers do not, of
    # which the total tells.
    output = count("output_tokens")
    return {
        "calls": sum(message["role"] == "assistant" for message in sample["messages"]),
        "input_tokens": count("total_tokens") - output
        or count("input_tokens", "input_tokens_cache_read", "input_tokens_cache_write"),
        "output_tokens": output,
    }
