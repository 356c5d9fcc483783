"""The models of one command, which share its budget, its gate, its prices and its patience."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evals.running.engines import lexical
from evals.running.request import WORKERS, Common
from tools.models import lm
from tools.models.budget import Budget
from tools.models.call import Patience
from tools.models.sending.gate import Gate
from tools.retrievers.lexical.bm25 import BM25

if TYPE_CHECKING:
    from environments.base import Environment
    from tools.retriever import Retriever
    from tools.text import TermStatistics


class Connections:
    """Connects the models of one command."""

    def __init__(self, request: Common) -> None:
        self._request = request
        self.budget = Budget(
            calls=request.budget_calls,
            usd=request.budget_usd,
            tokens=request.budget_tokens,
            seconds=request.time_limit,
        )
        self.gate = Gate(request.max_concurrent or WORKERS)

    def connect(
        self,
        environment: "Environment",
        retriever: "Retriever | None" = None,
        *,
        spec: str = "",
        seed: int | None = None,
        **options: Any,
    ) -> lm.Model:
        """The model of the request, or `spec` with its settings; the `options` are tools.models.lm.connect's.

        Where the program searches with a `retriever` that knows the words of the corpus, it is not read twice.
        """

        def statistics() -> "TermStatistics":
            return (retriever if isinstance(retriever, BM25) else lexical(environment)).statistics()

        request, spec = self._request, spec or self._request.lm
        settings = lm.Settings(
            seed=seed,
            temperature=request.temperature,
            effort=request.reasoning_effort,
            api=request.api,
            context=request.context if spec == request.lm else None,
            prices=request.prices,
        )
        return self._connected(spec, settings, statistics=statistics, **options)

    def for_lens(self, model: str, window: int) -> lm.Model:
        """The model that annotates for a lens, of so many tokens if that is known."""
        return self._connected(model, lm.Settings(context=window or None, prices=self._request.prices))

    def _connected(self, spec: str, settings: lm.Settings, **options: Any) -> lm.Model:
        return lm.connect(
            spec,
            budget=self.budget,
            settings=settings,
            gate=self.gate,
            patience=self._patience(),
            query_seconds=self._request.query_timeout or lm.QUERY_SECONDS,
            **options,
        )

    def _patience(self) -> Patience | None:
        """How long calls are tried, where the request says it."""
        request, patience = self._request, Patience()
        if request.patience is not None:
            patience = replace(patience, before=request.patience, after=request.patience)
        if request.call_timeout is not None:
            patience = replace(patience, call=request.call_timeout)
        return patience if patience != Patience() else None
