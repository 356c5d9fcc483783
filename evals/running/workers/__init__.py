"""Queries answered in other processes: workers, and shards of a run (docs/guide/scale.md)."""
