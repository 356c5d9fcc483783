"""JSON Schemas of the files of a run, and of what is beside it, made from the forms that they are checked against.

Keys that a schema does not name are allowed, as files of later versions may have them. docs/schemas has the result.
Left out: the books of a compilation, and what is written and never read: learnt.json, exports.
"""

import json
from pathlib import Path

from tools import forms
from tools.names import pick

FORMS = {
    "config.json": "evals.forms:ConfigForm",
    "outcomes.jsonl": "evals.forms:OutcomeForm",
    "trace": "tools.forms:TraceForm",
    "scores.json": "evals.forms:ScoresForm",
    "attribution.jsonl": "evals.forms:JudgedForm",
    "compiled.json": "programs.compiled:Compiled",
    "cassette.jsonl": "tools.models.kept:CassetteLine",
    "trajectories.jsonl": "evals.formats.importing:Line",
}


def write(source: object, folder: Path) -> list[str]:
    """JSON Schemas of run folders, compiled programs, cassettes; without a RUN. Of .jsonl, each line has the schema."""
    for name in FORMS:
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        made = head | forms.schema(pick("form", name, FORMS)) | {"title": name}
        (folder / f"{name}.schema.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return []
