"""Cross-encoders: a transformer that reads a search and a document together and says how well they fit.

Two families, told apart by the model's row in models.toml. A model with a head for one number reads a pair of texts
(BERT, XLM-RoBERTa, and Llama with an adapter, as RankLLaMA), and the number is the score. A language model reads one
prompt made of both texts, and the score is what it gives the token that means "relevant": the log-probability against
the token that means "irrelevant" (monoT5, FollowIR), or the logit alone (bge-reranker-v2-gemma).

Every document it is given is read, so it is for candidate pools, or the second part of `rerank`. Nothing is kept on
disk. Prompts with examples, several documents in one prompt, and answers of more than one token are not here.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from tools.console.progress import Progress
from tools.corpus import Corpus, indexed_text
from tools.errors import DataError, UsageError
from tools.records import Hit
from tools.retriever import Retriever, Search, best
from tools.retrievers.neural.encoding import (
    cannot_load,
    cores,
    device,
    encodable,
    from_files,
    positions,
    quiet,
    threads,
    tokenizer_of,
    with_adapter,
)
from tools.retrievers.neural.models import Row, base_of, document_text, folder_of, pinned, query_text, require_model
from tools.retrievers.spec import Value, spell

_REMEMBERED = 1 << 18  # scores that are kept in memory, at about 200 bytes each


class CrossEncoder(Retriever):
    """The documents of a pool by the score that a model gives each of them together with the search's text.

    Where the two are longer than the model takes, or than `max_tokens`, the document is cut at its end; the query only
    beyond three quarters of that length, as FlagEmbedding does, and `left_out` counts what it loses. A prompt's own
    words are never cut. `like` takes another model's row; `weights` pins the digest of the model's files.
    """

    loads_weights = True
    needs_pool = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        model: str,
        *,
        like: str = "",
        weights: str = "",
        max_tokens: int = 0,
        run_code: str = "",
    ) -> None:
        self._corpus = corpus
        self._row = require_model(model, "cross", like, run_code)
        folder = folder_of(model)
        digest = pinned(self._row, folder, weights)
        # Loaded here and not with the first search, so that a model that cannot rank stops a run before it starts.
        self._reader = _Reader(_loaded(folder, self._row, digest), self._row, max_tokens)
        self._scores = dict[tuple[str, str], float]()  # of a query as the model reads it, and a doc_id
        given: dict[str, Value] = {"like": like, "weights": digest, "max_tokens": max_tokens, "run_code": run_code}
        self.name = spell("cross", model, (), {name: value for name, value in given.items() if value})

    @classmethod
    def require(cls, model: str, parts: int, options: Mapping[str, Any]) -> None:
        """Refuse a model that cannot be run here."""
        require_model(model, "cross", options["like"], options["run_code"])

    def left_out(self, text: str, instruction: str = "") -> int:
        """How many tokens at the end of `text` are more than the model takes."""
        return self._reader.left_out(query_text(self._row, Search(text, instruction)))

    def _search_many(self, searches: Sequence[Search], k: int) -> list[list[Hit]]:
        pools = [self._pool(search) for search in searches]
        progress = Progress("cross", sum(map(len, pools)), "pairs")
        if len(self._scores) > _REMEMBERED:
            self._scores.clear()
        rankings = []
        with _workers() as workers:
            for search, pool in zip(searches, pools, strict=True):
                query = query_text(self._row, search)
                rankings.append(best(self._scored(query, pool, workers), k))
                progress.add(len(pool))
        return rankings

    def _pool(self, search: Search) -> list[str]:
        pool = self._corpus if search.among is None else search.among
        return [doc_id for doc_id in pool if doc_id in self._corpus and doc_id not in search.excluded]

    def _scored(self, query: str, pool: Sequence[str], workers: ThreadPoolExecutor) -> dict[str, float]:
        """The score of every document of the pool; one that was computed before is not computed again."""
        scores = {doc_id: known for doc_id in pool if (known := self._scores.get((query, doc_id))) is not None}
        new = [doc_id for doc_id in pool if doc_id not in scores]
        for doc_id, score in zip(new, workers.map(lambda doc_id: self._score(query, doc_id), new), strict=True):
            self._scores[query, doc_id] = scores[doc_id] = score
        return scores

    def _score(self, query: str, doc_id: str) -> float:
        document = document_text(self._row, indexed_text(self._corpus[doc_id]))
        score = self._reader.score(query, document)
        if not isfinite(score):
            raise DataError(f"{self.name} scores document {doc_id!r} with {score}; its weights may be damaged")
        return score


@contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """As many threads as there are cores, each of which computes alone.

    A pair is computed by one thread and not in a batch, which makes its score the same to the last bit wherever it is
    asked for. Batches do not, even of equal lengths and without padding: a head multiplies one row a pair, and that
    product's last bits depend on the number of rows. They would save a CPU a fifth of its time at 128 tokens a pair and
    less at more (measured with MiniLM's shape; sentence-transformers, which pads, takes 1.4 times as long as this).
    """
    import torch

    count = cores() if device() == "cpu" else 1
    with threads(1), ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as workers:
        try:
            yield workers
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)  # else an interrupt waits for the whole pool
            raise


class _Loaded(NamedTuple):
    model: Any
    tokenizer: Any


@lru_cache(maxsize=2)
def _loaded(folder: Path, row: Row, weights: str) -> _Loaded:
    """The model with its head, ready to compute; `weights` is there so that changed files are loaded again."""
    quiet()
    import torch

    dtype = getattr(torch, row.dtype or "float32") if device() != "cpu" else torch.float32
    base = base_of(folder, row)
    model, missing = _with_head(base or folder, row, dtype, labels=1 if base else None)
    if base:
        missing = [name for name in missing if not _adapter_has(folder, name)]
        model = with_adapter(model, folder)
    if missing:
        raise DataError(
            f"{folder} has no trained {missing[0]}, so it is no cross-encoder; "
            "for one that answers with a word, name a model of its family: like=castorini/monot5-3b-msmarco-10k"
        )
    if not row.prompt and model.config.num_labels != 1:
        raise DataError(f"{folder} gives {model.config.num_labels} numbers for a pair; a cross-encoder gives 1")
    if hasattr(model, "score"):
        model.config.pad_token_id = None  # a decoder's number is its last token's, also where that is the padding token
    return _Loaded(model.eval().to(device()), tokenizer_of(folder, row))


def _with_head(folder: Path, row: Row, dtype: Any, labels: int | None) -> tuple[Any, list[str]]:
    """The model of a folder, and which of its weights are not there."""
    import transformers

    options = from_files(row)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        if labels:
            config.num_labels = labels
        kind = "SequenceClassification"
        if row.prompt:
            kind = "Seq2SeqLM" if config.is_encoder_decoder else "CausalLM"
        model, loading = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
            folder, config=config, dtype=dtype, output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        raise cannot_load("model", folder, row, error) from error
    return model, sorted(loading["missing_keys"])


def _adapter_has(folder: Path, name: str) -> bool:
    from peft.utils import load_peft_weights

    return any(key.endswith(f".{name}") for key in load_peft_weights(str(folder), device="cpu"))


class _Reader:
    """A loaded model and what it reads: a query and a document, as the row formats them, to a score."""

    def __init__(self, loaded: _Loaded, row: Row, max_tokens: int) -> None:
        from tokenizers import Tokenizer

        self._model, self._row = loaded.model, row
        self._tokenizer = Tokenizer.from_str(loaded.tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_padding()  # some folders keep one
        self._tokenizer.no_truncation()
        self._answers = [self._id_of(word) for word in (row.relevant, row.irrelevant) if word]
        own = positions(self._model.config, loaded.tokenizer)
        self._most = min(max_tokens or row.max_document_tokens or own, own)
        fixed = len(self._tokens("", "").ids)
        if self._most - fixed < 2:
            raise UsageError(f"cross: max_tokens is {max_tokens}; what the model always reads takes {fixed} already")
        self._most_of_query = min(self._most * 3 // 4, self._most - fixed)

    def left_out(self, query: str) -> int:
        """How many tokens of a query are cut off."""
        return max(0, self._tokens(query, "").parts.count(0) - self._most_of_query)

    def score(self, query: str, document: str) -> float:
        """The model's score of a pair: a logit, or a log-probability, of any size."""
        import torch

        with torch.inference_mode():
            ids, types = self._cut(self._tokens(query, document))
            inputs = {"input_ids": torch.tensor([ids], device=self._model.device)}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if not self._row.prompt:
                if getattr(self._model.config, "type_vocab_size", 0) > 1:  # BERT tells the two texts apart by it
                    inputs["token_type_ids"] = torch.tensor([types], device=self._model.device)
                return float(self._model(**inputs).logits[0, 0])
            if self._model.config.is_encoder_decoder:
                start = self._model.config.decoder_start_token_id
                inputs["decoder_input_ids"] = torch.tensor([[start]], device=self._model.device)
            logits = self._model(**inputs, use_cache=False).logits[0, -1, self._answers].double()
            return float(logits.log_softmax(0)[0] if len(self._answers) > 1 else logits[0])

    def _cut(self, tokens: "_Tokens") -> tuple[list[int], list[int]]:
        """The ids and types that the model reads: at most as many as it takes."""
        places = {part: [place for place, of in enumerate(tokens.parts) if of == part] for part in (0, 1)}
        gone = set(places[0][self._most_of_query :])
        excess = max(0, len(tokens.ids) - len(gone) - self._most)
        gone |= set(places[1][len(places[1]) - excess :])
        kept = [place for place in range(len(tokens.ids)) if place not in gone]
        return [tokens.ids[place] for place in kept], [tokens.types[place] for place in kept]

    def _tokens(self, query: str, document: str) -> "_Tokens":
        """All tokens of a pair, or of the prompt made of it, and which of the two texts each one is from."""
        query, document = encodable([query, document])
        if not self._row.prompt:
            pair = self._tokenizer.encode(query, document)
            return _Tokens(pair.ids, pair.type_ids, pair.sequence_ids)
        before, _, rest = self._row.prompt.partition("{query}")
        between, _, after = rest.partition("{text}")
        read = self._tokenizer.encode(before + query + between + document + after)
        first = len(before), len(before) + len(query)
        second = first[1] + len(between), first[1] + len(between) + len(document)
        parts = [0 if _within(span, first) else 1 if _within(span, second) else None for span in read.offsets]
        return _Tokens(read.ids, read.type_ids, parts)

    def _id_of(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise DataError(
                f"the tokenizer of {self._row.name} has no token {token!r}; is it a model of another family?"
            )
        return int(found)


class _Tokens(NamedTuple):
    ids: list[int]
    types: list[int]
    parts: list[int | None]  # 0 for a token of the query, 1 for one of the document, None for what is always there


def _within(token: tuple[int, int], text: tuple[int, int]) -> bool:
    """Whether a token has characters of a text; both are spans of characters in the prompt."""
    return token[0] < text[1] and token[1] > text[0]
