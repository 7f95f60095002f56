"""The time from the start of a distributed stage to that of its first replica, in seconds, beside TorchX's scheduler.

    .ci/with-cluster python -m benchmarks.launcher

Both submit the same AppDef as a Volcano Job to the same test server, in turn: the launcher in its pod, as the stage's
command runs it, and TorchX's Kubernetes scheduler from a script. The API server is real; Volcano's controller and the
kubelet are the doubles of the tests, whose time is part of both. A file tells when the first replica has started.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchx.specs import AppDef, Role

from tests.cluster.control_plane import find_programs, shared
from tests.cluster.kubelet import Kubelet
from tests.cluster.namespaces import Namespace, bind, new_namespace
from tests.cluster.stages import Stage
from tests.cluster.volcano import JOBS, Volcano

ROUNDS = 10
REPLICAS = 2
#: What a script does to submit an AppDef with TorchX.
SUBMIT = """
import sys
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, Role
role = Role("trainer", image="any", entrypoint="sh", args=["-c", sys.argv[1]], num_replicas=int(sys.argv[2]))
create_scheduler("benchmark").submit(AppDef("train", [role]), {"namespace": sys.argv[3], "queue": "default"})
"""


class Race:
    """Starts a submission, and measures how long its first replica takes to start."""

    def __init__(self, namespace: Namespace, kubelet: Kubelet, folder: Path, kubeconfig: Path) -> None:
        self.namespace = namespace
        self.folder = folder
        self.kubeconfig = kubeconfig
        self.begun, self.started, self.go = (folder / name for name in ("begun", "started", "go"))
        #: Replicas wait for the end of the round.
        self.script = f"[ -e {self.started} ] || : >{self.started}; while [ ! -e {self.go} ]; do sleep 0.05; done"
        self.prefix = ("sh", "-c", f': >{self.begun}; exec "$@"', "sh")
        role = Role("trainer", image="any", entrypoint="sh", args=["-c", self.script], num_replicas=REPLICAS)
        self.stage = Stage(namespace, kubelet, folder, AppDef("train", [role]), tracked=False, engine="volcano")
        self.stage.prefix = self.prefix

    def launcher(self) -> float:
        attempt = self.stage.start(node=f"round-{self.stage.attempts}.{{}}")
        seconds = self._wait()
        assert attempt.ended() == 0, attempt.log
        return seconds

    def torchx(self) -> float:
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig)}
        words = [sys.executable, "-c", SUBMIT, self.script, str(REPLICAS), self.namespace.name]
        subprocess.run([*self.prefix, *words], env=environ, check=True, stderr=subprocess.DEVNULL)
        return self._wait()

    def _wait(self) -> float:
        while not self.started.exists():
            time.sleep(0.01)
        seconds = self.started.stat().st_mtime - self.begun.stat().st_mtime
        self.go.touch()
        return seconds

    def clear(self) -> None:
        for job in self.namespace.list(JOBS):
            path = self.namespace.path(JOBS, job["metadata"]["name"])
            self.namespace.api.delete(path, {"propagationPolicy": "Foreground"})
        while self.namespace.list(JOBS):
            time.sleep(0.05)
        for file in (self.begun, self.started, self.go):
            file.unlink()


def main() -> None:
    programs = find_programs()
    if isinstance(programs, str):
        sys.exit(programs)
    found: dict[str, list[float]] = {"launcher": [], "torchx": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with shared(folder / "cluster", programs) as cluster, new_namespace(cluster) as namespace:
            kubelet = Kubelet(namespace, folder / "kubelet", folder)
            kubelet.start()
            volcano = Volcano(namespace)
            try:
                rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
                metadata = {"name": "everything"}
                kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
                namespace.create({**kind, "metadata": metadata, "rules": rules})
                bind(namespace, "everything")
                race = Race(namespace, kubelet, folder, cluster.folder / "kubeconfig")
                for _ in range(ROUNDS):
                    for case, seconds in found.items():
                        seconds.append(getattr(race, case)())
                        race.clear()
            finally:
                volcano.end()
                kubelet.end()
    ours, theirs = (statistics.median(seconds) for seconds in found.values())
    print(f"launcher {ours:.2f} s, TorchX's Kubernetes scheduler {theirs:.2f} s, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
