"""The forms of a run folder's files, as tools/forms.py checks them.

docs/decisions/run-folder.md says which file is whose.

Left out: what a form cannot say, such as that two lists are of one length; that is checked by who reads the file.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from evals.measuring.traces import Fate
from tools.forms import Amount, Count, Number, TraceForm, UsageForm, read, read_file

__all__ = ["ConfigForm", "JudgedForm", "OutcomeForm", "ScoresForm", "read", "read_file"]


class Asked(TypedDict):
    """The queries of a split that were requested."""

    limit: Count | None
    query_ids: list[str]


class PoolForm(TypedDict):
    """The pool that --pool requested."""

    kind: str
    size: Count
    of: list[str]


class CompiledName(TypedDict):
    """Which compiled prompts."""

    digest: str
    optimizer: str
    task: NotRequired[str]


RetrieverForm = TypedDict(
    "RetrieverForm", {"name": str, "with": NotRequired[str], "others": NotRequired[dict[str, str] | None]}
)


class Named(TypedDict):
    """A model."""

    name: str


class Imported(TypedDict, total=False):
    """What a run says that was imported."""

    usage: bool
    notes: list[str]


class Provenance(TypedDict):
    """Where a run was made, and from what."""

    data: str
    folder: str | None
    judgements: str


class ConfigForm(TypedDict):
    """config.json: what comparing, scoring and showing read of it."""

    task: str
    data: str
    data_fingerprint: str
    split: str
    asked: Asked
    instruction: str
    depth: Count
    max_p: bool
    program: str
    parameters: dict[str, Any]
    retriever: RetrieverForm
    lm: Named
    pool: NotRequired[PoolForm | None]
    compiled: NotRequired[CompiledName | None]
    imported: NotRequired[Imported | None]
    provenance: Provenance


class OutcomeForm(TypedDict):
    """A line of outcomes.jsonl."""

    query_id: str
    ranking: list[str]
    scores: NotRequired[list[Number] | None]
    answer: NotRequired[str | None]
    trace: TraceForm
    usage: UsageForm
    error: str | None
    traceback: NotRequired[str]
    seconds: NotRequired[Amount | None]
    digest: NotRequired[str]


class Measured(TypedDict):
    """The mean of a metric; without an interval where it is over one query, null where it is undefined for all."""

    mean: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]


class LossesForm(TypedDict):
    """The shares of relevant documents that a run lost, by fate."""

    cutoff: Count
    queries: NotRequired[Count]
    documents: NotRequired[dict[str, Count]]
    at: dict[str, dict[str, Number]]


class Used(TypedDict):
    """What all queries used; null where it is not known."""

    calls: Count | None
    input_tokens: Count | None
    output_tokens: Count | None
    paid_usd: Amount | None
    list_usd: Amount | None


class Read(TypedDict):
    """What was left out of the documents that models read: evals.measuring.scoring.describe_cuts."""

    documents: Count
    cut: Count
    characters: Count
    left_out: Count


class ScoresForm(TypedDict):
    """scores.json."""

    task: NotRequired[str]
    data: str
    split: NotRequired[str]
    instruction: NotRequired[str]
    judgements: str
    program: str
    pool: NotRequired[PoolForm | None]
    compiled: NotRequired[CompiledName | None]
    retriever: str
    lm: str
    queries: Count
    failed: Count
    owed: NotRequired[Count]
    metric: NotRequired[str]
    metrics: Annotated[dict[str, Measured], Field(min_length=1)]
    losses: NotRequired[LossesForm | None]
    read: NotRequired[Read | None]
    notes: NotRequired[list[str]]
    usage: Used
    made_of: NotRequired[dict[str, str]]
    digest: NotRequired[str]


class RelevantForm(TypedDict):
    """A relevant document in attribution.jsonl: evals.measuring.traces.Relevant and History."""

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


class JudgedForm(TypedDict):
    """A line of attribution.jsonl."""

    query_id: str
    text: NotRequired[str]
    grades: dict[str, Number]
    relevant: list[RelevantForm]
    units: NotRequired[dict[str, str]]
