"""What replicas are given, and how they are reported: the same on this machine and on a cluster.

The specification's texts are lists of parts: the number of a WORD, or None for the index of the replica."""

from __future__ import annotations

import os
import re

from torchx_kfp.carried.log import say, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

#: The lines of a replica that are kept: torchrun ends its output with about 35 of its own.
KEPT = 100


def leave(code: int, /) -> NoReturn:
    """End the program at once: threads that read logs may be waiting."""
    os._exit(code)


class Failure(Exception):
    """Why the stage fails, for its log."""


def texts(
    parts: Sequence[int | None], words: Sequence[str], replica: str, escape: Callable[[str], str] = str, /
) -> str:
    """Return the text of the parts: numbers of WORDs, and None for the index of the replica."""
    return "".join(replica if part is None else escape(words[part]) for part in parts)


def environment(
    role: Mapping[str, Any], words: Sequence[str], replica: str, escape: Callable[[str], str] = str, /
) -> Any:
    """Return the variables of a role. Those without parts are the launcher's own."""
    return {
        name: escape(os.environ.get(name, "")) if parts is None else texts(parts, words, replica, escape)
        for name, parts in role["env"]
    }


def count(role: Mapping[str, Any], words: Sequence[str], /) -> int:
    """Return the number of the role's replicas, which may be known only now."""
    least, most = role.get("least", 1), role["most"]
    text = words[role["count"]] if "count" in role else str(most)
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not (least <= number <= most and number == int(number)):
        hint = f"; with dist.ddp, j='1:{most}x...' allows fewer" * (1 <= number < least)
        raise Failure(
            f"replicas of role {role['name']!r} is {text!r}, but must be a whole number from {least} to {most}, the "
            f"role's {'min_replicas and ' * (least > 1)}num_replicas{hint}"
        )
    return int(number)


def tally(labels: Sequence[str], total: int, done: int, /) -> str:
    """Return how many replicas run, by name if only few are left."""
    names = f" ({', '.join(sorted(labels))})" * (done > 0 and 0 < len(labels) <= 3)
    return f"{len(labels)} of {total} replicas run{names}" + f", {done} succeeded" * (done > 0)


def last_lines(lines: Sequence[bytes], most: int, /) -> Sequence[bytes]:
    """Return the last lines of a replica; under ``torchrun --tee``, those of its processes (``[trainer0]:text``)."""
    lines = list(lines)  # a thread may still add to them
    return ([line for line in lines if re.match(rb"\[[^]\s]*\d\]:.*\S", line)] or lines)[-most:]


def outputs_of(executor_input: Any, /) -> Any:
    """Return the stage's output parameters, each with the file that KFP reads."""
    return (executor_input.get("outputs") or {}).get("parameters") or {}


def begin_again(spec: Any, attempt: int, code: int, outputs: Any, /) -> None:
    """Give another attempt at the replicas a run id of its own, so that nobody reads what the failed one recorded."""
    say(f"attempt {attempt} of {spec['retries'] + 1}: the application ended with exit code {code}")
    if "run_id" in outputs:
        os.environ["TORCHX_JOB_ID"] = re.sub(r"(_\d{1,7})?$", f"_{attempt}", os.environ["TORCHX_JOB_ID"], count=1)
        with open(outputs["run_id"]["outputFile"], "w") as file:
            file.write(os.environ["TORCHX_JOB_ID"])


def show(label: str, line: bytes, /) -> None:
    """Write a line of a replica."""
    start = f"{label} | ".encode()
    # A progress bar begins its line again and again.
    line = re.sub(rb"\r(?=[^\r\n])", b"\r" + start, line)
    write(1, start + line + (b"" if line.endswith(b"\n") else b"\n"))
