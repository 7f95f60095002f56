"""Plan a stage: turn an AppDef and its options into pure data, and their texts into text for KFP."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchx import specs

from torchx_kfp.authoring.appdef import check_app, check_name
from torchx_kfp.authoring.application import Application, env_words, single_application
from torchx_kfp.authoring.channels import parse_checked
from torchx_kfp.authoring.engines import named_engine
from torchx_kfp.authoring.naming import component_name, input_name, is_shell_variable, stage_name
from torchx_kfp.authoring.options import PROTOCOL_VARIABLES, Secrets, StageOptions, check_variables, parse_outputs
from torchx_kfp.authoring.reads import Readable, ReadSource, TrackerBase, is_list, parse_reads, parse_tracker_base
from torchx_kfp.authoring.references import Channel, Reference, Text, check_word, is_constant
from torchx_kfp.authoring.replicas import launcher
from torchx_kfp.contract import command
from torchx_kfp.contract.command import Outputs
from torchx_kfp.contract.inputs import (
    INNER,
    READS,
    RUN_ID,
    STAGE,
    SUFFIXES,
    TASK_CONFIG,
    escape,
    find_rewritten,
    parameter_placeholder,
    stage_value,
)
from torchx_kfp.contract.scripts import OF_LAUNCHER, OF_MAY_FAIL, OF_PUBLISHER
from torchx_kfp.errors import AppDefError

#: The most bytes of values that move. With more, a second container is smaller than the values.
_MAX_MOVED = 1024
#: Matches values that move: numbers, names, paths. Other text stays, and so do options, which many stages share.
_VALUE = re.compile(r"(?!--?[A-Za-z][\w-]*\Z)[\w@%+=:,./-]{1,256}", re.ASCII)


@dataclass(frozen=True)
class StagePlan:
    """A stage as pure data, which becomes its KFP component and task.

    ``name`` is the stage's name as given by the user, ``component`` its name in KFP. ``image`` and ``command`` are text
    for KFP. ``tracker_base`` is the option; for a component, a reference to its parameter. ``parameters`` are KFP's
    inputs, and ``outputs`` maps names to the Python types of parameters or to classes of artifacts. ``pod`` has the
    settings of the pod, and ``secrets`` maps secrets to their keys and variables.
    """

    name: str
    component: str
    description: str
    image: str
    tracker_base: TrackerBase | None
    command: tuple[str, ...]
    parameters: Mapping[str, Reference]
    outputs: Mapping[str, type]
    pod: Application
    secrets: Secrets
    cache: bool


def plan_stage(
    app: specs.AppDef,
    options: StageOptions,
    *,
    parameters: Sequence[Reference] = (),
    description: str | None = None,
) -> StagePlan:
    """Plan a stage that runs an app. The ``parameters`` of its component may be unused."""
    check_app(app)
    if options.tracker_base is None:
        needing = {"reads": options.reads, "trackers": options.trackers}
        for what in (*(name for name, value in needing.items() if value), *options.publishing):
            raise AppDefError(
                f"{what} needs a tracker base, under which results are stored: Stages(tracker_base=...).task(app, "
                f"{what}=...), task_from_app(app, tracker_base=..., {what}=...), or component_from_app(app, "
                f"tracked=True, {what}=...)."
            )
    name = _stage_name(options, app.name)
    main, engine = app.roles[0], named_engine(options.engine)
    application = launcher(app, options, engine, name) if engine else single_application(app, options)
    variables = env_words(application, f"role {main.name!r}", first=options.tracker_base is None)
    description = description or f"TorchX application {app.name}, role {main.name}"
    return _plan(options, name, description, application, variables, parameters)


def plan_publisher(options: StageOptions, stage: Readable, name: str, image: str | Channel) -> StagePlan:
    """Plan a stage that publishes the records of another stage without running an application.

    ``name`` is the publishing stage's name, unless the options have one.
    """
    (run,) = parse_reads({STAGE: stage}).values()
    if isinstance(run, tuple) or is_list(run):
        raise AppDefError("publish_results publishes one stage, but got several. Publish each inside its loop.")
    if not parse_tracker_base(options.tracker_base):
        raise AppDefError(
            "publish_results needs the tracker base of a stage that is not a task of task_from_app: "
            "publish_results(run_id, ..., tracker_base=...)."
        )
    check_variables({}, options.secrets or {}, PROTOCOL_VARIABLES, "the publisher")
    if isinstance(image, str) and not image:  # a channel == "" would be a condition
        raise AppDefError(
            "publish_results has no image. Name one with python3 and fsspec, such as components/publisher."
        )
    application = Application(image=parse_checked(image, "image"))
    description = "Results of another stage as outputs of KFP"
    return _plan(options, _stage_name(options, name), description, application, run=run)


def _stage_name(options: StageOptions, default: str) -> str:
    name = default if options.name is None else options.name
    check_name(name, "The stage's name")
    return name


def _plan(
    options: StageOptions,
    name: str,
    description: str,
    application: Application,
    variables: Sequence[Text] = (),
    parameters: Sequence[Reference] = (),
    run: Reference | str | None = None,
) -> StagePlan:
    """Plan a stage in three steps, each of which needs the result of the previous one.

    1. Outputs get their names first, parameters get the remaining names.
    2. Each text is rendered, which adds the parameters to which it refers.
    3. The command is made: its digest and values depend on all parameters and outputs.

    ``run`` is the execution whose records the stage publishes, if these are not its own.
    """
    tracked = options.tracker_base is not None
    outputs: dict[str, type] = {RUN_ID: str} if tracked else {}
    # Only kfp 2.15 and newer have this parameter, but names are the same with older versions.
    taken = [RUN_ID, *([TASK_CONFIG] if application.task_config else [])]
    published = None
    if options.publishing:
        # The program that publishes results also records the exit code of a stage that may fail.
        names = [*taken, *(reference.name for reference in parameters)]
        types, published = parse_outputs(options.results, options.artifacts, names)
        if options.may_fail:
            published = replace(published, may_fail=application.failures)
        outputs |= types

    renderer = Renderer(parameters, [*taken, *outputs])
    sources = parse_reads(options.reads)
    parents = renderer.render_reads(sources, by_alias=isinstance(options.reads, Mapping))
    run_id = "" if run is None else renderer.render_run_id(run, STAGE)
    base = renderer.render(parse_tracker_base(options.tracker_base))
    publisher = command.carried_program("publisher", inline=options.inline)
    starter = [*(published.words(publisher) if published else ()), *map(renderer.render, application.starter)]
    words, mask, moved = renderer.render_words(variables, starter, application.words, move=tracked)
    image = renderer.render_image(application.image)

    values = ""
    if tracked and run is None:
        values = renderer.add_text(STAGE, stage_value(stage_name(name), sources, moved))
    return StagePlan(
        name=name,
        component=component_name(name),
        description=description,
        image=image,
        tracker_base=options.tracker_base,
        command=command.encode_command(
            _digest(renderer.parameters, outputs),
            words,
            mask,
            needs_python=_needs_python(application, published),
            tracker_base=base,
            run_id=run_id,
            has_outputs=published is not None,
            values=values,
            parents=parents,
        ),
        parameters=renderer.parameters,
        outputs=outputs,
        pod=application,
        secrets=options.secrets or {},
        cache=options.cache,
    )


def _needs_python(application: Application, published: Outputs | None) -> str:
    """Return the message for an image without python3; empty if the stage does not need it."""
    if "PATH" in application.env:
        return ""  # the script does not know the application's PATH
    if application.task_config:
        return OF_LAUNCHER
    if published is None:
        return ""
    return OF_PUBLISHER if published.may_fail is None else OF_MAY_FAIL


class Renderer:
    """Renders text for KFP, and collects the ``parameters`` of the component to which the text refers, by name.

    KFP's backend merges components whose containers have the same text, even if their parameters differ
    (kubeflow/pipelines, argocompiler). So the names in the text include the type, and whether there is a loop item.
    """

    def __init__(self, parameters: Collection[Reference], taken: Iterable[str]) -> None:
        """Start with these parameters, which keep their names; ``taken`` are further names in use."""
        self.parameters = {reference.name: reference for reference in parameters}
        self._names = {reference: reference.name for reference in parameters}
        self._taken = {RUN_ID, *taken, *self.parameters}

    def render(self, parts: Text) -> str:
        """Return the parts as text for KFP, with the placeholder of a parameter for each reference."""
        return "".join(part if isinstance(part, str) else self._placeholder(part) for part in parts)

    def render_reads(self, reads: Mapping[str, ReadSource], *, by_alias: bool) -> list[str]:
        """Return the execution ids of parents as JSON with placeholders, by alias."""
        return [self._run_ids(source, alias if by_alias else READS) for alias, source in reads.items()]

    def render_run_id(self, source: Reference | str, name: str) -> str:
        """Return an execution id or its placeholder, whose parameter gets this name or a similar one."""
        return source if isinstance(source, str) else self._placeholder(source, name)

    def render_image(self, image: Text) -> str:
        """Return the text of an image.

        If an image contains a placeholder, KFP's driver replaces the whole image by the value of that parameter. So
        text around a channel would be lost.
        """
        references = [part for part in image if isinstance(part, Reference)]
        if references and (len(image) > 1 or references[0].type != "STRING"):
            names = " and ".join(repr(self._names.get(part, part.name)) for part in references)
            raise AppDefError(
                f"The image has {names} inside text, or of another type than str. KFP needs the whole image as one "
                "value: a parameter such as image: str, or a result of a stage. In component_from_function, give such "
                "parameters as constants: component_from_function(app, tag='1')."
            )
        return self.render(image)

    def render_words(
        self, variables: Sequence[Text], starter: Sequence[str], command: Sequence[Text], *, move: bool
    ) -> tuple[list[str], str, list[str]]:
        """Return words as text for KFP, their mask, and the values that move from the container into ``STAGE``.

        KFP's backend stores a container once for all stages with the same text. The mask has a letter for each word:
        ``b`` if it is escaped, ``v`` if its value moves, else ``s`` (``contract.command``).

        The words are ``env`` with the variables, those of the programs before the application (``starter``, which is
        text for KFP already), and those of the application. Values only ``move`` where the script puts them back.
        """
        words = [*variables, *command]
        moved = dict(_moved(words, len(variables))) if move else {}
        if sum(len(value) for _, value in moved.values()) > _MAX_MOVED:
            moved = {}
        coded = [(moved[index][0], "v") if index in moved else self._whole(parts) for index, parts in enumerate(words)]
        coded[len(variables) : len(variables)] = [(word, "s") for word in starter]
        mask = "".join(kind for _, kind in coded).rstrip("s")
        return [text for text, _ in coded], mask, [value for _, value in moved.values()]

    def _whole(self, parts: Text) -> tuple[str, str]:
        """Return a word, escaped if an engine would change it, and its letter in the mask."""
        text = self.render(parts)
        escaped = is_constant(parts) and find_rewritten(text) is not None
        text = check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,")
        return text, "b" if escaped else "s"

    def add_text(self, name: str, text: str) -> str:
        """Add a parameter for this text, under this name or a similar one, and return its placeholder."""
        return parameter_placeholder(self._add(name, Reference(text, text, name, "STRING")))

    def _add(self, wanted: str, reference: Reference) -> str:
        name = input_name(wanted, self._taken)
        self._taken.add(name)
        self.parameters[name] = reference
        return name

    def _placeholder(self, reference: Reference, name: str = "") -> str:
        if reference not in self._names:
            wanted = name or f"{INNER if reference.loop_item else ''}{reference.name}{SUFFIXES.get(reference.type, '')}"
            self._names[reference] = self._add(wanted, reference)
            if reference.loop_item:
                self._placeholder(reference.loop_item)
        return parameter_placeholder(self._names[reference])

    def _run_ids(self, source: ReadSource, alias: str) -> str:
        if isinstance(source, tuple):
            return f"[{', '.join(self._run_ids(one, alias) for one in source)}]"
        text = self.render_run_id(source, alias)
        return text if is_list(source) else f'"{text}"'


def _moved(words: Sequence[Text], variables: int) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the indices of words with values that move: the remaining part, and the value."""
    for index, word in enumerate(words):
        if index == variables or not is_constant(word):
            continue
        text, start = str(word[0]), 0
        if index < variables:
            name = text.partition("=")[0]
            start = len(name) + 1
            # The pipeline sets TORCHX_ variables to the same values for all stages.
            if not is_shell_variable(name) or name.startswith("TORCHX_"):
                continue
        if _VALUE.fullmatch(text, start):
            yield index, (text[:start], text[start:])


def _digest(parameters: Mapping[str, Reference], outputs: Mapping[str, type]) -> str:
    """Return a digest of the component's parameters, defaults and outputs."""
    kinds = {name: getattr(kind, "schema_title", kind.__name__) for name, kind in outputs.items()}
    defaults = {
        name: [planned.type, *([] if planned.default is inspect.Parameter.empty else [planned.default])]
        for name, planned in parameters.items()
    }
    described = json.dumps([defaults, kinds], sort_keys=True, default=repr)
    return hashlib.sha256(described.encode()).hexdigest()[:8]
