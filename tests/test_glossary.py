"""Names mean one thing: a class name stands once in the package, and a file name twice only for the same idea."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "torchx_kfp"
#: File names that mean the same idea in several packages.
SAME_IDEA = {
    "artifacts.py",  # the artifacts of a pipeline's stages, and the command
    "lineage.py",  # reading a lineage, showing it, and the command
    "replay.py",  # running one stage again, and the command
    "results.py",  # a stage's results, and the command
    "run.py",  # a stage's own run, a run on a host, and the command
    "watch.py",  # being called with events, and the command
}
#: Names that still mean several things. The lists only get shorter.
FILES: set[str] = set()
CLASSES = {"Artifact"}  # of a stage's record, and of a KFP pipeline: both are public


def repeated(names: list[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def test_a_class_name_means_one_thing() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found += [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert repeated(found) <= CLASSES


def test_a_file_name_means_one_thing() -> None:
    found = [path.name for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    assert repeated(found) - SAME_IDEA <= FILES


def test_the_exceptions_are_needed() -> None:
    paths = [path.name for path in PACKAGE.rglob("*.py")]
    assert repeated(paths) >= SAME_IDEA
