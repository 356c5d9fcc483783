"""A corpus: documents by id, in a fixed order, with a fingerprint for the indexes made of it.

There are two kinds with the same interface. `Corpus` holds its documents in memory. `StoredCorpus`
(tools/stored_corpus.py) reads them from disk one at a time, for releases of a million passages.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from tools.errors import DataError
from tools.records import Document


class Corpus(Mapping[str, Document]):
    """doc_id -> Document, in the order given. Immutable; positions are the retrievers' row numbers."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents: dict[str, Document] = {}
        for document in documents:
            if self._documents.setdefault(document.doc_id, document) is not document:
                raise DataError(f"two documents have the id {document.doc_id!r}")

    def __getitem__(self, doc_id: str) -> Document:
        return self._documents[doc_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)

    @cached_property
    def doc_ids(self) -> tuple[str, ...]:
        """All document ids, in corpus order."""
        return tuple(self)

    def stream(self) -> Iterator[Document]:
        """Yield every document, in corpus order."""
        yield from self._documents.values()

    def texts(self) -> Iterator[str]:
        """Yield the text that retrievers index of each document, in corpus order."""
        yield from map(indexed_text, self.stream())

    def repeats(self) -> dict[str, str]:
        """Map each repeated document to the first one with the same title and text; other documents are left out."""
        first: dict[bytes, str] = {}
        repeats = {}
        for document in self.stream():
            _, title, text, _ = encode_document(document)
            digest = hashlib.blake2b(title + b"\0" + text, digest_size=16).digest()
            if (original := first.setdefault(digest, document.doc_id)) != document.doc_id:
                repeats[document.doc_id] = original
        return repeats

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits over every id, title, text and parent, in order; corpora with equal ones index alike."""
        fingerprint = Fingerprint()
        for document in self.stream():
            fingerprint.add(*encode_document(document))
        return str(fingerprint)


def indexed_text(document: Document) -> str:
    """Return the text that retrievers index of a document: its title, then its text."""
    return f"{document.title} {document.text}" if document.title else document.text


def encode_document(document: Document) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the fields of a document as bytes, in the order in which they are stored and hashed."""
    fields = (document.doc_id, document.title, document.text, document.parent)
    doc_id, title, text, parent = (field.encode("utf-8", "surrogatepass") for field in fields)
    return doc_id, title, text, parent


def digest_text(text: str) -> bytes:
    """Return a digest of a text, 16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Fingerprint:
    """A digest over the fields of many documents."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)

    def add(self, *fields: bytes) -> None:
        """Add one document."""
        for field in fields:
            # Lengths keep ("ab", "c") and ("a", "bc") apart.
            self._digest.update(len(field).to_bytes(8, "little"))
            self._digest.update(field)

    def __str__(self) -> str:
        return self._digest.hexdigest()
