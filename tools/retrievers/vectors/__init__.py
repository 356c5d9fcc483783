"""Vectors of documents: kept, searched and estimated, whoever made them."""
