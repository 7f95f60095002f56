"""Statements about a run besides its results: artifacts, metadata, sources and start, metrics of steps, searches."""
