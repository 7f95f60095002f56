"""Find the runs that a command line names, local or on a KFP host.

A run is given as its id, the beginning or end of its id, its name, the URL of its page, the path of its folder, or
``latest``.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from torchx_kfp.common.safe_files import PRIVATE
from torchx_kfp.common.text import UUID, listed
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.display.printing import print_message, this_command
from torchx_kfp.entrypoints.cli.flags import (
    Decorator,
    Flags,
    gathered,
    host_options,
    output_dir_option,
    tracker_base_option,
)
from torchx_kfp.entrypoints.cli.recorded import RunRecords, open_record_tracker
from torchx_kfp.errors import ArgumentError, HostError, TrackerBaseError, UnknownRunError
from torchx_kfp.execution.host.settings import Settings, flag, read_settings
from torchx_kfp.execution.pipeline.artifacts import is_object_store
from torchx_kfp.execution.pipeline.walk import LATEST
from torchx_kfp.execution.runs import OUTPUT_DIR, output_dir_words
from torchx_kfp.execution.runs.history import RunReader, created, find_run, is_run, read_run
from torchx_kfp.execution.runs.record import RunRecord, untracked
from torchx_kfp.execution.runs.source import RunSource
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import Host
    from torchx_kfp.execution.host.run import HostRun

#: The URL of a run's page or TorchX's handle of an app, and a stage. KFP's page of an execution adds its number.
_URL = re.compile(r"(kfp://[^/]*/[^/?#&]+|.*/runs/details/[^/?#&]+)(?:/(?!execution/)([^?#]+))?.*")


@dataclass(frozen=True)
class Lookup:
    """Find runs in the locations that a command's options name."""

    output_dir: str = OUTPUT_DIR
    flags: Flags = field(default_factory=dict)
    base: str | None = None

    def find(self, run: str, *, changes: str = "", part: str = "", **host_run_options: Any) -> RunReader | HostRun:
        """Find a run: on the host of the flags; otherwise locally, then on the configured host.

        The full id of a local run means that run, even if the flags name a host.

        Args:
            run: the run. ``latest`` is the first that ``runs`` lists with the same options.
            changes: the command, if it changes the run or runs its code: a latest run on a host without a flag is
                rejected.
            part: the rest of the word after the run, for that message.
            host_run_options: ``reads`` and ``raw_logs`` of ``HostRun``.

        Raises:
            UnknownRunError: there is no such run, or several match.
            HostError: the host does not answer.
        """
        if os.sep not in run and is_run(Path(run)) and not is_run(Path(self.output_dir, run)):
            run = os.path.join(os.curdir, run)  # a command in the directory with the folders of runs
        if names_host(self.flags) and not is_run(Path(self.output_dir, run)):
            return self.on_host(run, **host_run_options)
        source = (self._latest(host_run_options) if run == LATEST else None) or self._anywhere(run, host_run_options)
        if run == LATEST and changes and not isinstance(source, RunReader):
            raise ArgumentError(
                f"The latest run is on the KFP host, and may be another user's. To use it anyway: "
                f"{this_command(changes, f'{source.run_id}{part}', *host_words(self.flags))}"
            )
        return source

    def find_part(self, word: str, **host_run_options: Any) -> tuple[RunReader | HostRun, str]:
        """Find the run of a word ``RUN[/STAGE[/NAME]]``; return the run and the rest of the word."""
        if "://" in word:
            if (url := _URL.fullmatch(word)) is None:
                raise click.UsageError(f"{word!r} is not a run. For a tracker base: --tracker-base {word}.")
            return self.find(url[1], **host_run_options), url[2] or ""
        name = word
        if not os.path.exists(word):
            parts = word.split("/")
            # Paths of folders, names of stages, and names of runs on a host may have slashes.
            folders = ["/".join(parts[:length]) for length in range(len(parts), 1, -1)]
            name = next(filter(os.path.isdir, folders), parts[0])
        try:
            return self.find(name, part=word[len(name) :], **host_run_options), word[len(name) + 1 :]
        except UnknownRunError:
            if name != word:
                with contextlib.suppress(UnknownRunError, HostError):
                    source = self.find(word, **host_run_options)
                    source.read()
                    return source, ""
            raise

    def locate(self, *words: str) -> list[RunRecords]:
        """Find the records of runs, or of stages: words ``RUN[/STAGE]``.

        With a tracker base, a run is any run with records there, unless the word is the full id of a local run, or the
        flags name a host.

        Raises:
            UnknownRunError: there is no such run.
            ArgumentError: a run has no tracker base, or several.
            TrackerBaseError: the tracker base is a path in pods, or only named by the run.
            HostError: the host does not answer.
        """
        located: list[RunRecords] = []
        for word in words:
            is_local = is_run(Path(self.output_dir, word.partition("/")[0]))
            if self.base is None or is_local or names_host(self.flags):
                located.append(self.recorded(*self.find_part(word, reads="execution ids")))
            else:
                located.append(RunRecords(open_record_tracker(self.base), word))
        return located

    def _latest(self, host_run_options: dict[str, Any]) -> RunReader | HostRun | None:
        """Return the newest run, local or remote; None unless both may have runs."""
        try:
            here = find_run(self.output_dir, LATEST)
        except ArgumentError:
            return None
        if not lists_host(self.flags):
            return None
        host = connect(self.flags, is_patient=False)
        try:
            newest = next(host.list(limit=1), None)
        except HostError as error:
            print_message(f"Only local runs are considered: {error}")
            return RunReader(here)
        if newest is None or newest.created < created(here):
            return RunReader(here)
        return self._on(_host_of(host.connection.settings), newest.run_id, host_run_options)

    def _anywhere(self, run: str, host_run_options: dict[str, Any]) -> RunReader | HostRun:
        try:
            return RunReader(find_run(self.output_dir, run))
        except ArgumentError as error:
            is_of_host = UUID.search(run.lower()) is not None  # only runs on a host have such an id
            if not is_of_host and not _is_host_known():
                raise UnknownRunError(f"{error} For a run on KFP, give its --host.") from None
            try:
                source = self.on_host(run, **host_run_options)
                source.read()  # verifies that it exists: a full id is not looked up
            except (UnknownRunError, HostError) as other:
                if is_of_host or (not isinstance(error, UnknownRunError) and _is_host_known()):
                    raise  # there are no local runs
                raise type(other)(f"{error} On the host: {other}") from None
            return source

    def on_host(self, run: str, **host_run_options: Any) -> HostRun:
        """Find a run on the host; see ``find``."""
        host = connect(self.flags)
        return self._on(host, host.find(run), host_run_options)

    def _on(self, host: Host, run_id: str, host_run_options: dict[str, Any]) -> HostRun:
        from torchx_kfp.execution.host.run import HostRun

        return HostRun(host.connection, run_id, named_bases=[self.base or ""], **host_run_options)

    def recorded(self, source: RunSource, part: str = "") -> RunRecords:
        """Return the records of a run, or of a part of it; errors as for ``base_of``."""
        record = source.read()
        return RunRecords(self.open(record), "/".join(filter(None, [record.run_id, part])), record)

    def open(self, record: RunRecord) -> RecordTracker:
        """Open the tracker base of a run; errors as for ``base_of``."""
        base = self.base or self.base_of(record)
        try:
            return open_record_tracker(base)
        except TrackerBaseError:
            if self.base or not untracked(record):
                raise
            return RecordTracker(base, patience=SHORT_PATIENCE)  # an unused base need not exist

    def words(self, record: RunRecord) -> list[str]:
        """Return the options with which another command finds the same run."""
        return host_words(self.flags) if record.folder is None else output_dir_words(record.folder)

    def base_of(self, record: RunRecord) -> str:
        """Return the tracker base of a run: its argument, or the base that its stages used.

        Raises:
            ArgumentError: it has none, or several.
            TrackerBaseError: only pods have it, or only the run names it.
        """
        given = record.arguments.get(TRACKER_BASE)
        used = [stage.tracker_base for stage in record.run.ends if stage.tracker_base]
        bases = list(dict.fromkeys([given] if isinstance(given, str) and given else used))
        if not bases and (why := untracked(record)):
            show = this_command("show", record.run_id, *self.words(record))
            raise ArgumentError(f"The run {record.run_id} has recorded no results. {why} To see its stages: {show}")
        if len(bases) != 1:
            why = f"used several tracker bases: {listed(bases)}"
            if not bases:
                why = f"has no argument {TRACKER_BASE!r}, and the tracker base of its stages is unknown"
            raise ArgumentError(f"The run {record.run_id} {why}. Name one: --tracker-base.")
        record.verify_read(bases[0])
        return record.absolute_base(bases[0])


def finds_runs(*, recorded: bool = False) -> Decorator:
    """Add the options for finding runs, which become the argument ``lookup``; ``recorded`` adds ``--tracker-base``."""

    options = [output_dir_option, host_options]
    return gathered("lookup", Lookup, *([tracker_base_option] if recorded else []), *options)


def say_latest(word: str, run_id: str) -> None:
    """Print the run of ``latest`` on stderr, for commands that do not show it."""
    if word.partition("/")[0] == LATEST:
        print_message(f"The run is {run_id}.")


def usual_base(output_dir: str | None = None) -> str | None:
    """Return the default tracker base and print it, or None.

    Args:
        output_dir: the directory with local runs; without a setting, the newest run's base is the default. None to use
            only the setting.
    """
    settings = read_settings({})
    base, why = settings.tracker_base, settings.source("tracker_base")
    if not base and output_dir is not None:
        try:
            folder = find_run(output_dir, LATEST)
            base, why = Lookup().base_of(read_run(folder)), folder.name
        except (ArgumentError, TrackerBaseError):
            return None
        # The folder may be somebody else's, and all files under the base are listed.
        signs = [os.path.join(base.removeprefix("file://"), sign) for sign in (PRIVATE, folder.name)]
        if not is_object_store(base) and not any(map(os.path.isdir, signs)):
            return None
    if not base:
        return None
    print_message(f"The tracker base is {base} ({why}).")
    return base


def connect(flags: Flags, *, is_patient: bool = True) -> Host:
    """Return the host of the flags, the environment or the settings file.

    Args:
        is_patient: retry requests. Otherwise, a request takes some seconds at most.

    Raises:
        HostSettingsError: a setting is wrong.
    """
    settings = read_settings(flags)
    for sentence in settings.warnings:
        print_message(sentence)
    return _host_of(settings, is_patient=is_patient)


def _host_of(settings: Settings, *, is_patient: bool = True) -> Host:
    from torchx_kfp.execution.host.connection import Connection, Timeouts
    from torchx_kfp.execution.host.host_runs import Host

    timeouts = Timeouts() if is_patient else Timeouts(connect=2.0, read=5.0, retries=0)
    return Host(Connection(settings, timeouts))


def host_words(flags: Flags) -> list[str]:
    """Return the options with which another command finds the same host."""
    return [word for name, value in flags.items() for word in (flag(name), str(value))]


def names_host(flags: Flags) -> bool:
    """Return whether the flags name a host."""
    return bool(flags.get("host") or flags.get("kube_context"))


def lists_host(flags: Flags) -> bool:
    """Return whether lists include a host: one is in the flags, or configured and ``--output-dir`` is not given."""
    context = click.get_current_context(silent=True)
    given = context is not None and context.get_parameter_source("output_dir") is ParameterSource.COMMANDLINE
    return names_host(flags) or (not given and names_host(vars(read_settings())))


def _is_host_known() -> bool:
    """Return whether a host is configured, or this process runs in a cluster."""
    return names_host(vars(read_settings())) or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
