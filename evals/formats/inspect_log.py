"""Logs of Inspect AI in the form that import_run reads: what evals/serving/inspect.py put into
them.

Left out: the packed form (.eval), which `inspect log dump FILE` and `inspect eval --log-format
json` write as JSON.
"""

from pathlib import Path
from typing import Any

from evals.scoring.score_run import trec_lines
from tools import files, schemas
from tools.errors import DataError


def convert_inspect_log(log: Path, folder: Path) -> tuple[str, Path, Path]:
    """Write the rankings and trajectories of a log into `folder`; return the model's name and
    the two files.
    """
    try:
        read = schemas.parse_json_exact(dict[str, Any], files.read_input(log, 1 << 30))
        rows = [_make_row(sample) for sample in read["samples"]]
        model = str(read["eval"]["model"])
    except (ValueError, LookupError, TypeError, AttributeError):
        what = "no log of one of our tasks in Inspect, as JSON; inspect log dump makes one"
        raise DataError(f"{log} is {what}") from None
    rankings = folder / f"{log.stem}.trec"
    trajectories = folder / f"{log.stem}.jsonl"
    text = "".join(trec_lines(row["query_id"], row.get("ranking", ()), "inspect") for row in rows)
    rankings.write_text(text, encoding="utf-8", errors="backslashreplace")
    trajectories.write_bytes(
        b"".join(files.dumps(row).encode("utf-8", "backslashreplace") + b"\n" for row in rows)
    )
    return model, rankings, trajectories


def _make_row(sample: dict[str, Any]) -> dict[str, Any]:
    used = sample.get("model_usage", {}).values()
    calls = sum(message["role"] == "assistant" for message in sample["messages"])
    usage = {"calls": calls} | {
        key: sum(one[key] for one in used) for key in ("input_tokens", "output_tokens")
    }
    told = {"query_id": sample["id"], "usage": usage, "seconds": sample.get("total_time")}
    if error := sample.get("error"):
        return told | {"steps": [], "error": error["message"]}
    [score] = [one for one in sample["scores"].values() if "outcome" in (one.get("metadata") or {})]
    outcome: dict[str, Any] = score["metadata"]["outcome"]
    return outcome | told
