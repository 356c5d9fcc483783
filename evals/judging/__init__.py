"""Judgements of language models about runs: relevance of documents and causes of losses."""
