"""The options for the inputs of a run: arguments, tracker base and code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import counted, printable, size_text
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.entrypoints.cli.display.printing import Column, print_json, print_message, print_rows, print_text
from torchx_kfp.entrypoints.cli.flags import Decorator, Target, gathered, parameter_option
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import parse_arguments
from torchx_kfp.execution.pipeline.walk import without_indices

if TYPE_CHECKING:
    from torchx_kfp.execution.runs.prepared_run import PreparedRun


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run on the command line, named like the options."""

    words: tuple[str, ...]
    tracker_base: str | None
    workspace: str | None
    dry_run: bool = False
    fresh: tuple[str, ...] = ()

    def prepare(
        self,
        target: Target,
        *,
        usual: Callable[[Pipeline], str | None],
        examples: str,
        tracked: bool = False,
        absolute: Callable[[str], str] = str,
        may_lack: bool = False,
        **place: Any,
    ) -> PreparedRun:
        """Return the run, prepared to start.

        Args:
            usual: returns the default tracker base of a pipeline, or None.
            examples: values of ``--tracker-base``, for messages.
            tracked: whether the stage of a component is tracked even without ``--tracker-base``.
            absolute: converts the tracker base for the run.
            may_lack: allow missing arguments, because others start the run.
            place: ``directory`` and ``without`` of ``prepared_run.prepare``, which has further errors.

        Raises:
            ArgumentError: a word is not an argument of the pipeline, or a tracker base is missing, or given twice.
            PipelineError: see ``load_target``.
        """
        from torchx_kfp.entrypoints.cli.pipeline_files import load_target
        from torchx_kfp.execution.runs.prepared_run import prepare

        has_workspace, is_tracked = self.workspace is not None, tracked or bool(self.tracker_base)
        pipeline, findings = load_target(target, tracked=is_tracked, has_workspace=has_workspace)
        for each in findings:
            print_message(f"Warning: {each.kind.value}: {each}")
        arguments = self._read_arguments(pipeline, usual, "" if may_lack else examples)
        if isinstance(base := arguments.get(TRACKER_BASE), str):
            arguments[TRACKER_BASE] = absolute(base)
        return prepare(pipeline, arguments, workspace=self.workspace, fresh=self.fresh, may_lack=may_lack, **place)

    def _read_arguments(
        self, pipeline: Pipeline, usual: Callable[[Pipeline], str | None], examples: str
    ) -> dict[str, Any]:
        """Return the given arguments, and the tracker base unless it is the pipeline's default.

        Without ``examples``, the tracker base may be missing.
        """
        from torchx_kfp.entrypoints.cli.pipeline_files import split_words

        arguments = parse_arguments(pipeline, split_words(self.words))
        parameter = pipeline.root.parameter_inputs.get(TRACKER_BASE)
        base = self.tracker_base
        if base is not None and parameter is None:
            names = ", ".join(pipeline.root.parameter_inputs) or "none"
            raise ArgumentError(
                f"--tracker-base needs a pipeline with the parameter {TRACKER_BASE!r}; {pipeline.name!r} has: {names}. "
                f"{'Name the right one with -p, or add' if pipeline.root.parameter_inputs else 'Add'} it to the "
                f"pipeline's function, and pass it to the stages: Stages({TRACKER_BASE}={TRACKER_BASE})."
            )
        if base is not None and TRACKER_BASE in arguments:
            raise ArgumentError(f"The tracker base is given twice: --tracker-base {base} and -p {TRACKER_BASE}=...")
        if base is None and parameter is not None:
            base = arguments[TRACKER_BASE] if TRACKER_BASE in arguments else usual(pipeline)
            if base is None and parameter.default is None and not parameter.optional and examples:
                raise ArgumentError(
                    f"The pipeline {pipeline.name!r} needs a tracker base, where its stages record results: "
                    f"--tracker-base {examples}."
                )
        return arguments if base is None else {**arguments, TRACKER_BASE: base}


def input_options(base: str, *, starts: bool = True) -> Decorator:
    """Add the options of ``RunInputs``, which the command takes as the argument ``inputs``.

    Args:
        base: the metavar of a tracker base.
        starts: whether the command starts a run, and has ``--dry-run``.
    """
    options = [
        parameter_option,
        click.option(
            "--tracker-base",
            metavar=base,
            help=f"Where stages record their results; the value of the parameter {TRACKER_BASE}.",
        ),
        click.option(
            "--workspace",
            metavar="DIR",
            help=f"The folder with the code of the stages. It is stored once under the tracker base; the parameter "
            f"{WORKSPACE} gets its URL.",
        ),
        click.option(
            "--fresh",
            metavar="STAGE",
            multiple=True,
            help="Run this stage, or nested pipeline, even if it is cached; stages that read it run as well. May be "
            "given several times.",
        ),
    ]
    if starts:
        dry_run = "Show which stages would run and why, and the files of --workspace; start nothing."
        options.append(click.option("--dry-run", is_flag=True, help=dry_run))
    return gathered("inputs", RunInputs, *options)


def show_dry_run(run: PreparedRun, stages: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Print the plan for each stage of a run that is not started, and its workspaces."""
    sizes = {name: {each.name: each.size for each in one.entries} for name, one in run.workspaces.items()}
    if as_json:
        found = {
            name: {"digest": one.digest, "size": one.size, "files": sizes[name]} for name, one in run.workspaces.items()
        }
        plan = [{"stage": stage, "plan": what} for stage, what in stages]
        print_json({"stages": plan, "workspaces": found})
    else:
        alike: dict[tuple[str, str], list[str]] = {}
        for stage, what in stages:
            alike.setdefault((without_indices(stage), what), []).append(stage)
        rows = [
            {"stage": names[0] if len(names) == 1 else f"{stage} ({len(names):,} iterations)", "plan": what}
            for (stage, what), names in alike.items()
        ]
        print_rows(rows, [Column("stage"), Column("plan")])
        for name, one in run.workspaces.items():
            print_message(f"Workspace {name}:")
            print_files(sizes[name], one.digest, one.size)
    print_message("Dry run: nothing was stored or started.")


def print_files(sizes: Mapping[str, int], digest: str, packed: int) -> None:
    """Print the names and sizes of a workspace's files, their sum, and the size and digest of the archive."""
    for name, size in sizes.items():
        print_text(f"{size:>10,}  {printable(name)}")
    files = f"{counted(len(sizes), 'file')}, {size_text(sum(sizes.values()))}"
    print_message(f"{files}, {size_text(packed)} as an archive: {digest}")
