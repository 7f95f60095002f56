"""Do what several programs do: write to the stage's log, and read and write the files of runs.

``torchx_kfp.tracking`` reads and writes the files with more checks. Both have the layout from here.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def say(*words: object) -> None:
    """Write a line to the stage's log, if somebody reads it."""
    try:  # noqa: SIM105 (shorter than contextlib)
        os.write(2, f"torchx-kfp: {' '.join(map(str, words))}\n".encode(errors="replace"))
    except OSError:
        pass


# Files of runs below a tracker base

#: The folder for everything that a tracker keeps besides results. Listings leave it out.
PRIVATE = ".torchx_kfp"
#: The folders below which each run has one for its entries (``tracking.entries``), and one for files that it stores.
RUNS = f"{PRIVATE}/runs"
FILES = f"{PRIVATE}/files"
#: Begins the names of temporary files. Listings leave them out.
TEMPORARY = f"{PRIVATE}-"


def fields_of(key: str, /) -> set[str]:
    """Return the fields that an entry has, which are in its name: ``<time>-<random>.<field>[.<field>]``."""
    return {*key.rpartition("/")[2].split(".")[1:]}


def regular(path: str, local: bool = True, /) -> str:
    """Return the path if it is a file, a folder or missing. Reading a FIFO or a device might never end."""
    if local and os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ValueError(f"{path} is not a regular file")
    return path


def read_json(store: Any, path: str, /, **options: Any) -> Any:
    """Return the content of a JSON file in a store of fsspec."""
    return json.loads(store.cat_file(regular(path, hasattr(store, "local_file"))), **options)


def read_results(store: Any, path: str, /) -> Any:
    """Return results; an empty dict if there are none."""
    try:
        return read_json(store, path)
    except FileNotFoundError:
        return {}


def list_entries(store: Any, root: str, run_id: str, field: str, /) -> list[str]:
    """Return the paths of the entries about a run that have a field, the oldest first."""
    folder = f"{root}/{RUNS}/{run_id}"
    found = store.ls(folder, False) if store.exists(folder) else []
    return sorted(path for path in found if field in fields_of(path))


def write_text(path: str, text: str, /) -> None:
    """Write a file on this machine, and create its folder if it is missing."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(regular(path), "wb") as file:
        file.write(text.encode())


def write_record(store: Any, root: str, key: str, text: str, /) -> None:
    """Write a file below the tracker base. A reader sees the old content or the new one."""
    path = f"{root}/{key}"
    if not hasattr(store, "local_file"):
        store.pipe_file(path, text.encode())
        return
    part = f"{os.path.dirname(path)}/{TEMPORARY}{os.urandom(8).hex()}"
    write_text(part, text)
    os.replace(part, path)
