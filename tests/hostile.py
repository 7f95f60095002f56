"""Run folders of somebody else: damaged ones, and ones that were made to do harm."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.execution.pipeline.test_damaged import damage

#: The content of a file outside of the folder, which no command may show.
SECRET = "SECRET-OF-THE-USER"

FILES = ["events.jsonl", "run.json", "pipeline.yaml", "lock"]
#: What takes the place of some bytes.
_BYTES = (b"", b"\0", b"\xff\xfe", b"9" * 400, b"[" * 3000, b'"', b"..")


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, _: Path) -> None:
    with contextlib.chdir(path.parent) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
        socket.socket(socket.AF_UNIX).bind(path.name)


#: What takes the place of a file, given its path and that of a secret.
REPLACEMENTS: list[Callable[[Path, Path], object]] = [
    _fifo,
    lambda path, _: path.symlink_to("/dev/zero"),
    lambda path, _: path.symlink_to("/dev/tty"),
    lambda path, secret: path.symlink_to(secret),
    lambda path, _: path.symlink_to(path.name),
    lambda path, _: path.mkdir(),
    lambda path, _: path.write_bytes(b""),
    lambda path, _: path.write_bytes(bytes(5000)),
    lambda path, _: path.write_bytes(os.urandom(200)),
    lambda path, _: path.write_text("[" * 100_000),
    lambda path, _: path.write_text(f'{{"created": {"9" * 4000}, "event": {"9" * 4000}}}\n'),
    lambda path, _: path.write_text('{"created": NaN, "event": "run_started", "time": Infinity}\n'),
    lambda path, _: None,
    lambda path, _: path.touch() or os.truncate(path, 1 << 40),
]


def make_hostile(good: Path, folder: Path, secret: Path, random: Random) -> str:
    """Copy the folder of a run and do harm to it; return what was done."""
    shutil.copytree(good, folder)
    logs = sorted(folder.glob("*/log.txt"))
    what = random.randrange(6)
    if what == 0:
        path = random.choice([*(folder / name for name in FILES), *logs])
        path.unlink()
        number = random.randrange(len(REPLACEMENTS) - (path in logs))  # a log of 1 TiB takes its time
        REPLACEMENTS[number](path, secret)
        return f"{path.name}: replacement {number}"
    if what == 1:
        path = folder / random.choice(FILES)
        data = path.read_bytes()
        path.write_bytes(data[: random.randrange(len(data) + 1)])
        return f"{path.name}: half-written"
    if what == 2:
        log = random.choice(logs)
        inner = log.parent
        shutil.rmtree(inner)
        inner.symlink_to(secret.parent)
        return "a link to a folder"
    if what == 3:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in random.sample(files, min(len(files), random.choice([1, 2, 5]))):
            content = bytearray(path.read_bytes())
            for _ in range(random.choice([1, 3, 20])):
                start = random.randrange(len(content) + 1)
                content[start : start + random.choice([0, 1, 8])] = random.choice([*_BYTES, os.fsencode(secret)])
            path.write_bytes(content)
        return "damaged bytes"
    path = folder / random.choice(FILES[:2])
    lines = [json.loads(line) for line in path.read_text().splitlines()] if what > 3 and path.suffix == ".jsonl" else []
    documents: list[Any] = lines or [json.loads(path.read_text())]
    if what == 4:
        for place in documents:
            for key in [key for key in place if key in ("log_file", "folder", "uri", "cached_from", "run_id")]:
                place[key] = random.choice(
                    [str(secret), "..", str(secret.parent), f"{folder}/../{secret.name}", ".", "/"]
                )
    for _ in range(random.choice([1, 3])):
        damage(documents, random)
    ends = "\n" if path.suffix == ".jsonl" else ""
    path.write_text("".join(_dumped(document) + ends for document in documents))
    return f"{path.name}: damaged"


def _dumped(document: Any) -> str:
    with contextlib.suppress(TypeError, ValueError):
        return json.dumps(document)
    return "{}"
