"""A call of a model that has seen nothing of the corpus, and one search with its text.

Rewrite is OBLIQ-Bench's (section 5; appendices D.1.5, D.4.2 and D.5.3). The other three are CRUMB's
(section 4.2.2, appendix A, Tables 4 and 10), whose model may write 8,192 tokens (section 4.4).
Thinking is in fields before the kept ones, not in a free text with a mark at its end. Without a
usable answer the description is searched for, and the query has failed all the same, because there
was no other.
"""

from typing import Any, ClassVar

import dspy

from sextant.programs.base import Program, QuerySignature
from sextant.tools.lenses import get_lens
from sextant.tools.models import offline_rules as rules
from sextant.tools.models.answers.checks import filled
from sextant.tools.models.prompting import ask, empty_outputs, predict, with_advice
from sextant.tools.records import Query, Submission

# An instruction for retrievers trained with such
LIKE = "The text is an item of the collection. Find items like it."

MAX_TOKENS = 8192  # of an answer, in CRUMB

OBJECTIVE = "what the collection is, and what counts as a find; may be empty"


class RewriteDescription(QuerySignature):
    """Rewrite a query into one search text that wanted documents match better than the query does.

    The objective says how a wanted document stands to the query; its words are probably others. Infer which
    terms, turns of phrase and specifics it would have, and write with those.
    """

    rewritten: str = dspy.OutputField(desc="one search text")


RewriteWithRationale = RewriteDescription.append(
    "rationale",
    dspy.OutputField(default="", desc="what the query is taken to be after, and why"),
    str,
)
# DSPy calls it StringSignature, and a compiled program is checked by the name.
RewriteWithRationale.__name__ = "RewriteWithRationale"


class Rewrite(Program):
    """OBLIQ-Bench's rewriter: rewrite once, search once.

    A rationale follows the text, except in the prompt for stances (appendix D.1.5).
    """

    offline: ClassVar = {"rewritten": rules.rewrite_query, "rationale": rules.leave_empty}

    lens: str = ""  # a name of tools/lenses.py: what makes a document relevant in this task

    def __post_init__(self) -> None:
        signature = RewriteDescription if self.lens == "stance" else RewriteWithRationale
        lens = get_lens(self.lens)
        self.rewrite = predict(with_advice(signature, lens.rewrite or lens.search), tokens=500)

    def forward(self, query: Query) -> Submission:
        """Return the first `depth` documents for the rewritten text."""
        session = self.toolbox.open(query)
        session.hop = 1
        answer = ask(
            self.rewrite,
            filled("rewritten"),
            fallback=empty_outputs(self.rewrite, rewritten=query.text),
            objective=query.objective,
            description=query.text,
        )
        if rationale := answer.get("rationale", "").strip():
            session.note(f"rationale: {rationale}")
        return session.submit(session.find_hits(answer.rewritten.strip(), self.depth).doc_ids)


class OneShotRewriter(Program):
    """A call, one search with the `kept` fields of the answer to `signature`, under an
    `instruction`.
    """

    # Of the search, for retrievers that were trained with instructions; "" for none.
    instruction: str = ""

    offline: ClassVar = {
        "analysis": rules.heaviest_sentence,
        "brainstorming": rules.rewrite_query,
        "answer": rules.rewrite_query,
    }

    def __post_init__(self) -> None:
        self.write = predict(self.signature, tokens=MAX_TOKENS)
        self.inputs = dict[str, str]()  # of the call, beside those that tell of the query

    def forward(self, query: Query) -> Submission:
        """Return the first `depth` documents for the model's text about `query`."""
        session = self.toolbox.open(query)
        session.hop = 1
        inputs: dict[str, Any] = {
            "objective": query.objective,
            "description": query.text,
            **self.inputs,
        }
        # An answer that was cut off behind the first of its kept fields has a text to search with.
        fallback = empty_outputs(self.write, **{self.kept[0]: query.text})
        written = ask(
            self.write,
            filled(*self.kept),
            fallback=fallback,
            **inputs,
        )
        text = "\n\n".join(getattr(written, name).strip() for name in self.kept).strip()
        return session.submit(
            session.find_hits(
                text, self.depth, instruction=search_instruction(query, self.instruction)
            ).doc_ids
        )


def search_instruction(query: Query, instruction: str) -> str:
    """Return the `instruction` of a search; none for a query without an objective, whose run is to go without any."""
    return instruction if query.objective else ""


class InformationRequest(dspy.Signature):
    """What a call is told of its query."""

    objective: str = dspy.InputField(desc=OBJECTIVE)
    description: str = dspy.InputField(desc="the request")


class AnswerRequest(InformationRequest):
    """Answer a request for information from what you know, thinking before you answer.

    First work out what is asked for and what a full answer would have to contain, then collect what could
    be relevant and rule out what only seems so. The answer stands by itself: no remarks about how you
    came to it, and no question back. When you are not sure, commit yourself to the likeliest answer.
    """

    analysis: str = dspy.OutputField(desc="what is asked for, and what a full answer contains")
    brainstorming: str = dspy.OutputField(desc="what could be relevant, and what is not")
    answer: str = dspy.OutputField(desc="the answer and nothing else")


class QueryToAnswer(OneShotRewriter):
    """CRUMB's Query-to-Answer: think, answer, search once with the answer.

    In the paper this helps weak retrievers most at the top of the ranking, and harms the best one.
    """

    signature = AnswerRequest
    kept = ("answer",)
    instruction: str = "The text is an answer to a question. Find what supports it or bears on it."


class WriteDocument(dspy.Signature):
    """Write one document that would satisfy a request, thinking before you write.

    First settle what kind of document is wanted; where that is not given, infer it from the objective and
    the request. Work out what the request asks for, then think of documents that could meet it and of what
    they would say. Then write one of them out: in the form, the register and the length of a real one,
    complete, with invented particulars rather than gaps, and with nothing before or after it.
    """

    objective: str = dspy.InputField(desc=OBJECTIVE)
    kind: str = dspy.InputField(
        desc="what a document of the collection is; empty when it has to be inferred"
    )
    description: str = dspy.InputField(desc="the request")
    analysis: str = dspy.OutputField(desc="what kind of document is wanted, and what is asked for")
    brainstorming: str = dspy.OutputField(
        desc="which documents could meet the request, and what they would say"
    )
    document: str = dspy.OutputField(desc="one whole document and nothing else")


class QueryToDoc(OneShotRewriter):
    """CRUMB's Query-to-Doc: think, write the wanted document, search once with it. In the paper it helps recall."""

    offline: ClassVar = {**OneShotRewriter.offline, "document": rules.write_document}
    signature = WriteDocument
    kept = ("document",)
    instruction: str = LIKE

    # A description of the task's documents; the model infers it if it is "".
    document: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inputs = {"kind": self.document}


class ReasonAboutRequest(InformationRequest):
    """Reason about a request for information in writing, from the problem behind it to a draft of its answer.

    Begin with the problem that the request comes down to. Go on, a step at a time, with what a document
    that helps has to contain. Then draft the answer, and sketch one document in which it could stand.
    All of it is used as one search text: name things by the terms that such documents use.
    """

    problem: str = dspy.OutputField(desc="the problem that the request comes down to")
    contents: str = dspy.OutputField(desc="step by step, what a relevant document has to contain")
    answer: str = dspy.OutputField(desc="a draft of the answer")
    document: str = dspy.OutputField(desc="an example of a relevant document")


class ReasoningTrace(OneShotRewriter):
    """CRUMB's Query-as-Reasoning-Trace: think aloud, search once with all that was said.

    The request's own words are left out. The paper's prompt (Figure 9) ends with the draft of an answer; its Table 10
    also has an example document.
    """

    offline: ClassVar = {
        "problem": rules.heaviest_sentence,
        "contents": rules.rewrite_query,
        "answer": rules.rewrite_query,
        "document": rules.write_document,
    }
    signature = ReasonAboutRequest
    kept = tuple(offline)
    instruction: str = (
        "The text reasons about a question: what a good answer has to contain, a draft of it, an "
        "example of a "
        "document. Find what supports it or bears on it."
    )
