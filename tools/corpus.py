"""A corpus: documents by id, in a fixed order, with a fingerprint that an index can be kept under."""

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
        """All ids, in corpus order."""
        return tuple(self._documents)

    def texts(self) -> Iterator[str]:
        """What retrievers index of each document, in corpus order: the title, then the text."""
        for document in self._documents.values():
            yield f"{document.title} {document.text}" if document.title else document.text

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits over every id, title and text, in order: two equal ones index alike."""
        digest = hashlib.blake2b(digest_size=8)
        for document in self._documents.values():
            for part in (document.doc_id, document.title, document.text):
                data = part.encode("utf-8", "surrogatepass")
                # Lengths keep ("ab", "c") and ("a", "bc") apart.
                digest.update(len(data).to_bytes(8, "little"))
                digest.update(data)
        return digest.hexdigest()
