"""``Stages``, the options that several stages share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from kfp import dsl
from torchx import specs

from torchx_kfp.adapter.components import component_from_app, make_function_component
from torchx_kfp.adapter.emit import StageComponent
from torchx_kfp.adapter.stage.options import (
    ComponentOptions,
    PublisherOptions,
    SharedOptions,
    TaskOptions,
    check_names,
)
from torchx_kfp.adapter.stage.outputs import Artifacts, Results, UiMetadata
from torchx_kfp.adapter.stage.reads import Readable, read_tracker_base
from torchx_kfp.adapter.stage.secrets import read_secrets
from torchx_kfp.adapter.stage.trackers import read_trackers
from torchx_kfp.adapter.tasks import publish_results, task_from_app
from torchx_kfp.errors import ReadsError

if TYPE_CHECKING:  # `typing` has it from Python 3.11 on, and nothing evaluates annotations
    from typing_extensions import Unpack


class Stages:
    """The options that the stages of a pipeline share.

    In a pipeline function::

        stages = Stages(tracker_base=tracker_base)
        prepared = stages.task(prepare)
        stages.task(train, reads=prepared, results={"accuracy": float})

    Options that do not depend on a pipeline can be shared by a whole module, and completed in its pipelines::

        STAGES = Stages(secrets={"s3": {"id": "AWS_ACCESS_KEY_ID", "key": "AWS_SECRET_ACCESS_KEY"}})
        convert = STAGES.component(app, tracked=True)

        @dsl.pipeline
        def pipeline(tracker_base: str):
            stages = STAGES.with_options(tracker_base=tracker_base)

    An option that is passed to a method replaces the shared one. ``Stages`` are immutable; ``with_options`` returns new
    ones.
    """

    __slots__ = ("_options",)
    _options: Mapping[str, Any]

    def __init__(self, **options: Unpack[SharedOptions]) -> None:
        """Check and keep the options.

        Args:
            options: ``tracker_base``, ``trackers``, ``secrets``, ``cache``, ``inline`` and ``labels``: see
                ``task_from_app``.

        Raises:
            ReadsError: the tracker base is neither text nor a channel for text.
            AppDefError: the secrets or the trackers are malformed.
            ChannelError: a pipeline channel is used where its value cannot be filled in.
        """
        check_names("Stages", options, SharedOptions)
        kept: dict[str, Any] = dict(options)
        # Check the options now, so that errors point to the line that passes them. Keep copies, so that later changes
        # to the caller's dicts have no effect.
        if kept.get("tracker_base") is not None:
            read_tracker_base(kept["tracker_base"])
        if kept.get("secrets") is not None:
            kept["secrets"] = read_secrets(kept["secrets"])
        if kept.get("trackers") is not None:
            read_trackers(kept["trackers"])
            kept["trackers"] = dict(kept["trackers"])
        object.__setattr__(self, "_options", MappingProxyType(kept))

    def with_options(self, **options: Unpack[SharedOptions]) -> Stages:
        """Return ``Stages`` that also share these options. An option replaces the one with the same name."""
        check_names("Stages.with_options", options, SharedOptions)
        merged: Any = {**self._options, **options}
        return Stages(**merged)

    def task(self, app: specs.AppDef, **options: Unpack[TaskOptions]) -> dsl.PipelineTask:
        """Make a task from the AppDef, in the pipeline that is being defined: see ``task_from_app``."""
        check_names("Stages.task", options, TaskOptions)
        merged: Any = {**self._options, **options}
        return task_from_app(app, **merged)

    def publish(
        self,
        task: Readable,
        results: Results | None = None,
        *,
        image: str,
        artifacts: Artifacts | None = None,
        name: str | None = None,
        **options: Unpack[PublisherOptions],
    ) -> dsl.PipelineTask:
        """Publish the results of a stage whose image does not have Python: see ``publish_results``."""
        check_names("Stages.publish", options, PublisherOptions, "results", "image", "artifacts", "name")
        taken = ("tracker_base", *PublisherOptions.__annotations__)
        shared = {option: value for option, value in self._options.items() if option in taken}
        merged: Any = {**shared, **options}
        return publish_results(task, results, image=image, artifacts=artifacts, name=name, **merged)

    def component(
        self,
        app: specs.AppDef,
        *,
        tracked: bool = False,
        reads: Iterable[str] = (),
        ui_metadata: UiMetadata | None = None,
        **options: Unpack[ComponentOptions],
    ) -> StageComponent:
        """Make a KFP component from the AppDef: see ``component_from_app``.

        Raises:
            ReadsError: these stages share a tracker base, but a component takes it as an input.
        """
        check_names("Stages.component", options, ComponentOptions, "tracked", "reads", "ui_metadata")
        merged: Any = {**self._of_components("component"), **options}
        return component_from_app(app, ui_metadata, tracked=tracked, reads=reads, **merged)

    def component_from_function(
        self, fn: Callable[..., specs.AppDef], /, **options_and_constants: Any
    ) -> StageComponent:
        """Make a KFP component from a TorchX component function: see ``component_from_function``.

        Raises:
            ReadsError: these stages share a tracker base, but a component takes it as an input.
        """
        return make_function_component(fn, self._of_components("component_from_function"), options_and_constants)

    def _of_components(self, method: str) -> dict[str, Any]:
        shared = dict(self._options)
        tracker_base = shared.pop("tracker_base", None)
        if tracker_base is not None:
            raise ReadsError(
                f"Stages.{method} makes a component, which takes its tracker base as an input, but these stages share "
                f"the tracker base {str(tracker_base)!r}. Use Stages without it, and pass it when you call the "
                "component: component(tracker_base=...)."
            )
        return shared

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Stages are immutable. Make new ones: stages.with_options({name}=...).")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Stages are immutable. Make new ones: stages.with_options({name}=None).")

    def __repr__(self) -> str:
        return f"Stages({', '.join(f'{name}={value!r}' for name, value in self._options.items())})"
