"""Find what fails or differs on KFP's backend, judging by KFP 2.17.0 and its source.

The pipelines of ``tests/cases`` were run on that version; ``docs/why/differences.md`` has a table of
the differences.

One of them is text that Argo and the kubelet change on its way to a stage. Everything that a stage is given is text of
its pod: its command and variables, and its inputs, which KFP's launcher gets as an argument. Argo fills in its own
variables, and the kubelet expands the container's (``expand`` does so byte for byte as
``k8s.io/kubernetes/third_party/forked/golang/expansion``): ``$(NAME)`` becomes the variable's value, or stays as it is
if there is no such variable; ``$$`` becomes ``$``. The kubelet scans bytes, and treats the byte after any other ``$``
as a character: if a character that is not ASCII follows, its first byte becomes the character with that number (seen on
a cluster: ``$é`` arrives as ``$Ã`` and a stray byte).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchx_kfp.common.text import joined
from torchx_kfp.contract.inputs import REWRITTEN_AFTER_DOLLAR, large_character
from torchx_kfp.contract.protocol import CODE_URL, STAGE_INPUTS
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.execution.model.distributed import of_launcher
from torchx_kfp.execution.model.findings import Finding, Kind
from torchx_kfp.execution.model.pods import of_pod
from torchx_kfp.execution.model.python_stages import annotation_of, of_program
from torchx_kfp.execution.pipeline.conditions import compares_types, verify_condition
from torchx_kfp.execution.pipeline.inputs import UNKNOWN, importer_uri, item_of, loop_items
from torchx_kfp.execution.pipeline.placeholders import (
    WORKSPACE,
    is_conditional,
    parameter_of,
    parameters_in,
    placeholders_in,
    read_limits,
    uses_concat,
    with_names,
)
from torchx_kfp.execution.pipeline.pod_settings import FIELDS, VARIABLES, entries
from torchx_kfp.execution.pipeline.python_components import parse_command
from torchx_kfp.execution.pipeline.spec import (
    CHANNEL,
    Component,
    Constant,
    FromInput,
    FromTask,
    Pipeline,
    Task,
    is_volume_task,
)
from torchx_kfp.execution.pipeline.values import TYPE_NAMES, defaults_of, large_integers
from torchx_kfp.execution.pipeline.walk import ScopedTask, walk

#: The part of a stage's memory limit that KFP's launcher needs, in bytes.
_LAUNCHER = 64 * 10**6
_CHANNEL = re.compile(r"\{\{channel:task=([^;]*);name=([^;]*);type=.*?;\}\}")
#: PlaceholderValues about the run that KFP fills in as a task's constant input.
_FACT = re.compile(r"\{\{\$\.(?:pipeline_\w+)\}\}")
_UNKNOWN_FACT = "{{$.pipeline_root}}"
#: What KFP's API server replaces in the text of an argument.
_MACRO = re.compile(r"\[\[(?:RunUUID|CurrentTime|ScheduledTime|Index)\b[^\]]*\]\]")
#: The stores that KFP 2.17's importer knows.
_STORES = re.compile(r"(?:gs|s3|minio|oci)://.")
_UTF8 = (
    "which KFP's database rejects ('Incorrect string value': its connection is MySQL's utf8). Use other characters, or "
    "escapes that the application decodes"
)
_REWRITTEN = re.compile(rb"\$(?:\$|\(([^)]*)\)|([\x80-\xff]))")
#: Variables that KFP, Argo and Kubernetes set in each container; only the cluster knows their values.
_SET = re.compile(r"KFP_POD_(?:NAME|UID)|(?:ARGO|KUBERNETES)_[A-Z0-9_]+|[A-Z0-9_]+_SERVICE_(?:HOST|PORT)(?:_\w+)?")
_ARGO = r"\{\{=.*?\}\}|\{\{\s*(?:workflow|pod|node|inputs|outputs|tasks|steps|item|retries)\b.*?\}\}"
_CHANGED = re.compile(rf"{_ARGO}|\$(?:\((?P<name>[^)]*)\)|{REWRITTEN_AFTER_DOLLAR})", re.DOTALL)
#: Characters of context that are shown around a change.
_AROUND = 12


def of_run(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield all findings about a run of the pipeline on KFP.

    Args:
        pipeline: the pipeline.
        arguments: the values of its parameters. A check may lack some of those that a run needs.
    """
    yield from _of_pipeline(pipeline)
    for place in walk(pipeline, arguments=arguments):
        yield from _of_task(pipeline, place)
    yield from _of_arguments(pipeline, arguments)
    yield from _of_replicas(pipeline, arguments)


def _of_pipeline(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield the findings about the pipeline as a whole."""
    if names := [name for name in pipeline.root.artifact_inputs if name not in pipeline.root.optional_artifacts]:
        yield Finding(
            Kind.FAILS,
            "the pipeline",
            f"takes an artifact ({joined(names)}), which cannot be passed to a run. Import it by its URI "
            "(dsl.importer), or use the pipeline inside another one",
        )
    used = any(FromInput(TRACKER_BASE) in task.inputs.values() for task in pipeline.root.as_dag().tasks.values())
    if TRACKER_BASE in pipeline.root.inputs and not used:
        yield Finding(
            Kind.NOT_RECORDED,
            "the pipeline",
            f"has the parameter {TRACKER_BASE!r}, which no stage uses, so no results are recorded there. Give it to "
            f"the stages: Stages({TRACKER_BASE}={TRACKER_BASE})",
        )


def _of_arguments(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about the arguments of a run."""
    defaults = defaults_of(pipeline)
    for name, value in arguments.items():
        place, text = f"the argument {name!r}", _as_text(value)
        if large := large_character(text):
            yield Finding(Kind.MAY_FAIL, place, f"contains {large}, {_UTF8}")
        if change := find_change(text):
            yield Finding(Kind.CHANGED, place, f"contains {change[0]!r}, which {_arrives(change[1])}")
        if isinstance(value, str) and value != defaults.get(name) and (macro := _MACRO.search(value)):
            yield Finding(
                Kind.CHANGED,
                place,
                f"contains {macro[0]}, which KFP 2.17 replaces in arguments of a run, and in those of a recurring run "
                "only for [[ScheduledTime]] and [[Index]]. A task's argument works everywhere: "
                "dsl.PIPELINE_JOB_ID_PLACEHOLDER, dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER",
            )
        for kind, found in _rounded("its value", value):
            yield Finding(kind, place, found)


def _of_replicas(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about arguments of a run that are numbers of replicas, for stages that surely run."""
    for place in walk(pipeline):
        if place.inside is not None or place.task.condition or place.looped:
            continue
        for role in place.component.decoded.replica_roles:
            source = place.task.inputs.get(parameter_of(role.count) or "")
            if not isinstance(source, FromInput) or source.selector:
                continue
            value = arguments.get(source.name)
            if isinstance(value, int | float) and not role.fewest <= value <= role.most:
                text = (
                    f"has {value:g} replicas of the role {role.name!r}, but must have {role.fewest} to {role.most}. "
                    f"Give another {source.name!r}"
                )
                yield Finding(Kind.MAY_FAIL, f"task {place.path!r}", text)


def _of_task(pipeline: Pipeline, place: ScopedTask) -> Iterator[Finding]:
    """Yield the findings about a task."""
    task, component = place.task, place.component
    for kind, text in (
        *_inputs(pipeline, place),
        *_loop(place),
        *_hook(pipeline, place),
        *(_condition(task.condition) if task.condition else ()),
        *(_importer(place) if component.importer else ()),
        *(_container(pipeline, place) if component.container else ()),
        *of_launcher(component),
        *of_pod(component),
        *of_program(component),
        *_settings(place),
    ):
        yield Finding(kind, f"task {place.path!r}", text)
    if task.retry is not None:
        text = (
            "is retried here when its application fails, but not on a standard installation of KFP 2.17: the "
            "controller's templateDefaults set the retry policy OnError. A cluster's administrator can remove "
            "templateDefaults.retryStrategy from the ConfigMap workflow-controller-configmap"
        )
        yield Finding(Kind.CHANGED, f"task {place.path!r}", text)


def _settings(place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Find what differs in the settings of a task."""
    task, component = place.task, place.component
    for text in _texts_in(dict(component.platform)):
        yield from (found for found in _text("a setting of its pod", text, {}) if found[0] is Kind.FAILS)
    yield from _text("its display name", task.display_name, {})
    if task.caches and task.cache_key:
        yield (
            Kind.CHANGED,
            f"is cached here by its cache_key {_shown(task.cache_key)}, which backends up to KFP 2.17 ignore: they "
            "compare its command and inputs. Leave it out, or change an input of the task with it",
        )
    variables = component.container.env if component.container is not None else ()
    # The code of a stage is part of its command: see ``runs.stage_code``.
    names = [name for name, _ in variables if name not in (CODE_URL, STAGE_INPUTS)]
    if names and task.caches:
        yield (
            Kind.CHANGED,
            f"sets {joined(names)} on the task, which KFP's cache does not look at: after a change, the stage returns "
            "its earlier outputs there. Pass it as an argument (variables of an AppDef count), or turn off its cache",
        )
    taken = [name for name, parameter in component.inputs.items() if parameter.type == "TASK_CONFIG"]
    if taken and not component.decoded.replica_roles:
        yield (
            Kind.CHANGED,
            f"takes {joined(taken)} (dsl.TaskConfig), in which KFP puts what is set on the task; here, every field is "
            "None",
        )


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts_in(item)


def _inputs(pipeline: Pipeline, place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    task, component, nested = place.task, place.component, place.component.dag is not None
    problems = dict(place.resolved.problems)
    for name, source in task.inputs.items():
        if isinstance(source, FromInput) and not place.has_input(source.name):
            problems.pop(name, None)
            yield (
                Kind.FAILS,
                f"takes {source.name!r}, which does not exist in the task's scope: KFP's compiler has lost it, as it "
                "does with loop items and their fields inside text, lists and dicts. Pass the loop item as a separate "
                "argument, and build the text in the component",
            )
        elif isinstance(source, Constant):
            yield from _constant(name, source.value, nested)
    loop = place.inside.task.loop if place.inside is not None else None
    for name, source in (*task.inputs.items(), *task.artifacts.items()):
        if isinstance(source, FromInput) and loop is not None and source.name == loop.from_input:
            problems.pop(name, None)
            yield (
                Kind.FAILS,
                f"takes the list that its loop goes through ({_shown(source.name)}), which KFP's driver takes away "
                "from the iterations. Have a stage return the list, loop over that output, and pass on the original",
            )
        if isinstance(source, FromTask):
            yield from _collected(pipeline, place.scope, name, source.task, source.output)
    program = parse_command(component.container.words) if component.container is not None else None
    for name, source in {**task.inputs, **task.artifacts}.items():
        annotation = annotation_of(program, name) if program is not None else ""
        if name in task.artifacts and re.match(r"(typing\.)?Optional\[", annotation):
            yield (
                Kind.MAY_FAIL,
                f"is given an artifact for the optional input {name!r}, and a stage with such an input failed on "
                "KFP 2.17. Annotate it without Optional, which works: dsl.Input[...] = None",
            )
        loops = _loops_of(pipeline, place.scope, source.task, source.output) if isinstance(source, FromTask) else 0
        if loops > 1 and re.match(r"((typing\.)?L|l)ist\[((typing\.)?L|l)ist\b", annotation):
            yield (
                Kind.CHANGED,
                f"takes {name!r} as {annotation}, and collects it from {loops} nested loops: KFP gives one flat list. "
                "Group the values in the component, such as by an index that each brings",
            )
    # A task that may be skipped need not fail.
    is_sure = not any(around.task.condition or around.task.loop for around in place.around)
    for name, why in problems.items():
        what = "artifact" if name in task.artifacts else "value"
        yield Kind.FAILS if is_sure else Kind.MAY_FAIL, f"has no {what} for its input {_shown(name)}: {why}"


def _shown(name: str) -> str:
    """Return the name of an input without the prefix of KFP's compiler."""
    return repr(name.removeprefix(CHANNEL))


def _constant(name: str, value: Any, nested: bool) -> Iterator[tuple[Kind, str]]:
    text = _as_text(value)
    if nested and (inputs := parameters_in(text)):
        yield (
            Kind.FAILS,
            f"passes a nested pipeline the input {name!r} as text that contains {_shown(inputs[0])}, which arrives as "
            f"{{{{$.inputs.parameters['{inputs[0]}']}}}}. Pass the value as a separate argument, and build the text in "
            "the nested pipeline",
        )
    if text != value or not _FACT.fullmatch(text):
        for fact in dict.fromkeys(_FACT.findall(text)):
            yield (
                Kind.CHANGED,
                f"has {fact} inside the text of its input {name!r}, where KFP does not fill it in. Pass it as a "
                "separate argument",
            )
    elif text == _UNKNOWN_FACT:
        yield Kind.CHANGED, f"has {text} as its input {name!r}, which KFP's backend does not fill in. Pass the location"
    if text != value and WORKSPACE in text:
        yield (
            Kind.CHANGED,
            f"has {WORKSPACE} inside a list or dict, its input {name!r}, where KFP does not fill it in. Pass the path "
            "as a separate argument",
        )
    yield from _rounded(f"its input {name!r}", value)
    yield from _text(f"its input {name!r}", text, {})


def _rounded(what: str, value: Any) -> Iterator[tuple[Kind, str]]:
    """Find whole numbers that KFP's compiler has rounded already: it writes every number as a double."""
    if number := next(large_integers(value), None):
        yield (
            Kind.CHANGED,
            f"has the whole number {number:.0f} in {what}, and KFP passes numbers as doubles, which are exact up to "
            "2**53: KFP's compiler may have rounded it already. Pass it as text",
        )


def _loop(place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    task = place.task
    if task.loop is None:
        return
    if task.loop.from_input in task.artifacts:
        yield (
            Kind.FAILS,
            "loops over artifacts, which KFP's backend rejects ('artifact iterator not implemented'). Loop over a list "
            "of names or locations, and have each stage find its own artifact",
        )
        return
    sources = [source for source in task.inputs.values() if isinstance(source, FromInput | FromTask)]
    if selectors := [source.selector for source in sources if source.selector]:
        yield (
            Kind.FAILS,
            f"loops over {selectors[0]} of another loop's item, and KFP's driver fails on each iteration. "
            "Have a stage return the list, and loop over its output",
        )
    if task.loop.raw is not None:
        yield from _text("its items", task.loop.raw, {})
        yield from _rounded("its items", json.loads(task.loop.raw))
    values = place.resolved.known
    if task.loop.raw is not None or task.loop.from_input in values:
        try:
            for item in loop_items(task.loop, values):
                item_of(task.loop, place.component, item)
        except ValueError as error:
            yield Kind.FAILS, str(error)


def _collected(
    pipeline: Pipeline, scope: Component, name: str, task_name: str, output: str, *, in_loop: bool = False
) -> Iterator[tuple[Kind, str]]:
    """Follow an input through nested pipelines, branches and loops to the stage that produces it."""
    task = scope.as_dag().tasks[task_name]
    component = pipeline.component_of(task)
    if component.dag is None:
        return
    sources = component.dag.outputs.get(output, ())
    if in_loop and sources and task.condition is not None:
        yield (
            Kind.MAY_FAIL,
            f"collects {name!r} from a dsl.If inside a loop, and KFP's driver fails if an iteration has skipped the "
            "branch. Collect from a stage that runs in each iteration",
        )
        return
    in_loop = in_loop or task.loop is not None
    if in_loop and len(sources) > 1:
        yield (
            Kind.FAILS,
            f"collects {name!r} from branches (dsl.OneOf) inside a loop, and KFP's driver fails if iterations take "
            "different branches. End each iteration with a stage that takes the dsl.OneOf, and collect from that stage",
        )
        return
    for inner, inner_output in sources:
        yield from _collected(pipeline, component, name, inner, inner_output, in_loop=in_loop)


def _loops_of(pipeline: Pipeline, scope: Component, task_name: str, output: str) -> int:
    """Return in how many loops the stage that produces an output is, seen from the scope of a task that takes it."""
    task = scope.as_dag().tasks[task_name]
    component = pipeline.component_of(task)
    sources = component.dag.outputs.get(output, ()) if component.dag is not None else ()
    inside = max((_loops_of(pipeline, component, *source) for source in sources), default=0)
    return inside + (task.loop is not None)


def _hook(pipeline: Pipeline, place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Find tasks that run even after failures: KFP runs them as exit hooks of the tasks before them."""
    tasks = place.scope.as_dag().tasks
    if waited := [name for name in place.task.depends_on if tasks[name].runs_always]:
        yield (
            Kind.MAY_FAIL,
            f"waits for {joined(waited)}, which ignores a failure: KFP runs that task as an exit hook, and no task can "
            "wait for a hook. Put both into one stage, or remove ignore_upstream_failure",
        )
    if not place.task.runs_always:
        return
    for upstream in place.task.depends_on:
        if what := _without_hook(pipeline, tasks[upstream]):
            yield (
                Kind.CHANGED,
                f"ignores a failure of {upstream!r}, {what}: KFP runs such a task as an exit hook, and has none for "
                "that, so it never runs there. Make it wait for another task, or put it into dsl.ExitHandler",
            )
        rivals = [name for name, other in tasks.items() if other.runs_always and upstream in other.depends_on]
        if max(rivals) != place.task.name:
            yield (
                Kind.CHANGED,
                f"ignores a failure of {upstream!r}, as {joined(sorted(set(rivals) - {place.task.name}))} does: "
                f"KFP runs only {max(rivals)!r}. Have one task for each task that may fail",
            )
    if len(place.task.depends_on) > 1:
        yield (
            Kind.CHANGED,
            f"ignores failures of {joined(place.task.depends_on)}: KFP runs it after each of them, but it runs only "
            "once here. Make it wait for one of them",
        )


def _without_hook(pipeline: Pipeline, task: Task) -> str:
    """Return what a task is, if KFP's compiler leaves out its exit hook."""
    component = pipeline.component_of(task)
    if task.loop is not None:
        return "a loop"
    if component.importer is not None:
        return "an importer"
    return "a volume claim" if is_volume_task(component) else ""


def _condition(condition: str) -> Iterator[tuple[Kind, str]]:
    if "{{channel:" in condition:
        yield from _text("its condition", condition, {})
        return
    if "\\" in condition:
        yield (
            Kind.CHANGED,
            f"has the condition {condition!r}, in which KFP's compiler has not escaped the backslash: the backend "
            "reads it and what follows as one character. Compare with a string that has none",
        )
    try:
        verify_condition(condition)
    except ValueError as error:
        if compares_types(condition):
            text = (
                f"has the condition {condition!r}, which compares values of different types, so KFP has put one of "
                "them in quotes. Compare an int with an int (3 instead of '3'), a bool with True or False, a str with "
                "a str"
            )
        else:
            text = (
                f"has the condition {condition!r}, which {error}. KFP compiles a string with a quote or a "
                "backslash wrongly: compare with a string that has neither"
            )
        yield Kind.FAILS, text


def _importer(place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    importer = place.component.importer
    assert importer is not None
    try:
        uri = importer_uri(importer, place.task, place.scope_inputs)
    except ValueError as error:
        yield Kind.FAILS, str(error)
    else:
        if uri is not UNKNOWN and not (match := _CHANNEL.search(uri)) and not _STORES.match(uri):
            yield (
                Kind.WORKS_HERE,
                f"imports {uri!r}, and the importer of KFP 2.17 knows gs://, s3://, minio:// and, for models, oci:// "
                "only. Give such a URI, or pass the location to a stage as text",
            )
        elif uri is not UNKNOWN and match:
            yield from _text("its URI", uri, {})
    metadata = _as_text(dict(importer.metadata))
    if names := parameters_in(metadata):
        yield (
            Kind.CHANGED,
            f"has {_shown(names[0])} in the metadata of its artifact, which KFP keeps as the text of the placeholder. "
            "Have a stage record the value",
        )
    yield from _text("the metadata of its artifact", metadata, {})


def _container(pipeline: Pipeline, place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    task, component = place.task, place.component
    container = component.container
    assert container is not None
    variables = variables_of(component)
    for text in (*container.command, *container.args):
        if uses_concat(text):
            yield (
                Kind.WORKS_HERE,
                "contains dsl.ConcatPlaceholder, which KFP's backend passes on as JSON. Write one text that contains "
                'the inputs, such as f"--name={name}"',
            )
        if is_conditional(text) and "$.outputs" in text:
            yield (
                Kind.CHANGED,
                "contains dsl.IfPresentPlaceholder with an output, which KFP's backend passes on as JSON. Put the "
                "output outside of it",
            )
        for placeholder in placeholders_in(text):
            if not placeholder.is_known:
                yield (
                    Kind.CHANGED,
                    f"contains {placeholder.text}, which KFP's backend does not replace in a command. Facts about the "
                    "run and the workspace's path work as a task's argument; an artifact's metadata and the report's "
                    "path are in the executor input, {{$}}",
                )
        yield from _text("its command", text, variables)
    for name, text in container.env:
        for placeholder in placeholders_in(text):
            yield (
                Kind.CHANGED,
                f"has {placeholder.text} in its variable {name}, where KFP does not fill it in. Pass the value as an "
                "argument (variables of an AppDef may be channels)",
            )
        yield from _text(f"its variable {name}", text, variables)
    for text in container.args:
        unset = [name for name in parameters_in(text) if name not in task.inputs]
        if unset and not is_conditional(text):
            yield (
                Kind.MAY_FAIL,
                f"is not given the input {unset[0]!r}, which its args contain: KFP 2.17's driver does not find a value "
                "for it, even if it has a default. Pass the value",
            )
    yield from _pod_texts(pipeline, place)
    try:
        memory = read_limits(container.resources, place.resolved.known).memory
    except ValueError:  # the limit is known only when the pipeline runs
        memory = None
    if memory is not None and memory < _LAUNCHER and "RESOURCES" not in component.handed_on:
        yield (
            Kind.MAY_FAIL,
            f"may use {memory / 10**6:g} MB of memory, including that of KFP's launcher: a stage with 32 MB was killed "
            f"before it began. Give it at least {_LAUNCHER // 10**6} MB",
        )


def _pod_texts(pipeline: Pipeline, place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Find images and limits of which KFP's driver makes something else: it takes one input of the type STRING."""
    container = place.component.container
    assert container is not None
    resources = container.resources
    texts = {
        "image": container.image,
        "cpu limit": resources.get("resourceCpuLimit"),
        "cpu request": resources.get("resourceCpuRequest"),
        "memory limit": resources.get("resourceMemoryLimit"),
        "memory request": resources.get("resourceMemoryRequest"),
        "accelerator limit": (resources.get("accelerator") or {}).get("resourceCount"),
        "accelerator type": (resources.get("accelerator") or {}).get("resourceType"),
    }
    for what, text in texts.items():
        name = next(iter(parameters_in(str(text or ""))), None)
        if name is None:
            continue
        whole = f"Pass the whole {what} as one parameter or output of the type str"
        value, type_ = place.resolved.values.get(name), _type_of(pipeline, place, name)
        if parameter_of(str(text)) is None:
            yield (
                Kind.FAILS,
                f"has the {what} {with_names(str(text))!r}, of which KFP takes {_shown(name)} alone. {whole}",
            )
        elif type_ != "STRING":
            # It gets no accelerator, and an empty text elsewhere.
            yield (
                Kind.CHANGED if what.startswith("accelerator") else Kind.FAILS,
                f"has the {what} {_shown(name)} of the type {TYPE_NAMES.get(type_, type_)}, and KFP takes text only. "
                f"{whole}",
            )
        elif isinstance(value, str) and (inner := parameters_in(value)):
            yield (
                Kind.FAILS,
                f"has the {what} {with_names(value)!r}, a text with {_shown(inner[0])} inside, where KFP does not fill "
                f"it in. {whole}",
            )


def _type_of(pipeline: Pipeline, place: ScopedTask, name: str) -> str:
    """Return the type of an input, which KFP's compiler does not declare if only an image or a limit uses it."""
    source = place.task.inputs.get(name)
    declared = place.component.inputs.get(name)
    if declared is None and isinstance(source, FromInput) and not source.selector:
        declared = place.scope.inputs.get(source.name)
    if declared is None and isinstance(source, FromTask):
        made = pipeline.component_of(place.scope.as_dag().tasks[source.task])
        return made.outputs.get(source.output, "STRING")
    return declared.type if declared is not None else "STRING"


def _text(what: str, text: str, variables: Mapping[str, str]) -> Iterator[tuple[Kind, str]]:
    """Find what is wrong with a text of a stage, such as a channel that KFP's compiler has left in it."""
    if match := _CHANNEL.search(text):
        producer, name = match.groups()
        channel = f"{producer}.{name}" if producer else name
        yield (
            Kind.FAILS,
            f"contains the channel {channel!r} as text that KFP has not filled in. Pass it as a separate argument",
        )
    if change := find_change(text, variables):
        yield Kind.CHANGED, f"has {change[0]!r} in {what}, which {_arrives(change[1])}"
    if large := large_character(text):
        yield Kind.MAY_FAIL, f"has {large} in {what}, {_UTF8}"


def _arrives(text: str) -> str:
    return (
        f"arrives as {text!r}: Argo and the kubelet expand the text of a stage. Write it in another way (task_from_app "
        "encodes an AppDef's own arguments and variables), or have the application read it from a file"
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def expand(text: str, environ: Mapping[str, str]) -> bytes:
    """Return a word of a command as the container gets it.

    Args:
        text: the word in the pod's specification.
        environ: the container's variables.
    """

    def replace(found: re.Match[bytes]) -> bytes:
        name, byte = found.groups()
        if byte is not None:
            return b"$" + chr(byte[0]).encode()
        if name is None:
            return b"$"
        value = environ.get(name.decode())
        return found.group() if value is None else value.encode()

    return _REWRITTEN.sub(replace, text.encode())


def variables_of(component: Component) -> dict[str, str]:
    """Return the variables of the component's container; values that only the cluster knows are in ``<>``."""
    values = dict(component.container.env) if component.container is not None else {}
    for _, item in entries(component.platform, VARIABLES):
        values |= {pair["envVar"]: f"<{pair['envVar']}>" for pair in item.get("keyToEnv") or ()}
    for item in component.platform.get(FIELDS) or ():
        values[item["name"]] = f"<{item['fieldPath']}>"
    return values


def find_change(text: str, variables: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """Return the first piece of a text that is changed, with some context, and the text that arrives in its place.

    Args:
        text: the text in the pipeline.
        variables: the container's variables, besides those that every container has.
    """
    if "$" not in text and "{{" not in text:
        return None
    known = variables or {}
    for found in _CHANGED.finditer(text):
        if _arriving(found, known) != found.group():
            start, end = max(0, found.start() - _AROUND), found.end() + _AROUND
            piece = text[start:end]
            arriving = _CHANGED.sub(lambda part: _arriving(part, known), piece)
            before, after = "…" if start else "", "…" if end < len(text) else ""
            return f"{before}{piece}{after}", f"{before}{arriving}{after}"
    return None


def _arriving(found: re.Match[str], variables: Mapping[str, str]) -> str:
    piece, name = found.group(), found["name"]
    if piece.startswith("{{"):
        return f"<{piece[2:-2].strip()}>"
    if name is not None and name not in variables and _SET.fullmatch(name):
        return f"<{name}>"
    return expand(piece, variables).decode("utf-8", "replace")
