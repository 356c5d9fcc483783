"""Retrievers with a neural model: embeddings, learned sparse weights, late interaction,
cross-encoders.
"""
