"""The latent index: a model's annotations of documents, indexed next to the texts and fused with
them.

OBLIQ-Bench (section 6) calls for latent attributes of documents at search time. Its judgements were
made from such attributes (section 4, steps 1 and 2) by a pass of a model over the corpus. Here that
pass is an index: `lens(bm25)` builds BM25 twice, over texts and over annotations. Left out: the
clustering of annotations (step 3), and annotations by several lenses, which is a fusion of several
`lens(...)`. The annotators are in tools/retrievers/lens/annotators.py.
"""

import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path

from sextant.tools.corpus import Corpus, digest_text, indexed_text
from sextant.tools.errors import DataError, UsageError, require_at_least
from sextant.tools.models.run_resources import RunResources
from sextant.tools.platform import files
from sextant.tools.platform.cli import Progress
from sextant.tools.platform.installation import find_page
from sextant.tools.platform.interrupts import check_interrupts, start_thread
from sextant.tools.platform.number_format import plural
from sextant.tools.records import Document, Hits, Usage, usage_from_json, usage_json
from sextant.tools.retrievers.base import Options, Retriever, Searches
from sextant.tools.retrievers.expressions import Value, format_expression
from sextant.tools.retrievers.fusion import Fusion, check_options
from sextant.tools.retrievers.index_store import index_name, open_index
from sextant.tools.retrievers.lens.annotators import (
    AnnotatedBatch,
    Annotator,
    ModelAnnotator,
    OfflineAnnotator,
    check,
)
from sextant.tools.retrievers.lexical.bm25 import BM25

_LOG = logging.getLogger("sextant")

# Raised when the file of annotations, or the annotated part of a document, changes its meaning
FORMAT = 1
_FILE = "annotations.jsonl"
_GRACE = 3.0  # seconds that batches in flight are waited for after a Ctrl-C
_TICK = 0.1  # seconds after which it is looked whether there was one
_SAMPLE = 200  # texts from which the annotator estimates the cost of all


class LensIndex(Retriever):
    """An index of a model's notes on each document, fused with an index of the texts.

    `attribute` is a lens of tools/lenses.py, or an attribute in words; empty is the task's own
    lens. The `model` reads `chars` characters of each document, and, with `query`, of queries that
    are themselves documents. `weights` (of text and annotations), `constant` and `depth` are those
    of reciprocal rank fusion. `context` is the model's window in tokens, if the price table has
    none. `prompts` is a compiled.json of sextant.programs.llm_tasks.lens_annotator:Annotator. `digest` pins
    model, attribute and prompt.
    """

    needs_lens = True

    def __init__(
        self,
        corpus: Corpus,
        home: Path | None,
        part: Callable[[Corpus], Retriever],
        *,
        resources: RunResources | None = None,
        attribute: str = "",
        model: str = "offline",
        chars: int = 2500,
        query: bool = False,
        weights: tuple[float, ...] = (),
        constant: int = 60,
        depth: int = 1000,
        context: int = 0,
        prompts: str = "",
        digest: str = "",
    ) -> None:
        if not attribute:
            raise UsageError(
                "a lens needs attribute=..., where the task gives it none; "
                f"{find_page('docs/decisions/lens.md')}"
            )
        annotator: Annotator
        if model == "offline":
            annotator = OfflineAnnotator(attribute, lambda: BM25(corpus, home).statistics())
        else:
            annotator = ModelAnnotator(
                model, attribute, resources or RunResources(), context, prompts
            )
        shaping = {**annotator.key(), "format": FORMAT, "chars": chars}
        key = {**shaping, "kind": "annotations", "corpus": corpus.fingerprint}
        made = hashlib.blake2b(
            json.dumps(shaping, sort_keys=True).encode(), digest_size=4
        ).hexdigest()
        if digest not in ("", made):
            raise DataError(
                f"lens: the annotations of {model} have the digest {made}, not {digest}; leave "
                f"digest out"
            )
        # Complete lines are paid for, and stay.
        notes = open_index(
            home,
            key,
            build=partial(_annotate_all, annotator, corpus, chars),
            load=partial(_load_notes, corpus, chars),
            salvage=True,
        )
        if not any(note.text.strip() for note in notes.stream()):
            raise DataError(
                f"lens: none of the annotations by {model} says anything; take another attribute, "
                f"or `sextant retrievers delete {index_name(key)}` to have them made again"
            )
        text = part(corpus)
        annotations = part(notes)
        options: dict[str, Value] = {
            "attribute": attribute,
            "model": model,
            "chars": chars,
            "query": query,
            "weights": tuple(map(float, weights)) or (1.0, 1.0),
            "constant": constant,
            "depth": depth,
            **({"prompts": prompts} if prompts else {}),
            "digest": made,
        }
        self.name = format_expression("lens", parts=[text.name], options=options)
        second = _LensQueryRetriever(annotations, annotator, chars) if query else annotations
        self.parts = (
            Fusion(
                corpus,
                home,
                text,
                second,
                constant=constant,
                depth=depth,
                weights=weights,
            ),
        )

    @classmethod
    def require(
        cls,
        model: str,
        part_count: int,
        options: Options,
    ) -> None:
        """Refuse options that are out of range, and a model or an attribute that there is not."""
        require_at_least(1, "lens", chars=options["chars"])
        require_at_least(0, "lens", context=options["context"])
        check_options("lens", 2, options)
        if options["prompts"] and options["model"] == "offline":
            raise UsageError(
                "lens: prompts are for a model; name one: lens(..., model=..., prompts=FILE)"
            )
        check(options["model"], options["attribute"])

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        return self.parts[0].search_many(searches, k)


class _LensQueryRetriever(Retriever):  # the annotations, searched with the annotation of the query
    def __init__(
        self,
        notes: Retriever,
        annotator: Annotator,
        chars: int,
    ) -> None:
        self.name = notes.name
        self._notes = notes
        self._annotator = annotator
        self._chars = chars

    def left_out(self, text: str, instruction: str = "") -> int:
        return self._notes.left_out(self._annotate(text), instruction) if text.strip() else 0

    def _search_many(self, searches: Searches, k: int) -> list[Hits]:
        return self._notes.search_many(
            [search._replace(text=self._annotate(search.text)) for search in searches], k
        )

    def _annotate(self, text: str) -> str:
        return self._annotator.query(text[: self._chars])


def _beginning(document: Document, chars: int) -> str:
    return indexed_text(document)[:chars]


def _load_notes(corpus: Corpus, chars: int, folder: Path) -> Corpus:
    notes, _ = _read_notes(folder / _FILE)
    return Corpus(
        Document(document.doc_id, notes.get(digest_text(_beginning(document, chars)).hex(), ""))
        for document in corpus.stream()
    )


def _read_notes(path: Path) -> tuple[dict[str, str], Usage]:
    notes = dict[str, str]()
    usage = Usage()
    # A torn line is a batch still pending.
    for number, line in enumerate(files.iter_lines(path, repair=True), start=1):
        try:
            row = json.loads(line)
            notes |= row["annotations"]
            usage += usage_from_json(row["usage"])
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{path}, line {number} is damaged; remove the line to have it annotated again"
            ) from None
    return notes, usage


def _annotate_all(
    annotator: Annotator,
    corpus: Corpus,
    chars: int,
    folder: Path,
) -> None:
    # A line for each batch as it ends. Batches depend on the corpus alone, so a resumed index is
    # the uninterrupted one.
    path = folder / _FILE
    path.touch()
    notes_of, spent = _read_notes(path)
    texts, characters = _distinct(corpus, chars, notes_of)
    digests = list(texts)
    batches = [
        digests[first : first + annotator.batch]
        for first in range(0, len(digests), annotator.batch)
    ]
    pending = [
        missing
        for batch in batches
        if (missing := [digest for digest in batch if digest not in notes_of])
    ]
    if not pending:
        return
    count = sum(map(len, pending))
    sample = [texts[digest] for batch in pending for digest in batch][:: -(-count // _SAMPLE)]
    level = logging.WARNING if annotator.paid else logging.INFO
    _LOG.log(
        level,
        annotator.begin(
            count, characters, [_beginning(corpus[doc_id], chars) for doc_id in sample], spent
        ),
    )
    progress = Progress("lens", len(digests), "texts", done=len(digests) - count)
    tally = Counter[str]()
    fault = None

    def annotate(batch: list[str]) -> AnnotatedBatch:
        return annotator.annotate([_beginning(corpus[texts[digest]], chars) for digest in batch])

    # The first batch alone: it shows whether the model is of any use.
    for some in (
        pending[:1],
        pending[1:],
    ):
        if fault:
            break
        for batch, annotated in _annotate_in_threads(annotate, annotator.workers, some):
            notes = {
                d: note for d, note in zip(batch, annotated.texts, strict=True) if note is not None
            }
            files.append_line(
                path,
                json.dumps(
                    {"annotations": notes, "usage": usage_json(annotated.usage)}, ensure_ascii=False
                ).encode("utf-8", "backslashreplace"),
            )
            spent += annotated.usage
            tally["answers could not be used"] += annotated.unusable
            tally["texts have no annotation that could be used"] += sum(
                not note for note in notes.values()
            )
            tally["prompts were shortened to fit the model"] += annotated.shortened
            fault = fault or annotated.fault
            progress.add(len(notes))
    if annotator.paid:
        cost = (
            "an unknown price" if spent.list_usd is None else f"${spent.list_usd:.4f} at list price"
        )
        usage_text = (
            f"{plural(spent.calls, 'call')}, {plural(spent.input_tokens, 'token')} in and {spent.output_tokens:,} "
            f"out, {cost}"
        )
        troubles = "".join(f"; {n} {trouble}" for trouble, n in tally.items() if n)
        _LOG.log(level, f"lens: annotated so far with {usage_text}{troubles}")
    if fault:
        raise fault


def _distinct(
    corpus: Corpus, chars: int, notes_of: Mapping[str, str]
) -> tuple[dict[str, str], int]:
    """Return the first document of each distinct text that is not blank, by digest, and the
    characters not yet done.
    """
    texts = {}
    characters = 0
    for document in corpus.stream():
        text = _beginning(document, chars)
        digest = digest_text(text).hex()
        if text.strip() and digest not in texts:
            texts[digest] = document.doc_id
            characters += 0 if digest in notes_of else len(text)
    return texts, characters


Annotate = Callable[[list[str]], AnnotatedBatch]  # of a batch, which is a list of digests
Finished = tuple[list[str], AnnotatedBatch]


def _annotate_in_threads(
    annotate: Annotate, workers: int, batches: Sequence[list[str]]
) -> Iterator[Finished]:
    """Yield each batch as it ends; after a fault, or a while after a Ctrl-C, those in flight:
    they are paid for.
    """
    todo = list(batches)
    running = dict[Future[AnnotatedBatch], list[str]]()
    until = math.inf
    interrupt: KeyboardInterrupt | None = None
    while (todo or running) and time.monotonic() < until:
        while todo and len(running) < workers:
            batch = todo.pop(0)
            running[start_thread(partial(annotate, batch))] = (
                batch  # a daemon: Ctrl-C does not wait for the slowest call
            )
        for ended in wait(running, _TICK, FIRST_COMPLETED).done:
            annotated = ended.result()
            todo = [] if annotated.fault else todo
            yield running.pop(ended), annotated
        try:
            check_interrupts()
        except KeyboardInterrupt as signal:
            if interrupt:
                raise
            todo = []
            interrupt = signal
            until = time.monotonic() + _GRACE
    if interrupt:
        raise interrupt
