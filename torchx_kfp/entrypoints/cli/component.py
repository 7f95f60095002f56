"""A TorchX component as the target of a command: its arguments follow ``--``."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import click

from torchx_kfp.common.text import did_you_mean
from torchx_kfp.entrypoints.cli.display.printing import print_text, this_command
from torchx_kfp.entrypoints.cli.flags import Target
from torchx_kfp.errors import AppDefError, ArgumentError, PipelineFileError


def builtin_component(name: str) -> Any:
    """Return the function of a component that TorchX or one of its plugins names, such as ``dist.ddp``.

    Raises:
        PipelineFileError: there is none.
    """
    from torchx.specs import finder

    try:
        return finder.get_component(name).fn
    except finder.ComponentNotFoundException:
        known = list(finder.get_components())
        raise PipelineFileError(
            f"There is no file and no TorchX component {name!r}.{did_you_mean(name, known)} Give a component such as "
            "dist.ddp (`torchx builtins` lists them), or a function in a file: FILE.py:NAME."
        ) from None
    except finder.ComponentValidationException as error:
        raise PipelineFileError(str(error)) from None


def component_pipeline(function: Any, target: Target, *, tracked: bool, has_workspace: bool) -> Any:
    """Return a pipeline function of one stage, which runs the component with the arguments of the command line.

    The stage is tracked if a tracker base is given, or something that needs one.

    Raises:
        ArgumentError: an argument is missing or wrong, or the app cannot become a stage without losing something.
        click.exceptions.Exit: the arguments ask for the component's help, which has been printed.
    """
    from torchx.specs.builders import materialize_appdef

    from torchx_kfp.authoring.one_stage import needed_engine, single_stage_pipeline

    command = this_command(str(click.get_current_context().info_name), str(target.word))
    out, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            app = materialize_appdef(function, list(target.arguments))
    except SystemExit as ended:
        # TorchX's parser names itself: "torchx run <run args...> NAME ".
        named = f"torchx run <run args...> {function.__name__}"
        if not ended.code:
            print_text(out.getvalue().replace(named, f"{command} --"))
            raise click.exceptions.Exit(0) from None
        said = errors.getvalue().strip().rpartition("error: ")[2]
        raise ArgumentError(f"{target.word}: {said}. Its arguments: {command} -- --help") from None
    except Exception as error:
        raise ArgumentError(f"{target.word} cannot be called with these arguments: {error or repr(error)}.") from error
    try:
        return single_stage_pipeline(app, tracked=tracked or has_workspace, has_workspace=has_workspace)
    except AppDefError as error:
        engine = needed_engine(app)
        way_out = f" Make it a stage of a pipeline: task_from_app(app, engine={engine!r})." if engine else ""
        raise ArgumentError(f"{error}{way_out}") from None
