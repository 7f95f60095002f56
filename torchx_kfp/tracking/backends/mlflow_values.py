"""The names and values that MLflow accepts for metrics, parameters and tags.

Results that are numbers become metrics. All other results become tags rather than parameters, because a parameter can
be set only once, and a result can be recorded again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import numbers
import re
from collections.abc import Iterator, Mapping

#: The prefix of this project's tags. MLflow reserves its own in the same way.
OWN = "torchx."
_RESERVED = (OWN, "mlflow.")
#: The longest name, value of a tag, and value of a parameter, in characters. MLflow accepts names with 250 characters,
#: but tags of artifacts have a prefix; its older servers accept tags with 5000.
LONGEST_NAME, LONGEST_TAG, LONGEST_PARAMETER = 220, 5000, 6000
#: The most values of a dict that become separate parameters. A larger dict becomes JSON.
_MOST_INSIDE = 100
_REFUSED = re.compile(r"[^\w\-. /]")

_log = logging.getLogger("torchx_kfp")
_warned: set[str] = set()


def name_for_mlflow(name: str) -> str:
    """Return the name as MLflow accepts it: a relative path of letters, digits and ``_-. /``."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part not in ("", ".", "..")]
    taken = "/".join(parts) or "_"
    if taken.startswith((*_RESERVED, "..")):
        taken = f"_{taken}"
    if len(taken) > LONGEST_NAME:
        taken = f"{taken[: LONGEST_NAME - 9].rstrip('/')}-{digest(name)[:8]}"
    if taken != name:
        warn_once(f"MLflow does not accept the name {name[:300]!r}: it is {taken!r} there.")
    return taken


def split(metadata: Mapping[str, object]) -> tuple[dict[str, float], dict[str, str]]:
    """Split values into metrics and tags, by MLflow's names."""
    metrics: dict[str, float] = {}
    tags: dict[str, str] = {}
    for name, value in metadata.items():
        key = name_for_mlflow(name)
        try:
            if isinstance(value, numbers.Real):
                metrics[key] = float(value)
                continue
        except OverflowError:  # too large for a double
            pass
        tags[key] = cut(value if isinstance(value, str) else to_json(value), name)
    return metrics, tags


def parameters(metadata: Mapping[str, object]) -> dict[str, str]:
    """Return values as parameters, by MLflow's names: ``{"config": {"lr": 0.1}}`` is ``{"config.lr": "0.1"}``."""
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
    """Return the text, cut to the longest value of a tag or of something else."""
    if len(text) <= longest:
        return text
    warn_once(f"MLflow accepts {longest:,} characters for a {what}: the {len(text):,} of {name[:300]!r} are cut there.")
    return text[:longest]


def to_json(value: object) -> str:
    """Return the value as JSON. Values that JSON lacks become text."""
    return json.dumps(value, default=str)


def encode_run_id(run_id: str) -> str:
    """Escape the characters that are special in strings of MLflow's filters. Pipelines' run ids do not have any."""
    return run_id.replace("%", "%25").replace("'", "%27").replace("\\", "%5C")


def digest(*texts: str | None) -> str:
    """Return a short name for texts of any length."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def warn_once(text: str) -> None:
    """Log a warning, once in a process."""
    if text not in _warned:
        _warned.add(text)
        _log.warning(text)
