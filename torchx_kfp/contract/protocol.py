"""The stage protocol, version 1: the variables that give a stage its execution id and the execution ids of its parents.

This module names these variables, and has the only encoder and decoder of their values. Applications
decode them. In a stage, a shell script sets them, because some values are known only at run time. ``encode_context``
returns the environment that the script must produce, and with which an application can be started by hand. The module
uses only the standard library.

An execution id is ``<pipeline run>/<stage>/<execution>``. It is also the key of the results below the tracker base. The
last part is ``<pod>_<incarnation>_<attempt>`` (see ``PodAttempt``): the pod's name, which does not contain ``_``; a
suffix that distinguishes pods of that name; and the number of the attempt, if the application was started again in the
pod.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torchx_kfp.errors import NotInStageError, TrackerError

VERSION = 1

#: The fsspec URL or local directory in which results are stored.
TRACKER_BASE = "TORCHX_TRACKER_BASE"
#: The parameter of pipelines, and the input of components, that carries the tracker base.
TRACKER_BASE_PARAMETER = "tracker_base"
#: The execution id of this stage. The name is TorchX's: ``torchx.settings.ENV_TORCHX_JOB_ID``.
JOB_ID = "TORCHX_JOB_ID"
#: The execution id of the first parent. The name is TorchX's.
PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
#: A JSON object with the execution id of each parent, or the list of execution ids of a fan-in, by alias.
PARENT_RUN_IDS = "TORCHX_PARENT_RUN_IDS"
#: The names of the tracker backends that ``torchx.tracker`` loads, separated by commas. The name is TorchX's.
TRACKERS = "TORCHX_TRACKERS"
#: The name of this project's backend for ``torchx.tracker``.
TRACKER_NAME = "torchx_kfp"
#: The configuration of that backend, which is the tracker base: ``TORCHX_TRACKER_<NAME>_CONFIG``.
TRACKER_CONFIG = "TORCHX_TRACKER_TORCHX_KFP_CONFIG"

#: The variables that the protocol sets in a stage, besides the configuration of further trackers. An AppDef that sets
#: one of them cannot be tracked.
VARIABLES = (TRACKER_BASE, JOB_ID, PARENT_RUN_ID, PARENT_RUN_IDS, TRACKERS, TRACKER_CONFIG)

#: The id of the pipeline run, set by the engine. The stage makes its execution id from it; applications do not read it.
PIPELINE_RUN = "KFP_RUN_ID"
#: The field of the pod that has it on KFP.
RUN_ID_LABEL = "metadata.labels['pipeline/runid']"
#: Set on every pod by KFP. The last part of the execution id is the pod's name and the beginning of its UID: if KFP
#: retries a run, Argo gives the new pod the name of the failed one.
POD_NAME = "KFP_POD_NAME"
POD_UID = "KFP_POD_UID"
#: Set in the launcher of a distributed stage: the Argo node of its pod, which is the same in all attempts of the stage,
#: and the service account of the stage.
ARGO_NODE = "KFP_ARGO_NODE"
ARGO_NODE_ANNOTATION = "metadata.annotations['workflows.argoproj.io/node-name']"
SERVICE_ACCOUNT = "KFP_SERVICE_ACCOUNT"
OF_LAUNCHERS = (ARGO_NODE, SERVICE_ACCOUNT)
#: The parameter of pipelines that carries the URL of a workspace, and the form of such a URL below the tracker base.
WORKSPACE_PARAMETER = "workspace"
_WORKSPACE = re.compile(r"/\.torchx_kfp/workspaces/([0-9a-f]{64})\.tar(?![\w.-])")
#: The folder of a local execution. A stage unpacks its workspace there, and writes the local paths that it registers as
#: artifacts into the file ``REGISTERED``, each as a line of JSON.
WORKSPACES = "TORCHX_KFP_WORKSPACES"
REGISTERED = "registered.jsonl"
#: The variable with the URL of a stage's workspace, if the command only has the name of its code. Any file of the
#: workspace changes the URL, and KFP's cache key includes the command and its inputs, but not variables.
CODE_URL = "TORCHX_KFP_CODE_URL"
#: The variable with the option ``inputs`` of a stage, separated by colons.
STAGE_INPUTS = "TORCHX_KFP_INPUTS"
_CODE = re.compile("code:[0-9a-f]{32}")
#: The result in which a stage that may fail records the exit code of its application.
EXIT_CODE = "exit_code"
#: The variables of a replica of a distributed stage: its index in its role, and the number of the role's replicas.
REPLICA_ID = "TORCHX_REPLICA_ID"
NUM_REPLICAS = "TORCHX_NUM_REPLICAS"
#: The host of replica 0 of the first role. The name is that of TorchX's Kubernetes scheduler.
RANK0_HOST = "TORCHX_RANK0_HOST"
#: In a local run, the GPUs of each replica as a JSON object, by the role's name and the index: ``trainer/0``.
REPLICA_GPUS = "TORCHX_KFP_REPLICA_GPUS"
OF_REPLICAS = (REPLICA_ID, NUM_REPLICAS, RANK0_HOST, REPLICA_GPUS)
#: The image of a stage in a container, for the record of its start. The local runner sets it.
IMAGE = "TORCHX_KFP_IMAGE"
#: Marks all processes of a local run, in which a launcher starts its replicas as processes.
LOCAL_RUN = "TORCHX_KFP_LOCAL_RUN"
#: Marks the processes of a stage that has GPUs, and of runs inside it.
LOCAL_GPUS = "TORCHX_KFP_LOCAL_GPUS"

RunIds = str | tuple[str, ...]

#: Matches an execution id of KFP or a local run (``pipeline.walk``). Other keys may have any form.
_RUN_ID = re.compile(r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[^/]+-[0-9]{8}-[0-9]{6}-[0-9a-f]{6})/[^/]+/[^/]+")


class PodAttempt(NamedTuple):
    """An attempt in a pod: the last part of an execution id.

    ``pod`` is the pod's name. ``incarnation`` distinguishes pods of that name: on KFP, it is the first eight digits of
    the UID; in a local run, the number of the runner's attempt, from 1; empty if it is not known. ``attempt`` is the
    number of the attempt in the pod, from 1.
    """

    pod: str
    incarnation: str = ""
    attempt: int = 1

    @classmethod
    def parse(cls, run_id: str) -> PodAttempt:
        """Parse an execution id, or its last part."""
        pod, _, rest = run_id.rpartition("/")[2].partition("_")
        incarnation, _, attempt = rest.partition("_")
        return cls(pod, incarnation, int(attempt) if re.fullmatch("[1-9][0-9]{0,6}", attempt) else 1)


def superseded(recorded: Mapping[str, float]) -> set[str]:
    """Return the execution ids of superseded attempts: for each pod name, all but the last to record.

    Keys that are not execution ids of KFP or of a local run are never superseded.

    Args:
        recorded: the time of the last record of each run.
    """
    places: dict[str, list[str]] = {}
    for run_id in filter(_RUN_ID.fullmatch, recorded):
        places.setdefault(f"{run_id.rpartition('/')[0]}/{PodAttempt.parse(run_id).pod}", []).append(run_id)
    # S3 has whole seconds: of equal times, the longer name, or the larger number, is later.
    last = {max(found, key=lambda each: (recorded[each], len(each), each)) for found in places.values()}
    return {run_id for found in places.values() for run_id in found} - last


@dataclass(frozen=True)
class StageContext:
    """The information that the protocol gives a stage.

    ``parents`` maps the alias of each parent to its execution id, or to the execution ids of a fan-in in loop order.
    ``trackers`` maps the name of each further tracker to its configuration or None. Both keep their order.
    """

    tracker_base: str
    run_id: str
    parents: Mapping[str, RunIds] = field(default_factory=dict)
    trackers: Mapping[str, str | None] = field(default_factory=dict)


def tracker_config_variable(name: str) -> str:
    """Return the name of TorchX's variable for a tracker's configuration."""
    return f"TORCHX_TRACKER_{name.upper()}_CONFIG"


def encode_tracker_names(further: Iterable[str]) -> str:
    """Return ``TORCHX_TRACKERS`` for this project's tracker and further ones."""
    return ",".join([TRACKER_NAME, *further])


def decode_trackers(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the further trackers in order, each with its configuration or None."""
    names = environ.get(TRACKERS, "").split(",")
    return {
        name: environ.get(tracker_config_variable(name)) or None for name in names if name not in ("", TRACKER_NAME)
    }


def encode_parents(parents: Mapping[str, RunIds | Sequence[str]]) -> str:
    """Return ``TORCHX_PARENT_RUN_IDS`` for these parents."""
    members = (f'"{encode_alias(alias)}": {json.dumps(ids)}' for alias, ids in parents.items())
    return "{" + ", ".join(members) + "}"


def encode_alias(alias: str) -> str:
    """Return the alias as the name of a JSON member, without the surrounding quotes.

    The name is ASCII, without ``$``, ``{`` and quotes, so engines that rewrite templates do not change it, and a shell
    can find the first execution id.
    """
    name = json.dumps(alias)[1:-1]
    for character in '\\"', "$", "{", "\x7f":
        name = name.replace(character, f"\\u{ord(character[-1]):04x}")
    return name


def decode_parents(text: str) -> dict[str, RunIds]:
    """Parse ``TORCHX_PARENT_RUN_IDS``. The order of the parents is kept.

    Raises:
        TrackerError: the text is not a JSON object of execution ids and lists of execution ids, or an alias appears
            twice.
    """
    problem = (
        f"{PARENT_RUN_IDS} must be a JSON object that maps each alias to an execution id or to a list of execution "
        f"ids. Got: {text[:1000]!r}."
    )
    try:
        parents = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise TrackerError(f"{problem} ({error})") from None
    if not isinstance(parents, dict):
        raise TrackerError(problem)
    decoded: dict[str, RunIds] = {}
    for alias, ids in parents.items():
        if isinstance(ids, str):
            decoded[alias] = ids
        elif isinstance(ids, list) and all(isinstance(run_id, str) for run_id in ids):
            decoded[alias] = tuple(ids)
        else:
            raise TrackerError(f"{problem} The alias {alias!r} has {ids!r}.")
    return decoded


def _without_duplicates(members: list[tuple[str, object]]) -> dict[str, object]:
    """Return the members as a dict. Duplicates are rejected, because JSON parsers differ in which one they keep."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError(f"two members have the same name: {', '.join(repr(name) for name, _ in members)}")
    return found


def first_run_id(parents: Mapping[str, RunIds]) -> str | None:
    """Return ``TORCHX_PARENT_RUN_ID``: the first execution id of the first parent; None without one."""
    for ids in parents.values():
        if isinstance(ids, str):
            return ids
        return ids[0] if ids else None
    return None


def encode_context(context: StageContext) -> dict[str, str]:
    """Return the environment variables that give a stage this context."""
    environ = {
        TRACKER_BASE: context.tracker_base,
        JOB_ID: context.run_id,
        TRACKERS: encode_tracker_names(context.trackers),
        TRACKER_CONFIG: context.tracker_base,
    }
    environ.update({tracker_config_variable(name): config for name, config in context.trackers.items() if config})
    if context.parents:
        environ[PARENT_RUN_IDS] = encode_parents(context.parents)
        first = first_run_id(context.parents)
        if first is not None:
            environ[PARENT_RUN_ID] = first
    return environ


def decode_context(environ: Mapping[str, str]) -> StageContext:
    """Return the context that the environment variables of a stage describe.

    Raises:
        NotInStageError: variables are missing or empty: the process was not started as a tracked stage.
        TrackerError: a variable is malformed.
    """
    missing = [name for name in (TRACKER_BASE, JOB_ID) if not environ.get(name)]
    if missing:
        raise NotInStageError(
            f"This process was not started as a tracked stage: {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. Run the application as a stage of a pipeline "
            "(Stages(tracker_base=...).task(app)), or set the variables yourself to try it by hand, for example "
            f"{TRACKER_BASE}=/tmp/results {JOB_ID}=try/app/1."
        )
    parents: dict[str, RunIds] = {}
    if environ.get(PARENT_RUN_IDS):
        parents = decode_parents(environ[PARENT_RUN_IDS])
    elif environ.get(PARENT_RUN_ID):
        # TorchX's own runner sets this one for a single parent, without an alias.
        parents = {"parent": environ[PARENT_RUN_ID]}
    return StageContext(environ[TRACKER_BASE], environ[JOB_ID], parents, decode_trackers(environ))


def workspace_key(digest: str) -> str:
    """Return the key of a workspace below the tracker base; ``digest`` is its SHA-256 in hexadecimal digits."""
    return f".torchx_kfp/workspaces/{digest}.tar"


def workspace_digest(url: str) -> str | None:
    """Return the digest in a workspace's URL; None for any other URL."""
    match = re.search(rf"{_WORKSPACE.pattern}\Z", url)
    return match[1] if match else None


def named_workspaces(*texts: str) -> list[str]:
    """Return the digests of the workspaces whose URLs are in these texts, each once."""
    return list(dict.fromkeys(found[1] for text in texts for found in _WORKSPACE.finditer(text)))


def code_name(digest: str) -> str:
    """Return the name of a stage's code; ``digest`` is the SHA-256 of the files that it can use."""
    return f"code:{digest[:32]}"


def is_code_name(word: object) -> bool:
    """Return whether a word of a command is the name of its code: see ``CODE_URL``."""
    return isinstance(word, str) and _CODE.fullmatch(word) is not None


def is_workspace(word: str) -> bool:
    """Return whether a word of a command is the URL of its workspace, or the name of its code."""
    return is_code_name(word) or workspace_digest(word) is not None
