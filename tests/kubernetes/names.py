"""Names of pods and headless services, in the ``/etc/hosts`` of each container.

The endpoint controller of the control plane decides which pods have a name, and when. It refuses addresses of this
machine (127/8), so the API server has others: a pod whose ``podIP`` is 10.1.2.3 is reached at 127.1.2.3.
"""

from __future__ import annotations

import threading
from pathlib import Path

from tests.kubernetes.api import Object


def reachable(address: str) -> str:
    """Return where a pod with this address is reached."""
    return "127." + address.partition(".")[2]


class Names:
    """Keeps the files of all containers of a namespace up to date."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._slices: dict[str, str] = {}
        self._files: dict[Path, str] = {}
        self._lock = threading.Lock()

    def add(self, file: Path, pod: Object, address: str) -> None:
        """Write the file of a pod's containers: its own name is there from the beginning."""
        name, subdomain = hostname(pod), pod["spec"].get("subdomain")
        full = [f"{name}.{subdomain}.{self._namespace}.svc.cluster.local"] if subdomain else []
        own = "\n".join(["127.0.0.1\tlocalhost", "\t".join([reachable(address), *full, name]), ""])
        with self._lock:
            file.write_text("")
            self._files[file] = own
            self._write(file)

    def remove(self, file: Path) -> None:
        with self._lock:
            self._files.pop(file, None)

    def update(self, event: str, found: Object) -> None:
        """Take over a change of an EndpointSlice."""
        labels = found["metadata"].get("labels", {})
        with self._lock:
            self._slices.pop(found["metadata"]["name"], None)
            if event != "DELETED" and "service.kubernetes.io/headless" in labels:
                lines = self._lines(labels["kubernetes.io/service-name"], found)
                self._slices[found["metadata"]["name"]] = "".join(f"{line}\n" for line in lines)
            for file in self._files:
                self._write(file)

    def _lines(self, service: str, found: Object) -> list[str]:
        lines = []
        for endpoint in found["endpoints"] or ():
            if endpoint["conditions"].get("ready"):
                hosts = [service, *([f"{endpoint['hostname']}.{service}"] if "hostname" in endpoint else [])]
                names = [f"{host}{end}" for host in reversed(hosts) for end in self._ends()]
                lines += ["\t".join([reachable(address), *names]) for address in endpoint["addresses"]]
        return lines

    def _ends(self) -> list[str]:
        return [f".{self._namespace}.svc.cluster.local", "", f".{self._namespace}", f".{self._namespace}.svc"]

    def _write(self, file: Path) -> None:
        # The same file, since it is mounted; a reader never finds it empty.
        content = (self._files[file] + "".join(self._slices.values())).encode()
        with file.open("r+b", buffering=0) as output:
            output.write(content)
            output.truncate()


def hostname(pod: Object) -> str:
    """Return the host name of a pod's containers."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]
