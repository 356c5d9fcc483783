"""Retrievers that match words: BM25 over an inverted index of our own, and rank-bm25."""
