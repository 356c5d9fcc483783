"""Search with a made-up document: CRUMB's Query-to-Doc (section 4.2.2, appendix A, Table 4).

A model that has seen nothing of the corpus thinks about what would satisfy the request, then writes one such document,
as long and in the form that a real one has; only that is searched with. In the paper it is the rewriting that helps
recall. What form documents have is the parameter `document`, which a run fills from the task. The prompt is ours;
what is shared with the other rewriters is in rewriting.py.
"""

from typing import ClassVar

import dspy

from programs.parts.rewriting import LIKE, Rewriter
from tools.models.offline import rules
from tools.models.offline.engine import Rules


class WriteDocument(dspy.Signature):
    """Write one document that would satisfy a request, thinking before you write.

    First settle what kind of document is wanted; where that is not given, infer it from the objective and
    the request. Work out what the request asks for, then think of documents that could meet it and of what
    they would say. Then write one of them out: in the form, the register and the length of a real one,
    complete, with invented particulars rather than gaps, and with nothing before or after it.
    """

    objective: str = dspy.InputField(desc="what the collection is, and what counts as a find; may be empty")
    kind: str = dspy.InputField(desc="what a document of the collection is; empty when it has to be inferred")
    description: str = dspy.InputField(desc="the request")
    analysis: str = dspy.OutputField(desc="what kind of document is wanted, and what is asked for")
    brainstorming: str = dspy.OutputField(desc="which documents could meet the request, and what they would say")
    document: str = dspy.OutputField(desc="one whole document and nothing else")


class QueryToDoc(Rewriter):
    """CRUMB's Query-to-Doc: think, write the wanted document, search once with it."""

    offline: ClassVar[Rules] = {**Rewriter.offline, "document": rules.write_document}
    signature = WriteDocument
    kept = ("document",)
    instruction = LIKE

    document: str = ""  # what a document of the task is, in words; the model infers it where there are none

    def about(self) -> dict[str, str]:
        """What kind of document to write."""
        return {"kind": self.document}
