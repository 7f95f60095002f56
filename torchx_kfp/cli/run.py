"""``torchx-kfp run``: a pipeline on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.output import print_json, show_results, this_command
from torchx_kfp.cli.runs import PATIENCE, read
from torchx_kfp.errors import ArgumentError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker

if TYPE_CHECKING:
    from torchx_kfp.local import Artifact, Pipeline, RunResult, StageResult

#: The parameter that pipelines have for it.
TRACKER_BASE = "tracker_base"
#: What --secret takes.
KEYS = "a folder with a file for each key, a file of lines KEY=VALUE, or its manifest"
#: A key that nothing is recorded under.
_PROBE = "torchx-kfp-probe"


@click.command("run")
@click.argument("target", metavar="FILE[:NAME]|YAML", required=False)
@click.option("-p", "--parameter", "words", metavar="NAME=VALUE", multiple=True, help="A pipeline parameter's value.")
@click.option("--tracker-base", metavar="URL", help=f"Where stages record results: the parameter {TRACKER_BASE}.")
@click.option("--output-dir", metavar="DIR", help="Where the run's logs and outputs go.  [default: local_outputs]")
@click.option("--parallelism", metavar="N", type=click.IntRange(1), help="How many stages run at once.")
@click.option("--resume", "resumed", metavar="RUN", help="Go on with a run that has failed, was ended, or was killed.")
@click.option("--no-cache", is_flag=True, help="Run stages also where an earlier run has done the same.")
@click.option("--workspace", metavar="DIR", help="The workspace that stages share.  [default: in the run's folder]")
@click.option("--secret", "secrets", metavar="NAME=PATH", multiple=True, help=f"A Kubernetes secret: {KEYS}.")
@click.option("--config-map", "config_maps", metavar="NAME=PATH", multiple=True, help="A config map, like --secret.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show the stages' output; it is in the logs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end instead of a table.")
def run_command(
    target: str,
    words: tuple[str, ...],
    tracker_base: str | None,
    output_dir: str | None,
    parallelism: int | None,
    resumed: str | None,
    no_cache: bool,
    workspace: str | None,
    secrets: tuple[str, ...],
    config_maps: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Run a pipeline on this machine, its stages as processes of the current environment.

    Takes a compiled pipeline (*.yaml) or a Python file that defines one; NAME chooses among several. LIST and STRUCT
    parameters are JSON: -p 'points=[{"lr": 0.1}]'.
    """
    from torchx_kfp.local import OUTPUT_DIR, parse_arguments, resume, run
    from torchx_kfp.local.history import find_run
    from torchx_kfp.local.secrets import parse_given

    options: dict[str, Any] = {
        "parallelism": parallelism,
        "secrets": parse_given(secrets, "--secret"),
        "config_maps": parse_given(config_maps, "--config-map"),
        "quiet": quiet,
    }
    if resumed is not None:
        _refuse_with_resume({"FILE": target, "-p": words, "--tracker-base": tracker_base, "--workspace": workspace})
        folder = find_run(output_dir or OUTPUT_DIR, resumed)
        result = resume(folder, cache=False if no_cache else None, **options)
    elif target is None:
        raise click.UsageError("Missing argument 'FILE[:NAME]|YAML', or --resume RUN.")
    else:
        pipeline = _load(target)
        arguments = parse_arguments(pipeline, _split_words(words))
        arguments.update(_tracker_base(pipeline, arguments, tracker_base))
        result = run(pipeline, arguments, output_dir=output_dir, workspace=workspace, cache=not no_cache, **options)
    recorded = _read_results(result)
    if as_json:
        print_json(_as_json(result, recorded))
    else:
        _print_stages(result, recorded)
        bases = [stage.tracker_base for stage in result.stages if stage.tracker_base and recorded.get(stage.name)]
        for base in dict.fromkeys(bases):
            click.echo(f"See the results again: {this_command('results', base, result.run_id)}", err=True)
    result.raise_for_failure()


def _refuse_with_resume(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value:
            raise click.UsageError(f"--resume takes no {name}: the run goes on with what it was started with.")


def _load(target: str) -> Pipeline:
    from torchx_kfp.local import load_pipeline

    if Path(target.rpartition(":")[0] or target).suffix == ".py" or Path(target).suffix == ".py":
        from torchx_kfp.cli.pipelines import load_pipeline_function

        return load_pipeline(load_pipeline_function(target))
    return load_pipeline(target)


def _split_words(words: tuple[str, ...]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ArgumentError(f"-p {word!r} is not NAME=VALUE. Write, for example, -p lr=0.1.")
        if name in arguments:
            raise ArgumentError(f"-p {name}=... is given twice. Give each parameter once.")
        arguments[name] = value
    return arguments


def _tracker_base(pipeline: Pipeline, arguments: Mapping[str, Any], option: str | None) -> dict[str, str]:
    """The tracker base as an argument, if the pipeline has that parameter: one that can be used, and absolute."""
    parameter = pipeline.root.inputs.get(TRACKER_BASE)
    if option is None:
        base = arguments.get(TRACKER_BASE, parameter.default if parameter else None)
        if not isinstance(base, str):
            return {}
    elif parameter is None:
        names = ", ".join(pipeline.root.inputs) or "none"
        raise ArgumentError(
            f"--tracker-base needs a pipeline with the parameter {TRACKER_BASE!r}; {pipeline.name!r} has: {names}. "
            "Name the right one with -p."
        )
    elif TRACKER_BASE in arguments:
        raise ArgumentError(f"The tracker base is given twice: --tracker-base {option} and -p {TRACKER_BASE}=...")
    else:
        base = option
    if base and "://" not in base:
        base = os.path.expanduser(base)  # no shell does it behind an '='
    if base.startswith("memory:"):
        raise ArgumentError(
            f"The tracker base {base!r} is the memory of one process, and each stage is one. Use another."
        )
    # Once, before every stage fails on it: a bucket that is missing, no credentials, a file instead of a folder.
    FsspecResultTracker(base, patience=PATIENCE).get(_PROBE)
    # A stage may change its directory.
    return {TRACKER_BASE: base if "://" in base else os.path.abspath(base)}


def _read_results(result: RunResult) -> dict[str, dict[str, Any]]:
    """Results by the stage's name; what cannot be read is said and left out, the run itself has ended."""
    recorded: dict[str, dict[str, Any]] = {}
    tracked = [stage for stage in result.stages if stage.run_id and stage.tracker_base]
    for base in dict.fromkeys(stage.tracker_base for stage in tracked):
        run_ids = {str(stage.run_id): stage.name for stage in tracked if stage.tracker_base == base}
        try:
            found = read(FsspecResultTracker(str(base), patience=PATIENCE), run_ids)
        except TrackerError as error:
            click.echo(f"The stages' results cannot be read: {error}", err=True)
        else:
            recorded |= {run_ids[run_id]: dict(results) for run_id, results in found.items()}
    return recorded


def _print_stages(result: RunResult, recorded: dict[str, dict[str, Any]]) -> None:
    from torchx_kfp.cli.tables import print_table

    rows = [
        (stage.name, str(stage.state), _seconds(stage), show_results(recorded.get(stage.name, {})) or _why(stage))
        for stage in result.stages
    ]
    print_table(("stage", "state", "seconds", "results"), rows, right=("seconds",))


def _why(stage: StageResult) -> str:
    # "was skipped: its condition is false": what comes first is in the column beside it.
    return f"({stage.reason.rpartition(': ')[2]})" if stage.reason and not stage.attempts else ""


def _seconds(stage: StageResult) -> str:
    return f"{stage.duration:.1f}" if stage.attempts else ""


def _artifacts(artifacts: Mapping[str, Artifact | list[Artifact]]) -> dict[str, Any]:
    return {
        name: [_artifact(item) for item in made] if isinstance(made, list) else _artifact(made)
        for name, made in artifacts.items()
    }


def _artifact(artifact: Artifact) -> dict[str, Any]:
    return {"type": artifact.type.title, "uri": artifact.uri, "metadata": dict(artifact.metadata)}


def _as_json(result: RunResult, recorded: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "pipeline": result.pipeline,
        "run": result.run_id,
        "state": str(result.state),
        "seconds": round(result.duration, 3),
        "folder": str(result.folder),
        "outputs": dict(result.outputs),
        "artifacts": _artifacts(result.artifacts),
        "stages": [
            {
                "name": stage.name,
                "task": stage.task,
                "state": str(stage.state),
                "reason": stage.reason,
                "seconds": round(stage.duration, 3),
                "attempts": stage.attempts,
                "exit_code": stage.exit_code,
                "run_id": stage.run_id,
                "tracker_base": stage.tracker_base,
                "results": recorded.get(stage.name),
                "outputs": dict(stage.outputs),
                "artifacts": _artifacts(stage.artifacts),
                "log": str(stage.log_file) if stage.log_file else None,
            }
            for stage in result.stages
        ],
    }
