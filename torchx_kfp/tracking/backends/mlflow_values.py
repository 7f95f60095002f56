"""What MLflow takes: names of metrics, parameters and tags, and which values are which.

Of results numbers are metrics, and everything else becomes tags rather than parameters: a parameter can be set once
only, and a result may be recorded anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import numbers
import re
import sys
from collections.abc import Iterator, Mapping

#: Prefix of the tags that this project sets; MLflow's own has the same rule.
OWN = "torchx."
_RESERVED = (OWN, "mlflow.")
#: Characters of a name, of a tag's value and of a parameter's. MLflow takes names of 250, and tags of artifacts have a
#: prefix; its older servers take tags of 5000.
LONGEST_NAME, LONGEST_TAG, LONGEST_PARAMETER = 220, 5000, 6000
#: Values of a dict that become parameters of their own; one that holds more is JSON.
_MOST_INSIDE = 100
_REFUSED = re.compile(r"[^\w\-. /]")

_log = logging.getLogger("torchx_kfp")
_warned: set[str] = set()


def name_for_mlflow(name: str) -> str:
    """The name, rewritten where MLflow refuses it: it takes relative paths of letters, digits and ``_-. /``."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part not in ("", ".", "..")]
    taken = "/".join(parts) or "_"
    if taken.startswith((*_RESERVED, "..")):
        taken = f"_{taken}"
    if len(taken) > LONGEST_NAME:
        taken = f"{taken[: LONGEST_NAME - 9].rstrip('/')}-{digest(name)[:8]}"
    if taken != name:
        warn_once(f"MLflow takes no name {name[:300]!r}: it is {taken!r} there.")
    return taken


def split(metadata: Mapping[str, object]) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags of these values, by MLflow's names."""
    metrics: dict[str, float] = {}
    tags: dict[str, str] = {}
    for name, value in metadata.items():
        key = name_for_mlflow(name)
        number = _number(value)
        if number is not None:
            metrics[key] = number
        else:
            tags[key] = cut(value if isinstance(value, str) else to_json(value), name)
    return metrics, tags


def parameters(metadata: Mapping[str, object]) -> dict[str, str]:
    """Parameters of these values, by MLflow's names: ``{"config": {"lr": 0.1}}`` is ``{"config.lr": "0.1"}``."""
    return {
        name_for_mlflow(name): cut(
            to_json(value) if value is None or isinstance(value, (Mapping, list, tuple)) else str(value),
            name,
            LONGEST_PARAMETER,
            "parameter",
        )
        for name, value in _flat(metadata)
    }


def _flat(metadata: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in metadata.items():
        inside = list(_flat(value)) if isinstance(value, Mapping) else []
        if 0 < len(inside) <= _MOST_INSIDE:
            yield from ((f"{name}.{key}", inner) for key, inner in inside)
        else:
            yield str(name), value


def cut(text: str, name: str, longest: int = LONGEST_TAG, what: str = "tag") -> str:
    """The text, cut where it is longer than a tag's value may be, or that of something else."""
    if len(text) <= longest:
        return text
    warn_once(f"MLflow takes {longest:,} characters for a {what}: the {len(text):,} of {name[:300]!r} are cut there.")
    return text[:longest]


def to_json(value: object) -> str:
    """The value as JSON, with the text of what has none."""
    return json.dumps(value, default=str)


def from_metric(value: float) -> float:
    """The number that was recorded: a server on a database keeps infinities as the largest doubles."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def encode_run_id(run_id: str) -> str:
    """The run id without what ends a string in MLflow's filters, or escapes in it; those of pipelines stay."""
    return run_id.replace("%", "%25").replace("'", "%27").replace("\\", "%5C")


def decode_run_id(text: str) -> str:
    """The run id of what ``encode_run_id`` gave."""
    return text.replace("%5C", "\\").replace("%27", "'").replace("%25", "%")


def digest(*texts: str | None) -> str:
    """A short name for texts that no name could hold."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _number(value: object) -> float | None:
    """The value as a metric; None where it is no number, or an int that is beyond doubles."""
    if not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def warn_once(text: str) -> None:
    """Say this once in a process."""
    if text not in _warned:
        _warned.add(text)
        _log.warning(text)
