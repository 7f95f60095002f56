"""``torchx-kfp get``: copy an artifact, or the code, of a run to this machine."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tarfile
from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import did_you_mean, listed, shown
from torchx_kfp.contract.carried.workspace import members, unpack
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.contract.protocol import workspace_digest, workspace_key
from torchx_kfp.contract.scripts import workspaces_in
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text, show_stored
from torchx_kfp.entrypoints.cli.display.tables import Column, print_rows
from torchx_kfp.entrypoints.cli.flags import json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, say_latest
from torchx_kfp.entrypoints.cli.recorded import Recorded, titled
from torchx_kfp.entrypoints.cli.run_inputs import print_files
from torchx_kfp.errors import ArgumentError, WorkspaceError, explain
from torchx_kfp.execution.pipeline.placeholders import Facts, resolve_command
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import is_execution, known_stages, task_name, without_indices
from torchx_kfp.execution.runs.history import RunReader
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.tracking import Artifact
from torchx_kfp.tracking.recorder import SHORT_PATIENCE, Recorder, read_workspace
from torchx_kfp.tracking.store import pipeline_run

if TYPE_CHECKING:
    from torchx_kfp.execution.host.run import HostRun
#: What names programs in a bare repository of git, or where it is. Its file ``HEAD`` is in the same folder.
_NEXT_TO_HEAD = ("config", "commondir", "hooks")


@click.command("get")
@click.argument("run", metavar="RUN[/STAGE[/NAME]]")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--code", is_flag=True, help="Get the code that travelled with RUN, or with one of its stages.")
@click.option("--list", "only_lists", is_flag=True, help="List the artifacts, or the files of the code.")
@click.option("--overwrite", is_flag=True, help="Replace what is in DIR under the artifact's name.")
@json_option
@finds_runs(recorded=True)
def get_command(
    run: str,
    folder: str | None,
    code: bool,
    only_lists: bool,
    overwrite: bool,
    as_json: bool,
    lookup: Lookup,
) -> None:
    """Copy the artifact NAME of a stage into the folder DIR, by default the current one, and print its path.

    Its SHA-256 is checked. What is there already with the same content stays. --list shows the artifacts of RUN, or of
    one of its stages: their sizes, and where they are. Those without a size are registered, but not stored.

    \b
    torchx-kfp get latest --list
    torchx-kfp get latest/train/model models
    torchx-kfp get latest --code before

    With --code, write the code that travelled with RUN (`--workspace`) into the folder DIR, which is new or empty; the
    default is code-DIGEST in the current directory. An archive that contains a git repository is refused, because git
    would run the programs that its configuration names; --list still shows the files.
    """
    if code:
        for name, value in {"--overwrite": overwrite, "--json": as_json, "--tracker-base": lookup.base}.items():
            if value:
                raise click.UsageError(f"{name} is for artifacts, not for --code.")
        _get_code(run, folder, lookup, only_lists=only_lists)
        return
    [located] = lookup.locate(run)
    if only_lists or as_json:
        _list(located, as_json=as_json)
    else:
        _get(run, located, folder or os.curdir, overwrite=overwrite)


def _list(located: Recorded, *, as_json: bool) -> None:
    name, found = _read(located)
    if not found and not as_json:
        print_message(f"{name} has no artifacts. A stage registers them with current_run().add_artifact(name, path).")
        return
    rows = [
        {
            "run_id": run_id,
            "name": artifact.name,
            "path": artifact.url,
            "stored": artifact.stored.encode() if artifact.stored else None,
            "metadata": dict(artifact.metadata),
        }
        for run_id, artifact in found
    ]
    sizes = {(run_id, artifact.name): show_stored(artifact.stored) for run_id, artifact in found}
    columns = (
        Column("stage", lambda row: located.shown(row["run_id"]).removeprefix(f"{pipeline_run(name)}/")),
        Column("name"),
        Column("size", lambda row: sizes[row["run_id"], row["name"]]),
        Column("where", lambda row: row["path"]),
    )
    print_rows(rows, columns, as_json=as_json, above=f"Artifacts of {titled(located.name, name)}")


def _get(word: str, located: Recorded, folder: str, *, overwrite: bool) -> None:
    run, _, wanted = located.word.partition("/")
    name, found = _read(dataclasses.replace(located, word=run))
    there: dict[str, None] = {}
    matches: list[tuple[str, Artifact]] = []
    exact: list[tuple[str, Artifact]] = []
    for run_id, artifact in found:
        # A key that an application has chosen itself need not have a stage and an execution.
        rest, shown_as = run_id.partition("/")[2], located.shown(run_id).partition("/")[2]
        recorded_as = rest.partition("/")[0]
        there["/".join(filter(None, [recorded_as if shown_as == rest else shown_as, artifact.name]))] = None
        if f"/{wanted}".endswith(f"/{artifact.name}"):
            stage = wanted[: -len(artifact.name)].removesuffix("/")
            if stage == rest or task_name(stage) == task_name(recorded_as) or is_execution(shown_as, stage):
                matches.append((run_id, artifact))
            if stage == shown_as or (shown_as == rest and stage == recorded_as):
                exact.append((run_id, artifact))
    matches = exact or matches
    if not matches:
        wrong = f"{name} has no artifact {shown(wanted)} (STAGE/NAME).{did_you_mean(wanted, there)}"
        raise ArgumentError(
            f"{wrong if wanted else f'Name an artifact of {name}: {name}/STAGE/NAME.'} It has "
            f"{listed(map(repr, there)) or 'none'}."
        )
    if len(matches) > 1:
        names = listed(f"{located.shown(run_id).partition('/')[2]}/{it.name}" for run_id, it in matches)
        raise ArgumentError(f"{word!r} means {len(matches)} artifacts: {names}. Name one of them.")
    [(run_id, artifact)] = matches
    try:
        path = artifact.download(folder, overwrite=overwrite)
    except OSError as error:
        if isinstance(error, FileExistsError) and not error.errno:
            raise ArgumentError(f"{explain(error).removesuffix('.')}: --overwrite.") from None
        raise ArgumentError(f"The artifact cannot be written to {folder!r}: {explain(error)}.") from None
    print_message(f"{artifact.name} of {run_id}: {show_stored(artifact.stored)}")
    print_text(path)


def _read(located: Recorded) -> tuple[str, list[tuple[str, Artifact]]]:
    """Return the full name of the run, and its artifacts with the run ids that have registered them."""
    chosen = located.choose()
    found = located.recorder.records(chosen.keys, "artifacts")
    return chosen.name, [(key, it) for key in chosen.keys for it in found[key].artifacts.values()]


def _get_code(run: str, folder: str | None, lookup: Lookup, *, only_lists: bool) -> None:
    """Write the code of a run, or of one of its stages, into a new folder, and print its name; or list the files.

    Args:
        run: a word ``RUN[/STAGE]``.
        folder: the folder. Default: one that is named after the code's digest.
        lookup: where runs are.
        only_lists: whether to write nothing.

    Raises:
        ArgumentError: no code travelled with the run, or the folder is not empty.
        WorkspaceError: the archive cannot be unpacked.
    """
    source, part = lookup.find_part(run)
    stage = part or None
    record = source.read()
    say_latest(run, record.run_id)
    url = _url(source, record, stage)
    digest = workspace_digest(url)
    if digest is None:
        raise ArgumentError(f"{url!r} of the run {record.run_id} does not name a stored workspace.")
    base = url.removesuffix(f"/{workspace_key(digest)}")
    record.verify_read(base)
    archive = read_workspace(Recorder(record.absolute_base(base), patience=SHORT_PATIENCE).store, digest)
    try:
        sizes = {member.name: member.size for member in members(archive)}
    except tarfile.TarError as error:
        raise WorkspaceError(f"The workspace {url} is not an archive of code: {error}.") from None
    if (found := _file_of_git(sizes)) and not only_lists:
        raise WorkspaceError(
            f"The workspace {url} has {found!r}, of a git repository: git would run the programs that its "
            "configuration names. See its files with --list."
        )
    if only_lists:
        print_files(sizes, digest, len(archive))
        return
    folder = folder or f"code-{digest[:12]}"
    is_new = not os.path.lexists(folder)
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise ArgumentError(f"{folder!r} is not empty. Name a new folder, so that nothing is overwritten.")
    except OSError as error:
        raise ArgumentError(f"The code cannot be written to {folder!r}: {explain(error)}.") from None
    is_whole = False
    try:
        unpack(archive, os.path.realpath(folder))
        is_whole = True
    except (ValueError, RecursionError) as error:
        raise WorkspaceError(f"The workspace {url} cannot be unpacked: {error}.") from None
    except OSError as error:
        raise ArgumentError(f"The code cannot be written to {folder!r}: {explain(error)}.") from None
    finally:
        if not is_whole:  # half of the code would be taken for all of it
            for path in [folder] if is_new else [os.path.join(folder, name) for name in os.listdir(folder)]:
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)
    print_text(folder)


def _url(source: RunReader | HostRun, record: RunRecord, stage: str | None) -> str:
    """Return the URL of the code of a run, or of one of its stages.

    Raises:
        ArgumentError: it has none, or its stages have different code, or there is no such stage.
        HostError: the host does not say what the stage was given.
    """
    if stage is None and (url := record.arguments.get(WORKSPACE)):
        return str(url)
    pipeline = record.load()
    stages = {each.name: each for each in known_stages(pipeline, complete_arguments(pipeline, record.arguments))}
    task = task_name(without_indices(stage or ""))
    wanted = [name for name in stages if stage is None or task in (task_name(name), task_name(name).rpartition("/")[2])]
    if not wanted:
        raise ArgumentError(
            f"{stage!r} is not a stage of the run {record.run_id}.{did_you_mean(task, stages)} Stages: "
            f"{listed(stages, 20)}."
        )
    urls = {name: stages[name].workspace for name in wanted}
    for name, url in urls.items():
        if stage is not None and "{{$" in url:  # of another stage
            invocation = source.invocation(stage if name == task else name + stage[len(task) :])
            container = invocation.component.container
            words = resolve_command(container.words if container else (), Facts(parameters=dict(invocation.inputs)))
            urls[name] = next(filter(None, workspaces_in(words)), "")
    urls = {name: url for name, url in urls.items() if workspace_digest(url) or (url and stage is not None)}
    if len(set(urls.values())) > 1:
        names = listed(f"{record.run_id}/{name}" for name in urls)
        raise ArgumentError(f"The stages of the run {record.run_id} have different code. Name one: {names}.")
    if not urls:
        why = "it was started without --workspace, and its images have the code"
        if stage is not None:
            why = "it has the code of its image"
        name = "/".join(filter(None, [record.run_id, stage]))
        raise ArgumentError(f"No code travelled with the {'run' if stage is None else 'stage'} {name}: {why}.")
    return next(iter(urls.values()))


def _file_of_git(names: Collection[str]) -> str | None:
    """Return a file of a git repository, which may be a bare one; None if there is none.

    Case does not count, as in the file systems that ignore it.
    """
    known = {name.casefold() for name in names}
    known |= {os.path.dirname(name) for name in known}
    for name in names:
        *folders, last = name.casefold().split("/")
        if ".git" in (*folders, last):
            return name
        if last == "head" and any("/".join((*folders, other)) in known for other in _NEXT_TO_HEAD):
            return name
    return None
