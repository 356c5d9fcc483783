"""Fill one signature for one unit of work: what every stage of a build that asks a model runs.

A unit is the text of a query, as JSON: {"inputs": {...}, "passages": [[id, text], ...]}. What it
holds may come from a corpus, so field markers in it are defused, and passages are shown under
numbers. The answer is JSON, too. It is no search program, and not in the table of them.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import dspy
from pydantic_core import to_jsonable_python

from programs import passage_reading
from programs.base import Program
from programs.build_stages import STAGES
from tools import schemas
from tools.models.answer_checks import (
    AnswerCheck,
    Outputs,
    UnusableAnswer,
    filled,
    require_known_row_ids,
)
from tools.models.passages import Passage, escape_markers
from tools.models.prompting import ask
from tools.plugins import load_object
from tools.records import Document, Query, Submission
from tools.retrievers.base import NullRetriever
from tools.session import Toolbox

Role = Literal["sweep", "write", "judge"]  # which of a recipe's models is asked
Inputs = Mapping[str, Any]  # of a signature, by their names


class StageQuestion(NamedTuple):
    """What a stage asks a model."""

    signature: Any  # may have the input `passages`
    rules: Mapping[
        str, Any
    ]  # output field -> what fills it without a model: from inputs and statistics of the corpus
    role: Role = "write"
    # The output that has a row, with an `id`, for each passage; what an answer leaves out is asked
    # for alone.
    rows: str = ""
    filled: tuple[str, ...] = ()  # outputs that must not be empty
    check: Callable[[Inputs, Outputs], None] | None = None  # raises Fault

    def checks(self, inputs: Inputs) -> list[AnswerCheck]:
        """Return what an answer to these inputs has to pass."""
        made = [filled(*self.filled)] if self.filled else []
        return [*made, partial(self.check, inputs)] if self.check else made


class StageProgram(Program):
    """The answer to one unit: its outputs as JSON, the rows by the unit's own ids."""

    stage: str = "screen"

    def __post_init__(self) -> None:
        self.asked: StageQuestion = load_object("stage", self.stage, STAGES)
        self.offline = self.asked.rules  # type: ignore[misc]
        self.fill = dspy.Predict(self.asked.signature)

    def forward(self, query: Query) -> Submission:
        """Ask about the unit that is the query's text."""
        unit = json.loads(query.text)
        own = {str(number): doc_id for number, (doc_id, _) in enumerate(unit["passages"], start=1)}
        texts = {
            one: Document(one, text) for one, (_, text) in zip(own, unit["passages"], strict=True)
        }
        session = Toolbox(texts, NullRetriever()).open(query)
        inputs = {name: self._shown(name, value) for name, value in unit["inputs"].items()}
        asked = self.asked
        checks = asked.checks(inputs)
        if asked.rows:
            outputs = dict[str, Any]()
            rows = dict[str, Any]()
            problem = None
            known = partial(require_known_row_ids, asked.rows)
            for batch in (list(own), *([one] for one in own)):
                todo = [one for one in batch if one not in rows]
                try:
                    for shown, answer in passage_reading.read_in_batches(
                        session, self.fill, todo, 0, known, checks, **inputs
                    ):
                        outputs |= _plain(answer, asked.signature)
                        rows |= {
                            row["id"]: row
                            for row in reversed(outputs[asked.rows])
                            if row["id"] in shown
                        }
                except UnusableAnswer as error:
                    problem = error
            if problem and not rows:
                raise problem
            outputs[asked.rows] = {
                doc_id: rows[one] | {"id": doc_id} for one, doc_id in own.items() if one in rows
            }
        else:
            if "passages" in asked.signature.input_fields:
                inputs["passages"] = passage_reading.show_in_one_call(
                    session, self.fill, list(own), 0, **inputs
                )
            outputs = _plain(ask(self.fill, *checks, **inputs), asked.signature)
        return session.submit([], answer=json.dumps(outputs, ensure_ascii=False))

    def guess(self, unit: Mapping[str, Any], statistics: Any) -> dict[str, Any]:
        """Return the answer to a unit as the rules without a model have it, for a rehearsal."""
        inputs = {name: self._shown(name, value) for name, value in unit["inputs"].items()}
        inputs["passages"] = [Passage(id=doc_id, text=text) for doc_id, text in unit["passages"]]
        found = {name: rule(inputs, statistics) for name, rule in self.asked.rules.items()}
        if self.asked.rows:
            found[self.asked.rows] = {row["id"]: row for row in found[self.asked.rows]}
        return found

    def _shown(self, name: str, value: Any) -> Any:
        kind = self.asked.signature.input_fields[name].annotation
        if kind == list[Passage]:
            return [
                Passage(id=f"x{number}", text=escape_markers(text))
                for number, text in enumerate(value, start=1)
            ]
        return schemas.build_dataclass(kind, _defused(value))


def _defused(value: Any) -> Any:
    if isinstance(value, str):
        return escape_markers(value)
    if isinstance(value, dict):
        return {escape_markers(name): _defused(one) for name, one in value.items()}
    return [_defused(one) for one in value] if isinstance(value, list) else value


def _plain(answer: Any, signature: Any) -> dict[str, Any]:
    """Return the outputs as JSON has them."""
    return {name: to_jsonable_python(answer[name]) for name in signature.output_fields}
