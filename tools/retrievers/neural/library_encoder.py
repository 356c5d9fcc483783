"""Models that sentence-transformers runs: loading, batches without padding, and what is cut off."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from tools.retrievers.neural.models import Row
from tools.retrievers.neural.transformer import batch_equal_lengths, cores, device, threads
from tools.retrievers.store import code
from tools.text import encodable


def options(row: Row) -> dict[str, Any]:
    """How every model is loaded: where it runs, from files alone, on an accelerator in the precision of its row."""
    where = device()
    precision = {"dtype": row.dtype} if where != "cpu" and row.dtype else {}
    return {
        "device": where,
        "trust_remote_code": bool(row.run_code),
        "local_files_only": True,
        "model_kwargs": precision,
    }


def key(kind: str, name: str, row: Row, modules: str, **rooms: str) -> dict[str, object]:
    """Return the key of an index without its corpus. `modules` and `rooms` name the sources that shape it."""
    libraries = ("torch", "transformers", "tokenizers", "sentence-transformers")
    return {
        "kind": kind,
        "name": name,
        "document": row.document,
        "most": row.max_document_tokens,
        "run_code": row.run_code,
        "device": device() if row.dtype else "any",  # a row's precision is used on an accelerator alone
        "versions": {library: version(library) for library in libraries},
        "code": code("tools/text", neural=f"{modules} library_encoder transformer models", **rooms),
    }


class LibraryEncoder:
    """A loaded model of sentence-transformers, and how long its texts may be. Threads share it."""

    def __init__(self, model: Any, row: Row) -> None:
        self.model = model
        longest = model.max_seq_length or 1 << 30
        # 0 is what the folder says.
        self._most = {"query": min(row.max_query_tokens, longest), "document": min(row.max_document_tokens, longest)}

    def encode(self, texts: Sequence[str], task: str, most_tokens: int, **how: Any) -> Iterator[tuple[list[int], Any]]:
        """Batch by batch, some of the texts' positions, and what the model makes of these "query" or "document" texts.

        A batch has documents of equal length, `most_tokens` tokens at most or one document: see batch_equal_lengths.
        Queries go one by one, with one thread: that has the same bits for every model and library.
        """
        texts = encodable(texts)
        how |= self._cut(task)
        encode, count = self.model.encode_document, cores()
        if task == "query":
            encode, count, most_tokens = self.model.encode_query, 1, 1
        for places in batch_equal_lengths(self._lengths(texts, task), most_tokens):
            batch = [texts[place] for place in places]
            with threads(count):
                made = encode(batch, batch_size=len(batch), show_progress_bar=False, **how)
            yield places, made

    def left_out(self, text: str) -> int:
        """How many tokens at the end of a query are cut off."""
        first = self.model[0]
        expansion = getattr(first, "query_expansion", None) or {}
        fixed = expansion["length"] if expansion.get("strategy") == "fixed" else 0
        limit = fixed or self._most["query"] or getattr(first, "query_length", 0) or self.model.max_seq_length
        [text] = encodable([self._prompt("query") + text])
        whole = self.model.tokenizer(text, truncation=False, verbose=False)
        return max(0, len(whole["input_ids"]) - limit) if limit else 0

    def _lengths(self, texts: Sequence[str], task: str) -> list[int]:
        """The tokens of each text that the model attends to; what is put in for every query alike need not count."""
        features = self.model.preprocess(texts, prompt=self._prompt(task) or None, task=task, **self._cut(task))
        mask = features.get("attention_mask")  # none in a model that is a table of terms
        return [1] * len(texts) if mask is None else [int(length) for length in mask.sum(dim=1)]

    def _prompt(self, task: str) -> str:
        return self.model.prompts.get(task) or ""

    def _cut(self, task: str) -> Mapping[str, Any]:
        return {"processing_kwargs": {"text": {"max_length": self._most[task]}}} if self._most[task] else {}
