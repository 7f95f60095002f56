"""Statements about a run, each in its own file: the kinds of them, and those about artifacts and metadata.

So the processes of a run can make statements at the same time without locks, and a statement is never half replaced.
Files are named by the time, and the latest one counts. They are in a folder below the tracker base that keys of results
cannot name and listings of results leave out::

    <tracker base>/.torchx_kfp/<kind>/<run id>/<nanoseconds>-<random>

To add a kind, define a ``StatementKind``, and add its folder to ``FOLDERS``. The programs that commands carry share the
layout (``carried.shared``). ``torchx.tracker.AppRun`` reads and writes the same files (``backends.stage``).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Generic, TypeVar
from urllib.parse import unquote

from torchx_kfp.common.safe_files import special_kind
from torchx_kfp.common.text import shown
from torchx_kfp.contract.carried.shared import folder_name, folder_of
from torchx_kfp.errors import CorruptResultError, MissingArtifactError, ResultRefusedError
from torchx_kfp.tracking.artifact_files import StoredFiles, store_files
from torchx_kfp.tracking.store import PRIVATE, File, Store, key_text, time_name

_logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")

#: Begins the run ids of replays.
REPLAY = "replay-"
#: The metadata of a replay that names the stage's run.
REPLAY_OF = "replays"
#: The folder of the files of artifacts (``artifact_files``).
FILES = "files"
#: The folders of all kinds, and that of files.
FOLDERS = ("artifacts", FILES, "metadata", "search", "sources", "steps")

#: A callable that gets the error for each file that does not contain a statement.
Corrupt = Callable[[CorruptResultError], object]

#: For up to this number of runs, the statements of each run are listed by themselves. For more, the kind is listed.
_FEW_RUNS = 64


@dataclass(frozen=True)
class StatementKind(Generic[S, T]):
    """One kind of statement.

    Args:
        folder: the name of its folder, one of ``FOLDERS``.
        parse: turns the JSON object in a file into a statement. It may return None for an object that says nothing of
            this kind. For a malformed object it raises an AttributeError, KeyError, OverflowError, TypeError or
            ValueError.
        join: combines all statements about a run, the oldest first, into one value.

    Methods raise a CorruptResultError if a file does not contain a statement of this kind, and a TrackerError if the
    store fails.
    """

    folder: str
    parse: Callable[[Mapping[str, Any]], S | None]
    join: Callable[[list[S]], T]

    def add(self, store: Store, run_id: str, content: Mapping[str, object], what: str, name: str | None = None) -> None:
        """Store a statement about a run.

        Args:
            store: the store of the tracker base.
            run_id: the run.
            content: the statement, in a form that JSON can represent.
            what: describes the statement in errors.
            name: the name of the file, by default the time. A second statement with the same name replaces the first.

        Raises:
            KeyRefusedError: the run id cannot be a key.
            ResultRefusedError: JSON cannot represent the content. Nothing was written.
        """
        store.write(f"{self._folder_of(run_id)}/{name or time_name()}", encode_json(content, what))

    def remove(self, store: Store, run_id: str) -> None:
        """Remove all statements about a run."""
        list(store.each(store.remove, self._keys(store, [run_id])))

    def add_last(self, store: Store, run_id: str, content: Mapping[str, object], what: str) -> None:
        """Store a statement that sorts after all others about the run; the errors are those of ``add``."""
        last = max(store.keys(self._folder_of(run_id)), default="").rpartition("/")[2].partition("-")[0]
        self.add(store, run_id, content, what, time_name(int(last) if last.isdecimal() else 0))

    def read(self, store: Store, run_id: str) -> T:
        """Return the joined statements about a run."""
        found = self.read_many(store, [run_id])
        return found[run_id] if run_id in found else self.join([])

    def read_many(
        self, store: Store, run_ids: Iterable[str] | None = None, corrupt: Corrupt | None = None
    ) -> dict[str, T]:
        """Return the joined statements about each of these runs, or about all runs. Runs without any are left out.

        Args:
            store: the store of the tracker base.
            run_ids: the runs, by default all.
            corrupt: called with the error, instead of raising it, for each file that does not contain a statement of
                this kind. The file is then left out.
        """
        return self.read_keys(store, self._keys(store, run_ids), corrupt)

    def read_keys(self, store: Store, keys: Sequence[str], corrupt: Corrupt | None = None) -> dict[str, T]:
        """Return the joined statements with these keys by run, for whoever has listed them."""
        statements: dict[str, list[S]] = {}

        def read(key: str) -> bytes | CorruptResultError | None:
            try:
                return store.read_record(key)
            except CorruptResultError as error:
                return error

        for key, text in zip(keys, store.each(read, keys), strict=True):
            if text is None:  # removed since it was listed
                continue
            if isinstance(text, CorruptResultError):
                if corrupt is None:
                    raise text
                corrupt(text)
                continue
            try:
                content = json.loads(text)
                if not isinstance(content, dict):
                    raise ValueError(f"{content!r} is not a JSON object")
                statement = self.parse(content)
            except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
                problem = CorruptResultError(
                    f"{store.location(key)} does not hold {self.folder}: {error!r}. Something else wrote it. Remove it."
                )
                if corrupt is None:
                    raise problem from None
                corrupt(problem)
                continue
            if statement is not None:
                statements.setdefault(run_id_of(key), []).append(statement)
        return {run_id: self.join(its) for run_id, its in statements.items()}

    def _keys(self, store: Store, run_ids: Iterable[str] | None) -> list[str]:
        wanted = None if run_ids is None else list(dict.fromkeys(run_ids))
        if wanted is not None and len(wanted) <= _FEW_RUNS:
            return [key for found in store.each(store.keys, map(self._folder_of, wanted)) for key in found]
        folders = None if wanted is None else {folder_name(run_id) for run_id in wanted}
        keys = store.keys(f"{PRIVATE}/{self.folder}")
        return [key for key in keys if folders is None or key.split("/")[2] in folders]

    def _folder_of(self, run_id: str) -> str:
        return folder_of(self.folder, key_text(run_id))


class StatementCache(Generic[T]):
    """Reads the statements of a kind again and again: those about a run only if their files have changed."""

    def __init__(self, kind: StatementKind[Any, T], store: Store) -> None:
        #: The folder that has the statements.
        self.folder = f"{PRIVATE}/{kind.folder}"
        self._kind = kind
        self._store = store
        self._seen: dict[str, set[File]] = {}
        self._known: dict[str, T] = {}

    def read(self, files: Iterable[File]) -> dict[str, T]:
        """Return the joined statements in these files by run. The errors are those of ``StatementKind``."""
        there: dict[str, set[File]] = {}
        for file in files:
            if file.key.startswith(f"{self.folder}/") and file.key.count("/") >= 3:
                there.setdefault(run_id_of(file.key), set()).add(file)
        changed = {run_id: its for run_id, its in there.items() if self._seen.get(run_id) != its}
        read = self._kind.read_keys(self._store, sorted(file.key for its in changed.values() for file in its))
        for run_id in changed:
            self._known.pop(run_id, None)
        self._known.update(read)
        self._seen.update(changed)
        return {run_id: self._known[run_id] for run_id in there if run_id in self._known}


def encode_json(content: Mapping[str, object], what: str) -> bytes:
    """Return a statement as JSON.

    Raises:
        ResultRefusedError: JSON cannot represent it.
    """
    try:
        return json.dumps(content).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultRefusedError(
            f"The {what} cannot be written as JSON: {error}. Use dicts with str keys, lists, numbers and text."
        ) from None


def stated_runs(store: Store, begin: str = "") -> list[str]:
    """Return the runs that have any statements, sorted; ``begin`` is the beginning of the run ids that are wanted."""
    name = folder_name(begin)
    found = store.each(lambda folder: store.names(f"{PRIVATE}/{folder}", name), FOLDERS)
    return sorted({unquote(name.rstrip("/")) for names in found for name in names})


def replays_among(store: Store, keys: Iterable[str]) -> set[str]:
    """Return the run ids of replays: `torchx-kfp replay` calls them ``replay-...`` and records what they replay."""
    candidates = [key for key in keys if key.startswith(REPLAY)]
    return {key for key, metadata in METADATA.read_many(store, candidates).items() if REPLAY_OF in metadata}


def run_id_of(key: str) -> str:
    """Return the run id in the key of a statement."""
    return unquote(key.split("/")[2])


@dataclass(frozen=True)
class Artifact:
    """A file or folder that a run has created.

    Attributes:
        name: the name with which the run registered it.
        path: a local path or an fsspec URL. Empty if the artifact consists only of metadata.
        metadata: anything that JSON can represent, by name.
        stored: what is stored of it under the tracker base; None if it was only registered.
    """

    name: str
    path: str
    metadata: Mapping[str, object] = field(default_factory=dict)
    stored: StoredFiles | None = None

    @property
    def url(self) -> str:
        """The path or URL of the stored file or folder, for programs that read it themselves; else ``path``."""
        return self.stored.url if self.stored is not None else self.path

    def files(self) -> dict[str, int]:
        """Return the sizes of the stored files in bytes, by their names in the folder; the name of a file is empty.

        Raises:
            MissingArtifactError: it is not stored, or was removed.
            CorruptArtifactError: the list of its files was changed.
        """
        return self._stored().sizes()

    def open(self, name: str = "") -> BinaryIO:
        """Open the stored file, or a file of the stored folder, for reading.

        The file is copied to this machine first, once in a process, and its digest is checked: the reader gets the
        bytes that were stored, or an error.

        Args:
            name: the name of a file in the folder, such as ``weights/0.bin``.

        Raises:
            MissingArtifactError: it is not stored, or was removed, or the folder does not have this file.
            CorruptArtifactError: it was changed.
        """
        return self._stored().open(name)

    def download(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> str:
        """Copy the stored file or folder into a folder on this machine, check its digests, and return its path there.

        It has the name that it had when it was stored, and is there completely or not at all. If it is there already,
        with the same content, nothing is copied, also if several processes ask at once.

        Args:
            folder: the folder to copy it into. It is created.
            overwrite: whether to replace something else that has its name.

        Raises:
            MissingArtifactError: it is not stored, or was removed.
            CorruptArtifactError: it was changed.
            FileExistsError: something else has its name.
            OSError: the folder cannot be written.
        """
        return self._stored().download(folder, overwrite=overwrite)

    def _stored(self) -> StoredFiles:
        if self.stored is None:
            raise MissingArtifactError(
                f"The artifact {self.name!r} is not stored: the run only registered "
                f"{f'its path {self.path!r}' if self.path else 'metadata'}. The stage that makes it can store it: "
                "current_run().add_artifact(name, path, store=True)."
            )
        return self.stored


def _parse_artifact(content: Mapping[str, Any]) -> Artifact:
    stored = content.get("stored")
    return Artifact(
        str(content["name"]),
        str(content["path"]),
        dict(content.get("metadata") or {}),
        None if stored is None else StoredFiles.parse(stored),
    )


def _join_artifacts(found: list[Artifact]) -> dict[str, Artifact]:
    artifacts: dict[str, Artifact] = {}
    for artifact in found:
        artifacts.pop(artifact.name, None)  # the order is that of the artifacts that count
        artifacts[artifact.name] = artifact
    return artifacts


#: The artifacts of a run by name. Of several with one name, the last one counts.
ARTIFACTS = StatementKind(
    "artifacts",
    _parse_artifact,
    _join_artifacts,
)
#: The metadata of a run by name. Of several values with one name, the last one counts.
METADATA: StatementKind[dict[str, object], dict[str, object]] = StatementKind(
    "metadata",
    lambda content: dict(content["metadata"]),
    lambda found: {name: value for metadata in found for name, value in metadata.items()},
)


def add_metadata(store: Store, run_id: str, metadata: Mapping[str, object]) -> None:
    """Record metadata of a run: hyperparameters, notes, anything that is not a result for other stages.

    Raises:
        ResultRefusedError: JSON cannot represent it. Nothing was written.
    """
    METADATA.add(store, run_id, {"metadata": dict(metadata)}, f"metadata of the run {run_id!r}")


def add_artifact(
    store: Store,
    run_id: str,
    name: str,
    path: str | os.PathLike[str],
    metadata: Mapping[str, object] | None,
    *,
    stored: bool = False,
) -> str:
    """Register an artifact of a run, and return where it is. If ``stored``, store its files first.

    If nothing exists at a local path yet, a warning is logged: the file may be created later, or by another process of
    the stage.

    Raises:
        ResultRefusedError: the name or path is not text, the path leads to a FIFO, a socket or a device, or JSON cannot
            represent the metadata. Nothing was written. A file or folder cannot be stored: see ``store_files``.
    """
    if not isinstance(name, str) or not name:
        raise ResultRefusedError(f"An artifact's name is text, such as 'model'. Got: {shown(name)}.")
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise ResultRefusedError(
            f"The path of the artifact {name!r} is text: a local path or an fsspec URL. Got: {shown(text)}."
        )
    content = {"name": name, "path": absolute(text), "metadata": None if metadata is None else dict(metadata)}
    what = f"metadata of the artifact {name!r}"
    if stored:
        encode_json(content, what)  # before a long upload
        files = store_files(store, folder_of(FILES, key_text(run_id)), name, text)
        content |= {"path": files.url, "stored": files.encode()}
    else:
        _look_at(name, text)
    ARTIFACTS.add(store, run_id, content, what)
    return str(content["path"])


def read_artifacts(store: Store, run_ids: Iterable[str]) -> dict[str, dict[str, Artifact]]:
    """Return the artifacts of each run that has any, by name. The stored ones can be read."""
    return {
        run_id: {name: replace(it, stored=it.stored and it.stored.on(store)) for name, it in found.items()}
        for run_id, found in ARTIFACTS.read_many(store, run_ids).items()
    }


def absolute(path: str) -> str:
    """Return a local path as an absolute one, because readers may be in another folder. URLs stay as they are."""
    return os.path.abspath(os.path.expanduser(path)) if path and "://" not in path else path


def _look_at(name: str, path: str) -> None:
    """Report a wrong local path at once: when the stage has ended, it is too late."""
    path = path.removeprefix("file://")
    place = absolute(path)
    if not place or "://" in place:
        return
    try:
        kind = special_kind(os.stat(place).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        from_here = "" if os.path.isabs(path) else f" (the current folder is {os.getcwd()})"
        _logger.warning(
            "The artifact %r is registered at %s, where nothing exists yet%s. Write it before the stage ends.",
            name,
            place,
            from_here,
        )
    except (OSError, ValueError):  # there is no permission to look, or it is not a path on this system
        return
    else:
        if kind:
            raise ResultRefusedError(
                f"The artifact {name!r} is at {place}, which is a {kind}. Register a file, a folder or a URL."
            )
