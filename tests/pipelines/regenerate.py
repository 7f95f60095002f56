"""The goldens of the pipelines in pipelines/ and of the engines' manifests; and what is recorded of the local corpus.

``python -m tests.pipelines.regenerate`` rewrites them; review the difference like any other. CI never rewrites them.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PIPELINES = sorted(path for path in (REPOSITORY / "pipelines").glob("*.py") if path.name != "__init__.py")
GOLDENS = Path(__file__).resolve().with_name("goldens")

#: The versions of the packages that compiled the file: nothing else may differ between versions.
_VERSIONS = (
    (re.compile(r"^sdkVersion: kfp-\S+$", re.MULTILINE), "sdkVersion: kfp-VERSION"),
    (re.compile(r"^( +torchx\.pytorch\.org/version): \S+$", re.MULTILINE), r"\1: VERSION"),
)


def load_pipeline(path: Path) -> Any:
    """Return the pipeline with the same name as this file."""
    return getattr(importlib.import_module(f"pipelines.{path.stem}"), path.stem)


def compile_text(path: Path) -> str:
    """Return the YAML of this file's pipeline."""
    from tests.authoring.apps import compile_pipeline

    return compile_pipeline(load_pipeline(path))


def normalise(text: str) -> str:
    """Return the text without the versions of kfp and torchx."""
    for pattern, replacement in _VERSIONS:
        text = pattern.sub(replacement, text)
    return text


def golden_file(path: Path) -> Path:
    """Return the path of the golden file for this pipeline's file."""
    return GOLDENS / f"{path.stem}.yaml"


def main() -> None:
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        sys.exit("CI is set, and goldens are not rewritten there: run this on your machine, and commit what changes.")
    GOLDENS.mkdir(exist_ok=True)
    for path in PIPELINES:
        golden_file(path).write_text(normalise(compile_text(path)), encoding="utf-8")
        print(f"wrote {golden_file(path).relative_to(REPOSITORY)}")
    for left in sorted(set(GOLDENS.iterdir()) - {golden_file(path) for path in PIPELINES}):
        left.unlink()
        print(f"removed {left.relative_to(REPOSITORY)}: there is no such pipeline")
    from tests.authoring.engines import goldens as engines

    engines.write()
    print(f"wrote {len(engines.NAMES)} files in {engines.GOLDENS.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
