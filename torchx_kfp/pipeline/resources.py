"""The limits of a container in KFP's ResourceSpec."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from torchx_kfp.pipeline.placeholders import Facts, resolve_text

_QUANTITY = re.compile(r"([0-9.]+)([eE][+-]?[0-9]+|m|[kMGTPE]|[KMGTPE]i)?")
_BINARY = {f"{prefix}i": Decimal(1024) ** (power + 1) for power, prefix in enumerate("KMGTPE")}
_DECIMAL = {prefix: Decimal(1000) ** (power + 1) for power, prefix in enumerate("kMGTPE")}
_UNITS: dict[str, Decimal] = {**_BINARY, **_DECIMAL, "m": Decimal("0.001"), "": Decimal(1)}
#: The unit of KFP's older field.
_GIGABYTE = 10**9


@dataclass(frozen=True)
class Limits:
    """Limits of CPUs, memory in bytes, and accelerators. None means no limit; 0 means that none are requested."""

    cpus: float | None = None
    memory: int | None = None
    accelerators: int = 0
    accelerator_type: str = ""


NO_LIMITS = Limits()


def read_limits(resources: Mapping[str, Any], facts: Facts) -> Limits:
    """Return the limits in a ResourceSpec, whose values may be placeholders. Requests are ignored.

    Raises:
        ValueError: a value is not a quantity.
    """
    accelerator = resources.get("accelerator") or {}
    count = _text(accelerator, "resourceCount", "count", facts)
    cpus = _text(resources, "resourceCpuLimit", "cpuLimit", facts)
    memory = resolve_text(str(resources.get("resourceMemoryLimit") or ""), facts)
    gigabytes = float(resources.get("memoryLimit") or 0)
    return Limits(
        cpus=float(parse_quantity(cpus)) or None if cpus else None,
        memory=math.ceil(parse_quantity(memory)) or None if memory else round(gigabytes * _GIGABYTE) or None,
        accelerators=int(parse_quantity(count)) if count else 0,
        accelerator_type=_text(accelerator, "resourceType", "type", facts),
    )


def parse_quantity(text: str) -> Decimal:
    """Return the number in a Kubernetes quantity: ``500m``, ``1.5``, ``64M``, ``2Gi``, ``1e3``.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    try:
        if match is None:
            raise ArithmeticError
        number, unit = match.group(1), match.group(2) or ""
        return Decimal(number) * _UNITS[unit] if unit in _UNITS else Decimal(number + unit)
    except ArithmeticError:
        raise ValueError(f"has the limit {text!r}, which is not a quantity such as 500m, 2 or 1.5Gi") from None


def _text(values: Mapping[str, Any], name: str, older: str, facts: Facts) -> str:
    """Return the value under the name that KFP writes today, or otherwise under its older name."""
    return resolve_text(str(values.get(name) or values.get(older) or ""), facts)
