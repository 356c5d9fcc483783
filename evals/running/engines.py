"""The retrievers of a run, each opened once; what they send is in the run's books."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tools import retrievers
from tools.home import home

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.models.budget import Budget
    from tools.models.lm import Model
    from tools.retriever import Retriever
    from tools.retrievers.lexical.bm25 import BM25
    from tools.retrievers.spec import Spec

_LOG = logging.getLogger("sextant")
LARGE = 10_000  # documents from which on an index may take a while to build, and a word is said before


class Engines:
    """The retrievers of a run, each opened once."""

    def __init__(
        self,
        environment: "Environment",
        budget: "Budget",
        prices: Path | None = None,
        connect: "Callable[[str, int], Model] | None" = None,
    ) -> None:
        """`prices` is the user's own price file; `connect` makes the models of lenses, of so many tokens."""
        from tools.models.account import RunAccount
        from tools.retrievers.lens.annotate import RunAnnotators

        self._documents = environment.documents
        self._lens = environment.hints.get("lens", "")
        self._annotators = RunAnnotators(budget, lambda: lexical(environment).statistics(), connect)
        self.account = RunAccount(budget, prices)
        self._sends = False  # whether a retriever sends texts to a provider
        self._booked = False  # whether that is in the ledger
        self._place: tuple[Path, Path] | None = None  # the folder of the run, and that of all runs, once it is there
        self._built: dict[str, Retriever] = {}

    def build(self, spec: "Spec") -> "Retriever":
        """The retriever of an expression; a word is said before one that may take a while."""
        spec = retrievers.with_attribute(spec, self._lens)
        if str(spec) not in self._built:
            if len(self._documents) >= LARGE:
                _LOG.info("opening %s over %d documents", spec, len(self._documents))
            self._sends |= bool(retrievers.apis(spec)) or _annotated(spec)
            self._open_books()
            self._built[str(spec)] = retrievers.build(
                spec, self._documents, home(), annotators=self._annotators, account=self.account
            )
        return self._built[str(spec)]

    def keep(self, folder: Path, runs: Path) -> None:
        """From here on, book what they use in the ledger of the run in `folder`; and what they have used so far."""
        self._place = folder, runs
        self._open_books()

    def _open_books(self) -> None:
        """The ledger has them as soon as there is a place for one, and a retriever that sends something."""
        if self._place and self._sends and not self._booked:
            from tools.models.answers import ledger

            self._booked = True
            folder, runs = self._place
            shared = ledger(folder, runs=runs)
            self._annotators.keep(shared)
            self.account.keep(shared)


def _annotated(spec: "Spec") -> bool:
    """Whether a model annotates for it."""
    return any(lens.options.get("model", "offline") != "offline" for lens in retrievers.lenses(spec))


def lexical(environment: "Environment") -> "BM25":
    """The index that knows the corpus' words."""
    from tools.retrievers.lexical.bm25 import BM25

    return BM25(environment.documents, home())
