"""What a searcher can touch: records, a metered session over a corpus, retrievers. Knows no benchmark."""
