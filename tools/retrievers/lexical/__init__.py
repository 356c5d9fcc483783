"""Retrievers that count words."""
