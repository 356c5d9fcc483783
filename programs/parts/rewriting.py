"""What CRUMB's three query rewriters share (section 4.2.2): one model call with room to think, one search.

They differ in what they ask for and in what of the answer becomes the search text: query_to_answer.py keeps the answer,
query_to_doc.py the document, reasoning_trace.py everything. As in section 4.4 the model may write 8,192 tokens, at
temperature 0 where it takes one. Thinking is a pair of fields before what is kept, not a free text with a mark at its
end as in appendix A, so the two cannot be taken for one another.
"""

from typing import Any, ClassVar

import dspy

from programs.base import Program
from tools.models import prompting
from tools.models.offline import rules
from tools.models.offline.engine import Rules
from tools.models.prompting import ask, filled
from tools.records import Query, Submission

ANSWER = 8192  # tokens that the model may write, its thinking in the fields included
# DSPy's smallest limit for OpenAI's reasoning models, which think unseen before they write, and out of the same limit.
REASONING_ANSWER = 16000
# What a text is looking for, for retrievers that were trained with an instruction.
LIKE = "The text is an item of the collection. Find items like it."


class Rewriter(Program):
    """One call, one search with the `kept` fields of the answer to `signature`, under an `instruction`."""

    offline: ClassVar[Rules] = {"analysis": rules.analyse, "brainstorming": rules.rewrite, "answer": rules.rewrite}
    signature: ClassVar[Any]
    kept: ClassVar[tuple[str, ...]]
    instruction: ClassVar[str]

    def __post_init__(self) -> None:
        self.write = dspy.Predict(self.signature)

    def forward(self, query: Query) -> Submission:
        """The first `depth` documents for what the model writes about `query`; a blank answer is unusable."""
        session = self.toolbox.open(query)
        session.hop = 1
        asked = {"objective": query.objective, "description": query.text, **self.about()}
        written = ask(self.write, filled(*self.kept), **asked, config={"max_tokens": room()})
        text = "\n\n".join(getattr(written, name).strip() for name in self.kept)
        found = session.search(text, self.depth, instruction=instruct(query, self.instruction))
        return session.submit([snippet.doc_id for snippet in found])

    def about(self) -> dict[str, str]:
        """Further inputs of the call."""
        return {}


def instruct(query: Query, instruction: str) -> str:
    """The `instruction` of a search; none for a query without an objective, whose run is to go without any."""
    return instruction if query.objective else ""


def room() -> int:
    """Tokens that the model which is active here may write: at most half of its window, where that is known."""
    settings = getattr(dspy.settings.lm, "kwargs", {})
    most = REASONING_ANSWER if "max_completion_tokens" in settings else ANSWER  # DSPy's name for it in those models
    window = prompting.window()
    return most if window is None else min(most, window // 2)
