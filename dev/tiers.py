"""Name the tiers of tests that a change needs besides the gate: ``python -m dev.tiers`` prints them.

The tests of a tier take long, or need gigabytes. They run each night, and in the gate if the files that they cover have
changed since they last passed. ``tests/passed.json`` has a digest of these files for each tier, so the check needs no
history; ``python -m dev.tiers passed TIER...`` writes it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence

from dev.changed import REPOSITORY

RECORD = REPOSITORY / "tests" / "passed.json"
#: What reads KFP's classes, besides packages.
WATCH = "torchx_kfp/entrypoints/cli/channel_watch.py"
#: The files and folders that each tier is about. Its tests are run by `make test-TIER`.
TIERS = {
    "package": ("pyproject.toml", "MANIFEST.in", "torchx_kfp/common/extras.py", "dev/ci/package"),
    "oldest": ("torchx_kfp/contract/carried", "torchx_kfp/tracking/workspaces.py", "tests/oldest.py"),
    "examples": ("components", "pipelines", "tests/cases/examples.py", "tests/components"),
    "load": ("torchx_kfp/tracking/disk.py", "torchx_kfp/tracking/objects.py", "torchx_kfp/tracking/store.py"),
    "mlflow": ("torchx_kfp/tracking/backends", "pipelines/experiments.py"),
    "browser": ("torchx_kfp/execution/report", "torchx_kfp/entrypoints/cli/commands/ui", "tests/execution/report"),
    "containers": ("torchx_kfp/contract", "torchx_kfp/execution/local/executors", "tests/containers"),
    "cluster": ("torchx_kfp/contract", "torchx_kfp/authoring/engines.py", "tests/kubernetes"),
    "lowest": ("pyproject.toml", "torchx_kfp/authoring", "torchx_kfp/execution/pipeline", WATCH),
    "newest": ("pyproject.toml", "torchx_kfp/authoring", "torchx_kfp/execution/pipeline", WATCH),
    "torch": ("pyproject.toml", "components/ddp", "pipelines/ddp.py"),
    "ax": ("pyproject.toml", "torchx_kfp/hpo/ax", "tests/hpo/ax"),
}


def digest(tier: str) -> str:
    """Return a digest of the files that a tier covers."""
    total = hashlib.sha256()
    for name in TIERS[tier]:
        path = REPOSITORY / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                total.update(f"{file.relative_to(REPOSITORY)}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def needed() -> list[str]:
    """Return the tiers that have not passed with the current files."""
    passed = _passed()
    return [tier for tier in TIERS if passed.get(tier) != digest(tier)]


def _passed() -> dict[str, str]:
    found: dict[str, str] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return {tier: found[tier] for tier in TIERS if tier in found}


def main(arguments: Sequence[str]) -> None:
    """Print the needed tiers, or all, or record that some passed."""
    if arguments[:1] == ["passed"]:
        now = _passed() | {tier: digest(tier) for tier in arguments[1:]}
        RECORD.write_text(json.dumps(now, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    else:
        print(*(TIERS if arguments == ["all"] else needed()))


if __name__ == "__main__":
    main(sys.argv[1:])
