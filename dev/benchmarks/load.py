"""Many processes on one tracker base, some of which are killed, or with gc at work: are results lost or mixed?

Each process puts results under its own keys and under keys that all share, adds metadata to a run that all share, and
reads the results of the others. Each put that has returned is logged. Now and then, one process is killed with SIGKILL,
and another one replaces it. At the end, all logged puts must be there: a process's own key must have its last put or a
later one, and a shared key must have the whole put of one of them.

On a disk, two processes remove old runs while others put results under keys that are old. (An object store cannot be
asked to keep what was written since it was listed.)
"""

from __future__ import annotations

import collections
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dev.benchmarks import show
from tests.s3 import running
from tests.tracking.stages import stage
from torchx_kfp.tracking import FsspecResultTracker

SHARED = [f"shared/train/{number}" for number in range(5)]
RUN = "shared/metadata/1"

#: Puts results under its own keys in turn, each of which it has just made old, and checks that they are there.
#: Every tenth time, it leaves something that stays old.
WRITER = """
import os, sys, time
from torchx_kfp.tracking import FsspecResultTracker
base, name, puts = sys.argv[1], sys.argv[2], int(sys.argv[3])
tracker = FsspecResultTracker(base)
keys = [f"{name}{number}-20200101-120000-0a1b2c/train/1" for number in range(20)]
lost = 0
def is_lost(key, turn):
    # gc takes a file aside for an instant, and puts it back if it has just been written.
    return tracker.get(key) != {"turn": turn} and (time.sleep(0.01) or tracker.get(key) != {"turn": turn})
for turn in range(puts):
    key = keys[turn % len(keys)]
    try:
        os.utime(tracker.store.location(key), (0, 0))
    except FileNotFoundError:
        pass
    if turn % 10 == 0:
        old = f"{name}old-{turn}-20200101-120000-0a1b2c/train/1"
        tracker.put(old, turn=turn)
        os.utime(tracker.store.location(old), (0, 0))
    tracker.put(key, turn=turn)
    lost += is_lost(key, turn)
    older = (turn // 2) * 2 - 2
    if older >= 0 and turn - older < len(keys):
        lost += is_lost(keys[older % len(keys)], older)
print(lost)
"""
#: Removes everything that is older than this many seconds, again and again.
COLLECTOR = """
import select, sys, time
from torchx_kfp.tracking.cleanup import find_old_runs, remove_runs
from torchx_kfp.tracking import FsspecResultTracker
removed = 0
store = FsspecResultTracker(sys.argv[1]).store
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.002)[0]:
    removed += sum(1 for _ in remove_runs(store, find_old_runs(store, time.time() - 600).old))
print(removed)
"""


def results(key: str, writer: str, number: int) -> dict[str, Any]:
    """Return results that show which put they belong to, and whether they are complete."""
    return {"key": key, "writer": writer, "number": number, "check": f"{key} {writer} {number}", "fill": "x" * 500}


def problem(key: str, found: dict[str, Any]) -> str | None:
    if found and found != results(key, found.get("writer", ""), found.get("number", -1)):
        return f"{key} has results that no process has put there: {found}"
    return None


def work(base: str, writer: str, seconds: float, log: Path) -> None:
    """Be one of the processes; exit with 1 after reading results that no process has put there."""
    tracker = FsspecResultTracker(base)
    run = stage(base, RUN, {"all": tuple(SHARED)})
    own = [f"own/{writer}/{number}" for number in range(3)]
    end = time.monotonic() + seconds
    number = 0
    with log.open("a", buffering=1) as acknowledged:
        while time.monotonic() < end:
            number += 1
            for key in (random.choice(own), random.choice(SHARED)):
                tracker.put(key, **results(key, writer, number))
                acknowledged.write(json.dumps(["put", key, number]) + "\n")
                for other in (key, random.choice(SHARED)):
                    if wrong := problem(other, tracker.get(other)):
                        sys.exit(wrong)
            if number % 10 == 0:
                run.add_metadata({writer: number})
                acknowledged.write(json.dumps(["metadata", writer, number]) + "\n")


def verify(base: str, logs: list[Path]) -> tuple[list[str], collections.Counter[str]]:
    """Return the errors, and the number of acknowledged puts."""
    tracker = FsspecResultTracker(base)
    stored = dict(tracker.items())
    metadata = stage(base, RUN).metadata()
    wrong = [text for key, found in stored.items() if (text := problem(key, found))]
    count: collections.Counter[str] = collections.Counter()
    for log in logs:
        for line in log.read_text().splitlines():
            what, key, number = json.loads(line)
            count[what] += 1
            if what == "metadata":
                if int(str(metadata.get(key, 0))) < number:
                    wrong.append(f"metadata {key}: {number} was acknowledged, {metadata.get(key)} is there")
            elif key not in stored:
                wrong.append(f"{key}: {number} was acknowledged, nothing is there")
            elif key.startswith("own/") and int(stored[key]["number"]) < number:
                wrong.append(f"{key}: {number} was acknowledged, {stored[key]['number']} is there")
    return wrong, count


def load(base: str, seconds: float, processes: int, kill_every: float = 0.5) -> tuple[list[str], str]:
    """Run the load, and return the errors and a line that describes the load."""
    with tempfile.TemporaryDirectory() as folder:
        started = 0
        kills = 0
        failed: list[str] = []
        end = time.monotonic() + seconds

        def start() -> subprocess.Popen[str]:
            nonlocal started
            started += 1
            log = str(Path(folder, f"w{started:03}.log"))
            left = str(max(1.0, end - time.monotonic()))
            command = [sys.executable, "-m", "dev.benchmarks.load", base, f"w{started:03}", left, log]
            return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

        working = [start() for _ in range(processes)]
        try:
            while time.monotonic() < end:
                time.sleep(kill_every)
                victim = working.pop(random.randrange(len(working)))
                victim.send_signal(signal.SIGKILL)
                errors = victim.communicate()[1]
                if victim.returncode != -signal.SIGKILL and victim.returncode:
                    failed.append(errors)
                kills += 1
                working.append(start())
            for process in working:
                errors = process.communicate()[1]
                if process.returncode:
                    failed.append(errors)
        finally:
            for process in working:
                process.kill()
        logs = sorted(Path(folder).glob("*.log"))
        wrong, count = verify(base, logs)
        done = (
            f"{processes} processes for {seconds:g} s, {kills} kills: {count['put']} puts, {count['metadata']} metadata"
        )
        return [*failed, *wrong], done


def attack(base: Path, puts: int, writers: int = 3, collectors: int = 2) -> tuple[int, int]:
    """Return how many of the puts were lost, and how many runs were removed meanwhile."""

    def start(program: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, str(base), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    base.mkdir()
    collecting = [start(COLLECTOR) for _ in range(collectors)]
    for process in collecting:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    writing = [start(WRITER, f"writer-{number}-", str(puts // writers)) for number in range(writers)]
    try:
        lost = [process.communicate(timeout=280)[0] for process in writing]
        removed = [process.communicate("end\n", timeout=60)[0] for process in collecting]
    finally:
        for process in (*writing, *collecting):
            process.kill()
            process.wait()
    return sum(map(int, lost)), sum(map(int, removed))


def main() -> None:
    from dev.benchmarks.tracker import new_base

    for what in ("disk", "S3"):
        with tempfile.TemporaryDirectory() as folder, running(Path(folder, "log")) as server:
            wrong, done = load(new_base(server.url) if what == "S3" else f"{folder}/base", 30, 20)
        print(f"{what}: {done}")
        show(f"puts that are lost, torn or mixed on {what}", len(wrong), "puts", most=0)
        for text in wrong[:20]:
            print(f"    {text}")
    with tempfile.TemporaryDirectory() as folder:
        lost, removed = attack(Path(folder, "base"), 6000)
    show(f"puts that are lost while gc removes {removed} runs", lost, "puts", most=0)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
