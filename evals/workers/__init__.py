"""Queries answered in other processes: by workers, for a keeper (docs/decisions/processes.md)."""
