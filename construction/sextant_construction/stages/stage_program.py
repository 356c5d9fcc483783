"""Fill one signature for a unit of work: every stage of a build that asks a model runs this.

A unit is the text of a query, as JSON: {"inputs": {...}, "passages": [[id, text], ...]}. Its content
may come from a corpus, so field markers in it are escaped, and passages are shown under numbers.
The answer is JSON, too. It is no search program, and not in the table of search programs.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from dspy import Predict
from pydantic_core import to_jsonable_python

from sextant.programs import passage_reading
from sextant.programs.base import Program
from sextant.tools import schemas
from sextant.tools.models.answers.checks import (
    AnswerTest,
    Outputs,
    UnusableAnswer,
    filled,
    require_known_row_ids,
)
from sextant.tools.models.prompting import Passage, ask, escape_markers
from sextant.tools.plugins import load_object
from sextant.tools.records import Document, Query, Submission
from sextant.tools.retrievers.base import NullRetriever
from sextant.tools.session import Session, Toolbox
from sextant_construction.stages import STAGES

Role = Literal["sweep", "write", "judge"]  # which of a recipe's models is asked
Inputs = Mapping[str, Any]  # of a signature, by their names


class StageQuestion(NamedTuple):
    """A question of a stage to a model."""

    signature: Any  # may have the input `passages`
    # output field -> its value without a model: a function of inputs and statistics of the corpus
    rules: Mapping[str, Any]
    role: Role = "write"
    # The output that has a row, with an `id`, for each passage; passages that an answer leaves out
    # are asked for alone.
    rows: str = ""
    filled: tuple[str, ...] = ()  # outputs that must not be empty
    check: Callable[[Inputs, Outputs], None] | None = None  # raises InvalidAnswer

    def checks(self, inputs: Inputs) -> list[AnswerTest]:
        """Return the checks that an answer to these inputs has to pass."""
        checks = list[AnswerTest]()
        if self.filled:
            checks.append(filled(*self.filled))
        if self.check:
            checks.append(partial(self.check, inputs))
        return checks


class StageProgram(Program):
    """The answer to one unit: its outputs as JSON, the rows by the unit's own ids."""

    stage: str = "screen"

    def __post_init__(self) -> None:
        self.question: StageQuestion = load_object("stage", self.stage, STAGES)
        self.offline = self.question.rules  # type: ignore[misc]
        self.fill = Predict(self.question.signature)

    def forward(self, query: Query) -> Submission:
        """Ask about the unit that is the query's text."""
        unit = json.loads(query.text)
        passages = {str(number): row for number, row in enumerate(unit["passages"], start=1)}
        texts = {number: Document(number, text) for number, (_, text) in passages.items()}
        session = Toolbox(texts, NullRetriever()).open(query)
        inputs = {name: self._shown(name, value) for name, value in unit["inputs"].items()}
        question = self.question
        if question.rows:
            outputs = self._ask_for_rows(session, list(texts), inputs)
            rows = outputs[question.rows]
            outputs[question.rows] = {
                doc_id: rows[number] | {"id": doc_id}
                for number, (doc_id, _) in passages.items()
                if number in rows
            }
        else:
            checks = question.checks(inputs)
            if "passages" in question.signature.input_fields:
                inputs["passages"] = passage_reading.show_in_one_call(
                    session, self.fill, list(texts), 0, **inputs
                )
            outputs = _plain(ask(self.fill, *checks, **inputs), question.signature)
        return session.submit([], answer=json.dumps(outputs, ensure_ascii=False))

    def _ask_for_rows(
        self,
        session: Session,
        numbers: list[str],
        inputs: dict[str, Any],
    ) -> dict[str, Any]:
        """Return outputs of which `question.rows` has a row for each passage, by its number.

        Passages that an answer leaves out are asked for alone. UnusableAnswer if there is no row.
        """
        question = self.question
        checks = question.checks(inputs)
        outputs = dict[str, Any]()
        rows = {}
        problem: UnusableAnswer | None = None
        for batch in (numbers, *([number] for number in numbers)):
            todo = [number for number in batch if number not in rows]
            try:
                for shown in passage_reading.batch_passages(session, self.fill, todo, 0, **inputs):
                    answer = ask(
                        self.fill,
                        require_known_row_ids(question.rows, shown.doc_ids),
                        *checks,
                        **inputs,
                        passages=shown.passages,
                    )
                    outputs |= _plain(answer, question.signature)
                    # Of two rows of a passage the first holds.
                    for row in reversed(outputs[question.rows]):
                        if row["id"] in shown.doc_ids:
                            rows[row["id"]] = row
            except UnusableAnswer as error:
                problem = error
        if problem and not rows:
            raise problem
        return outputs | {question.rows: rows}

    def guess(self, unit: Mapping[str, Any], statistics: Any) -> dict[str, Any]:
        """Return the answer to a unit as the rules without a model have it, for a rehearsal."""
        inputs = {name: self._shown(name, value) for name, value in unit["inputs"].items()}
        inputs["passages"] = [Passage(id=doc_id, text=text) for doc_id, text in unit["passages"]]
        outputs = {name: rule(inputs, statistics) for name, rule in self.question.rules.items()}
        rows = self.question.rows
        if rows:
            outputs[rows] = {row["id"]: row for row in outputs[rows]}
        return outputs

    def _shown(self, name: str, value: Any) -> Any:
        """Return an input as the signature has it, without field markers of the corpus."""
        input_type = self.question.signature.input_fields[name].annotation
        value = _escape_all(value)
        if input_type == list[Passage]:
            value = [
                {"id": f"x{number}", "text": text} for number, text in enumerate(value, start=1)
            ]
        return schemas.build_dataclass(input_type, value)


def _escape_all(value: Any) -> Any:
    if isinstance(value, str):
        return escape_markers(value)
    if isinstance(value, dict):
        return {escape_markers(name): _escape_all(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_escape_all(entry) for entry in value]
    return value


def _plain(answer: Any, signature: Any) -> dict[str, Any]:
    """Return the outputs as JSON has them."""
    return {name: to_jsonable_python(answer[name]) for name in signature.output_fields}
