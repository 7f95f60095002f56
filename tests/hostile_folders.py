"""Show many damaged folders of runs in this process, by hand: ``python -m tests.hostile_folders FOLDER [FROM TO]``.

``FOLDER`` has folders of finished local runs, of which each seed damages one. No command that reads the copy may crash,
take longer than 30 seconds, or read or show a file that is elsewhere.
"""

import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from click.testing import CliRunner

from tests.hostile import REPLACEMENTS, SECRET, make_hostile
from torchx_kfp.entrypoints.cli import cli

_BYTES = (b"", b"\0", b"\xff\xfe", b"9" * 400, b"[" * 3000, b'"', b"..")


def damage_files(good: Path, folder: Path, secret: Path, random: Random) -> str:
    """Copy the folder of a run and damage some of its files; return which."""
    shutil.copytree(good, folder)
    files = random.sample(sorted(path for path in folder.rglob("*") if path.is_file()), random.choice([1, 1, 2, 5]))
    for path in files:
        if random.random() < 0.5:
            path.unlink()
            random.choice(REPLACEMENTS[:-1])(path, secret)  # not a log of 1 TiB, which takes its time
            continue
        data = bytearray(path.read_bytes())
        for _ in range(random.choice([1, 3, 20])):
            start = random.randrange(len(data) + 1)
            data[start : start + random.choice([0, 1, 8])] = random.choice([*_BYTES, os.fsencode(secret)])
        path.write_bytes(data)
    return ", ".join(str(path.relative_to(folder)) for path in files)


def main(source: Path, start: int, stop: int) -> int:
    """Print the failures with their seeds, and how the commands ended; return the number of failures."""
    goods = sorted(path.parent for path in source.glob("*/events.jsonl"))
    watched, read, ends = [""], list[str](), Counter[str]()

    def audit(event: str, given: tuple[Any, ...]) -> None:
        if watched[0] and event in ("open", "os.listdir", "os.scandir") and isinstance(given[0], (str, bytes)):
            read.extend([str(given[0])] * os.path.realpath(os.fsdecode(given[0])).startswith(watched[0]))

    sys.addaudithook(audit)
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # a command that takes too long exits with 130
    for seed in range(start, stop):
        with tempfile.TemporaryDirectory() as name:
            secret, folder, page = (Path(name).resolve() / it for it in ("private/log.txt", "runs/bad-1", "page.html"))
            secret.parent.mkdir()
            secret.write_text(SECRET)
            random = Random(seed)
            make = make_hostile if random.random() < 0.6 else damage_files
            done, run = make(random.choice(goods), folder, secret, random), str(folder)
            calls = [("runs", "--output-dir", str(folder.parent)), ("report", run, "-o", str(page))]
            for words in [*calls, *((command, run) for command in ("show", "report", "results", "logs"))]:
                watched[0] = str(secret.parent)
                read.clear()
                signal.alarm(30)
                result = CliRunner().invoke(cli, words)
                ends[f"{words[0]}: exit {result.exit_code}"] += 1
                shown = SECRET in result.output or (page.exists() and SECRET in page.read_text())
                crashed = not isinstance(result.exception, (SystemExit, type(None)))
                if read or shown or crashed or result.exit_code == 130:
                    ends["failures"] += 1
                    print(f"{seed} {done}: {' '.join(words)}\n  read: {read}, shown: {shown}", flush=True)
                    traceback.print_exception(*(result.exc_info or (None,) * 3))
    print(dict(ends))
    return ends["failures"]


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]), *map(int, sys.argv[2:4] or ("0", "3000")))))
