"""Nodes from the manifest of the Argo workflow that v1beta1 returns with a run.

It is the only answer of KFP 2 that has pods, exit codes, decisions of drivers, and what a pod waits for.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from torchx_kfp.errors import HostError, HostNotFoundError, HostRefusedError
from torchx_kfp.execution.host.answers import mapping, refuse_run_id, text
from torchx_kfp.execution.host.archived_logs import ArchivedLog
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
#: How a node begins in what Go makes of it. In texts, such as a command in a node, quotes are escaped.
_NODE = re.compile(r'\{"id": ?"[^"\\]*", ?"name": ?"([^"\\]+)"')
_DECODER = json.JSONDecoder()
#: The outputs of drivers that tell what they have decided.
_DECISIONS = ("cached-decision", "condition", "iteration-count")
#: The most bytes of unpacked nodes that are read. A workflow has 1 MiB, and its nodes shrink to a 20th to a 30th.
MOST_UNPACKED = 32 << 20
#: The longest name of a pod, without the hash at its end.
_LONGEST_PREFIX = 253 - 10 - 1
_POD_NAMES = "workflows.argoproj.io/pod-name-format"
#: Nodes share many times.
_seconds = functools.lru_cache(maxsize=1 << 16)(seconds)


class ManifestSource:
    """Asks a host for the nodes of a run. Another API of KFP is another class that returns ``Nodes``."""

    def __init__(self, connection: Connection, run_id: str) -> None:
        """Name the run. Nothing is asked yet."""
        self._connection = connection
        self._run_id = run_id
        #: Why the host does not provide nodes, as a sentence; empty if it does.
        self.problem = ""
        self._is_served = True
        #: The last manifest, and its nodes.
        self._manifest = ""
        self._nodes: Nodes | None = None

    def read(self) -> Nodes | None:
        """Return the nodes; None if they are the same as before, or the host does not provide them.

        Raises:
            HostError: the host has provided nodes before, and does not now.
        """
        if not self._is_served:
            return None
        path = f"{V1BETA1}/runs/{quote(self._run_id, safe='')}"
        name = self._connection.name
        lost = "so its stages, their logs, exit codes and results are missing"
        try:
            answer = self._connection.get(path)
            refuse_run_id(mapping(answer.get("run")).get("id"), f"GET {name}{path}", self._run_id)
            manifest = manifest_of(answer)
            if manifest == self._manifest:
                return None
            nodes = read_manifest(manifest, self._nodes)
        except HostError as error:
            if self._manifest:
                raise  # it fails for a moment
            # A host may lack this version of the API, or refuse it.
            self._is_served = not isinstance(error, HostNotFoundError | HostRefusedError)
            self.problem = (
                f"{name} reports only the state of the run (v2beta1), not its nodes (v1beta1), {lost}. ({error})"
            )
            return None
        except ValueError as error:
            self.problem = f"The nodes of the run cannot be read, {lost}: {error}."
            return None
        self.problem = ""
        self._manifest, self._nodes = manifest, nodes
        return nodes

    def archived_log(self, pod: str) -> ArchivedLog | None:
        """Return where Argo has archived a pod's log, if it has."""
        node = None if self._nodes is None else self._nodes.of_pod(pod)
        return None if node is None else node.log

    def pod_spec(self, driver: str) -> PodSpec | None:
        """Return what a stage's driver has decided about its pod: see ``pod_spec_of``."""
        return None if self._nodes is None else pod_spec_of(self._nodes, driver)


def manifest_of(answer: Mapping[str, Any]) -> str:
    """Return the manifest in v1beta1's answer about a run, as JSON; empty without one."""
    return text(mapping(answer.get("pipeline_runtime")).get("workflow_manifest"))


def read_manifest(manifest: str, before: Nodes | None = None) -> Nodes:
    """Return the nodes of a workflow; none without a workflow.

    Args:
        manifest: the workflow's manifest, as JSON.
        before: the nodes in an earlier manifest of it. Those that are the same are not read again.

    Raises:
        ValueError: the manifest is not JSON, or its compressed nodes cannot be read. The message is a clause.
    """
    records, rest = _split(manifest)
    workflow = mapping(_parsed(rest))
    metadata, status = mapping(workflow.get("metadata")), mapping(workflow.get("status"))
    if packed := text(status.get("compressedNodes")):
        records, _ = _split(_decompressed(packed))
    name = text(metadata.get("name"))
    # Old versions of Argo name a pod after the node's id.
    has_ids = mapping(metadata.get("annotations")).get(_POD_NAMES) == "v1"
    store = mapping(mapping(status.get("artifactRepositoryRef")).get("artifactRepository"))
    read = functools.partial(_node, name, has_ids, mapping(store.get("s3")))
    return Nodes(name, records, read, message=text(status.get("message")), before=before)


def _split(content: str) -> tuple[dict[str, str], str]:
    """Return the JSON of each node by the node's name, and the JSON around them.

    To parse all nodes whenever one has changed would take most of the time of a poll: a node has 3-11 kB.
    """
    found = list(_NODE.finditer(content))
    if not found:
        return {}, content
    starts = [match.start() for match in found]
    try:
        _, end = _DECODER.raw_decode(content, starts[-1])
    except (ValueError, RecursionError):
        raise ValueError("they are not JSON") from None
    ends = [*starts[1:], end]
    records = {match[1]: content[start:end] for match, start, end in zip(found, starts, ends, strict=True)}
    return records, f"{content[: starts[0]]}{{}}{content[end:]}"


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


def pod_spec_of(nodes: Nodes, driver: str) -> PodSpec | None:
    """Return what a stage's driver has decided about its pod; None if there is no pod, because it was cached.

    Args:
        nodes: the nodes of a manifest.
        driver: the name of the driver's node.

    Raises:
        ValueError: the manifest has another form than KFP's. The message is a clause.
    """
    record = nodes.record(driver)
    patch = _outputs(mapping(_DECODER.raw_decode(record)[0]) if record else {}).get("pod-spec-patch", "")
    return PodSpec.parse(patch) if patch else None


def _outputs(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the output parameters of a node."""
    parameters = mapping(record.get("outputs")).get("parameters")
    found = map(mapping, parameters) if isinstance(parameters, list) else ()
    return {text(parameter.get("name")): text(parameter.get("value")) for parameter in found}


def _archived_log(record: Mapping[str, Any], store: Mapping[str, Any]) -> ArchivedLog | None:
    artifacts = mapping(record.get("outputs")).get("artifacts")
    for artifact in map(mapping, artifacts) if isinstance(artifacts, list) else ():
        # What an artifact does not say of its place is as in the workflow's repository.
        place = {**store, **mapping(artifact.get("s3"))}
        endpoint, bucket, key = (text(place.get(name)) for name in ("endpoint", "bucket", "key"))
        if artifact.get("name") == "main-logs" and endpoint and bucket and key:
            return ArchivedLog(endpoint, bucket, key)
    return None


def _node(workflow: str, has_ids: bool, store: Mapping[str, Any], content: str) -> Node:
    record: Mapping[str, Any] = {}
    with contextlib.suppress(ValueError, RecursionError):  # a node that is not JSON has a name, and nothing else
        record = mapping(_DECODER.raw_decode(content)[0])
    exit_code = text(mapping(record.get("outputs")).get("exitCode"))
    outputs = _outputs(record)
    decisions = {name: outputs[name] for name in _DECISIONS if name in outputs}
    # Argo names the pod of a node after the template and the hash at the end of the node's id.
    pod, template = text(record.get("id")), text(record.get("templateName"))
    if template and not has_ids and record.get("name") != workflow:
        pod = f"{f'{workflow}-{template}'[:_LONGEST_PREFIX]}-{pod.rpartition('-')[2]}"
    return Node(
        name=text(record.get("name")),
        # A phase that this version does not know counts as queued.
        state=_STATES.get(text(record.get("phase")), State.QUEUED),
        start=_seconds(text(record.get("startedAt"))),
        end=_seconds(text(record.get("finishedAt"))),
        message=text(record.get("message")),
        exit_code=int(exit_code) if re.fullmatch(r"-?\d{1,9}", exit_code) else None,
        pod=pod if record.get("type") == "Pod" else "",
        decisions=decisions,
        log=_archived_log(record, store),
    )
