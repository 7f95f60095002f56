"""Find which stages read which, from the run ids among their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.report.model import StageView


@dataclass(frozen=True)
class Read:
    """A read: the input ``name`` of ``stage`` is the run id of ``source``, which is None if no stage has that id."""

    stage: StageView
    name: str
    run_id: str
    source: StageView | None


def find_reads(stages: Iterable[StageView], run_id: str) -> list[Read]:
    """Return all reads between stages of the run, in order.

    An input counts as a run id if its value is the run id of another stage, or has the form of one of this run. The
    latter belongs to a stage that has been repeated since.
    """
    stages = list(stages)
    known = {stage.result.run_id: stage for stage in reversed(stages) if stage.result.run_id}
    reads = []
    for stage in stages:
        for name, value in stage.result.inputs.items():
            for candidate in dict.fromkeys(_texts(value)):
                source = known.get(candidate)
                if source is not stage and (source is not None or _is_run_of(candidate, run_id)):
                    reads.append(Read(stage, name, candidate, source))
    return reads


def by_task(reads: Iterable[Read]) -> Mapping[tuple[str, str], list[Read]]:
    """Group the reads by task, all iterations of a loop together: ``(path, source's path or run id)``."""
    grouped: dict[tuple[str, str], list[Read]] = {}
    for read in reads:
        grouped.setdefault((read.stage.path, read.source.path if read.source else read.run_id), []).append(read)
    return grouped


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))


def _is_run_of(text: str, run_id: str) -> bool:
    return text.startswith(f"{run_id}/") and text.count("/") == 2
