"""A run, wherever it runs: its events, its state, and the folder that keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER
from torchx_kfp.execution.runs.vocabulary import OUTPUT_DIR as OUTPUT_DIR


def resume_words(folder: Path, sent: Sequence[str] = ()) -> list[str]:
    """Return the words of the command that resumes the run in the folder.

    Args:
        folder: the run's folder.
        sent: the pipeline and the option for the code that was sent with the run: without them, the new run has that
            code, although it may have been mended since.
    """
    return ["run", *sent, "--resume", folder.name, *output_dir_words(folder)]


def sent_words(arguments: Mapping[str, object], pipeline: str = "", workspace: str = "") -> list[str]:
    """Return ``sent`` for ``resume_words``; none for a run without code. Unknown names are placeholders."""
    has_code = workspace or arguments.get(WORKSPACE_PARAMETER)
    return [pipeline or "PIPELINE", "--workspace", workspace or "DIR"] if has_code else []


def output_dir_words(folder: Path) -> list[str]:
    """Return the option with which commands find the run in the folder; none for the default output folder."""
    parent = folder.absolute().parent
    return [] if parent == Path(OUTPUT_DIR).absolute() else ["--output-dir", str(parent)]
