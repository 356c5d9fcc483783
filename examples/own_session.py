"""A class over a Toolbox, with all that our own programs have: hops, notes, and its own rules for `--lm offline`.

Try it, without a key:

    sextant run --program examples/own_session.py:Skim --task congress -P reads=3
"""

from sextant.programs.base import Program
from sextant.tools.records import Query, Submission


class Skim(Program):
    """Search, then put first what has the query's words most often in its whole text."""

    reads: int = 10  # documents that are looked into

    def forward(self, query: Query) -> Submission:
        """Return the documents of one search, those that were read first."""
        session = self.toolbox.open(query)
        session.hop = 1
        found = session.find_hits(query.text, self.depth).doc_ids
        words = set(query.text.lower().split())
        texts = {
            doc_id: session.read_whole(doc_id).lower().split() for doc_id in found[: self.reads]
        }
        first = sorted(
            texts,
            key=lambda doc_id: -sum(word in words for word in texts[doc_id]) / len(texts[doc_id]),
        )
        return session.submit(first + found[self.reads :])
