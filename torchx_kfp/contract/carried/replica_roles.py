"""The log of a distributed stage, and the environment of replicas, their pods, and their states, locally and on a
cluster.

The specification's texts are lists of parts: the number of a WORD, or None for the index of the replica.
"""

from __future__ import annotations

import copy
import os
import re
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

#: The signals that end a stage.
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
#: The lines of a replica that are kept: torchrun ends its output with about 35 more.
KEPT = 100


#: Held while a line is written, so that lines do not mix. The handler of a signal may interrupt its holder.
LOCK = threading.RLock()


def write(stream: int, text: bytes, /) -> None:
    """Write the whole text to a descriptor."""
    with LOCK:
        while text:
            text = text[os.write(stream, text) :]


def say(*words: object) -> None:
    """Write a line to the stage's log."""
    try:  # noqa: SIM105 (shorter than contextlib)
        write(2, f"torchx-kfp: {' '.join(map(str, words))}\n".encode(errors="replace"))
    except OSError:  # nobody reads it
        pass


class Failure(Exception):
    """Why the stage fails, for its log."""


def texts(parts: Sequence[int | None], words: Sequence[str], replica: str, /) -> str:
    """Return the text of the parts: numbers of WORDs, and None for the index of the replica."""
    return "".join(replica if part is None else words[part] for part in parts)


def count(role: Mapping[str, Any], words: Sequence[str], /) -> int:
    """Return the number of the role's replicas, which may be set at run time."""
    fewest, most = role.get("fewest", 1), role["most"]
    text = words[role["count"]] if "count" in role else str(most)
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not (fewest <= number <= most and number == int(number)):
        hint = f"; with dist.ddp, j='1:{most}x...' allows fewer" * (1 <= number < fewest)
        raise Failure(
            f"replicas of role {role['name']!r} is {text!r}, but must be an integer from {fewest} to {most}, the "
            f"role's {'min_replicas and ' * (fewest > 1)}num_replicas{hint}"
        )
    return int(number)


def tally(labels: Sequence[str], total: int, done: int, /) -> str:
    """Return the number of running replicas, or the names of a few."""
    names = f" ({', '.join(sorted(labels))})" * (done > 0 and 0 < len(labels) <= 3)
    return f"{len(labels)} of {total} replicas run{names}" + f", {done} succeeded" * (done > 0)


def use_run_id(executor_input: Any, run_id: str, /) -> None:
    """Continue with another execution id, if the stage is tracked: one of KFP's output files has the current one."""
    output = ((executor_input.get("outputs") or {}).get("parameters") or {}).get("run_id")
    if output:
        os.environ["TORCHX_JOB_ID"] = run_id
        with open(output["outputFile"], "w") as file:
            file.write(run_id)


def last_lines(lines: Sequence[bytes], most: int, /) -> Sequence[bytes]:
    """Return the last lines of a replica; under ``torchrun --tee``, those of its processes (``[trainer0]:text``)."""
    lines = list(lines)  # a thread may still add to them
    return ([line for line in lines if re.match(rb"\[[^]\s]*\d\]:.*\S", line)] or lines)[-most:]


def show_end(label: str, what: str, lines: Sequence[bytes], /) -> None:
    """Report how a replica ended, and show its last lines."""
    say(what + "; its last lines:" * bool(lines))
    for line in lines:
        show(f"  {label}", line)


def show(label: str, line: bytes, /) -> None:
    """Write a line of a replica."""
    start = f"{label} | ".encode()
    # A progress bar begins its line again and again.
    line = re.sub(rb"\r(?=[^\r\n])", b"\r" + start, line)
    write(1, start + line + (b"" if line.endswith(b"\n") else b"\n"))


# The manifest of the engine's object


def fill(node: Any, values: Mapping[str, Any], /) -> Any:
    """Return a manifest with its markers replaced.

    ``{"@": path}`` stands for a part of the values, which may be missing; inside a list, it can stand for several
    items.
    """
    if isinstance(node, list):
        items: list[Any] = []
        for item in node:
            value = fill(item, values)
            items += value if isinstance(value, list) and isinstance(item, dict) else [value]
        return items
    if not isinstance(node, dict):
        return node
    if "@" in node:
        found: Any = values
        for key in node["@"].split("."):
            found = found[0] if isinstance(found, list) else (found or {}).get(key)
        return copy.deepcopy(found)
    return {key: fill(value, values) for key, value in node.items()}


def configure(pod: dict[str, Any], config: Mapping[str, Any], /) -> None:
    """Apply the settings of the task to the pod's spec; they replace those of the AppDef.

    Only variables of the AppDef take precedence over the task's, as where a command sets them.
    """
    config = {key: value for key, value in config.items() if value}
    container = pod["containers"][0]
    for part, field in ((container, "env"), (container, "volumeMounts"), (pod, "volumes")):
        part.setdefault(field, [])
    asked = config.get("resources", {})
    have = container.get("resources", {})
    limits = asked.get("limits") or {}
    # The AppDef's request could be above the task's limit. Without a request, Kubernetes takes the limit.
    requests = {name: amount for name, amount in have.get("requests", {}).items() if name not in limits}
    amounts = {
        **have,
        "requests": {**requests, **(asked.get("requests") or {})},
        "limits": {**have.get("limits", {}), **limits},
    }
    # A training runtime may have its own.
    container["resources"] = {name: amount for name, amount in amounts.items() if amount} or None
    pod["tolerations"] = [*pod.get("tolerations", ()), *config.get("tolerations", ())]
    pod["nodeSelector"] = {**pod.get("nodeSelector", {}), **config.get("nodeSelector", {})}
    if "affinity" in config:
        pod["affinity"] = config["affinity"]
    known = {one["name"] for one in container["env"]}
    # KFP_ begins the names of the launcher's own, which tell about its pod.
    added = [one for one in config.get("env", ()) if not one["name"].startswith("KFP_")]
    container["env"] += [one for one in added if one["name"] not in known]
    for where, field, key in ((container, "volumeMounts", "mountPath"), (pod, "volumes", "name")):
        added = config.get(field, ())
        taken = {one[key] for one in added}
        where[field] = [*(one for one in where[field] if one[key] not in taken), *added]
