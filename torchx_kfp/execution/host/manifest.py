"""Nodes from the manifest of the Argo workflow that v1beta1 returns with a run.

It is the only answer of KFP 2 that has pods, exit codes, decisions of drivers, and what a pod waits for.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from torchx_kfp.errors import HostError
from torchx_kfp.execution.host.answers import as_object, as_text, refuse_run_id
from torchx_kfp.execution.host.connection import V1BETA1, Connection
from torchx_kfp.execution.host.nodes import Node, Nodes
from torchx_kfp.execution.host.pod_spec import PodSpec
from torchx_kfp.execution.host.states import seconds
from torchx_kfp.execution.runs.vocabulary import State

#: Argo omits a node if those before it did not end as it needs.
_STATES = {
    "Pending": State.QUEUED,
    "Running": State.RUNNING,
    "Succeeded": State.SUCCEEDED,
    "Skipped": State.SKIPPED,
    "Omitted": State.NOT_RUN,
    "Failed": State.FAILED,
    "Error": State.FAILED,
}
#: The most bytes of unpacked nodes that are read. A workflow has 1 MiB, and its nodes shrink to a 20th to a 30th.
MOST_UNPACKED = 32 << 20
#: The longest name of a pod, without the hash at its end.
_LONGEST_PREFIX = 253 - 10 - 1
_POD_NAMES = "workflows.argoproj.io/pod-name-format"


class ManifestSource:
    """Asks a host for the nodes of a run. Another API of KFP is another class that returns ``Nodes``."""

    def __init__(self, connection: Connection, run_id: str) -> None:
        """Name the run. Nothing is asked yet."""
        self._connection = connection
        self._run_id = run_id
        #: Why there are no nodes, as a sentence; empty if there are.
        self.problem = ""
        #: The last manifest, and its nodes.
        self._manifest = ""
        self._nodes: Nodes | None = None

    def read(self) -> Nodes | None:
        """Return the nodes: the same object as before if nothing has changed, None if there have not been any so far.

        Raises:
            HostError: the host has provided nodes before, and does not now.
        """
        path = f"{V1BETA1}/runs/{quote(self._run_id, safe='')}"
        try:
            answer = self._connection.get(path)
            refuse_run_id(as_object(answer, "run").get("id"), f"GET {self._connection.name}{path}", self._run_id)
            manifest = manifest_of(answer)
            if manifest != self._manifest:
                self._nodes, self._manifest = read_manifest(manifest), manifest
            self.problem = ""
        except (HostError, ValueError) as error:
            if self._manifest and isinstance(error, HostError):
                raise
            # A host may lack this version of the API, or refuse it.
            self.problem = (
                f"{self._connection.name} reports only the state of the run (v2beta1), not its nodes (v1beta1), so its "
                f"stages, their logs, exit codes and results are missing. ({str(error).rstrip('.')}.)"
            )
        return self._nodes

    def pod_spec(self, driver: str) -> PodSpec | None:
        """Return what a stage's driver has decided about its pod; None if there is no pod, because it was cached.

        Args:
            driver: the name of the driver's node.

        Raises:
            ValueError: the manifest has another form than KFP's. The message is a clause.
        """
        node = self._nodes.get(driver) if self._nodes is not None else None
        patch = node.decision("pod-spec-patch") if node is not None else ""
        return PodSpec.parse(patch) if patch else None


def manifest_of(answer: Mapping[str, Any]) -> str:
    """Return the manifest in v1beta1's answer about a run, as JSON; empty without one."""
    return as_text(as_object(answer, "pipeline_runtime").get("workflow_manifest"))


def read_manifest(manifest: str) -> Nodes:
    """Return the nodes of a workflow, from its manifest as JSON; none without a workflow.

    Raises:
        ValueError: the manifest is not JSON, or its compressed nodes cannot be read. The message is a clause.
    """
    workflow = as_object(_parsed(manifest))
    metadata, status = as_object(workflow.get("metadata")), as_object(workflow.get("status"))
    packed = as_text(status.get("compressedNodes"))
    nodes = as_object(_parsed(_decompressed(packed)) if packed else status.get("nodes"))
    name = as_text(metadata.get("name"))
    # Old versions of Argo name a pod after the node's id.
    has_ids = as_object(metadata, "annotations").get(_POD_NAMES) == "v1"
    read = (_node(name, has_ids, as_object(record)) for record in nodes.values())
    return Nodes(name, {node.name: node for node in read}, as_text(status.get("message")))


def _parsed(content: str) -> Any:
    try:
        return json.loads(content or "{}")
    except (ValueError, RecursionError):
        raise ValueError("they are not JSON") from None


def _decompressed(packed: str) -> str:
    """Return the nodes of a workflow that is so large that Argo compresses them."""
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(base64.b64decode(packed), MOST_UNPACKED)
        if reader.eof:
            return content.decode()
    except (ValueError, zlib.error) as error:
        raise ValueError(f"they are damaged ({error})") from None
    raise ValueError(f"they have more than {MOST_UNPACKED:,} bytes" if reader.unconsumed_tail else "they are cut off")


def _node(workflow: str, has_ids: bool, record: Mapping[str, Any]) -> Node:
    name, outputs = as_text(record.get("name")), as_object(record.get("outputs"))
    exit_code = as_text(outputs.get("exitCode"))
    # Argo names the pod of a node after the template and the hash at the end of the node's id.
    pod, template = as_text(record.get("id")), as_text(record.get("templateName"))
    if template and not has_ids and name != workflow:
        pod = f"{f'{workflow}-{template}'[:_LONGEST_PREFIX]}-{pod.rpartition('-')[2]}"
    return Node(
        name=name,
        # A phase that this version does not know counts as queued.
        state=_STATES.get(as_text(record.get("phase")), State.QUEUED),
        start=seconds(as_text(record.get("startedAt"))),
        end=seconds(as_text(record.get("finishedAt"))),
        message=as_text(record.get("message")),
        exit_code=int(exit_code) if exit_code and re.fullmatch(r"-?\d{1,9}", exit_code) else None,
        pod=pod if record.get("type") == "Pod" else "",
        outputs=outputs,
    )
