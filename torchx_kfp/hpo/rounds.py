"""Searches in a pipeline: stages that ask for trials, each followed by a loop of trials."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kfp import dsl
from kfp.dsl import pipeline_channel, pipeline_context
from torchx import specs

from torchx_kfp.authoring.appdef import check_app, check_name
from torchx_kfp.authoring.options import StageOptions
from torchx_kfp.authoring.reads import TrackerBase, outputs_of
from torchx_kfp.authoring.references import Channel
from torchx_kfp.authoring.stages import task_from_app
from torchx_kfp.common.text import describe_unknown, shown
from torchx_kfp.contract.command import installed_program
from torchx_kfp.contract.inputs import plain_json
from torchx_kfp.errors import AppDefError
from torchx_kfp.hpo.definition import TRIALS, check_count, define_search, results_of
from torchx_kfp.hpo.optimizers import SIMPLE
from torchx_kfp.hpo.spaces import Space

#: The aliases with which ``ask`` reads the previous stage and its trials.
_BEFORE, _TRIALS = "search", "trials"
#: The prefix of the placeholders with which ``trial`` is called first. They look like parameters of the pipeline.
_STAND_IN = "torchx_kfp_parameter_"


class Parameters(Mapping[str, Any]):
    """The parameters of a trial as channels: ``p.lr`` or ``p["lr"]``.

    As a mapping, they can be the arguments of a component: ``train(**p)``.
    """

    def __init__(self, channels: Mapping[str, Any]) -> None:
        self._channels = dict(channels)
        self._used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name not in self._channels:
            raise AppDefError(describe_unknown("The trial", "parameter", name, self._channels))
        self._used.add(name)
        return self._channels[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name not in self.__dict__.get("_channels", ()):  # copy asks before __init__
            raise AttributeError(name)
        try:
            return self[name]
        except AppDefError as error:
            raise AttributeError(str(error)) from None  # hasattr asks, too

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)

    def __repr__(self) -> str:
        return f"Parameters({', '.join(self._channels)})"


def search(
    trial: Callable[[Parameters], specs.AppDef | dsl.PipelineTask],
    parameters: Mapping[str, Space],
    *,
    minimize: str | Sequence[str] = (),
    maximize: str | Sequence[str] = (),
    tracker_base: TrackerBase,
    rounds: int | None = None,
    trials: int | None = None,
    parallelism: int | None = None,
    optimizer: str = "random",
    seed: int | None = None,
    may_fail: bool = True,
    image: str | Channel | None = None,
    configure: Callable[[dsl.PipelineTask], object] | None = None,
    name: str = "search",
    **options: Any,
) -> dsl.PipelineTask:
    """Search for the best parameters, in the pipeline that is being defined.

    The stage ``search-ask-1`` asks for the first trials, a loop runs them, ``search-ask-2`` reads their results and
    asks for the next ones, and so on. ``search-best`` has the best trial.

    Args:
        trial: a function that returns the AppDef of a trial, or the task of a tracked stage: ``lambda p:
            stages.python(fit, lr=p.lr)``. It gets the parameters as channels, and is called once for each round and
            once before. It may make further tasks on which the returned one depends. The returned stage records the
            objectives as results: ``current_run().put(loss=0.3)``.
        parameters: the space to search: {name: ``hpo.float``, ``hpo.log``, ``hpo.int`` or ``hpo.choice``}.
        minimize: the result to minimize, or a list of results.
        maximize: the result to maximize, or a list of results. With several objectives, the first one decides which
            trial is best (those of ``minimize`` come first); ties are decided by the next one.
        tracker_base: see ``task_from_app``.
        rounds: the number of rounds. By default, a grid has enough rounds for all its trials.
        trials: the number of trials in a round. By default, a grid has all trials in one round.
        parallelism: the number of trials that run concurrently; None for all trials of a round.
        optimizer: ``"random"`` draws at random; ``"grid"`` tries all combinations; ``"ax"`` is Bayesian optimization
            with Ax, and needs ``image``; ``"module:function"`` is a function of that image.
        seed: with a seed, the search asks for the same trials each time, given the same results, and can be cached.
            Without one, it asks for new trials in each run.
        may_fail: whether the search continues without failed trials. It fails if no trial has succeeded by the end of a
            round. The task that ``trial`` returns has its own option.
        image: the image of the stages that ask, which needs torchx-kfp (for ``ax``, with the extra ``ax``). With the
            optimizers ``random`` and ``grid``, the default is the image of the trials.
        configure: a function that changes the task of the trials, for settings that an AppDef does not have, such as
            ``lambda task: kubernetes.add_toleration(task, key="gpu", operator="Exists")``. It is called for each round.
        name: the name of the search: the prefix of the names of its stages.
        options: options of the trials: those of ``task_from_app``, except ``results``. ``secrets``, ``cache``,
            ``inline`` and ``workspace`` also apply to the stages that ask. If ``trial`` returns a task, the options are
            those of its stage.

    Returns:
        The task of the last stage. Its outputs are the best value of each parameter, the objectives of the best trial,
        its execution id ``trial`` and, with several objectives, the Pareto front as the list ``front``. A stage that
        reads the task gets the best parameters and objectives as results. A stage that reads ``task.outputs["trial"]``,
        with an alias, gets the records of the best trial.

    Raises:
        AppDefError: an argument is wrong, or a trial cannot become a stage without losing something.
    """
    check_name(name, "The name of the search")
    definition = define_search(parameters, minimize, maximize, rounds, trials, optimizer, seed)
    check_count("parallelism", parallelism)
    if "results" in options:
        raise TypeError("search() got an unexpected keyword argument 'results': those of trials are its objectives")
    tried_app, of_task = _look_at(trial, [*parameters], tracker_base)
    if of_task is not None:
        if options:
            raise AppDefError(
                f"{min(options)!r} is an option of trials that are AppDefs. trial() returns a task: give it to that."
            )
        options = {option: getattr(of_task, option) for option in ("secrets", "inline", "workspace", "cache")}
    app = _ask_app(name, definition, tried_app, image)
    own = {option: value for option, value in options.items() if option in ("secrets", "inline", "workspace")}
    # With a seed, and with a grid, the same search always asks for the same trials.
    own["cache"] = (optimizer == "grid" or seed is not None) and options.get("cache", True)
    reads: Any = None
    for number in range(1, definition["rounds"] + 1):
        asked = task_from_app(
            app,
            tracker_base=tracker_base,
            reads=reads,
            results={TRIALS: list},
            name=f"{name}-ask-{number}",
            **own,
        )
        with dsl.ParallelFor(asked.outputs[TRIALS], parallelism=parallelism) as item:
            channels = Parameters({parameter: getattr(item, parameter) for parameter in parameters})
            tried = trial(channels)
            if not isinstance(tried, dsl.PipelineTask):
                tried = task_from_app(tried, tracker_base=tracker_base, results={}, may_fail=may_fail, **options)
            if configure is not None:
                configure(tried)
        reads = {_BEFORE: asked, _TRIALS: dsl.Collected(tried.outputs["run_id"])}
    return task_from_app(
        app, tracker_base=tracker_base, reads=reads, results=results_of(definition), name=f"{name}-best", **own
    )


def _look_at(
    trial: Callable[[Parameters], specs.AppDef | dsl.PipelineTask], parameters: Sequence[str], tracker_base: TrackerBase
) -> tuple[specs.AppDef, StageOptions | None]:
    """Return the AppDef of a trial for placeholders of its parameters, and the options of its task, if any."""
    placeholders = Parameters(
        {name: pipeline_channel.create_pipeline_channel(f"{_STAND_IN}{name}", "String") for name in parameters}
    )
    call = (
        "Write a function of one argument that returns an AppDef or a task, such as lambda p: train(lr=p.lr), "
        "train(**p), or stages.python(fit, lr=p.lr)."
    )
    try:
        inspect.signature(trial).bind(placeholders)
    except TypeError as error:
        raise AppDefError(f"trial cannot be called with the parameters of a trial: {error}. {call}") from None
    with _aside() as tasks:
        tried = trial(placeholders)
    is_task = isinstance(tried, dsl.PipelineTask)
    if others := [name for name, task in tasks.items() if task not in (_needed_by(tried, tasks) if is_task else ())]:
        raise AppDefError(
            f"trial() makes the task {others[0]!r}, and returns {'a task' if is_task else 'something'} that does not "
            "depend on it. Return the task that records the objectives, and let it read the others: "
            "stages.task(train, reads=prepared)."
        )
    outputs = outputs_of(tried)
    if is_task and (outputs is None or outputs.made_of is None or str(outputs.tracker_base) != str(tracker_base)):
        raise AppDefError(
            f"trial() returns the task {tried.name!r}, which is not a stage with the search's tracker base. Return one "
            "that records the objectives: Stages(tracker_base=tracker_base).task(app), or .python(fit, lr=p.lr)."
        )
    if not is_task and not isinstance(tried, specs.AppDef):
        raise AppDefError(f"trial() returns {shown(tried)}, of type {type(tried).__name__}. {call}")
    app, options = (tried, None) if outputs is None or outputs.made_of is None else outputs.made_of
    check_app(app)
    unused = [name for name in parameters if name not in placeholders._used]
    if unused:
        raise AppDefError(
            f"trial() does not use {', '.join(map(repr, unused))}: all values would give the same trial. Pass the "
            f"parameter on, for example args=['--{unused[0]}', f'{{p.{unused[0]}}}'], or leave it out of parameters. "
            f"{call}"
        )
    return app, options


@contextlib.contextmanager
def _aside() -> Iterator[Mapping[str, dsl.PipelineTask]]:
    """Collect the tasks made in this context by name, without adding them to the pipeline that is being defined."""
    pipeline, aside = pipeline_context.Pipeline._default_pipeline, pipeline_context.Pipeline("trial")
    if pipeline is not None:  # its tasks and the items of its loops can be used
        aside.tasks.update(pipeline.tasks)
        aside.groups[:0] = pipeline.groups
    known = {*aside.tasks}
    made: dict[str, dsl.PipelineTask] = {}
    pipeline_context.Pipeline._default_pipeline = None
    try:
        with aside:
            yield made
        made.update({name: task for name, task in aside.tasks.items() if name not in known})
    finally:
        pipeline_context.Pipeline._default_pipeline = pipeline


def _needed_by(task: dsl.PipelineTask, tasks: Mapping[str, dsl.PipelineTask]) -> list[dsl.PipelineTask]:
    """Return the task and the tasks on which it depends."""
    needed = [task]
    for each in needed:  # grows
        names = {channel.task_name for channel in each.channel_inputs} | {*each.dependent_tasks}
        needed += [tasks[name] for name in names if name in tasks and tasks[name] not in needed]
    return needed


def _ask_app(name: str, definition: Mapping[str, Any], app: specs.AppDef, image: str | Channel | None) -> specs.AppDef:
    """Return the application of the stages that ask.

    It has the variables and the volumes of the trials, which the storage may need.
    """
    optimizer = definition["optimizer"]
    if image is None and optimizer not in SIMPLE:
        needs = "torchx-kfp[ax]" if optimizer == "ax" else f"torchx-kfp and {optimizer.partition(':')[0]}"
        raise AppDefError(f"optimizer={optimizer!r} needs an image with {needs}: search(..., image='repo/ask:1').")
    role = app.roles[0]
    if image is None and _STAND_IN in str(role.image):
        raise AppDefError(
            f"The image of the trials, {role.image!r}, depends on a parameter. Name an image with "
            "torchx-kfp for the stages that ask: search(..., image='repo/ask:1')."
        )
    asking = specs.Role(
        name="ask",
        image=role.image if image is None else image,
        entrypoint="python3",
        args=["-c", installed_program("torchx_kfp.hpo", "ask"), plain_json({"name": name, "definition": definition})],
        env={key: value for key, value in role.env.items() if _STAND_IN not in str(value)},
        mounts=[mount for mount in role.mounts if isinstance(mount, specs.VolumeMount) and not mount.read_only],
    )
    return specs.AppDef(name=name, roles=[asking])


__all__ = ["Parameters", "search"]
