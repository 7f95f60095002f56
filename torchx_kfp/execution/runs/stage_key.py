"""The key of a stage in a cache: its parts, and the differences between two keys."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.text import listed, shown
from torchx_kfp.contract.inputs import ADDED, SUFFIXES, is_stage_input
from torchx_kfp.execution.pipeline.spec import Component
from torchx_kfp.execution.pipeline.used_files import Code

#: How many differences of one kind are named.
_NAMED = 3
#: The longest value that is kept as it is, in characters.
_LONGEST = 1000
#: The id of a local execution.
_RUN_ID = re.compile(r"[\w.-]+-\d{8}-\d{6}-[0-9a-f]{6}/([^/]+)/[^/]+")
_ADDED = re.compile(rf"\A(.+?){ADDED}\Z")


@dataclass(frozen=True)
class StageKey:
    """The key of a stage.

    Attributes:
        parts: everything that determines the stage except its code: JSON values, by names for messages, such as
            ``image``. Those that are dicts are compared by their items.
        code: the files that it may use; None if it includes its code.
    """

    parts: Mapping[str, Any]
    code: Code | None = None

    @functools.cached_property
    def digest(self) -> str:
        """The key in hexadecimal digits, equal for stages with the same work."""
        return digest_of([dict(self.parts), None if self.code is None else self.code.digest])

    def differences(self, parts: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
        """Return the changes since an earlier execution, as clauses such as ``train.py changed``.

        Args:
            parts: the parts of its key.
            files: the files of its code.
        """
        changes: list[str] = []
        own = {} if self.code is None else self.code.files
        changed = [name for name in {**own, **files} if own.get(name) != files.get(name)]
        if changed:
            named = listed(changed, _NAMED) if len(changed) <= _NAMED else f"{len(changed)} files"
            changes.append(f"{named} changed")
        current = json.loads(json.dumps(self.parts, default=str))
        for part in dict.fromkeys([*current, *parts]):
            before, now = parts.get(part), current.get(part)
            if before == now:
                continue
            if isinstance(before, dict) and isinstance(now, dict):
                names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
                changes += [_changed(part, name, before.get(name), now.get(name)) for name in names]
            elif isinstance(before, str) and isinstance(now, str):
                changes.append(f"{part} {shown(before)} -> {shown(now)}")
            else:
                changes.append(f"its {part} changed")
        return list(dict.fromkeys(changes))


def parts_of(component: Component, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of KFP's own key of a stage (kubeflow/pipelines, ``backend/src/v2/cacheutils/cache.go``).

    Args:
        component: its component.
        inputs: the values that count: of a run that has not started, only some are known.
    """
    container = component.container
    assert container is not None
    artifacts = {name: type_.title for name, type_ in component.artifact_outputs.items()}
    return {
        "image": container.image,
        "command": container.words,
        "outputs": [dict(component.parameter_outputs), artifacts],
        "inputs": {name: kept_value(value) for name, value in inputs.items()},
    }


def digest_of(content: Any) -> str:
    """Return a digest of a value that JSON can represent, as hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def kept_value(value: Any) -> Any:
    """Return a value for comparison: a digest instead of a long one."""
    text = json.dumps(value, sort_keys=True, default=str)
    return value if len(text) <= _LONGEST else {"digest": digest_of(text)}


def _changed(part: str, name: str, before: Any, now: Any) -> str:
    if part == "inputs" and is_stage_input(name):  # its values are words of the command
        return "its command changed"
    short = _ADDED.sub(r"\1", name) if part == "inputs" and name.endswith(tuple(SUFFIXES.values())) else name
    if isinstance(now, str) and (found := _RUN_ID.fullmatch(now)):
        return f"it reads {found[1]}"
    if any(isinstance(value, (dict, list)) for value in (before, now)):
        return f"{short} changed"
    if before is None or now is None:
        return f"{short} is {'new' if before is None else 'gone'}"
    return f"{short} {shown(before)} -> {shown(now)}"
