"""The retrievers of a run, each opened once."""

import logging
from typing import TYPE_CHECKING

from tools import retrievers
from tools.home import home
from tools.models.terms import Terms

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.retriever import Retriever
    from tools.retrievers.lexical.bm25 import BM25
    from tools.retrievers.spec import Spec

_LOG = logging.getLogger("sextant")
LARGE = 10_000  # documents from which on an index may take a while to build, and a word is said before


class Engines:
    """The retrievers of a run, each opened once. Their models are asked on the terms of the run."""

    def __init__(self, environment: "Environment", terms: Terms) -> None:
        self._documents = environment.documents
        self._lens = environment.hints.get("lens", "")
        self._terms = terms
        self._built: dict[str, Retriever] = {}

    def build(self, spec: "Spec") -> "Retriever":
        """The retriever of an expression; a word is said before one that may take a while.

        ProviderRefused where the key of a model of embeddings is missing and no cassette has its answers.
        """
        spec = retrievers.with_attribute(spec, self._lens)
        if str(spec) not in self._built:
            if not self._terms.replays:
                check_keys(spec)
            if len(self._documents) >= LARGE:
                _LOG.info("opening %s over %d documents", spec, len(self._documents))
            self._built[str(spec)] = retrievers.build(spec, self._documents, home(), terms=self._terms)
        return self._built[str(spec)]


def check_keys(spec: "Spec") -> None:
    """ProviderRefused where a model of embeddings in `spec` needs a key that is not set."""
    for api in retrievers.apis(spec):
        from tools.models.embeddings import check_key  # it imports DSPy and OpenAI's client, which takes seconds

        check_key(api.subject)


def sends(spec: "Spec") -> bool:
    """Whether searching with `spec`, or building it, may send something to a model."""
    lenses = (lens.options.get("model", "offline") for lens in retrievers.lenses(spec))
    return bool(retrievers.apis(spec)) or any(model != "offline" for model in lenses)


def lexical(environment: "Environment") -> "BM25":
    """The index that knows the corpus' words."""
    from tools.retrievers.lexical.bm25 import BM25  # NumPy is behind it, and --help imports this module

    return BM25(environment.documents, home())
