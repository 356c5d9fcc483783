"""A loaded model that reads a query and a document together.

The retriever is in cross_encoder.py.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer

from sextant.tools.errors import DataError, UsageError
from sextant.tools.platform.number_format import plural
from sextant.tools.retrievers.devices import device
from sextant.tools.retrievers.neural import architectures, loading
from sextant.tools.retrievers.neural.model_table import LocalModel, ModelRow, find_base_model, rows
from sextant.tools.text import encodable

# The first of two labels; transformers calls it label_0 if the model does not name it.
_NOT_RELEVANT = re.compile(r"(label_)?0$|not?(\b|_)|non|ir|un|neg|false")


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Start as many threads as there are cores, each of which computes alone.

    A thread computes a pair, without a batch, so its score is the same to the last bit everywhere.
    In a batch, even of equal lengths, a head multiplies a row per pair, and that product's last
    bits depend on the number of rows. Batches would save a CPU at most a fifth of its time, at 128
    tokens a pair (measured with MiniLM's shape; sentence-transformers, which pads, takes 1.4 times
    as long as this).
    """
    count = loading.cores() if device() == "cpu" else 1
    with (
        loading.torch_threads(1),
        ThreadPoolExecutor(
            count,
            initializer=torch.set_num_threads,
            initargs=(1,),
        ) as pool,
    ):
        try:
            yield pool
        except BaseException:
            pool.shutdown(
                wait=False, cancel_futures=True
            )  # else an interrupt waits for the whole pool
            raise


@loading.cache_last_two
def load(local_model: LocalModel) -> tuple[Any, Any]:
    """Return the model with its head, ready to compute, and its tokenizer."""
    folder = local_model.folder
    row = local_model.row
    base = find_base_model(folder, row.base)
    model, missing = _with_head(base or folder, row, labels=1 if base else None)
    if base:
        adapter = loading.import_peft(folder).load_peft_weights(str(folder), device="cpu")
        missing = [name for name in missing if not any(key.endswith(f".{name}") for key in adapter)]
        model = loading.merge_adapter(model, folder)
    if missing:
        families = [named.name for named in rows().values() if named.prompt]
        raise DataError(
            f"{folder} has no trained {missing[0]}, so it is no cross-encoder; for one that "
            f"answers with a word, name a model of its family as like=: {', '.join(families)}"
        )
    labels = list(map(str, model.config.id2label.values()))
    # Two labels are "not relevant" and "relevant", by their names if they have any.
    is_relevance = len(labels) == 2 and _NOT_RELEVANT.match(labels[0].lower())
    if not row.prompt and not row.architecture and len(labels) > 1 and not is_relevance:
        raise DataError(
            f"{folder} gives {plural(len(labels), 'number')} for a pair ({', '.join(labels)}); a cross-encoder "
            f"gives 1, or 2, the second for relevant documents"
        )
    if hasattr(model, "score"):
        # The score of a decoder is that of its last token, even if it is the padding token.
        model.config.pad_token_id = None
    tokenizer = loading.load_tokenizer(folder, row)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise DataError(
            f"the tokenizer of {folder} is a {type(tokenizer).__name__}, which no cross-encoder "
            "can be used with here"
        )
    return model.eval().to(device()), tokenizer


def _with_head(folder: Path, row: ModelRow, labels: int | None) -> tuple[Any, list[str]]:
    """Return the model, and the names of weights that the folder lacks."""
    options = loading.local_only_options(row)
    with loading.translate_load_errors("model", folder, row):
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        if labels:
            config.num_labels = labels
        auto_class = "SequenceClassification"
        if row.prompt:
            auto_class = "Seq2SeqLM" if config.is_encoder_decoder else "CausalLM"
        model_class = getattr(transformers, f"AutoModelFor{auto_class}")
        if row.architecture:
            model_class = getattr(architectures, row.architecture)
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=loading.weights_dtype(row, device()),
            output_loading_info=True,
            **options,
        )
    return model, sorted(report["missing_keys"])


class PairScorer:
    """Scores a query and a document, as the row formats them, with a loaded model."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        row: ModelRow,
        max_tokens: int,
    ) -> None:
        self._model = model
        self._row = row
        self._tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_padding()  # some folders keep one
        self._tokenizer.no_truncation()
        # EncT5 reads a token before the texts that T5's tokenizer does not write.
        self._start = [find_start(tokenizer, row)] if row.architecture else []
        words = [word for word in (row.relevant, row.irrelevant) if word]
        self._answers = [self._tokenizer.token_to_id(word) for word in words]
        if None in self._answers:
            lacking = words[self._answers.index(None)]
            raise DataError(
                f"the tokenizer of {row.name} has no token {lacking!r}; is it a model of another "
                f"family?"
            )
        model_limit = min(loading.max_positions(model.config), int(tokenizer.model_max_length))
        self._most = min(max_tokens or row.max_document_tokens or model_limit, model_limit)
        fixed = len(self._tokens("", "").ids)
        if self._most - fixed < 2:
            raise UsageError(
                f"cross: {row.name} takes {self._most} tokens here; what it always reads takes {fixed} "
                f"already"
            )
        self._most_of_query = min(self._most * 3 // 4, self._most - fixed)

    def left_out(self, query: str) -> int:
        """Return the number of tokens of a query that are cut off."""
        return max(0, len(_positions(self._tokens(query, "").parts, 0)) - self._most_of_query)

    def score(self, query: str, document: str) -> float:
        """Return the model's score of a pair: a logit or a log-probability."""
        with torch.inference_mode():
            ids, types = self._cut(self._tokens(query, document))
            inputs = {"input_ids": torch.tensor([ids], device=self._model.device)}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if not self._row.prompt:
                # BERT tells the two texts apart by the types of tokens.
                if getattr(self._model.config, "type_vocab_size", 0) > 1:
                    inputs["token_type_ids"] = torch.tensor([types], device=self._model.device)
                logits = self._model(**inputs).logits[0]
                if len(logits) > 1:
                    # The second of two labels is "relevant".
                    return float(logits.double().log_softmax(0)[1])
                return float(logits[0])
            if self._model.config.is_encoder_decoder:
                inputs["decoder_input_ids"] = torch.tensor(
                    [[self._model.config.decoder_start_token_id]], device=self._model.device
                )
            logits = self._model(**inputs, use_cache=False).logits[0, -1, self._answers].double()
            return float(logits.log_softmax(0)[0] if len(self._answers) > 1 else logits[0])

    def _cut(self, tokens: "_Tokens") -> tuple[list[int], list[int]]:
        query_tokens = _positions(tokens.parts, 0)
        document_tokens = _positions(tokens.parts, 1)
        gone = set(query_tokens[self._most_of_query :])
        excess = max(0, len(tokens.ids) - len(gone) - self._most)
        gone |= set(document_tokens[len(document_tokens) - excess :])
        ids = []
        types = []
        for position, (token_id, token_type) in enumerate(
            zip(tokens.ids, tokens.types, strict=True)
        ):
            if position not in gone:
                ids.append(token_id)
                types.append(token_type)
        return ids, types

    def _tokens(self, query: str, document: str) -> "_Tokens":
        """Return all tokens of a pair, or of the prompt made of it, each with its source."""
        query, document = encodable([query, document])
        if not self._row.prompt:
            pair = self._tokenizer.encode(query, document)
            return _Tokens(
                [*self._start, *pair.ids],
                [*(0 for _ in self._start), *pair.type_ids],
                [*(None for _ in self._start), *pair.sequence_ids],
            )
        before, _, remainder = self._row.prompt.partition("{query}")
        between, _, after = remainder.partition("{text}")
        encoding = self._tokenizer.encode(before + query + between + document + after)
        query_start = len(before)
        query_end = query_start + len(query)
        document_start = query_end + len(between)
        document_end = document_start + len(document)
        sources: list[int | None] = []
        for start, end in encoding.offsets:
            if start < query_end and end > query_start:
                sources.append(0)
            elif start < document_end and end > document_start:
                sources.append(1)
            else:
                sources.append(None)
        return _Tokens(encoding.ids, encoding.type_ids, sources)


def find_start(tokenizer: Any, row: ModelRow) -> int:
    """Return the token before the texts. DataError for a tokenizer that has none."""
    start = tokenizer.bos_token_id
    if start is None:
        start = tokenizer.get_vocab().get("<s>")
    if start is None or start == tokenizer.unk_token_id:
        raise DataError(
            f"the tokenizer of {row.name} has no token <s>; its folder lacks added_tokens.json"
        )
    return int(start)


class _Tokens(NamedTuple):
    ids: list[int]
    types: list[int]
    # 0 for a token of the query, 1 for a token of the document, None for a fixed token.
    parts: Sequence[int | None]


def _positions(sources: Sequence[int | None], source: int) -> list[int]:
    return [position for position, value in enumerate(sources) if value == source]
