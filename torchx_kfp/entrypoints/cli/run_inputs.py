"""The options of what a run starts with: arguments, tracker base, code and tags, and the run that it continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import counted, printable, size_text
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text
from torchx_kfp.entrypoints.cli.flags import Decorator, Flags, Target, gathered, parameter_option
from torchx_kfp.entrypoints.cli.lookup import Lookup
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import parse_arguments
from torchx_kfp.execution.runs.history import RunReader
from torchx_kfp.tracking.recorder import parse_tags

if TYPE_CHECKING:
    from torchx_kfp.execution.runs.earlier_run import EarlierRun
    from torchx_kfp.execution.runs.prepared_run import PreparedRun


@dataclass(frozen=True)
class RunInputs:
    """What a command line says about the inputs of a run; the names are those of the options' values."""

    words: tuple[str, ...]
    tracker_base: str | None
    workspace: str | None
    dry_run: bool
    tag_words: tuple[str, ...] = ()
    resumed: str | None = None
    from_stages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.from_stages and self.resumed is None:
            raise click.UsageError("--from needs --resume RUN, the run whose other stages are kept.")

    def read_resumed(self, output_dir: str, flags: Flags) -> EarlierRun | None:
        """Return what is known of the run that the user wants to continue, if any.

        Args:
            output_dir: the directory with the folders of runs on this machine.
            flags: the options of the host.

        Raises:
            UnknownRunError: there is no such run.
            HostError: the host does not answer.
        """
        from torchx_kfp.execution.runs.earlier_run import earlier_run

        if self.resumed is None:
            return None
        lookup = Lookup(output_dir, flags, self.tracker_base)
        source = lookup.find(self.resumed)
        if not isinstance(source, RunReader):
            return source.earlier()
        record = source.read()
        bases = {end.tracker_base for end in record.run.ends if end.tracker_base}
        return earlier_run(record, trusted_bases=[self.tracker_base or "", *lookup.trusted_bases(bases, ran_here=True)])

    def prepare(
        self,
        target: Target,
        earlier: EarlierRun | None,
        *,
        usual: Callable[[Pipeline], str | None],
        examples: str,
        tracked: bool = False,
        absolute: Callable[[str], str] = str,
        **place: Any,
    ) -> PreparedRun:
        """Return the run, prepared to start, and print what it keeps of the earlier run.

        Args:
            target: the pipeline or component; if it names nothing, the pipeline is that of the earlier run.
            earlier: the run that is continued, if any. Its tracker base counts if none is given.
            usual: returns the tracker base of a pipeline if no other is named; None if there is none.
            examples: values of ``--tracker-base``, for messages.
            tracked: whether the stage that runs a component is tracked even without ``--tracker-base``.
            absolute: returns the tracker base as the run gets it.
            place: ``directory`` and ``without``: see ``prepare`` of ``prepared_run``, which has further errors.

        Raises:
            ArgumentError: a word is not an argument of the pipeline, or a tracker base is missing, or given twice.
            PipelineFileError: see ``load_target``.
        """
        from torchx_kfp.entrypoints.cli.pipeline_files import load_target
        from torchx_kfp.execution.runs.prepared_run import prepare

        if target.word is not None:
            has_workspace = self.workspace is not None
            is_tracked = tracked or bool(self.tracker_base)
            pipeline, findings = load_target(target, tracked=is_tracked, has_workspace=has_workspace)
            for each in findings:
                print_message(f"Warning: {each.kind.value}: {each}")
        elif earlier is not None:
            pipeline = earlier.pipeline
        else:
            raise click.UsageError("Missing argument 'FILE[:NAME]|YAML|COMPONENT', or --resume RUN.")
        arguments = self._read_arguments(pipeline, earlier, usual, examples)
        if isinstance(base := arguments.get(TRACKER_BASE), str):
            arguments[TRACKER_BASE] = absolute(base)
        prepared = prepare(
            pipeline,
            arguments,
            workspace=self.workspace,
            tags=_read_tags(self.tag_words),
            earlier=earlier,
            from_stages=self.from_stages,
            **place,
        )
        if prepared.plan is not None and not self.dry_run:
            print_message(str(prepared.plan))
        return prepared

    def _read_arguments(
        self, pipeline: Pipeline, earlier: EarlierRun | None, usual: Callable[[Pipeline], str | None], examples: str
    ) -> dict[str, Any]:
        """Return the given arguments, with the tracker base, unless that is the default of the pipeline."""
        from torchx_kfp.entrypoints.cli.pipeline_files import split_words

        arguments = parse_arguments(pipeline, split_words(self.words))
        parameter = pipeline.root.inputs.get(TRACKER_BASE)
        base = self.tracker_base
        if base is not None and parameter is None:
            names = ", ".join(pipeline.root.inputs) or "none"
            raise ArgumentError(
                f"--tracker-base needs a pipeline with the parameter {TRACKER_BASE!r}; {pipeline.name!r} has: {names}. "
                f"{'Name the right one with -p, or add' if pipeline.root.inputs else 'Add'} it to the pipeline's "
                f"function, and give it to the stages: Stages({TRACKER_BASE}={TRACKER_BASE})."
            )
        if base is not None and TRACKER_BASE in arguments:
            raise ArgumentError(f"The tracker base is given twice: --tracker-base {base} and -p {TRACKER_BASE}=...")
        if base is None and parameter is not None:
            if earlier is not None and TRACKER_BASE in earlier.arguments_for(pipeline, {}):
                return arguments
            base = arguments[TRACKER_BASE] if TRACKER_BASE in arguments else usual(pipeline)
            if base is None and parameter.default is None and not parameter.optional:
                raise ArgumentError(
                    f"The pipeline {pipeline.name!r} needs a tracker base, where its stages record results: "
                    f"--tracker-base {examples}."
                )
        return arguments if base is None else {**arguments, TRACKER_BASE: base}


def _read_tags(words: Iterable[str]) -> dict[str, str]:
    """Return the tags in words ``NAME=VALUE``.

    Raises:
        ArgumentError: a word has another form, or has no value.
    """
    tags: dict[str, str] = {}
    for name, value in parse_tags(words).items():
        if value is None:
            raise ArgumentError(f"The tag {name!r} has no value. Write {name}=VALUE.")
        tags[name] = value
    return tags


def input_options(base: str, *, resume: str = "") -> Decorator:
    """Add the options of ``RunInputs``, which the command takes as the argument ``inputs``.

    Args:
        base: the form of a tracker base.
        resume: the help text of ``--resume``; without one, there is no such option.
    """
    options = [
        parameter_option,
        click.option(
            "--tracker-base",
            metavar=base,
            help=f"Where stages record their results: the value of the parameter {TRACKER_BASE}.",
        ),
        click.option(
            "--workspace",
            metavar="DIR",
            help=f"The folder with the code of the stages. It is stored under the tracker base, once; the parameter "
            f"{WORKSPACE} gets its URL.",
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Show what would be sent (--workspace) and what would be kept (--resume), and start nothing.",
        ),
        click.option(
            "--tag",
            "tag_words",
            metavar="NAME=VALUE",
            multiple=True,
            help="A tag of the run, kept with its records under the tracker base. May be given several times.",
        ),
    ]
    if resume:
        options += [
            click.option("--resume", "resumed", metavar="RUN", help=resume),
            click.option(
                "--from",
                "from_stages",
                metavar="STAGE",
                multiple=True,
                help="With --resume: run this stage again, and everything that depends on it. May be given several "
                "times.",
            ),
        ]
    return gathered("inputs", RunInputs, *options)


def show_dry_run(run: PreparedRun, *, as_json: bool) -> None:
    """Print what would go with a run that is not started, and what it would keep of the one that it resumes."""
    sizes = {name: {each.name: each.size for each in one.entries} for name, one in run.workspaces.items()}
    if as_json:
        found = {
            name: {"digest": one.digest, "size": one.size, "files": sizes[name]} for name, one in run.workspaces.items()
        }
        plan = {}
        if run.plan:
            steps = [{**vars(step), "kept_from": step.kept_from or None} for step in run.plan.steps]
            others = {"dropped": run.plan.dropped, "notes": run.plan.notes}
            plan = {"plan": {"resumes": run.plan.run_id, "stages": steps, **others}}
        print_json({"workspaces": found, **plan})
    else:
        if run.plan:
            print_text(str(run.plan))
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
