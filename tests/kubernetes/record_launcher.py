"""Record the launcher on a real control plane, for ``tests/recordings.py``, which says how to call this.

Names, uids and times are replaced by others that keep their order. Of what the API server answers, the parts are kept
that a launcher could read: metadata, states, and the few fields of specifications that controllers set.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchx.specs import AppDef, Role

from tests.kubernetes.control_plane import ControlPlane, find_programs, shared
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.namespaces import new_namespace
from tests.kubernetes.passing import PassingServer, Request
from tests.kubernetes.pods import path_of_programs
from tests.kubernetes.stages import RUN, Attempt, Stage, give_rights
from tests.kubernetes.waiting import until
from tests.recordings import CASES, CONFIG, NAMES, Exchange, Recording, split
from torchx_kfp.contract.carried.programs import LAUNCHER

#: The same for all recordings, since its path is among the words that the launcher is given.
WORK = Path(tempfile.gettempdir()) / "torchx-kfp-recording"
#: Takes the place of python3: it writes what it is given to a file.
_SHIM = """#!{python}
import json, os, sys
with open(f"{folder}/{{os.environ['KFP_POD_NAME']}}.json", "w") as file:
    json.dump([sys.argv[1:], dict(os.environ)], file)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VERSION = re.compile(r'(?<="resourceVersion": ")[0-9]+')
_ONE_POD = "?fieldSelector=metadata.name%3D"
_METADATA = {"managedFields", "generation", "selfLink"}


def app_of(case: str, go: Path) -> AppDef:
    """Return the application of a case. It goes on once the file is there."""
    role = Role("trainer", "any", entrypoint="sh", args=["-c", CASES[case]], env={"GO": str(go)}, num_replicas=2)
    return AppDef("train", [role])


def record(cluster: ControlPlane, engine: str, case: str) -> Recording:
    """Run a stage, and return the recording of its last attempt."""
    folder = WORK / engine / case
    shims = folder / "shims"
    shims.mkdir(parents=True)
    (shims / "python3").write_text(_SHIM.format(python=sys.executable, folder=shims))
    (shims / "python3").chmod(0o755)
    with contextlib.ExitStack() as stack:
        namespace = new_namespace(cluster, f"recorded-{engine}-{case}")
        kubelet = Kubelet(namespace, folder / "kubelet", folder)
        kubelet.start()
        stack.callback(kubelet.end)
        give_rights(namespace, engine, "launcher")
        go = folder / "go"
        stage = Stage(namespace, kubelet, folder, app_of(case, go), engine=engine, config=CONFIG)
        stage.account = "launcher"

        def start(server: PassingServer) -> Attempt:
            stage.environ = {"PATH": f"{shims}:{path_of_programs()}", "KUBERNETES_SERVICE_PORT": server.port}
            return stage.start()

        with PassingServer(cluster) as server:
            attempt = start(server)
            if case in ("adopted", "terminated"):
                attempt.says("trainer/0 | waits")
                attempt.says("trainer/1 | waits")
                attempt.says("2 of 2 replicas run")
                # After some more looks, nothing is new.
                seen = len(server.requests)
                until(lambda: len(server.requests) > seen + 8)
            if case == "adopted":
                kubelet.kill(attempt.name)
            elif case == "terminated":
                kubelet.terminate(attempt.name)
            code = attempt.ended()
        if case == "adopted":
            with PassingServer(cluster) as server:
                attempt = start(server)
                attempt.says("of an earlier attempt")
                attempt.says("trainer/0 | waits")
                attempt.says("trainer/1 | waits")
                go.touch()
                code = attempt.ended()
        (option, program, spec, executor_input, *words), environ = json.loads(
            (shims / f"{attempt.name}.json").read_text()
        )
        assert (option, program) == ("-c", LAUNCHER)
        said, shown = split(attempt.log)
        read = json.loads(spec)
        own = {name for role in read["roles"] for name, parts in role["env"] if parts is None}
        names = sorted(name for name in environ if name.startswith(("KFP_", "TORCHX_")) or name in own)
        made = Recording(
            spec=read,
            executor_input=json.loads(executor_input),
            words=words,
            environ={name: environ[name] for name in names},
            namespace=namespace.name,
            said=said,
            shown=shown,
            code=code,
            run_id=attempt.run_id,
            # A signal may have ended a look in the middle. Readers of logs look at their pods at any time.
            exchanges=[
                exchange(each)
                for each in server.requests
                if is_log(each) or (each.whole and (_ONE_POD not in each.path or each.path.endswith(attempt.name)))
            ],
        )
        return normalized(made, {kubelet.node: "node-1", stage.workflow: "workflow-1"})


def is_log(request: Request) -> bool:
    return "/log?" in request.path


def exchange(request: Request) -> Exchange:
    answer = request.answer.decode()
    return Exchange(
        request.method,
        request.path.lstrip("/"),
        json.loads(request.body) if request.body else None,
        request.status,
        answer if is_log(request) or not answer.startswith("{") else pruned(json.loads(answer)),
        request.whole,
    )


def pruned(found: Any) -> Any:
    """Return an object, or a list of them, without what is of no use to launchers, and long."""
    if "items" in found:
        items = [pruned(item) for item in found["items"]]
        for item in items:
            del item["metadata"]["resourceVersion"]
        return {**found, "metadata": {}, "items": items}
    if found.get("kind") == "Status":
        return found
    made = {**found, "metadata": {key: value for key, value in found["metadata"].items() if key not in _METADATA}}
    if "spec" in found:
        made["spec"] = {key: value for key, value in found["spec"].items() if key in ("nodeName", "suspend")}
    if "containerStatuses" in found.get("status", {}):
        kept = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")
        made["status"] = {key: value for key, value in found["status"].items() if key in kept}
    return made


def without_repetitions(exchanges: list[Exchange]) -> list[Exchange]:
    """Return the exchanges without looks, or pairs of looks, that have found nothing new, and with each log once."""
    logs = [one for one in exchanges if one.is_log]
    made: list[Exchange] = []
    requests = [one for one in exchanges if one not in logs]
    for one, following in itertools.zip_longest(requests, requests[1:]):
        made.append(one)
        for length in (1, 2):
            last = made[-length:]
            is_look = all(each.method == "GET" for each in last) and following and following.method == "GET"
            if is_look and last == made[-2 * length : -length]:
                del made[-length:]
                break
    # How often a log is read, and from when on, depends on when the reader has come to its end.
    whole = {one.path: one for one in reversed(logs) if "&sinceTime=" not in one.path}
    return [*made, *sorted(whole.values(), key=lambda one: one.path)]


def normalized(recording: Recording, names: Mapping[str, str]) -> Recording:
    """Return the recording with names, uids and times that do not differ from run to run."""
    fields = {**vars(recording), "exchanges": [vars(one) for one in recording.exchanges]}
    text = json.dumps(fields)
    for name, replaced in names.items():
        text = text.replace(name, replaced)
    moments = sorted(set(map(moment, _TIME.findall(text))))

    def time_of(found: re.Match[str]) -> str:
        second = moments.index(moment(found[0]))
        fraction = f".{'0' * 9}" if "." in found[0] else ""
        return f"2025-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{fraction}Z"

    uids = list(dict.fromkeys(uid for uid in _UID.findall(text) if uid != RUN))

    def uid_of(found: re.Match[str]) -> str:
        return found[0] if found[0] == RUN else f"00000000-0000-0000-0000-{uids.index(found[0]):012}"

    # The beginning of a pod's UID, in run ids and in what names an attempt.
    text = re.sub(r"(?<=[\w-]_)[0-9a-f]{8}(?=[\"/_\\])", "0" * 8, text)
    versions = sorted(set(_VERSION.findall(text)), key=int)
    text = _UID.sub(uid_of, _TIME.sub(time_of, _VERSION.sub(lambda found: str(versions.index(found[0]) + 1), text)))
    made: list[str] = []
    for one in recording.exchanges:
        for item in one.answer.get("items", ()) if isinstance(one.answer, dict) else ():
            name, prefix = item["metadata"]["name"], item["metadata"].get("generateName")
            if prefix and name not in made:
                made.append(name)
                text = text.replace(name, f"{prefix}{len(made):05}")
    fields = json.loads(text)
    exchanges = [Exchange(**one) for one in fields.pop("exchanges")]
    return Recording(**fields, exchanges=without_repetitions(exchanges))


def moment(time: str) -> tuple[str, str]:
    """Return a time so that times compare."""
    return time[:19], time[20:-1].ljust(9, "0")


def main(names: list[str]) -> None:
    programs = find_programs()
    if isinstance(programs, str):
        sys.exit(programs)
    shutil.rmtree(WORK, ignore_errors=True)
    with shared(WORK / "cluster", programs) as cluster:
        for name in names or NAMES:
            made = record(cluster, *name.split("."))
            made.write(name)
            print(f"{name}: exit code {made.code}, {len(made.exchanges)} exchanges")
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
