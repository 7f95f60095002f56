"""The findings of a check: each is one fact about a pipeline, with a remedy.

``run`` rejects a pipeline with findings that are ``REJECTED_LOCALLY``, ``submit`` one with findings that are
``REJECTED_ON_KFP``; both show the others. ``compile`` shows the findings about KFP's backend, and ``check`` shows all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from torchx_kfp.common.text import listed
from torchx_kfp.errors import PipelineError


class Kind(Enum):
    """The kind of a finding; the value is its wording."""

    FAILS = "fails on KFP"
    WORKS_LOCALLY = "fails on KFP, works locally"
    MAY_FAIL = "may fail on KFP"
    CHANGED = "differs on KFP"
    ALWAYS_TRUE = "always true"
    NOT_RECORDED = "records nothing"
    NOT_LOCAL = "cannot run locally"


#: Findings of these kinds prevent a run on this machine, or on KFP.
REJECTED_LOCALLY = (Kind.FAILS, Kind.NOT_LOCAL)
REJECTED_ON_KFP = (Kind.FAILS, Kind.WORKS_LOCALLY)
#: The number of further places that a finding names.
_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """One fact about a pipeline.

    Attributes:
        place: the subject of the sentence: ``task 'inner/train'``, ``the argument 'text'``.
        text: the rest of it, and the remedy.
        others: further places for which it is true.
    """

    kind: Kind
    place: str
    text: str
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        others = listed((place.removeprefix("task ") for place in self.others), _SHOWN)
        return f"{self.place} {f'(and {others}) ' if others else ''}{self.text}."


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, with those that differ only in their places merged into one."""
    places: dict[tuple[Kind, str], dict[str, None]] = {}
    for finding in findings:
        places.setdefault((finding.kind, finding.text), {})[finding.place] = None
    return [Finding(kind, place, text, tuple(others)) for (kind, text), (place, *others) in places.items()]


def refuse(name: str, findings: Iterable[Finding], consequence: str = "nothing was started") -> None:
    """Raise PipelineError for the pipeline with this name if there are any findings."""
    found = list(findings)
    if found:
        why = " and ".join(kind.value for kind in Kind if any(finding.kind is kind for finding in found))
        raise PipelineError(
            f"The pipeline {name!r} {why}, so {consequence}:\n" + "\n".join(f"- {finding}" for finding in found)
        )
