"""Readers of the public forms of data sets: layouts, tables and documents."""
