"""Runs the replicas of a distributed stage: as an object of the cluster's engine, or as processes on this machine.

In the command of such a stage, this program takes the place of the application::

    python3 -c PROGRAM SPEC {{$}} WORD...

SPEC is JSON that ``adapter/stage/payload`` makes: the manifest of the engine's object, where its state is found, and
the roles. The program knows no engine. Text that is known only at run time, and all arguments of the applications, are
WORDs; SPEC refers to them by number. ``{{$}}`` is KFP's ExecutorInput, which has what users have set on the task
(``dsl.TaskConfig``) and names the file for the run id.

On the cluster, there is exactly one object at any time, whatever dies when. Its name comes from the Argo node of the
stage, which is the same in all attempts, and Kubernetes accepts a name only once. An attempt adopts the object if it
runs or has succeeded; if it has failed, or was made from another SPEC, the attempt deletes it, waits until it is gone
with its pods, and makes a new one. The run id of the object is that of the attempt that made it, so that results of a
failed one are never those of the next. An annotation names the attempt that follows the object, and a process whose pod
is gone follows none: a node that was cut off may come back while the next attempt runs. An attempt deletes only what it
follows, or what it has seen of an earlier one.

If the engine does not start replicas again by itself, this program does: ``retries`` in SPEC says how often it makes
another object when one has failed, with another run id. What ends this program itself is not retried here.

Argo kills a stage's processes about a second after SIGTERM (0.16 to 0.95 s were seen on KFP 2.17), so deleting the
object is the first thing that the handler does. The object's owner is the run's Workflow: if the launcher's pod is lost
with its node, the replicas go on, and the next attempt adopts them.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, deque

from torchx_kfp.carried.log import say, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn

#: Where a pod finds its token, the cluster's certificate and its namespace.
FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
#: Seconds for which the API server may not answer.
PATIENCE = 600
#: The lines of a replica that are kept: torchrun ends its output with about 35 of its own.
KEPT = 100
#: Seconds that replicas have to end after SIGTERM, on this machine.
GRACE = 10

#: The signals that end a stage, and those that it waits for.
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
SIGNALS = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, *ENDING}


def leave(code: int, /) -> NoReturn:
    """End the program at once: threads that read logs may be waiting."""
    os._exit(code)


class Failure(Exception):
    """Why the stage fails, for its log."""


# Roles


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


# On this machine


def run_here(spec: Any, words: Sequence[str], counts: Sequence[int], outputs: Any, /) -> int:
    """Run each replica as a process in a session of its own, as TorchX's local scheduler does.

    The first failure ends the others. Replicas that name the same port take turns with those of other stages.

    Returns:
        The exit code of the replica that failed first, or 128 + n if signal n ended it, or ended the stage.
    """
    # Signals are blocked and waited for: none is lost while replicas are being started.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    ports = sorted({port for role in spec["roles"] for port in role["ports"]})
    held = [hold_port(port) for port in ports]
    for port in ports:
        with contextlib.suppress(OSError, OverflowError):
            socket.create_connection(("localhost", port), 1).close()
            say(f"another program on this machine listens on port {port}, which is in the port_map of a role")
    retries = spec.get("retries", 0)
    code = 0
    for attempt in range(max(spec["restarts"], retries) + 1):
        if attempt and retries:
            begin_again(spec, attempt + 1, code, outputs)
        elif attempt:
            say(f"starting all replicas again ({attempt} of {spec['restarts']})")
        code, stopped = run_processes(spec, words, counts, mask)
        if not code or stopped:
            break
    for lock in held:
        lock.close()
    return code


def hold_port(port: int, /) -> socket.socket:
    """Wait until no other stage on this machine uses the port, and keep others from using it.

    The name of the socket is known only in this network, as the port is, and vanishes with the process.
    """
    waits = False
    while True:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0torchx-kfp-port-{port}")
            return lock
        except OSError:
            lock.close()
        if not waits:
            say(f"waiting for another stage on this machine that uses port {port}")
            waits = True
        ended = signal.sigtimedwait(ENDING, 0.1)
        if ended:
            leave(128 + ended.si_signo)


def run_processes(spec: Any, words: Sequence[str], counts: Sequence[int], mask: Any, /) -> tuple[int, bool]:
    """Run the replicas once.

    Args:
        spec: see the module.
        words: see the module.
        counts: the number of replicas of each role.
        mask: the signals that are blocked in the replicas.

    Returns:
        The exit code, and whether a signal to this process has ended the stage.
    """
    #: The role's number and the replica's index, by process id.
    running: dict[int, tuple[int, int]] = {}
    #: How often replicas of each role were started again, while the others went on.
    again = [0 for _ in counts]
    #: The threads that copy their output, and its last lines.
    readers: list[threading.Thread] = []
    last: dict[str, deque[bytes]] = {}

    def start(position: int, index: int, /) -> threading.Thread:
        role = spec["roles"][position]
        # This process has the variables of the first role.
        others = {name for name, parts in spec["roles"][0]["env"] if position and parts is None}
        child = subprocess.Popen(
            # If the application cannot be started, the shell says so and sets the exit code.
            ["sh", "-c", 'exec "$@"', "sh", *(texts(parts, words, str(index)) for parts in role["command"])],
            env={
                **{name: value for name, value in os.environ.items() if name not in others},
                "TORCHX_REPLICA_ID": str(index),
                "TORCHX_NUM_REPLICAS": str(counts[position]),
                "TORCHX_RANK0_HOST": "localhost",
                **environment(role, words, str(index)),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
        )
        child.returncode = 0  # Popen must not wait for it
        running[child.pid] = position, index
        label = f"{role['name']}/{index}"
        lines = last[label] = deque(maxlen=KEPT)
        readers.append(threading.Thread(target=copy_lines, args=(label, child.stdout, lines), daemon=True))
        return readers[-1]

    def send(number: int, /) -> None:
        # As in a container, only the first process gets it.
        for pid in running:
            kill(pid, number)

    try:
        for position, replicas in enumerate(counts):
            for index in range(replicas):
                start(position, index)
        # Not earlier: a process should not be forked while threads hold locks.
        for reader in readers:
            reader.start()
        total = len(running)
        needed = {key for key in running.values() if spec["roles"][key[0]]["name"] in spec["success"]}
        code: int | None = None
        stopped = False
        first = ""
        deadline = 0.0
        say(f"{total} of {total} replicas run")
        told = f"{total} of {total} replicas run"
        while running:
            caught = signal.sigtimedwait(SIGNALS, 0.5)
            labels = [f"{spec['roles'][position]['name']}/{index}" for position, index in running.values()]
            text = tally(labels, total, total - len(running))
            if caught is None and code is None and told != text:
                told = text
                say(text)
            if caught and caught.si_signo != signal.SIGCHLD:
                send(caught.si_signo)
                if caught.si_signo in ENDING:
                    stopped = True
                    code = 128 + caught.si_signo if code is None else code
            if deadline and time.monotonic() > deadline:
                for pid in running:
                    kill(-pid, signal.SIGKILL)
            while running:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if not ended:
                    break
                pid = ended.si_pid
                if pid in running:
                    # What it has left running would keep its output open. Its number is not free before waitpid.
                    kill(-pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
                if pid not in running:
                    continue
                position, index = running.pop(pid)
                if code is not None:
                    continue
                role = spec["roles"][position]
                failed = 128 + status % 128 if status % 128 else status // 256
                if not failed:
                    needed.discard((position, index))
                    if needed:
                        continue
                    if running:
                        say("the stage has succeeded; ending the other replicas")
                else:
                    label = f"{role['name']}/{index}"
                    how = f"{label} failed with exit code {failed}"
                    if again[position] < role.get("restarts", 0):
                        again[position] += 1
                        say(f"{how}; starting it again ({again[position]} of {role['restarts']})")
                        start(position, index).start()
                        continue
                    first = label
                    say(f"{how}; ending the others" if running else how)
                code = failed
                send(signal.SIGTERM)
                deadline = time.monotonic() + GRACE
    except (OSError, RuntimeError) as error:  # of a process or a thread
        started = f"{len(running)} of {sum(counts)} replicas could be started on this machine"
        raise Failure(f"{started}: {error}; the stage's replicas=N can reduce their number") from None
    finally:
        for pid in running:
            kill(-pid, signal.SIGKILL)
    patience = time.monotonic() + 2
    for reader in readers:
        reader.join(max(0.0, patience - time.monotonic()))
    lines = last_lines(last[first], 8) if first else ()
    if first and (total > 1 or lines != list(last[first])[-8:]):
        # People look at the end of a log, where the others, or torchrun, may have printed something since.
        say(f"{first} failed{' first' * (total > 1)}, with exit code {code}" + "; its last lines:" * bool(lines))
        for line in lines:
            show(f"  {first}", line)
    return code or 0, stopped


def kill(pid: int, number: int, /) -> None:
    """Send a signal to a process, or to the group -pid, if it is still there."""
    with contextlib.suppress(OSError):
        (os.kill if pid > 0 else os.killpg)(abs(pid), number)


def copy_lines(label: str, stream: Any, last: deque[bytes], /) -> None:
    """Write the lines of a stream to the stage's log, each after the replica's name."""
    with stream:
        try:
            for line in iter(lambda: stream.readline(1 << 16), b""):
                last.append(line)
                show(label, line)
        except OSError:
            # Nobody reads the log: as with any program that writes to a closed pipe, the stage ends.
            kill(os.getpid(), signal.SIGTERM)


def show(label: str, line: bytes, /) -> None:
    """Write a line of a replica."""
    start = f"{label} | ".encode()
    # A progress bar begins its line again and again.
    line = re.sub(rb"\r(?=[^\r\n])", b"\r" + start, line)
    write(1, start + line + (b"" if line.endswith(b"\n") else b"\n"))


# On the cluster


class Cluster:
    """The API server, as a pod reaches it."""

    def __init__(self, rights: str, /) -> None:
        host = os.environ["KUBERNETES_SERVICE_HOST"]
        self.url = f"https://{f'[{host}]' if ':' in host else host}:{os.environ['KUBERNETES_SERVICE_PORT']}/"
        #: The options of ``torchx-kfp rbac``.
        self.rights = rights
        #: The signal that ends the stage.
        self.stopped = 0
        context = ssl.create_default_context(cafile=f"{FOLDER}/ca.crt")
        # Python 3.13 rejects the authorities of many clusters otherwise: they lack key identifiers.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        # An empty ProxyHandler keeps the environment's proxies away: the cluster is not reached through them.
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        #: The requests that were allowed, and the warnings that were said.
        self.allowed: set[tuple[str, str]] = set()
        self.warned: set[str] = set()

    def open(self, method: str, path: str, body: Any = None, /, timeout: float = 30) -> Any:
        """Send one request. The token is read each time, because it is replaced now and then."""
        with open(f"{FOLDER}/token") as file:
            token = file.read().strip()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": kind, "Accept": "application/json"},
            method=method,
        )
        return self.opener.open(request, timeout=timeout)

    def call(self, method: str, path: str, body: Any = None, /, patience: float = PATIENCE) -> tuple[int, Any]:
        """Send a request until it is answered; return the status and the answer.

        Servers that are away, busy or changing tokens are asked again, and so are those that refuse what they have
        allowed before: authorizers have bad moments, too. 404 and 409 are answers; others end the stage.
        """
        began = time.monotonic()
        pause = 0.25
        while True:
            if method == "POST" and self.stopped:
                raise Failure("stopped")  # nothing is created then
            try:
                with self.open(method, path, body) as answer:
                    found = json.loads(answer.read())
                    for warning in set(answer.headers.get_all("Warning") or ()) - self.warned:
                        self.warned.add(warning)  # of a version that is deprecated, each answer has one
                        say("the API server warns:", warning)
                    self.allowed.add((method, path))
                    return answer.status, found
            except urllib.error.HTTPError as error:
                code, problem = error.code, reason(error)
                if code in (404, 409):
                    self.allowed.add((method, path))
                    return code, problem
                if code not in (401, 408, 429) and code < 500 and (code != 403 or (method, path) not in self.allowed):
                    hint = ""
                    if code == 403 and 'User "' in problem and " cannot " in problem:
                        hint = f"; an administrator can grant it: torchx-kfp rbac {self.rights} | kubectl apply -f -"
                    raise Failure(f"{method} {path}: {code} {problem}{hint}") from None
                problem = f"{code} {problem}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                cause = getattr(error, "reason", error)
                if isinstance(cause, ssl.SSLCertVerificationError):
                    raise Failure(f"{self.url}: {cause}") from None
                problem = str(cause) or repr(error)
            passed = time.monotonic() - began
            if passed + pause > patience:
                raise Failure(f"{method} {path}: no answer from the API server for {passed:.0f} s: {problem}")
            if pause == 4:
                say(f"the API server does not answer ({problem}); trying for {patience - passed:.0f} s more")
            time.sleep(pause)
            pause = min(2 * pause, 15)


def reason(error: urllib.error.HTTPError, /) -> str:
    """Return the API server's message."""
    try:
        text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return error.reason
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text.strip()[:1000] or error.reason


def pieces(stream: Any, /) -> Iterator[bytes]:
    """Yield the lines of an answer, long ones in pieces of at least 64 KiB.

    Its own ``readline`` takes a connection that breaks between two chunks for the end of the answer.
    """
    rest = b""
    while True:
        data = stream.read1(1 << 16)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if rest and (not data or len(rest) >= 1 << 16):
            yield rest
            rest = b""
        if not data:
            return


def fill(node: Any, values: Mapping[str, Any], config: Any, /) -> Any:
    """Return a manifest in which the markers are replaced, and ``config`` is applied to each pod.

    ``{"@": name}`` is a value; if the value is a list, its items take the marker's place in a list.
    """
    if isinstance(node, list):
        items: list[Any] = []
        for item in node:
            value = fill(item, values, config)
            items += value if isinstance(value, list) and isinstance(item, dict) else [value]
        return items
    if not isinstance(node, dict):
        return node
    if "@" in node:
        return copy.deepcopy(values[node["@"]])
    filled = {key: fill(value, values, config) for key, value in node.items()}
    # Not an annotation of that name.
    return configure(filled, config) if isinstance(filled.get("containers"), list) else filled


def configure(pod: dict[str, Any], config: Mapping[str, Any], /) -> dict[str, Any]:
    """Return the pod's spec with what users have set on the task, which replaces what the AppDef says of it.

    Only variables of the AppDef win over those of the task, as they do where a command sets them.
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
    container["resources"] = {
        **have,
        "requests": {**requests, **(asked.get("requests") or {})},
        "limits": {**have.get("limits", {}), **limits},
    }
    pod["tolerations"] = [*pod.get("tolerations", ()), *config.get("tolerations", ())]
    pod["nodeSelector"] = {**pod.get("nodeSelector", {}), **config.get("nodeSelector", {})}
    if "affinity" in config:
        pod["affinity"] = config["affinity"]
    known = {one["name"] for one in container["env"]}
    container["env"] += [one for one in config.get("env", ()) if one["name"] not in known and not own(one["name"])]
    for where, field, key in ((container, "volumeMounts", "mountPath"), (pod, "volumes", "name")):
        added = config.get(field, ())
        taken = {one[key] for one in added}
        where[field] = [*(one for one in where[field] if one[key] not in taken), *added]
    return pod


def own(name: str, /) -> bool:
    """Tell whether a variable is the launcher's: it names the stage's pod."""
    return name.startswith("KFP_")


def state_of(spec: Any, found: Any, /) -> str:
    """Return ``succeeded``, ``failed`` or nothing."""
    value = found
    for key in spec["state"]:
        value = (value or {}).get(key)
    states = [one["type"] for one in value if one["status"] == "True"] if isinstance(value, list) else [value]
    for name in ("succeeded", "failed"):
        if set(states) & set(spec[name]):
            return name
    return ""


def notes_of(found: Any, /) -> Any:
    """Return the annotations of an object."""
    return found["metadata"].get("annotations") or {}


def launcher_of(found: Any, /) -> Any:
    """Return the attempt that follows an object."""
    return notes_of(found).get("torchx-kfp/launcher")


def why(found: Any, /) -> str:
    """Return the message of the condition that ended the object, if it has one."""
    for one in (found.get("status") or {}).get("conditions") or ():
        if one.get("status") == "True" and "Fail" in one.get("type", "") and one.get("message"):
            return f": {one['message']}"
    return ""


class Stage:
    """One attempt of a distributed stage on the cluster."""

    def __init__(
        self, spec: Any, words: Sequence[str], counts: Sequence[int], executor_input: Any, attempt: str = "", /
    ) -> None:
        self.spec = spec
        self.words = words
        self.counts = counts
        # ``(1)`` counts attempts, ``(0:0)`` is an iteration.
        node = re.sub(r"\(\d+\)", "", os.environ["KFP_ARGO_NODE"])
        digest = hashlib.sha256(f"{os.environ.get('KFP_RUN_ID')} {node}".encode()).hexdigest()
        self.name = f"{spec['stage']}-{digest[:10]}"
        with open(f"{FOLDER}/namespace") as file:
            self.namespace = file.read().strip()
        self.account = os.environ.get("KFP_SERVICE_ACCOUNT") or "default"
        self.cluster = Cluster(
            f"--engine {spec['engine']} --namespace {self.namespace} --service-account {self.account}"
        )
        self.pod = os.environ.get("KFP_POD_NAME", "")
        self.uid = os.environ.get("KFP_POD_UID")
        #: What names this attempt. When KFP retries a run, Argo gives the new pod the name of the one that failed.
        self.attempt = f"{self.pod}{f'_{self.uid[:8]}' if self.uid else ''}{attempt}"
        self.collection = self.path(spec["api"], spec["plural"])
        self.object = f"{self.collection}/{self.name}"
        #: The object that this attempt may delete, as it was seen last.
        self.seen: Any = None
        self.creating = False
        self.replicas: dict[str, Replica] = {}
        self.told: Any = ""
        self.began = time.monotonic()
        self.companions: Any = ()
        self.looks = 0
        self.over = False
        self.outputs = outputs_of(executor_input)
        config = ((executor_input.get("inputs") or {}).get("parameterValues") or {}).get(spec["config"]) or {}
        self.config = json.loads(config) if isinstance(config, str) else dict(config)
        # The launcher's own claims, which the manifest has for the roles that mount them.
        mounts = [one for one in self.config.get("volumeMounts") or () if one["mountPath"] not in spec["claims"]]
        used = {one["name"] for one in mounts}
        volumes = [one for one in self.config.get("volumes") or () if one["name"] in used]
        self.config.update(volumeMounts=mounts, volumes=volumes)
        self.run_id = os.environ.get("TORCHX_JOB_ID", "")
        #: What the object is made from; the run id differs from attempt to attempt.
        self.digest = hashlib.sha256(json.dumps([spec, words, self.config], sort_keys=True).encode()).hexdigest()[:16]

    def path(self, api: str, plural: str, /) -> str:
        """Return the path of a collection in the namespace."""
        return f"{api}/namespaces/{self.namespace}/{plural}"

    # Making and ending the object

    def find(self, patience: float = PATIENCE, /) -> Any:
        """Return the object of this name, or None."""
        code, found = self.cluster.call("GET", self.object, None, patience)
        return None if code == 404 else found

    def look(self, patience: float = PATIENCE, /) -> Any:
        """Return the object of this name, or None; forget the one that was seen if another attempt follows it now."""
        found = self.find(patience)
        before = self.seen and (self.seen["metadata"]["uid"], launcher_of(self.seen))
        now = found and (found["metadata"]["uid"], launcher_of(found))
        mine = found and (launcher_of(found) == self.attempt or now == before)
        self.seen = found if mine else None
        return found

    def delete(self, patience: float = PATIENCE, /) -> None:
        """Delete the object that was seen, unless another attempt follows it by now.

        Kubernetes takes its pods first, so that it is gone only when they are.
        """
        while self.seen:
            known = {key: self.seen["metadata"][key] for key in ("uid", "resourceVersion")}
            body = {"propagationPolicy": "Foreground", "preconditions": known}
            if self.cluster.call("DELETE", self.object, body, patience=patience)[0] != 409:
                return
            self.look(patience)

    def stop(self, number: int, _: object, /) -> None:
        """Handle a signal that ends the stage: delete first, talk later."""
        self.cluster.stopped = number
        if self.creating:
            return  # the object is deleted when the API server has answered
        try:
            if not self.seen:
                self.look(5)  # this attempt may have made it without getting the answer
            self.delete(5)
            said = f"; {self.name} is deleted" * bool(self.seen)
        except Failure as failure:
            said = f", but {self.name} is not deleted: {failure}"
        say(f"ended by signal {number}{said}")
        leave(128 + number)

    def make(self) -> Any:
        """Create the object, or adopt the one that an earlier attempt has made."""
        said = ""
        while True:
            owners = self.owners()
            found = self.seen = self.find()
            if found:
                state = state_of(self.spec, found)
                same = notes_of(found).get("torchx-kfp/spec") == self.digest
                ending = found["metadata"].get("deletionTimestamp")
                # If this attempt made it, and did not get the answer, its failure is that of the attempt.
                if same and not ending and (state != "failed" or launcher_of(found) == self.attempt):
                    adopted = self.adopt(found, owners)
                    if adopted:
                        return adopted
                    continue
                what = "is being deleted" if ending else "has failed" if same else "was made from another specification"
                what = f"{self.name} of an earlier attempt {what}; waiting until it is gone with its pods"
            elif any(pod["status"].get("phase") in ("Pending", "Running") for pod in self.list_pods()):
                ending, what = True, "waiting until the pods of an earlier attempt are gone"
            else:
                made = self.create(owners)
                if made:
                    return made
                continue
            if what != said:
                say(what)
                said = what
            if not ending:
                self.delete()
            time.sleep(0.5)

    def create(self, owners: Any, /) -> Any:
        """Create the object; return it, or None if there is one."""
        manifest = self.manifest(owners)
        self.creating = True
        try:
            code, found = self.cluster.call("POST", self.collection, manifest)
            self.seen = found if code not in (404, 409) else None
        finally:
            self.creating = False
            if self.cluster.stopped:
                self.stop(self.cluster.stopped, None)
        if code == 404:
            needs = f"the engine {self.spec['engine']!r} needs {self.spec['needs']}"
            raise Failure(f"{self.collection}: {found.strip()}: {needs}")
        if self.seen:
            say(f"created {found['kind']} {self.namespace}/{self.name}")
        return self.seen

    def adopt(self, found: Any, owners: Any, /) -> Any:
        """Say that this attempt follows the object now, and go on with its run id; None if the object has changed."""
        mine = {"torchx-kfp/launcher": self.attempt}
        version = found["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "ownerReferences": owners, "annotations": mine}}
        code, adopted = self.cluster.call("PATCH", self.object, body)
        if code in (404, 409):
            return None
        self.seen = adopted
        self.run_id = notes_of(found).get("torchx-kfp/run-id", "")
        if self.run_id and "run_id" in self.outputs:
            with open(self.outputs["run_id"]["outputFile"], "w") as file:
                file.write(self.run_id)
        if launcher_of(found) != self.attempt:
            known = f", run id {self.run_id}" * bool(self.run_id)
            say(f"following {found['kind']} {self.namespace}/{self.name} of an earlier attempt{known}")
        return adopted

    def owners(self) -> Any:
        """Return the Workflow that owns this pod, or the pod itself, as the owner of the object."""
        path = f"{self.path('api/v1', 'pods')}?fieldSelector=metadata.name%3D{self.pod}"
        for pod in self.cluster.call("GET", path)[1]["items"]:
            meta = pod["metadata"]
            if self.uid not in (None, meta["uid"]):
                continue
            for owner in meta.get("ownerReferences") or ():
                if owner["kind"] == "Workflow":
                    return [{key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}]
            return [{"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}]
        # A node that was cut off and is back: this process has outlived its pod.
        self.seen = None
        raise Failure(f"the pod {self.pod} is gone")

    def list_pods(self) -> Any:
        """Return the pods of the stage's replicas, also of earlier attempts."""
        path = f"{self.path('api/v1', 'pods')}?labelSelector=torchx-kfp%2Fstage%3D{self.name}"
        return self.cluster.call("GET", path)[1]["items"]

    def manifest(self, owners: Any = (), /) -> Any:
        """Return the object, with everything that is known only now."""

        def escape(text: str, /) -> str:
            return text.replace("$", "$$")  # the kubelet would expand it

        spec, words = self.spec, self.words
        replica = "$(TORCHX_REPLICA_ID)"
        names = {"name": self.name}
        fewest = [min(role["fewest"], n) for role, n in zip(spec["roles"], self.counts)]  # noqa: B905 (Python 3.8)
        values: dict[str, Any] = {
            **names,
            "service_account": self.account,
            "fewest": min(spec["available"] or sum(fewest), sum(self.counts)),
        }
        shared = {name: os.environ[name] for name in spec["protocol"] if name in os.environ}
        if self.run_id:
            shared["TORCHX_JOB_ID"] = self.run_id
        for position, role in enumerate(spec["roles"]):
            alone = position == 0 and self.counts[0] == 1
            variables = {
                **{name: escape(value) for name, value in shared.items()},
                "TORCHX_NUM_REPLICAS": str(self.counts[position]),
                "TORCHX_RANK0_HOST": "localhost" if alone else spec["host"] % names,
                **environment(role, words, replica, escape),
            }
            path = f"metadata.annotations['{spec['index']}']"
            command = [texts(parts, words, replica, escape) for parts in role["command"]]
            if position == 0 and not alone:
                # For replica 0, the host is localhost, as TorchX has it: its own name may not resolve yet.
                script = '[ "$$TORCHX_REPLICA_ID" != 0 ] || TORCHX_RANK0_HOST=localhost; exec "$$@"'
                command = ["sh", "-c", script, "sh", *command]
            values[f"{position}.command"] = command
            values[f"{position}.env"] = [
                {"name": "TORCHX_REPLICA_ID", "valueFrom": {"fieldRef": {"fieldPath": path}}},
                *({"name": name, "value": value} for name, value in variables.items()),
            ]
            values[f"{position}.replicas"] = self.counts[position]
            values[f"{position}.fewest"] = fewest[position]
            values[f"{position}.image"] = texts(role["image"], words, "") if "image" in role else ""
        made = fill(spec["object"], values, self.config)
        self.companions = [(api, plural, fill(one, values, {})) for api, plural, one in spec["companions"]]
        notes = {"spec": self.digest, "run-id": self.run_id, "launcher": self.attempt}
        made["metadata"]["annotations"].update({f"torchx-kfp/{key}": value for key, value in notes.items()})
        made["metadata"]["ownerReferences"] = list(owners)
        return made

    # Following it

    def run(self) -> int:
        """Create or adopt the object, follow it to its end, and return the exit code of the stage."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.stop)
        try:
            return self.finish(self.follow(self.make()))
        except Exception:  # whatever it is, nobody would follow the object
            if self.seen:
                with contextlib.suppress(Failure):
                    self.delete(5)
                    say(f"{self.name} is deleted")
            raise

    def follow(self, found: Any, /) -> Any:
        """Follow the object, and return it when it has ended."""
        self.accompany(found)
        while True:
            items = self.list_pods()
            self.watch(items, bool((found.get("spec") or {}).get("suspend")))
            if state_of(self.spec, found):
                return found
            # A list of 1,000 pods has several megabytes.
            time.sleep(0.5 + len(items) / 100)
            found = self.look()
            if not found:
                raise Failure(f"{self.name} was deleted, but not by this stage: its replicas had not ended")
            if not self.seen:
                raise Failure(f"another attempt of this stage follows {self.name} now")

    def finish(self, found: Any, /) -> int:
        """Let the logs be read to their ends; return the exit code of the stage that has ended."""
        self.over = True
        deadline = time.monotonic() + 30
        for replica in self.replicas.values():
            if replica.reader:
                replica.reader.join(max(0.0, deadline - time.monotonic()))
        if state_of(self.spec, found) == "succeeded":
            say(f"{self.name} succeeded")
            return 0
        code = self.explain(why(found))
        try:
            self.delete(60)
        except Failure as failure:
            say(f"{self.name} is not deleted: {failure}")
        return code

    def accompany(self, found: Any, /) -> None:
        """Create what the object owns, such as the service that gives its pods names."""
        owner = {key: found[key] for key in ("apiVersion", "kind")}
        owner.update({key: found["metadata"][key] for key in ("name", "uid")})
        if not self.companions:
            self.manifest()
        for api, plural, one in self.companions:
            one["metadata"]["ownerReferences"] = [owner]
            path = f"{self.path(api, plural)}/{self.name}"
            while self.cluster.call("POST", self.path(api, plural), one)[0] == 409:
                # It is that of this object, or of an earlier one. The garbage collector may be about to delete that:
                # it would do so even if it had another owner by then.
                code, there = self.cluster.call("GET", path)
                owners = code != 404 and there["metadata"].get("ownerReferences")
                if owners and owner["uid"] in [each["uid"] for each in owners]:
                    break
                if code != 404 and not owners:
                    body = {"metadata": {"uid": there["metadata"]["uid"], "ownerReferences": [owner]}}
                    self.cluster.call("PATCH", path, body)
                else:
                    time.sleep(0.5)

    def watch(self, items: Any, suspended: bool, /) -> None:
        """Take note of the pods, start to read the logs of new ones, and say what keeps others from running."""
        seen = set()
        for item in sorted(items, key=lambda item: item["metadata"]["creationTimestamp"]):
            uid = item["metadata"]["uid"]
            seen.add(uid)
            if uid not in self.replicas:
                self.replicas[uid] = Replica(self, item)
            self.replicas[uid].update(item)
        for uid, replica in self.replicas.items():
            if uid not in seen and not replica.ended:
                replica.ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                replica.gone = True
                say(f"{replica.label}: its pod {replica.pod} is gone")
        self.looks += 1
        present = [self.replicas[uid] for uid in seen]
        total = sum(self.counts)
        done = sum(replica.ended != "" and not replica.code for replica in present)
        text = tally([replica.label for replica in present if replica.runs], total, done)
        if done == total:
            text = f"all {total} replicas succeeded"
        waiting = min(((replica.label, *replica.waiting) for replica in present if replica.waiting), default=())
        reason = waiting[1].replace("ErrImagePull", "ImagePullBackOff") if waiting else ""  # they alternate
        details = ""
        if waiting:
            details = f"; {waiting[0]} waits: {': '.join(filter(None, waiting[1:]))}"
        elif suspended:
            details = reason = "; it is suspended: a queue has not admitted it yet"
        elif not present:
            details = reason = "; it has no pods yet"
            if time.monotonic() > self.began + 10:
                kind = self.spec["plural"] + "." * ("/" in self.spec["api"]) + self.spec["api"].split("/")[1]
                details = reason = f"{details}: kubectl describe {kind} {self.name} -n {self.namespace}"
        if (text, reason) != self.told:
            say(text + details)
            self.told = text, reason

    def explain(self, message: str, /) -> int:
        """Say which replica failed first, and with which last lines; return its exit code."""
        # Of pods that replaced each other, the last one counts.
        last = {one.label: one for one in self.replicas.values()}
        failed = [one for one in last.values() if one.code or one.gone]
        if not failed:
            say(f"{self.name} failed{message}")
            return 1
        # Times are whole seconds: the engine may have ended others in that of the first failure. That of a pod that is
        # gone is when it was missed: the engine may have ended others before.
        lost = any(one.gone and not one.deleted for one in failed)
        first = min(failed, key=lambda one: (lost and one.deleted, one.ended, one.deleted, one.gone, one.label))
        lines = list(first.lines)
        if not lines and not first.gone:
            try:
                path = f"{self.path('api/v1', 'pods')}/{first.pod}/log?container={first.container}&tailLines={KEPT}"
                with self.cluster.open("GET", path) as answer:
                    lines = answer.read(1 << 16).splitlines()
            except (OSError, http.client.HTTPException):
                pass
        what = "is gone" if first.gone else f"failed first, with exit code {first.code}{first.why}"
        say(
            f"{self.name} failed{message}\n{first.label} (pod {first.pod}, node {first.node}) {what}"
            + ("; its last lines:" if lines else "")
        )
        for line in last_lines(lines, 20):
            show(f"  {first.label}", line)
        return first.code if 0 < first.code < 256 else 1


class Replica:
    """A pod of the stage, as far as it has been seen."""

    def __init__(self, stage: Stage, item: Any, /) -> None:
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


def main(spec_text: str, executor_input: str, /, *words: str) -> None:
    """Run the stage's replicas, and exit with the stage's exit code."""
    spec = json.loads(spec_text)
    try:
        counts = [count(role, words) for role in spec["roles"]]
        node = os.environ.get("KFP_ARGO_NODE")
        given = json.loads(executor_input)
        outputs = outputs_of(given)
        if node is None:
            if os.path.exists(f"{FOLDER}/token") and "TORCHX_KFP_LOCAL_RUN" not in os.environ:
                raise Failure(
                    "this pod lacks the variable KFP_ARGO_NODE: the pipeline's settings for Kubernetes are lost"
                )
            leave(run_here(spec, words, counts, outputs))
        if not node:
            raise Failure("the pod lacks the annotation workflows.argoproj.io/node-name, from which its name is made")
        attempt = 1
        while True:
            try:
                stage = Stage(spec, words, counts, given, f"/{attempt}" * (attempt > 1))
            except (OSError, KeyError) as error:
                raise Failure(f"the pod has no access to the cluster's API: {error!r}") from None
            code = stage.run()
            # It may have adopted a later attempt.
            adopted = re.search(r"_(\d{1,7})$", stage.run_id)
            attempt = 1 + max(attempt, int(adopted[1]) if adopted else 1)
            if not code or attempt > spec.get("retries", 0) + 1:
                leave(code)
            begin_again(spec, attempt, code, outputs)
    except Failure as failure:
        say(failure)
        leave(spec.get("failure", 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
