"""etcd, the API server and the controllers of Kubernetes, on free ports of this machine.

All processes that run tests share one. It is a program that ends when the last of them has ended, however that came to
be: each has a lock on a file, and the system gives up the locks of a process that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes import controllers
from tests.kubernetes.api import Api
from tests.kubernetes.certificates import Authority, write_key_pair
from tests.kubernetes.waiting import until_it_answers

REPOSITORY = Path(__file__).parent.parent.parent
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
#: Where dev/ci/with-cluster builds what is missing.
BUILT = REPOSITORY / ".cache" / "cluster" / "bin"
CONTROLLERS = (
    "job-controller", "garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
    "root-ca-certificate-publisher-controller", "resourcequota-controller", "endpoints-controller",
    "endpointslice-controller", "ttl-after-finished-controller", "pod-garbage-collector-controller",
)  # fmt: skip
#: The definitions of JobSet 0.12 and Trainer 2.2.1, without descriptions.
CRDS = Path(__file__).parent / "crds"
#: Seconds until all answers, on a busy machine.
PATIENCE = 240


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane, and its folder: certificates, logs, and a kubeconfig of its administrator."""

    folder: Path
    url: str

    @property
    def authority(self) -> Authority:
        return Authority(self.folder)

    @functools.cached_property
    def api(self) -> Api:
        """A client of the administrator."""
        return Api(self.url, self.authority.file, (self.folder / "admin.crt", self.folder / "admin.key"))

    def log(self, program: str) -> str:
        """Return what a program has written."""
        return (self.folder / f"{program}.log").read_text()


def find_programs() -> Path | str:
    """Return the folder of the programs, or why there is none and what to do."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    folder = Path(named) if named else BUILT
    missing = [program for program in PROGRAMS if not (folder / program).exists()]
    if not missing:
        return folder
    return (
        f"{folder} has no {', '.join(missing)}: run the tests with `dev/ci/with-cluster COMMAND`, which builds them, "
        "or set KUBEBUILDER_ASSETS to a folder that has them"
    )


def find_controllers(programs: Path) -> Sequence[Path]:
    """Return the controllers of JobSet and Trainer, if they are built: control planes of others come without them."""
    for folder in (programs, BUILT):
        found = [folder / controllers.JOBSET, folder / controllers.TRAINER]
        if all(each.exists() for each in found):
            return found
    return []


@contextlib.contextmanager
def shared(folder: Path, programs: Path) -> Iterator[ControlPlane]:
    """Use the control plane of a folder, which is started if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "users").open("a") as users:
        with (folder / "start").open("a") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            # While one that nobody uses is ending, it has this lock.
            fcntl.flock(users, fcntl.LOCK_SH)
            if not (folder / "state.json").exists():
                _start(folder, programs)
        yield ControlPlane(folder, json.loads((folder / "state.json").read_text())["url"])


def _start(folder: Path, programs: Path) -> None:
    command = [sys.executable, "-m", "tests.kubernetes.control_plane", str(folder), str(programs)]
    log = folder / "log"
    with log.open("w") as output:
        # A session of its own: an interrupt ends the tests, and then this.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=REPOSITORY, start_new_session=True
        )
    deadline = time.monotonic() + PATIENCE
    while not (folder / "state.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise AssertionError(f"The control plane does not start: {log.read_text()}")
        time.sleep(0.05)
    # It outlives this process if others use it: nobody waits for it.
    process.returncode = 0


def _serve(folder: Path, programs: Path) -> None:
    """Run a control plane until no process has a lock on the folder's file of users."""
    memory = Path("/dev/shm")
    with contextlib.ExitStack() as stack, (folder / "users").open("a") as users:
        # etcd waits for its disk after each change.
        data = tempfile.mkdtemp(prefix="torchx-kfp-etcd-", dir=memory if os.access(memory, os.W_OK) else None)
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        stack.callback((folder / "state.json").unlink, missing_ok=True)
        processes = Processes(folder, programs)
        stack.callback(processes.end)
        for attempt in range(3):
            try:
                url = _start_programs(processes, Path(data, str(attempt)))
                break
            except SystemExit as error:
                # Another process may have taken a port since it was found free.
                processes.end()
                if "address already in use" not in str(error) or attempt == 2:
                    raise
        partial = folder / "state.json.part"
        partial.write_text(json.dumps({"url": url}))
        partial.rename(folder / "state.json")
        while True:
            processes.check()
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.5)


class Processes:
    """Programs that end with this process. They collect garbage less often, as they end soon."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, program: str | Path, environ: Mapping[str, str] | None = None, **options: object) -> None:
        """Start a program, with its log in the folder."""
        file = self.programs / program
        program = file.name
        words = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in options.items()]
        with (self.folder / f"{program}.log").open("w") as output:
            self._processes[program] = subprocess.Popen(
                [file, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={"GOGC": "400", **os.environ, **(environ or {})}, preexec_fn=_end_with_parent,
            )  # fmt: skip

    def check(self) -> None:
        for program, process in self._processes.items():
            if process.poll() is not None:
                log = (self.folder / f"{program}.log").read_text()
                sys.exit(f"{program} has ended ({process.returncode}): {log[-3000:]}")

    def end(self) -> None:
        # Nothing of it is needed again, so nothing has to be finished.
        for process in self._processes.values():
            process.kill()
            process.wait()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    PR_SET_PDEATHSIG = 1
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _start_programs(processes: Processes, data: Path) -> str:
    folder = processes.folder
    authority = Authority(folder).create()
    server = authority.sign("server", "kube-apiserver")
    admin = authority.sign("admin", "admin", "system:masters")
    write_key_pair(folder / "tokens.key", folder / "tokens.pub")
    ports = _free_ports(6)
    etcd, peer, url = f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", f"https://127.0.0.1:{ports[2]}"
    processes.start(
        "etcd",
        data_dir=data,
        listen_client_urls=etcd,
        advertise_client_urls=etcd,
        listen_peer_urls=peer,
        initial_advertise_peer_urls=peer,
        initial_cluster=f"default={peer}",
    )
    processes.start(
        "kube-apiserver",
        etcd_servers=etcd,
        bind_address="127.0.0.1",
        secure_port=ports[2],
        advertise_address="127.0.0.1",
        endpoint_reconciler_type="none",
        tls_cert_file=server[0],
        tls_private_key_file=server[1],
        client_ca_file=authority.file,
        authorization_mode="RBAC",
        allow_privileged="true",
        service_account_issuer="https://kubernetes.default.svc",
        service_account_key_file=folder / "tokens.pub",
        service_account_signing_key_file=folder / "tokens.key",
        service_cluster_ip_range="10.96.0.0/16",
        kubelet_certificate_authority=authority.file,
        kubelet_client_certificate=admin[0],
        kubelet_client_key=admin[1],
        kubelet_preferred_address_types="InternalIP",
        profiling=False,
    )
    _write_kubeconfig(folder, url)
    api = ControlPlane(folder, url).api
    _wait(processes, api, "/readyz")
    # Before the garbage collector starts, which looks for new kinds every 30 s.
    _install(processes, api)
    processes.start(
        "kube-controller-manager",
        kubeconfig=folder / "kubeconfig",
        controllers=",".join(CONTROLLERS),
        bind_address="127.0.0.1",
        secure_port=ports[3],
        root_ca_file=authority.file,
        leader_elect=False,
        kube_api_qps=1000,
        kube_api_burst=2000,
        concurrent_gc_syncs=4,
        profiling=False,
    )
    programs = find_controllers(processes.programs)
    for program, port in zip(programs, ports[4:], strict=False):
        controllers.start(processes, api, program, port)
    # The controllers run once the namespace `default` has its service account.
    _wait(processes, api, "/api/v1/namespaces/default/serviceaccounts/default")
    for program in programs:
        controllers.wait(processes, api, program, PATIENCE)
    return url


def _install(processes: Processes, api: Api) -> None:
    """Add the kinds of JobSet and Trainer."""
    for file in sorted(CRDS.iterdir()):
        definition = api.create(json.loads(file.read_text()))
        spec = definition["spec"]
        version, plural = f"/apis/{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["plural"]
        _wait(processes, api, f"{version}/{plural}")

        def discover(version: str = version, plural: str = plural) -> None:
            assert plural in [each["name"] for each in api.get(version)["resources"]]

        # Trainer's controller ends if it does not find its kinds.
        until_it_answers(discover, processes.check, version, PATIENCE)


def _wait(processes: Processes, api: Api, path: str) -> None:
    until_it_answers(lambda: api.get(path), processes.check, path, PATIENCE)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _write_kubeconfig(folder: Path, url: str) -> None:
    """Write the administrator's kubeconfig. JSON is YAML."""
    user = {"client-certificate": str(folder / "admin.crt"), "client-key": str(folder / "admin.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority": str(folder / "ca.crt")}}],
        "users": [{"name": "admin", "user": user}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        "current-context": "tests",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))
