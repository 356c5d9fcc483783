"""Search with everything: CRUMB's Query-as-Reasoning-Trace (section 4.2.2, appendix A, Tables 4 and 10), after BRIGHT.

A model that has seen nothing of the corpus says what the request asks, what a relevant document has to contain, what
the answer is, and what a relevant document would look like. All of it together is the search text; the request's own
words are not. The paper's prompt (Figure 9) ends with the draft of an answer; its Table 10 says that the trace has an
example document: here both are asked for. The prompt is ours; what is shared with the others is in rewriting.py.
"""

from typing import ClassVar

import dspy

from programs.parts.rewriting import Rewriter
from tools.models.offline import rules
from tools.models.offline.engine import Rules


class ReasonAboutRequest(dspy.Signature):
    """Reason about a request for information in writing, from the problem behind it to a draft of its answer.

    Begin with the problem that the request comes down to. Go on, a step at a time, with what a document
    that helps has to contain. Then draft the answer, and sketch one document in which it could stand.
    All of it is used as one search text: name things by the terms that such documents use.
    """

    objective: str = dspy.InputField(desc="what the collection is, and what counts as a find; may be empty")
    description: str = dspy.InputField(desc="the request")
    problem: str = dspy.OutputField(desc="the problem that the request comes down to")
    contents: str = dspy.OutputField(desc="step by step, what a relevant document has to contain")
    answer: str = dspy.OutputField(desc="a draft of the answer")
    document: str = dspy.OutputField(desc="an example of a relevant document")


class ReasoningTrace(Rewriter):
    """CRUMB's Query-as-Reasoning-Trace: think aloud, search once with all that was said."""

    offline: ClassVar[Rules] = {
        "problem": rules.analyse,
        "contents": rules.rewrite,
        "answer": rules.rewrite,
        "document": rules.write_document,
    }
    signature = ReasonAboutRequest
    kept = tuple(offline)
    instruction = (
        "The text reasons about a question: what a good answer has to contain, a draft of it, an example of a "
        "document. Find what supports it or bears on it."
    )
