"""The input of each engine for each application, as files. ``make goldens`` rewrites them; CI never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.authoring.engines.apps import CASES, distributed, engine_of

GOLDENS = Path(__file__).resolve().with_name("goldens")
NAMES = [f"{name}.{engine}" for name, case in CASES.items() for engine in case.engines]


def golden_file(name: str) -> Path:
    """Return the path of a golden file."""
    return GOLDENS / f"{name}.yaml"


def text_of(name: str) -> str:
    """Return what the launcher is given for ``<case>.<engine>``, as YAML."""
    case_name, _, engine = name.rpartition(".")
    case = CASES[case_name]
    found = distributed(case.make, engine_of(case, engine), **case.options)
    content: dict[str, Any] = {
        "image": found.image,
        "retries": found.task.get("retryPolicy", {}).get("maxRetryCount", 0),
        "words": found.words,
        "spec": found.spec,
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def write() -> None:
    """Rewrite the files."""
    from tests.pipelines.regenerate import normalise

    GOLDENS.mkdir(exist_ok=True)
    for name in NAMES:
        golden_file(name).write_text(normalise(text_of(name)), encoding="utf-8")
    for left in sorted(set(GOLDENS.iterdir()) - {golden_file(name) for name in NAMES}):
        left.unlink()
