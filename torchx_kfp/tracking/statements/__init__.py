"""Statements about a run beside its results: artifacts, metadata, sources and its start, metrics of steps."""
