"""Find settings of pods that Kubernetes rejects or never starts, or that do not reach the replicas of a stage.

A run with a pod that never starts would stay RUNNING until it is terminated.

The rules are those of Kubernetes' API server and of the kubelet; only values that the pipeline fixes are judged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.contract.specification import RoleSpec
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.pipeline.placeholders import parameters_in, parse_quantity
from torchx_kfp.execution.pipeline.pod_settings import FILES, METADATA, POD_SETTINGS, VARIABLES, entries, name_of
from torchx_kfp.execution.pipeline.spec import Component, Container, is_volume_task

_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])"
_IMAGE = re.compile(
    rf"(?:{_HOST}(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z][\w+.-]*:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
_DOMAIN = r"(?=.{1,253}(?:/|$))[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_NAME = re.compile(_DOMAIN)
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_VALUE = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL, _LABEL_KEY = re.compile(f"(?:{_VALUE})?"), re.compile(f"(?:{_DOMAIN}/)?{_VALUE}")
_VARIABLE = re.compile(r"[ -<>-~]+")
#: The type of the input through which a component gets what is set on its task.
_CONFIG_TYPE = "TASK_CONFIG"
_OPERATORS, _EFFECTS = ("", "Equal", "Exists"), ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def of_pod(component: Component) -> Iterator[tuple[Kind, str]]:
    """Yield the settings of a component's pods that Kubernetes rejects."""
    container, platform = component.container, component.platform
    if container is None or is_volume_task(component):
        return
    yield from _amounts(container)
    yield from _mounts(platform)
    for what, rule in (*_words(component, container), *_names(platform), *_labels(platform)):
        yield Kind.WORKS_LOCALLY, f"has {what}, which Kubernetes rejects, so its pod never starts. {rule}"


def _words(component: Component, container: Container) -> Iterator[tuple[str, str]]:
    """Yield the refused settings of a container, each with the rule."""
    images = [container.image, *(role.image for role in component.decoded.replica_roles)]
    for image in dict.fromkeys(images):
        if not _fits(image, _IMAGE):
            yield f"the image {shown(image)}", "Write it as registry.example.com/team/app:tag, the path in lower case"
    for name, _ in container.env:
        if not _fits(name, _VARIABLE):
            yield f"the variable {shown(name)}", "Names cannot contain '='"
    for toleration in component.platform.get("tolerations") or ():
        operator, effect = toleration.get("operator") or "", toleration.get("effect") or ""
        if operator not in _OPERATORS:
            yield f"a toleration with the operator {operator!r}", "Use Equal or Exists"
        if operator == "Exists" and toleration.get("value"):
            yield f"a toleration with the operator Exists and the value {toleration['value']!r}", "Leave out the value"
        if effect not in _EFFECTS:
            yield f"a toleration with the effect {effect!r}", f"It is {', '.join(_EFFECTS[1:])}, or none"


def _fits(text: str, form: re.Pattern[str]) -> bool:
    """Return whether a text has this form, as far as known before the run."""
    return "{{" in text or form.fullmatch(text) is not None


def _amounts(container: Container) -> Iterator[tuple[Kind, str]]:
    """Find requests above limits."""
    for what, request, limit in (
        ("cpu", "resourceCpuRequest", "resourceCpuLimit"),
        ("memory", "resourceMemoryRequest", "resourceMemoryLimit"),
    ):
        least, most = (str(container.resources.get(key) or "") for key in (request, limit))
        if not least or not most or parameters_in(least):
            continue
        if parameters_in(most):
            yield (
                Kind.MAY_FAIL,
                f"requests {least} of {what}, and its limit is known only when the pipeline runs: Kubernetes rejects a "
                f"limit below the request. Set no request, or the same channel (set_{what}_request)",
            )
            continue
        try:
            is_above = parse_quantity(least) > parse_quantity(most)
        except ValueError:
            continue
        if is_above:
            yield (
                Kind.WORKS_LOCALLY,
                f"requests {least} of {what} and has the limit {most}: Kubernetes rejects a request above the limit. "
                f"Lower the request (set_{what}_request), or raise the limit",
            )


def _names(platform: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    named = [(POD_SETTINGS[key].keys_of, item) for key, item in entries(platform, (*VARIABLES, *FILES))]
    named += [("volume claim", item) for item in platform.get("pvcMount") or ()]
    named += [("image pull secret", item) for item in platform.get("imagePullSecret") or ()]
    for what, item in named:
        name = name_of(item, {})
        if name and not _fits(name, _NAME):
            yield f"the {what} {shown(name)}", "Names consist of lower-case letters, digits, '-' and '.'"
        for pair in item.get("keyToEnv") or ():
            key = str(pair.get("secretKey") or pair.get("configMapKey") or "")
            if not _fits(key, _KEY):
                rule = "Keys consist of letters, digits, '-', '_' and '.'"
                yield f"the key {shown(key)} of the {what} {shown(name)}", rule


def _labels(platform: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    metadata = platform.get(METADATA) or {}
    form = "letters, digits, '-', '_' and '.', and begins and ends with a letter or digit"
    labels = {**(metadata.get("labels") or {}), **((platform.get("nodeSelector") or {}).get("labels") or {})}
    for key in (*labels, *(metadata.get("annotations") or {})):
        if not _fits(key if key in labels else key.lower(), _LABEL_KEY):
            yield f"the label or annotation {shown(key)}", f"Keys have up to 63 {form}"
    for key, value in labels.items():
        if not _fits(str(value), _LABEL):
            yield f"the label {shown(key)} with the value {shown(value)}", f"Values have up to 63 {form}"


def _mounts(platform: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    paths = [
        str(item.get("mountPath") or "")
        for key, setting in POD_SETTINGS.items()
        if setting.volume
        for item in platform.get(key) or ()
    ]
    for path, times in Counter(paths).items():
        if times > 1:
            yield (
                Kind.WORKS_LOCALLY,
                f"mounts {times} volumes at {path}: Kubernetes rejects two at one path. Give each its own",
            )
        if not path.startswith("/"):
            yield Kind.CHANGED, f"mounts a volume at {path!r}, which the kubelet puts at '/{path}'. Give the whole path"


def of_launcher(component: Component) -> Iterator[tuple[Kind, str]]:
    """Yield settings on the task of a distributed stage that do not reach its replicas.

    KFP 2.15 and newer pass a component the settings of its task (``dsl.TaskConfig``), and the launcher gives it to the
    replicas. Pipelines compiled by an older kfp lack the input for that, and some settings are never passed on.
    """
    roles = component.decoded.replica_roles
    if not roles:
        return
    takes_config = any(parameter.type == _CONFIG_TYPE for parameter in component.parameter_inputs.values())
    if not takes_config and (lost := list(dict.fromkeys(_lost(component, roles)))):
        yield (
            Kind.CHANGED,
            f"sets {' and '.join(lost)} on the task of a distributed stage. They do not reach its replicas, only the "
            "pod that starts them, because kfp 2.14 compiled the pipeline. Compile it with kfp 2.15 or newer, for "
            "a backend of 2.15 or newer, or put them into the AppDef (resource, env, mounts, metadata['kubernetes'])",
        )
    if kept := list(_handed_on(component, False)):
        yield (
            Kind.CHANGED,
            f"sets {' and '.join(kept)} on the task of a distributed stage. KFP does not pass these on to its "
            "replicas. Put them into metadata['kubernetes'] of the role, such as {'spec': {'imagePullSecrets': [...]}}",
        )


def _lost(component: Component, roles: Sequence[RoleSpec[str]]) -> Iterator[str]:
    """Yield the kinds of settings that an author added to those of the AppDef and its secrets."""
    assert component.container is not None
    if component.container.resources:
        yield "resources"
    secrets = component.platform.get("secretAsEnv") or ()
    added = {pair.get("envVar") for secret in secrets for pair in secret.get("keyToEnv") or ()}
    of_roles = {entry.get("name") for role in roles for entry in role.container.get("env") or ()}
    if component.container.env or added - of_roles:
        yield "variables"
    if {mount["mountPath"] for mount in component.platform.get("pvcMount") or ()} - set(roles[0].mounts):
        yield "volumes"
    yield from _handed_on(component, True)


def _handed_on(component: Component, is_handed_on: bool) -> Iterator[str]:
    """Yield the settings of the component that ``dsl.TaskConfig`` has, or those that it lacks."""
    for key, setting in POD_SETTINGS.items():
        if setting.handed_on is is_handed_on and component.platform.get(key):
            yield setting.words
    if not is_handed_on:
        yield from sorted(component.platform.keys() - POD_SETTINGS.keys())
