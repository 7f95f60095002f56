"""Tags of runs, as they are written on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from torchx_kfp.common.text import did_you_mean
from torchx_kfp.entrypoints.cli.display.printing import print_message
from torchx_kfp.errors import ArgumentError, TorchxKfpError, UnknownTagError

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import RunSummary
    from torchx_kfp.execution.runs.source import RunRecord

R = TypeVar("R", "RunRecord", "RunSummary")


def read_tags(words: Iterable[str]) -> dict[str, str]:
    """Return the tags in words ``NAME=VALUE``.

    Raises:
        ArgumentError: a word has another form, or has no value.
    """
    from torchx_kfp.tracking.recorder import parse_tags

    tags: dict[str, str] = {}
    for name, value in parse_tags(words).items():
        if value is None:
            raise ArgumentError(f"The tag {name!r} has no value. Write {name}=VALUE.")
        tags[name] = value
    return tags


def with_tags(runs: Iterable[tuple[R, str]], wanted: Mapping[str, str], where: str) -> list[R]:
    """Return the runs that have all these tags. Tracker bases that cannot be read are named.

    Args:
        runs: each run, with the tracker base under which its tags are; empty if there is none.
        wanted: tags by name.
        where: where the runs are, for the message.

    Raises:
        UnknownTagError: no run has a tag of one of these names.
    """
    from torchx_kfp.tracking.recorder import Recorder

    runs = list(runs)
    if not wanted:
        return [run for run, _ in runs]
    tags: dict[str, Mapping[str, Mapping[str, str]]] = {"": {}}
    for _, base in runs:
        if base not in tags:
            tags[base] = {}
            try:
                runs_there = [run.run_id for run, place in runs if place == base]
                records = Recorder.open(base).records(runs_there, "tags")
                tags[base] = {run: record.tags for run, record in records.items()}
            except TorchxKfpError as error:
                print_message(f"The tags of some runs could not be read: {error}")
    found = [(run, tags[base].get(run.run_id, {})) for run, base in runs]
    known = {name for _, its in found for name in its}
    for name in wanted:
        if runs and name not in known:
            there = f" Their tags: {', '.join(sorted(known))}." if known else " They have no tags at all."
            raise UnknownTagError(f"None of the runs {where} has a tag {name!r}.{did_you_mean(name, known)}{there}")
    return [run for run, its in found if all(its.get(name) == value for name, value in wanted.items())]
