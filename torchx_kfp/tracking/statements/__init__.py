"""Statements about a run besides its results: artifacts, metadata, sources and its start, metrics of steps."""
