"""Follow a pod of a distributed stage: its state, and its log."""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.error
from collections import Counter, deque

from torchx_kfp.carried.cluster_api import pieces, reason
from torchx_kfp.carried.log import say
from torchx_kfp.carried.replica_roles import KEPT, Failure, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Replica:
    """A pod of the stage, as far as it has been seen."""

    def __init__(self, stage: Any, item: Any, /) -> None:
        meta = item["metadata"]
        role = meta["labels"]["torchx-kfp/role"]
        self.stage = stage
        self.uid = meta["uid"]
        self.pod = meta["name"]
        self.container = role
        index = (meta.get("annotations") or {}).get(stage.spec["index"], "?")
        self.label = f"{role}/{index}"
        first = role == stage.spec["roles"][0]["name"] and index == "0"
        self.follows = {"all": True, "first": first, "none": False}[stage.spec["logs"]]
        self.reader: threading.Thread | None = None
        self.lines: deque[bytes] = deque(maxlen=KEPT)
        self.node = ""
        self.ended = ""
        self.code = 0
        self.why = ""
        self.gone = False
        self.deleted = False
        self.runs = False
        #: What keeps it from running: a reason and a message, or nothing.
        self.waiting: tuple[str, ...] = ()
        self.problem = ""

    def update(self, item: Any, /) -> None:
        """Take note of the pod's state."""
        status = item.get("status") or {}
        self.node = item["spec"].get("nodeName", "")
        states = [one["state"] for one in status.get("containerStatuses") or () if one["name"] == self.container]
        state = states[0] if states else {}
        deleted = "deletionTimestamp" in item["metadata"]
        if not self.ended:
            self.deleted = deleted
        self.runs = "running" in state and not deleted
        self.waiting = ()
        conditions = [
            one for one in status.get("conditions") or () if one["type"] == "PodScheduled" and one["status"] == "False"
        ]
        for one in (
            *(each["state"].get("waiting") or {} for each in status.get("initContainerStatuses") or ()),
            state.get("waiting") or {},
            *conditions,
        ):
            if one.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                self.waiting = one["reason"], one.get("message") or ""
        if "terminated" in state:
            self.end(state["terminated"].get("finishedAt"), state["terminated"]["exitCode"], state["terminated"])
        elif status.get("phase") == "Failed":
            # It was evicted, or its node is lost: only newer causes are in a condition.
            causes = [one for one in status.get("conditions") or () if one["type"] == "DisruptionTarget"]
            self.end(None, 1, {**causes[0], **status} if causes else status)
        if self.follows and not self.reader and (self.runs or "terminated" in state):
            self.reader = threading.Thread(target=self.read, daemon=True)
            self.reader.start()

    def end(self, when: str | None, code: int, details: Mapping[str, Any], /) -> None:
        if not self.ended:
            self.ended = when or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.code = code
            words = [details.get("reason"), details.get("message")]
            said = ": ".join(word.strip() for word in words if word and word != "Error")
            self.why = f" ({said})" if said else ""
            if code:
                say(f"{self.label} failed with exit code {code}{self.why}; it was the pod {self.pod}")

    def is_there(self) -> bool:
        """Tell whether the pod is still there, and not another one of its name."""
        path = f"{self.stage.path('api/v1', 'pods')}?fieldSelector=metadata.name%3D{self.pod}"
        return any(one["metadata"]["uid"] == self.uid for one in self.stage.cluster.call("GET", path)[1]["items"])

    def read(self) -> None:
        """Copy the log, and go on where a broken connection has ended it."""
        path = f"{self.stage.path('api/v1', 'pods')}/{self.pod}/log?container={self.container}"
        path += "&follow=true&timestamps=true"
        #: The times of the lines of the last two seconds that were shown, by second: they are read again.
        recent: dict[str, Counter[bytes]] = {}
        tries = 0
        while True:
            ended = bool(self.ended)
            since = f"&sinceTime={min(recent)}".replace("+", "%2B") if recent else ""
            problem = ""
            try:
                with self.stage.cluster.open("GET", path + since, timeout=60) as stream:
                    if tries and not self.is_there():
                        return  # the stream is that of another pod of this name
                    again = sum(recent.values(), Counter())
                    begins = True
                    shown = True
                    for piece in pieces(stream):
                        whole = piece.endswith(b"\n")
                        if not whole and len(piece) < 1 << 16 and not ended:
                            break  # the connection has broken: the line is read again
                        if begins:
                            stamp, _, piece = piece.partition(b" ")
                            found = re.match(rb"([0-9T:-]{19})(?:\.\d+)?(Z|[+-]\d\d:\d\d)$", stamp)
                            if not found:
                                raise ValueError((stamp + b" " + piece).decode(errors="replace").strip())
                            shown = not again[stamp]
                            if shown:
                                second = (found[1] + found[2]).decode()
                                recent.setdefault(second, Counter())[stamp] += 1
                                tries = min(tries, 1)
                                for old in sorted(recent)[:-2]:
                                    del recent[old]
                            else:
                                again[stamp] -= 1
                        begins = whole
                        if shown:
                            show(self.label, piece)
                            self.lines.append(piece)
                if ended:
                    return
            except urllib.error.HTTPError as error:
                if error.code == 404 or (ended and error.code == 400):
                    return
                problem = f"{error.code} {reason(error)}"
            except (ValueError, Failure) as error:  # not a line of a log, or nobody says whose log it is
                problem = str(error)
            except (OSError, http.client.HTTPException):
                pass
            if problem and self.problem != problem:
                self.problem = problem
                say(f"{self.label}: its log cannot be read: {problem}")
            tries += 1
            if problem.startswith("403") or (ended and tries > 10):
                return
            # Another pod may have the name by now; the next look at the pods tells.
            looks = self.stage.looks
            time.sleep(0.3)
            while self.stage.looks == looks and not self.stage.over:
                time.sleep(0.1)
            if self.gone:
                return
