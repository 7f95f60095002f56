"""``torchx-kfp logs``: print the output of stages."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from torchx_kfp.common.text import clean_line
from torchx_kfp.entrypoints.cli.display.printing import is_read, print_bytes, print_message, print_text, this_command
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, say_latest
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.execution.runs.events import StageStarted
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.result import open_log
from torchx_kfp.execution.runs.source import no_stage, stages_named
from torchx_kfp.execution.runs.vocabulary import State

_CHUNK = 1 << 16


@click.command("logs")
@click.argument("run", metavar="RUN[/STAGE]")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the stage, or the run, ends.")
@click.option("--attempt", metavar="N", type=click.IntRange(1), help="The attempt to show.  [default: the last]")
@click.option("--all", "raw", is_flag=True, help="Include the lines of KFP's launcher.")
@finds_runs()
def logs_command(run: str, follow: bool, attempt: int | None, raw: bool, lookup: Lookup) -> None:
    """Print the output of the stages of RUN, or of one of them.

    STAGE is the name of a stage in `torchx-kfp run` (train[2]), or the name of a task in a loop, for all iterations
    (train). In the output of several stages, each line begins with the stage's name, and in that of a distributed
    stage with the replica's role and index.

    \b
    torchx-kfp logs latest
    torchx-kfp logs 'digits-20260101/train[2]' --follow
    torchx-kfp logs latest/train | grep '^trainer/3 |'
    """
    _end_orderly()
    source, part = lookup.find_part(run, reads="none", raw_logs=raw)
    stage = part or None
    if attempt is not None and stage is None:
        raise ArgumentError("--attempt needs a stage: RUN/STAGE.")
    records = source.follow(closely=True)
    first = next(records)
    say_latest(run, first.run_id)
    for sentence in first.corrupt:
        print_message(sentence)
    choice = _Choice(first, stage, attempt)
    choice.verify(first, follow, lookup.words(first))
    printer = _Printer(prefixed=stage is None or len(choice.stages(first)) > 1)
    for record in itertools.chain([first], records):
        logs = list(choice.logs(record))
        has_all = source.fetch({name for name, _ in logs})
        for name, path in logs:
            printer.show(name, path)
        if not follow or choice.is_over(record) or not is_read():
            break
    printer.finish()
    if printer.is_empty and not has_all:
        sys.exit(1)  # the reason was printed
    if printer.is_empty and is_read():
        what = f"The stage {stage!r} has" if stage else "The stages have"
        print_message(f"{what} printed nothing{'' if choice.is_over(record) else ' yet'}.")
        for name in choice.stages(record):
            result = record.run.end_of(name)
            if result is not None and result.state is State.FAILED:
                print_message(f"{name} {result.reason or 'failed'}.")


def _end_orderly() -> None:
    """Make SIGTERM and SIGHUP end the process like an error, so that log files are removed."""

    def end(number: int, frame: object) -> None:
        del frame
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, end)


class _Choice:
    """The chosen logs; there may be more of them while the run is in progress."""

    def __init__(self, record: RunRecord, stage: str | None, attempt: int | None) -> None:
        self._stage = stage
        self._attempt = attempt
        #: The index of the first shown attempt, by stage; later ones are shown as well.
        self._first = {name: len(known.attempts) - 1 for name, known in record.run.by_name.items()}

    def stages(self, record: RunRecord) -> list[str]:
        """Return the known names of the chosen stages, in table order once the run has finished."""
        chosen = {*(record.run.by_name if self._stage is None else stages_named(record, self._stage))}
        # Sorting takes milliseconds for a thousand stages, and a run in progress is read ten times a second.
        names = record.run.by_name if record.is_running else [stage.name for stage in record.run.stages]
        return [name for name in names if name in chosen]

    def logs(self, record: RunRecord) -> Iterator[tuple[str, Path]]:
        """Yield the chosen stages and their logs; a cached stage has the log of another run."""
        for name in self.stages(record):
            attempts = record.run.attempts_at(name)
            for started in self._wanted(name, attempts):
                if started.log_file is not None:
                    yield name, started.log_file
            end = None if attempts else record.run.end_of(name)
            if end is not None and end.log_file is not None and end.log_file.exists():
                yield name, end.log_file

    def is_over(self, record: RunRecord) -> bool:
        """Return whether the output is complete."""
        chosen = self.stages(record)
        has_ended = self._stage is not None and chosen and all(self._has_ended(record, name) for name in chosen)
        return bool(has_ended) or not record.is_running

    def verify(self, record: RunRecord, follow: bool, words: Sequence[str]) -> None:
        """Raise ArgumentError if there is nothing to show and nothing to wait for."""
        if any(self.logs(record)) or (follow and not self.is_over(record)):
            return
        if self._stage is None:
            raise ArgumentError(f"No stage of the run {record.run_id} has a log: no stage was started.")
        stages = self.stages(record)
        if not stages:
            raise no_stage(record, self._stage)
        attempts = sum(len(record.run.attempts_at(name)) for name in stages)
        if self._attempt and attempts:
            raise ArgumentError(
                f"There is no attempt {self._attempt} at {self._stage!r} in the run {record.run_id}, but {attempts}."
            )
        end = record.run.end_of(stages[0])
        stuck = next((each.reason for each in record.run.stages if each.name == stages[0] and each.is_stuck), "")
        why = f"it cannot start: {stuck}" if stuck else f"it was not started ({record.run.state})"
        why = f"it {end.reason or end.state}" if end else why
        if end and end.cached_from and end.log_file is not None:
            why = f"it was taken from the run {end.cached_from}, whose folder is gone"
        elif end and end.cached_from:
            see = this_command("logs", f"{end.cached_from}/{end.name}", *words)
            why = f"it was taken from the cache. See `{see}`"
        elif end and end.state is State.CACHED and not end.reason:
            why = "it was taken from the cache"
        raise ArgumentError(f"The stage {self._stage!r} of the run {record.run_id} has no log: {why}.")

    def _wanted(self, name: str, attempts: list[StageStarted]) -> list[StageStarted]:
        if self._attempt is not None:
            return [started for started in attempts if started.attempt == self._attempt][-1:]
        return attempts[self._first.get(name, 0) :]

    def _has_ended(self, record: RunRecord, name: str) -> bool:
        attempts = record.run.attempts_at(name)
        if self._attempt is not None and any(started.attempt > self._attempt for started in attempts):
            return True  # another attempt followed
        return record.run.has_ended(name)


class _Printer:
    """Print the output added to logs since the last call."""

    def __init__(self, prefixed: bool) -> None:
        self._prefixed = prefixed
        self._bytes = not prefixed and not sys.stdout.isatty()
        self._read: dict[Path, int] = {}
        #: The pieces of the incomplete last line, which are joined once.
        self._rests: dict[Path, tuple[str, list[bytes]]] = {}

    def show(self, name: str, path: Path) -> None:
        """Print this stage's new output, as plain bytes for a single stage without a terminal."""
        try:
            file = open_log(path)
        except FileNotFoundError:
            return  # the process is still starting
        except OSError as error:
            raise ArgumentError(f"The log {str(path)!r} cannot be read: {explain(error)}.") from None
        with file:
            file.seek(self._read.get(path, 0))
            while data := file.read(_CHUNK):
                self._print(name, path, data)
            self._read[path] = file.tell()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was printed."""
        return not any(self._read.values())

    def finish(self) -> None:
        """Print incomplete last lines."""
        for name, pieces in self._rests.values():
            if rest := b"".join(pieces):
                self._print_lines(name, [rest])

    def _print(self, name: str, path: Path, data: bytes) -> None:
        if self._bytes:
            print_bytes(data)
            return
        pieces = self._rests.setdefault(path, (name, []))[1]
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*pieces, lines[0]))
            pieces.clear()
        pieces.append(rest)
        if lines:
            self._print_lines(name, lines)

    def _print_lines(self, name: str, lines: list[bytes]) -> None:
        start = f"{name} | " if self._prefixed else ""
        print_text("\n".join(start + clean_line(line) for line in lines) + "\n")
