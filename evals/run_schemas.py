"""The forms of a run folder's files (docs/decisions/run-identity.md), as tools/schemas.py checks
them.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sextant.tools import schemas
from sextant.tools.plugins import load_object
from sextant.tools.schemas import Amount, Count, Number, TraceSchema, UsageSchema


class Fate(StrEnum):
    """How far a relevant document came, in the order in which it can be lost."""

    NEVER_SURFACED = "never_surfaced"
    NOT_SHOWN = "not_shown"
    SHOWN_IN_PART = "shown_in_part"
    NOT_SELECTED = "not_selected"
    RANKED_LOW = "ranked_low"
    LIMIT = "limit"
    ERROR = "error"
    UNKNOWN = "unknown"
    FOUND = "found"


FATE_LABELS: dict[Fate, str] = {  # what a reader sees; {k} is the cutoff
    Fate.FOUND: "found in the first {k}",
    Fate.NEVER_SURFACED: "never surfaced",
    Fate.NOT_SHOWN: "surfaced, shown to no model",
    Fate.SHOWN_IN_PART: "shown in part, not selected",
    Fate.NOT_SELECTED: "shown whole, not selected",
    Fate.RANKED_LOW: "ranked below the first {k}",
    Fate.LIMIT: "lost to a limit",
    Fate.ERROR: "lost to an error",
    Fate.UNKNOWN: "not ranked, no trajectory",
}

SCHEMAS = {  # file -> its form, or that of its lines
    "config.json": "sextant.evals.run_schemas:ConfigSchema",
    "outcomes.jsonl": "sextant.evals.run_schemas:OutcomeSchema",
    "trace": "sextant.tools.schemas:TraceSchema",
    "scores.json": "sextant.evals.run_schemas:ScoresSchema",
    "attribution.jsonl": "sextant.evals.run_schemas:JudgedSchema",
    "compiled.json": "sextant.programs.compiled:Compiled",
    "cassette.jsonl": "sextant.tools.models.storage.request_store:CassetteLine",
    "trajectories.jsonl": "sextant.evals.formats.import_run:ImportedLine",
}


class _Asked(TypedDict):
    limit: Count | None
    query_ids: list[str]


class _Pool(TypedDict):
    kind: str
    size: Count
    of: list[str]


class _Compiled(TypedDict):
    digest: str
    optimizer: str
    task: NotRequired[str]


# A retriever, or a model, which has a name alone.
_Engine = TypedDict(
    "_Engine",
    {
        "name": str,
        "with": NotRequired[str],
        "others": NotRequired[dict[str, str] | None],
    },
)


class _Imported(TypedDict, total=False):
    usage: bool
    notes: list[str]


class _Provenance(TypedDict):
    data: str
    folder: str | None
    judgements: str


class ConfigSchema(TypedDict):
    """config.json: the keys that comparing, scoring and showing read."""

    task: str
    data: str
    data_fingerprint: str
    split: str
    asked: _Asked  # the queries of the split that were requested
    instruction: str
    depth: Count
    max_p: bool
    program: str
    name: NotRequired[str]  # of a version of the program
    parameters: dict[str, Any]
    retriever: _Engine
    lm: _Engine
    pool: NotRequired[_Pool | None]
    compiled: NotRequired[_Compiled | None]
    imported: NotRequired[_Imported | None]
    provenance: _Provenance


class OutcomeSchema(TypedDict):
    """A line of outcomes.jsonl."""

    query_id: str
    ranking: list[str]
    scores: NotRequired[list[Number] | None]
    answer: NotRequired[str | None]
    trace: TraceSchema
    usage: UsageSchema
    error: str | None
    traceback: NotRequired[str]
    seconds: NotRequired[Amount | None]
    digest: NotRequired[str]


class _Measured(TypedDict):
    """Of a metric; without an interval if it is over a query, null if it is undefined for all."""

    mean: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]


class _Losses(TypedDict):
    cutoff: Count
    queries: NotRequired[Count]
    documents: NotRequired[dict[str, Count]]
    at: dict[str, dict[str, Number]]  # the shares of relevant documents that a run lost, by fate


class _Used(TypedDict):
    calls: Count | None
    input_tokens: Count | None
    output_tokens: Count | None
    paid_usd: Amount | None
    list_usd: Amount | None


class _Read(TypedDict):
    documents: Count
    cut: Count
    characters: Count
    left_out: Count


class ScoresSchema(TypedDict):
    """scores.json."""

    task: NotRequired[str]
    data: str
    split: NotRequired[str]
    instruction: NotRequired[str]
    judgements: str
    relevant_from: NotRequired[Amount]  # the lowest grade of a relevant document; 0: all above 0
    program: str
    pool: NotRequired[_Pool | None]
    compiled: NotRequired[_Compiled | None]
    retriever: str
    lm: str
    queries: Count
    failed: Count
    documents: NotRequired[Count]  # of the corpus
    opaque_ids: NotRequired[bool]  # whether programs saw other ids than those of the release
    candidates: NotRequired[
        Count | None
    ]  # the most that a query of a task with candidate pools has
    owed: NotRequired[Count]
    metric: NotRequired[str]
    metrics: Annotated[dict[str, _Measured], Field(min_length=1)]
    losses: NotRequired[_Losses | None]
    searchers: NotRequired[dict[str, Number | None]]  # means of the figures of behaviour
    query_seconds: NotRequired[Amount | None]  # of all queries, one after another
    unjudged: NotRequired[
        dict[str, dict[str, Number]]
    ]  # of tasks with pooled judgements, by metric
    unusable: NotRequired[dict[str, Count]]  # answers, by the reason
    used_in_part: NotRequired[dict[str, Count]]
    read: NotRequired[_Read | None]
    notes: NotRequired[list[str]]
    usage: _Used
    metric_code: NotRequired[dict[str, str]]  # user's metric -> digest of its sources
    made_of: NotRequired[dict[str, str]]
    digest: NotRequired[str]


class _Relevant(TypedDict):
    unit: str
    grade: Number
    place: Count
    lost_as: Annotated[str, Field(pattern=f"^({'|'.join(Fate)})$")]
    doc_id: NotRequired[str]
    hop: NotRequired[Count]
    rank: NotRequired[Count]
    search: NotRequired[Count | None]
    best_rank: NotRequired[Count]
    shown_hop: NotRequired[Count]
    shown_step: NotRequired[Count | None]
    chars: NotRequired[Count]
    length: NotRequired[Count]
    decision: NotRequired[Literal["", "select", "drop"]]
    decision_hop: NotRequired[Count]
    decision_step: NotRequired[Count | None]


class JudgedSchema(TypedDict):
    """A line of attribution.jsonl."""

    query_id: str
    text: NotRequired[str]
    grades: dict[str, Number]
    relevant: list[_Relevant]
    units: NotRequired[dict[str, str]]


def write_schemas(source: object, folder: Path) -> list[str]:
    """JSON Schemas of run folders, compiled programs and cassettes; those of .jsonl are of a line.

    Without a RUN.
    """
    for name in SCHEMAS:
        schema = schemas.schema(load_object("form", name, SCHEMAS)) | {"title": name}
        (folder / f"{name}.schema.json").write_text(
            json.dumps(schema, indent=2) + "\n", encoding="utf-8"
        )
    return []
