"""Find the runs that a command line names, and the tracker bases that have their records.

All commands share this module. A run is on this machine or on a KFP host, and is named by its id, the beginning or end
of its id, its name, the URL of its page, the path of its folder, or ``latest``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import UUID, listed, without_passwords
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.display.printing import print_message, this_command
from torchx_kfp.entrypoints.cli.flags import Flags
from torchx_kfp.errors import AmbiguousRunError, ArgumentError, HostError, TrackerBaseError, UnknownRunError
from torchx_kfp.execution.host.settings import flag, read_settings
from torchx_kfp.execution.runs.vocabulary import State

if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    from torchx_kfp.execution.host.host_runs import Host
    from torchx_kfp.execution.host.run import HostRun
    from torchx_kfp.execution.runs.history import RunReader
    from torchx_kfp.execution.runs.source import RunRecord

#: The results of a run on a host that are read.
Results: TypeAlias = "Literal['all', 'run ids', 'none']"
#: A part of the URL of a run's page in KFP's UI.
_PAGE_OF_RUN = "/runs/details/"


@dataclass(frozen=True)
class Located:
    """A run, or a part of one, and the tracker base that has its records.

    Attributes:
        base: the tracker base.
        run: the run id, or the beginning of one, to look for under the base; None for all runs there.
        output_dir: the directory with the folders of runs on this machine.
        name: the run's name on its host; empty if it has none.
        arguments: the arguments of the run.
        stages: the names of the stages that have ended by their run ids, as far as they are known.
        is_found: whether the run itself was found, so that ``run`` begins with its whole id.
        cached: the stages that KFP's cache has replaced by those of runs that it does not name.
        origins: the runs whose stages it has, as far as they are known, also if its own record is damaged.
    """

    base: str
    run: str | None
    output_dir: str
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)
    is_found: bool = False
    cached: Collection[str] = ()
    origins: Collection[str] = ()

    @property
    def run_ids(self) -> Collection[str]:
        """The run ids of the stages that have ended, as far as they are known."""
        return self.stages.keys()

    @property
    def taken_over(self) -> list[str]:
        """The run ids of stages that ran in earlier runs: they were cached, or kept when the run was resumed."""
        run = (self.run or "").partition("/")[0]
        return [run_id for run_id in self.run_ids if not run_id.startswith(f"{run}/")]

    @property
    def runs(self) -> list[str]:
        """The pipeline run itself, and the earlier runs from which it has stages."""
        return list(dict.fromkeys([(self.run or "").partition("/")[0], *self.origins]))


def locate(runs: Sequence[str], base: str | None, output_dir: str, flags: Flags) -> list[Located]:
    """Find runs, or parts of them, whose records are to be shown.

    Args:
        runs: words ``RUN[/STAGE]``.
        base: the tracker base that has their records, if the user has named one. Otherwise, each run has its own.
        output_dir: the directory with the folders of runs on this machine.
        flags: the options of the host.

    Raises:
        UsageError: a word is a tracker base.
        UnknownRunError: there is no such run.
        ArgumentError: a run has no tracker base, or several.
        TrackerBaseError: only pods have the tracker base, or only the run names it.
        HostError: the host does not answer.
    """
    if base is not None and not names_host(flags):
        return [Located(base, run, output_dir) for run in runs]
    return [_located(run, base, output_dir, flags) for run in runs]


def find_source(
    run: str,
    output_dir: str,
    flags: Flags,
    *,
    results: Results = "all",
    base: str | None = None,
    raw_logs: bool = False,
) -> RunReader | HostRun:
    """Find a run: on the host that the flags name; otherwise on this machine, or else on the host that is set up.

    The whole id of a run on this machine means that run, even if the flags name a host.

    Args:
        run: the run. ``latest`` is the newest on the host that the flags name, or else the newest on this machine and
            on the host that is set up.
        output_dir: the directory with the folders of runs on this machine.
        flags: the options of the host.
        results: what is read of the results of a run on a host, which may take some seconds.
        base: the tracker base that the user has named.
        raw_logs: whether logs of a run on a host keep the lines of KFP's launcher.

    Raises:
        UnknownRunError: there is no such run.
        AmbiguousRunError: several runs match.
        HostError: the host does not answer.
    """
    from torchx_kfp.execution.pipeline.walk import LATEST
    from torchx_kfp.execution.runs.history import RunReader, find_run, is_run

    if os.sep not in run and is_run(Path(run)) and not is_run(Path(output_dir, run)):
        run = os.path.join(os.curdir, run)  # a command in the directory with the folders of runs
    if names_host(flags) and not is_run(Path(output_dir, run)):
        return _on_host(run, flags, results, base, raw_logs=raw_logs)
    try:
        folder = find_run(output_dir, run)
    except ArgumentError as error:
        several_here = isinstance(error, AmbiguousRunError)
        # Only runs on a host have such an id.
        if not UUID.search(run.lower()) and not _is_host_known():
            kind = AmbiguousRunError if several_here else UnknownRunError
            raise kind(f"{error} For a run on KFP, give its --host.") from None
        try:
            source = _on_host(run, flags, results, base, raw_logs=raw_logs)
            source.read()  # whether it exists: a whole id is not looked up
        except (UnknownRunError, HostError) as other:
            is_about_host = isinstance(other, (HostError, AmbiguousRunError))
            if several_here:
                raise AmbiguousRunError(f"{error} And on the host: {other}" if is_about_host else f"{error}") from None
            if (is_about_host or not _has_runs(output_dir)) and _is_host_known():
                raise  # this machine has nothing to do with it
            raise type(other)(f"{error} And on the host: {other}") from None
        return source
    newest = _newer_on_host(folder, flags) if run == LATEST else None
    return RunReader(folder) if newest is None else _on_host(newest, flags, results, base, raw_logs=raw_logs)


def _has_runs(output_dir: str) -> bool:
    """Tell whether there are runs on this machine."""
    from torchx_kfp.execution.runs.history import find_runs

    try:
        return bool(find_runs(output_dir))
    except ArgumentError:
        return False


def say_latest(word: str, run_id: str) -> None:
    """Say on stderr which run ``latest`` means, for commands that do not show it."""
    from torchx_kfp.execution.pipeline.walk import LATEST

    if word.partition("/")[0] == LATEST:
        print_message(f"The run is {run_id}.")


def find_part(word: str, output_dir: str, flags: Flags, **reading: Any) -> tuple[RunReader | HostRun, str]:
    """Find the run that a word ``RUN[/STAGE[/NAME]]`` means, and return it with what follows it in the word.

    Args:
        word: the word.
        output_dir: see ``find_source``, which has the errors, too.
        flags: the options of the host.
        reading: what is read of the run: the keywords of ``find_source``.
    """
    name = word
    if "://" not in word and not os.path.exists(word):
        parts = word.split("/")
        # The path of a run's folder has slashes, and so have the names of stages, and of runs on a host.
        folders = ["/".join(parts[:length]) for length in range(len(parts), 1, -1)]
        name = next(filter(os.path.isdir, folders), parts[0])
    try:
        return find_source(name, output_dir, flags, **reading), word[len(name) + 1 :]
    except UnknownRunError:
        if name != word:
            with contextlib.suppress(UnknownRunError, HostError):
                source = find_source(word, output_dir, flags, **reading)
                source.read()
                return source, ""
        raise


def _on_host(run: str, flags: Flags, results: Results, base: str | None, *, raw_logs: bool) -> HostRun:
    from torchx_kfp.execution.host.run import HostRun

    host = connect(flags)
    return HostRun(host.connection, host.find(run), reads=results, named=[base or ""], raw_logs=raw_logs)


def _newer_on_host(folder: Path, flags: Flags) -> str | None:
    """Return the newest run on the host that is set up, if one is, and if it is newer than the one in the folder."""
    from torchx_kfp.execution.runs.history import created

    try:
        newest = next(connect(flags, is_patient=False).list(limit=1), None) if _is_host_known() else None
    except HostError as error:
        print_message(f"Only the runs on this machine were looked at: {error}")
        return None
    if newest is None or newest.created < created(folder):
        return None
    return newest.run_id


def _refuse_base(word: str) -> None:
    """Say how a tracker base is named, for a word that should be a run."""
    if "://" in word and _PAGE_OF_RUN not in word:
        raise click.UsageError(f"{word!r} is not a run. A tracker base is an option: --tracker-base {word}.")


def _located(word: str, base: str | None, output_dir: str, flags: Flags) -> Located:
    _refuse_base(word)
    try:
        source, part = find_part(word, output_dir, flags, results="run ids", base=base)
    except UnknownRunError as error:
        if os.path.isdir(word) and not isinstance(error, AmbiguousRunError):
            raise UnknownRunError(f"{error} If {word!r} is a tracker base: --tracker-base {word}.") from None
        raise
    record = source.read()
    part = _key_of(record, part)
    found = f"{record.run_id}/{part}" if part else record.run_id
    name = f"{record.name}/{part}" if part and record.name else record.name
    folders = output_dir if record.folder is None else str(record.folder.parent)
    every = {end.run_id: name for name, end in record.run.ends.items() if end.run_id}
    cached = [end.name for end in record.run.ends.values() if end.state is State.CACHED and not end.run_id]
    return Located(
        base or base_of(record, flags),
        found,
        folders,
        name,
        record.arguments,
        # A run that is not described in full does not say which attempts were the last ones.
        {} if record.corrupt else every,
        is_found=True,
        cached=cached,
        origins=[run_id.partition("/")[0] for run_id in every],
    )


def _key_of(record: RunRecord, part: str) -> str:
    """Return the part of run ids for a stage that tables name ``train[1]`` or ``inner/train``, and what is below it."""
    names = (name for name in record.run.ends if f"{part}/".startswith(f"{name}/") and ("[" in name or "/" in name))
    name = max(names, key=len, default="")
    recorded = record.run.ends[name].run_id if name else None
    return f"{recorded.partition('/')[2]}{part[len(name) :]}" if recorded else part


def base_of(record: RunRecord, flags: Flags) -> str:
    """Return the tracker base of a run: its argument, or the one that its stages have used.

    Raises:
        ArgumentError: it has none, or several.
        TrackerBaseError: only pods have it, or only the run names it.
    """
    from torchx_kfp.execution.runs.source import missing, why_not_read

    given = record.arguments.get(TRACKER_BASE)
    used = [stage.tracker_base for stage in record.run.ends.values() if stage.tracker_base]
    bases = list(dict.fromkeys([given] if isinstance(given, str) and given else used))
    if len(bases) != 1:
        why = f"used several tracker bases: {listed(bases)}"
        if not bases:
            why = f"has no argument {TRACKER_BASE!r}, and none of its stages has said where it records"
        raise ArgumentError(f"The run {record.run_id} {why}. Name one: --tracker-base.")
    ran_here = record.folder is not None
    if why := why_not_read(bases[0], named_bases(bases, flags, ran_here=ran_here), ran_here=ran_here):
        raise TrackerBaseError(missing(bases[0], why))
    return bases[0] if record.folder is None else record.absolute_base(bases[0])


def usual_base(output_dir: str | None = None) -> str | None:
    """Return the tracker base of commands that are given none, and say which it is; None if there is none.

    Args:
        output_dir: the directory with the folders of runs on this machine, of which the newest has the base if no
            setting names one; None if only a setting counts.
    """
    from torchx_kfp.execution.pipeline.walk import LATEST
    from torchx_kfp.execution.runs.history import find_run, read_run

    settings = read_settings({})
    base, why = settings.tracker_base, settings.source("tracker_base")
    if not base and output_dir is not None:
        try:
            record = read_run(find_run(output_dir, LATEST))
            base, why = base_of(record, {}), record.run_id
        except (ArgumentError, TrackerBaseError):
            return None
    if not base:
        return None
    print_message(without_passwords(f"The tracker base is {base} ({why})."))
    return base


def named_bases(bases: Iterable[str], flags: Flags, *, ran_here: bool) -> tuple[str, ...]:
    """Return the tracker base that the user has named, if one of these bases needs that to be read.

    Otherwise, the settings of the host are not read: most runs on this machine do not need them.
    """
    from torchx_kfp.execution.runs.source import why_not_read

    is_needed = any(why_not_read(base, (), ran_here=ran_here) for base in bases)
    return (read_settings(flags).tracker_base,) if is_needed else ()


def connect(flags: Flags, *, is_patient: bool = True) -> Host:
    """Return the host that the flags, the environment or the settings file name.

    Args:
        flags: the options of the host.
        is_patient: whether a host that does not answer is asked again. Otherwise a request takes some seconds at most.

    Raises:
        HostSettingsError: a setting is wrong.
    """
    from torchx_kfp.execution.host.connection import Connection, Patience
    from torchx_kfp.execution.host.host_runs import Host

    settings = read_settings(flags)
    for sentence in settings.warnings:
        print_message(sentence)
    patience = Patience() if is_patient else Patience(connect=2.0, read=5.0, retries=0)
    return Host(Connection(settings, patience, print_message))


def refuse_foreign_latest(command: str, run: str, source: RunReader | HostRun, flags: Flags) -> None:
    """Raise ArgumentError if the latest run is on a host that the flags do not name.

    For commands that change a run, or run its code.

    Args:
        command: the name of the command.
        run: the word for the run, possibly with a stage: ``latest/train``.
        source: the run that it means.
        flags: the options of the host.
    """
    from torchx_kfp.execution.host.run import HostRun
    from torchx_kfp.execution.pipeline.walk import LATEST

    word, slash, stage = run.partition("/")
    if word == LATEST and isinstance(source, HostRun) and not names_host(flags):
        raise ArgumentError(
            f"The latest run is on the KFP host, and may be another user's. If you mean it: "
            f"{this_command(command, f'{source.run_id}{slash}{stage}', *host_words(flags))}"
        )


def host_words(flags: Flags) -> list[str]:
    """Return the options with which another command finds the same host."""
    return [word for name, value in flags.items() for word in (flag(name), str(value))]


def names_host(flags: Flags) -> bool:
    """Tell whether the flags themselves name a host."""
    return bool(flags.get("host") or flags.get("kube_context"))


def is_host_set_up() -> bool:
    """Tell whether the environment or the settings file names a host.

    Raises:
        HostSettingsError: a setting is wrong.
    """
    return names_host(vars(read_settings()))


def _is_host_known() -> bool:
    """Tell whether a host is set up, or this process runs in a cluster."""
    return is_host_set_up() or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
