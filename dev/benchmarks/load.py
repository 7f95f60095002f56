"""Many processes on one tracker base, some of which are killed: are results lost or mixed?

Each process puts results under its own keys and under keys that all share, adds metadata to a run that all share, and
reads the results of the others. Each put that has returned is logged. Now and then, one process is killed with SIGKILL,
and another one replaces it. At the end, all logged puts must be there: a process's own key must have its last put or a
later one, and a shared key must have the whole put of one of them.
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
        done = f"{processes} processes, {kills} kills: {count['put']} puts, {count['metadata']} metadata"
        return [*failed, *wrong], done


def main() -> None:
    from dev.benchmarks.tracker import new_base

    for what in ("disk", "S3"):
        with tempfile.TemporaryDirectory() as folder, running(Path(folder, "log")) as server:
            wrong, done = load(new_base(server.url) if what == "S3" else f"{folder}/base", 30, 20)
        print(f"{what}: {done}")
        show(f"puts that are lost, torn or mixed on {what}", len(wrong), "puts", most=0)
        for text in wrong[:20]:
            print(f"    {text}")


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
