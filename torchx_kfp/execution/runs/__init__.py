"""A run, local or on KFP: its events, its state, and the folder that records them."""

from __future__ import annotations

from pathlib import Path

from torchx_kfp.execution.runs.vocabulary import OUTPUT_DIR as OUTPUT_DIR


def output_dir_words(folder: Path) -> list[str]:
    """Return the option with which commands find the run in this folder; none for the default."""
    parent = folder.absolute().parent
    return [] if parent == Path(OUTPUT_DIR).absolute() else ["--output-dir", str(parent)]
