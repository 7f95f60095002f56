"""Change the package at random places, and see which changes the tests notice: the net under a redesign.

``python -m dev.mutants make [PACKAGE...]`` replaces those of ``tests/mutants.jsonl`` whose text is gone by a new
sample, runs tests for each, and keeps which have died. ``python -m dev.mutants check [PACKAGE...]`` runs those again
that died, and fails if one of them lives. Both go on where they were interrupted.

A mutant first meets the tests that ``dev.changed`` names for its module, and then those of the seams around it. A
test counts only if it passes without the mutant. Tests run in copies of this folder, each with an environment that
imports the copy; your files stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from dev.changed import REPOSITORY, needed, seams
from dev.mutation import GENERATED, Mutant, sample, text_with

RECORD = REPOSITORY / "tests" / "mutants.jsonl"
#: CPU seconds and seconds that files of tests take.
DURATIONS: dict[str, list[float]] = json.loads((REPOSITORY / "tests" / "durations.json").read_text(encoding="utf-8"))
COUNT, SEED = 300, 31
#: Seconds for one test, and for a run of tests besides five times what its files are known to take.
ONE_TEST, MORE = 120, 300
#: What needs an engine, a browser, a cluster or gigabytes does not run here.
MARKS = "not docker and not browser and not cluster and not torch and not ax"


class Kept(NamedTuple):
    """A line of the record. A mutant died, lived, or was ``spared`` by the tests of its module, the first it meets."""

    end: str
    mutant: Mutant
    by: str = ""


class Copy:
    """A copy of this folder, with an environment that imports its modules and this environment's packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
        venv = folder / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        [packages] = venv.glob("lib/python*/site-packages")
        others = sysconfig.get_path("purelib")
        (packages / "copy.pth").write_text(f"{folder}\nimport site; site.addsitedir({others!r})\n")
        for program in Path(sys.executable).parent.iterdir():
            content = program.read_bytes() if program.is_file() else b""
            if content.startswith(b"#!") and not (venv / "bin" / program.name).exists():
                rest = content.partition(b"\n")[2]
                (venv / "bin" / program.name).write_bytes(f"#!{venv}/bin/python\n".encode() + rest)
                (venv / "bin" / program.name).chmod(0o755)
        self.environ = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTHONPATH")}
        self._originals: dict[str, str] = {}
        self.environ |= {"TMPDIR": str(folder / "tmp"), "PATH": f"{venv}/bin:{os.environ['PATH']}"}

    def has(self, module: str, text: str) -> int:
        """Write a module, and what is generated from it; return the exit code of the generator."""
        carried = Path(module).parent == Path(GENERATED).parent
        for name in (module, GENERATED) if carried else (module,):
            self._originals.setdefault(name, (self.folder / name).read_text(encoding="utf-8"))
        self._write(module, text)
        return self.run(["-m", "dev.carry"], MORE)[0] if carried else 0

    def back(self) -> None:
        """Restore what was written."""
        while self._originals:
            self._write(*self._originals.popitem())

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")
        # It may have the size and the second of the text before.
        Path(importlib.util.cache_from_source(str(self.folder / name))).unlink(missing_ok=True)

    def run(self, arguments: Sequence[str], limit: float) -> tuple[int, str]:
        """Run Python here, and return its exit code and output; what it leaves running is ended."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                [self.folder / ".venv" / "bin" / "python", *arguments],
                cwd=self.folder,
                env=self.environ,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                shutil.rmtree(self.folder / "tmp", ignore_errors=True)
            output.seek(0)
            return code, output.read()

    def killer(self, files: Sequence[str], good: set[str], module: str, text: str) -> str:
        """Return the test that fails with this text of a module and passes without it; empty if there is none."""
        options = ["-n", "0", "-x", "-q", "-rfE", "-p", "no:cacheprovider", "-m", MARKS, "--timeout", str(ONE_TEST)]
        limit = MORE + 5 * sum(map(seconds_of, files))
        bad: set[str] = set()
        while files:
            left = [f"--deselect={test}" for test in sorted(bad)]
            code, output = self.run(["-m", "pytest", *options, *left, *files], limit)
            if code in (0, 5):  # passed, or no tests
                return ""
            failed = re.findall(r"^(?:FAILED|ERROR) ([^\[\s]+)", output, re.MULTILINE)
            test = failed[0] if failed else files[0]
            if test in good or code == -1:
                return test
            self.back()
            if self.run(["-m", "pytest", *options, test], limit)[0] in (0, 5):
                good.add(test)
                return test
            print(f"{test} fails without a mutant, too: it does not count", flush=True)
            if test in bad or self.has(module, text) != 0:
                return ""
            bad.add(test)
        return ""


def seconds_of(file: str) -> float:
    """Return how long a file of tests takes."""
    return DURATIONS.get(file, [0.0, 30.0])[1]


def _files() -> list[str]:
    git = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(git, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in names if name and (REPOSITORY / name).is_file()]


def _first(module: str) -> list[str]:
    """Return the tests that a change of a module needs: those called like it first, and then the quick ones."""
    name = Path(module).stem
    return sorted(needed([Path(module)]), key=lambda file: (name not in Path(file).stem, seconds_of(file)))


def is_there(test: str) -> bool:
    """Return whether a test, which was the first to notice a mutant, still exists, in its class."""
    file, *names = test.split("::")
    text = (REPOSITORY / file).read_text(encoding="utf-8") if names and (REPOSITORY / file).exists() else ""
    return bool(names) and all(re.search(rf"^ *(?:class|def) {name}\b", text, re.MULTILINE) for name in names)


def _run_all(todo: Sequence[Kept], wide: bool, jobs: int, keep: Callable[[Kept], None]) -> None:
    """Run tests for mutants, in a random order, and hand each end over."""
    lock = threading.Lock()
    good: set[str] = set()
    places = {kept.mutant: text_with(kept.mutant) for kept in todo}
    order = sorted(todo, key=lambda kept: hashlib.sha256(repr(kept.mutant).encode()).digest())
    with tempfile.TemporaryDirectory(prefix="torchx-kfp-mutants.") as folder:
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(jobs):
            copies.put(Copy(Path(folder, str(number))))

        def one(kept: Kept) -> None:
            place = places[kept.mutant]
            end, by = "gone", ""
            if place is not None:
                own = copies.get()
                first = _first(place[0])
                try:
                    by = "dev.carry" if own.has(*place) else ""
                    if not by and is_there(kept.by):
                        by = own.killer([kept.by], good, *place)
                        own.has(*place)
                    if not by and kept.end != "spared":
                        by = own.killer(first, good, *place)
                    if not by and wide:
                        own.has(*place)
                        by = own.killer([each for each in seams(Path(place[0])) if each not in first], good, *place)
                finally:
                    own.back()
                    copies.put(own)
                end = "died" if by else "lived" if wide else "spared"
            with lock:
                keep(Kept(end, kept.mutant, by))

        pool = ThreadPoolExecutor(jobs)
        try:
            list(pool.map(one, order))
        finally:
            pool.shutdown(cancel_futures=True)


def read(path: Path) -> list[Kept]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Kept(end, Mutant(*mutant), by) for end, *mutant, by in map(json.loads, lines)]


def write(path: Path, all_kept: Sequence[Kept]) -> None:
    lines = [json.dumps([kept.end, *kept.mutant, kept.by], ensure_ascii=False) for kept in all_kept]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path.with_suffix(".new").replace(path)


def make(inside: tuple[str, ...], count: int, wide: bool, jobs: int) -> None:
    known = {kept.mutant: kept for kept in read(RECORD) if text_with(kept.mutant) is not None}
    for mutant in sample(max(0, count - len(known)), SEED, inside):
        known.setdefault(mutant, Kept("", mutant))

    def keep(kept: Kept) -> None:
        known[kept.mutant] = kept
        write(RECORD, sorted(known.values(), key=lambda each: each.mutant))
        print(f"{kept.end}: {kept.mutant.module}: {kept.mutant.before!r} {kept.by}", flush=True)

    _run_all([kept for kept in known.values() if kept.end in ("", "spared")[: 1 + wide]], wide, jobs, keep)
    ends = [kept.end for kept in known.values()]
    print(*(f"{ends.count(end)} {end or 'not run'}" for end in sorted(set(ends))), sep=", ")


def check(inside: tuple[str, ...], jobs: int) -> int:
    """Run the mutants that died before; return 1 if one of them lives."""
    before = [kept for kept in read(RECORD) if kept.end == "died" and kept.mutant.module.startswith(inside)]
    tree = hashlib.sha256()
    for name in _files():
        if name.endswith((".py", ".md", ".json", ".yaml", ".txt")):
            tree.update(name.encode() + (REPOSITORY / name).read_bytes())
    path = REPOSITORY / ".cache" / "mutants" / f"{tree.hexdigest()[:12]}.jsonl"
    done = {kept.mutant: kept for kept in read(path)}

    def keep(kept: Kept) -> None:
        done[kept.mutant] = kept
        write(path, list(done.values()))
        print(f"{len(done)}: {kept.end}: {kept.mutant.module}: {kept.mutant.before!r} {kept.by}", flush=True)

    _run_all([kept for kept in before if kept.mutant not in done], True, jobs, keep)
    ends = [done[kept.mutant].end for kept in before]
    print(f"Of {len(ends)} mutants that died, {ends.count('died')} die, {ends.count('gone')} are gone, these live:")
    for kept in before:
        if done[kept.mutant].end == "lived":
            print(f"  {kept.mutant.module}, {kept.mutant.function}: {kept.mutant.before!r} -> {kept.mutant.after!r}")
            print(f"    died before by {kept.by}")
    return int("lived" in ends)


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutants of the package: which do the tests notice?")
    parser.add_argument("mode", choices=["make", "check"])
    parser.add_argument("packages", nargs="*", help="only mutants of these, as in torchx_kfp.tracking")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--count", type=int, default=COUNT, help="make: how many mutants the file has")
    parser.add_argument("--first", action="store_true", help="make: only the tests of the mutant's module")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    inside = tuple(each.replace(".", "/").removesuffix("/py") for each in given.packages) or ("",)
    return (
        check(inside, given.jobs)
        if given.mode == "check"
        else make(inside, given.count, not given.first, given.jobs) or 0
    )


if __name__ == "__main__":
    sys.exit(main())
