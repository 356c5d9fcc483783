"""Documents read by a model in as few calls as its window allows, with what it remembers beside them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dspy

from tools.models.prompting import Check, Passage, ask, batches, fit_notes, fits, show
from tools.session import Session


def read(
    session: Session,
    predictor: dspy.Predict,
    doc_ids: Sequence[str],
    chars: int,
    check: Callable[[Sequence[str]], Check],
    **asked: Any,
) -> Iterator[tuple[list[str], Any]]:
    """Have documents read, `chars` characters of each (0 all): the ids of each call, and its answer.

    `check` makes the check of an answer from the ids that were shown.
    """

    def fit(passages: list[Passage]) -> bool:
        return fits(predictor, **asked, passages=passages)

    left = list(doc_ids)
    for passages in batches(session, left, chars, fit):
        shown, left = left[: len(passages)], left[len(passages) :]
        # Copies, because DSPy keeps a call's inputs for demonstrations, and lists of notes go on growing.
        inputs = {name: list(value) if isinstance(value, list) else value for name, value in asked.items()}
        yield shown, ask(predictor, check(shown), **inputs, passages=passages)


def show_all(session: Session, predictor: dspy.Predict, doc_ids: Sequence[str], chars: int, **asked: Any) -> Any:
    """The documents as passages of one call, `chars` characters of each (0 all), cut where they do not fit."""
    return show(session, doc_ids, chars, lambda passages: fits(predictor, **asked, passages=passages))


def recall(session: Session, predictor: dspy.Predict, name: str, notes: Sequence[str], **asked: Any) -> list[str]:
    """The latest of the notes for the input `name`: half of the room at most, so that passages fit beside them."""
    return fit_notes(session, notes, lambda some: fits(predictor, **asked, **{name: some * 2}, passages=[]))


def look_back(
    session: Session, predictor: dspy.Predict, searches: Sequence[str], name: str, notes: Sequence[str], **asked: Any
) -> dict[str, Any]:
    """The inputs of a call that writes a search: the latest earlier searches, then the latest notes, that fit."""
    asked["earlier_searches"] = fit_notes(
        session,
        searches,
        lambda some: fits(predictor, **asked | {"earlier_searches": some, name: []}),
        what="earlier searches",
    )
    return asked | {name: fit_notes(session, notes, lambda some: fits(predictor, **asked, **{name: some}))}
