"""The application of a role: its entrypoint, arguments, variables and image, with macros applied.

TorchX's own code replaces its macros in args, the values of env and the overlays of pods. It uses ``string.Template``,
so ``$$`` becomes ``$``, as with TorchX's schedulers. In a shell program, a channel becomes the expansion of a variable
with its value (``expand_channels``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kfp.dsl import pipeline_channel
from torchx import specs
from torchx.schedulers import kubernetes_scheduler

from torchx_kfp.authoring.appdef import (
    role_node_selector,
    role_retries,
    role_volumes,
    role_workspace_folders,
    shown_value,
    single_resources,
    single_role,
)
from torchx_kfp.authoring.channels import check_text, ir_type, parse, parse_checked
from torchx_kfp.authoring.inline_code import expand_channels
from torchx_kfp.authoring.naming import is_shell_variable
from torchx_kfp.authoring.options import (
    PROTOCOL_VARIABLES,
    StageOptions,
    check_variables,
    secret_variables,
    tracker_env,
)
from torchx_kfp.authoring.references import REPLICA, Text, check_word, is_constant, join_constants, parameter_text
from torchx_kfp.contract import protocol
from torchx_kfp.contract.inputs import RUN_ID, find_rewritten, output_placeholder
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.contract.scripts import folders_placeholder, retry_words, workspace_words
from torchx_kfp.errors import AppDefError

#: The prefix of variables that name a field of the pod in TorchX's Kubernetes scheduler; None in versions without it.
_FIELD_PATH: str | None = getattr(kubernetes_scheduler, "PLACEHOLDER_FIELD_PATH", None)
#: The exit code of a launcher, or of the program that unpacks a workspace, if it could not start the application. Other
#: launchers use the same: docker, env, timeout.
LAUNCHER_FAILED = 125


@dataclass(frozen=True)
class Application:
    """The program of a pod, which is a role's application or the launcher of a stage with an engine, and the pod's
    settings.

    For the pods of its roles, an engine sets all fields after ``failures``: see ``pods``.

    Attributes:
        words: the entrypoint and its arguments; for a launcher, the words of the roles' applications.
        env: its variables.
        field_paths: variables that name fields of the pod.
        image: its image.
        starter: the words of the programs before it.
        failures: the exit codes of a failed starter.
        resources: the pod's requests and limits, as Kubernetes writes them, with at most one type of device.
        node_selector: the labels of its node.
        volumes: pairs of a claim and its mount path.
        task_config: the settings of the task that also apply to the pod of a launcher; empty without an engine.
    """

    words: Sequence[Text] = ()
    env: Mapping[str, Text] = field(default_factory=dict)
    field_paths: Mapping[str, str] = field(default_factory=dict)
    image: Text = ()
    starter: Sequence[Text] = ()
    failures: tuple[int, ...] = ()
    resources: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[tuple[str, str]] = ()
    task_config: Sequence[str] = ()


def single_application(app: specs.AppDef, options: StageOptions) -> Application:
    """Return the application of a stage without an engine: its only role's, with retries and trackers."""
    if options.replicas is not None:
        raise AppDefError("replicas is given, but no engine. Give one, such as engine='job': it runs the replicas.")
    role = single_role(app)
    application = role_application(app, role, options)
    tracked = options.tracker_base is not None
    # The script of a stage with outputs finds the pipeline run without a variable.
    needs_run = {protocol.PIPELINE_RUN: protocol.RUN_ID_LABEL} if tracked and not options.publishing else {}
    retrying = retry_words(role_retries(role), output_placeholder(RUN_ID) if tracked else None)
    return replace(
        application,
        env={**tracker_env(options.trackers), **application.env},
        field_paths={**application.field_paths, **needs_run},
        starter=[*application.starter, *((word,) for word in retrying)],
        resources=single_resources(role),
        node_selector=role_node_selector(role),
        volumes=role_volumes(role),
    )


def role_application(
    app: specs.AppDef, role: specs.Role, options: StageOptions, *, replicas: bool = False
) -> Application:
    """Return the application of a role, started in the role's workspace, if any.

    With ``replicas``, an engine runs it: ``${replica_id}`` becomes ``REPLICA``, and the engine sets the host of replica
    0.
    """
    where = f"role {role.name!r}"
    of_stage = (*PROTOCOL_VARIABLES, *tracker_env(options.trackers)) if options.tracker_base is not None else ()
    secrets = options.secrets or {}
    for name in role.env:
        if not isinstance(name, str):
            raise AppDefError(f"env of {where} has the name {name!r}, which is not text.")
    check_variables(role.env, secrets, (*of_stage, *(protocol.OF_REPLICAS if replicas else ())), where)
    values = macro_values(app, parameter_text(REPLICA) if replicas else "0")
    variables: dict[str, Any] = dict(role.env)
    texts = [value for value in (*role.args, *role.env.values()) if isinstance(value, str)]
    if not replicas and any(protocol.RANK0_HOST in values.substitute(text) for text in texts):
        variables.setdefault(protocol.RANK0_HOST, "localhost")

    def read(value: object, place: str) -> Text:
        return parse(values.substitute(value) if isinstance(value, str) else value, place)

    env: dict[str, Text] = {}
    field_paths: dict[str, str] = {}
    for key, value in variables.items():
        if not key or "=" in key or key.startswith("-"):
            raise AppDefError(f"env of {where} has the name {key!r}, which a variable cannot have.")
        check_word(key, f"A name in env of {where}")
        place = f"env[{key!r}] of {where}"
        parts = check_text(read(value, place), place)
        if _FIELD_PATH and isinstance(parts[0], str) and parts[0].startswith(_FIELD_PATH):
            if len(parts) > 1:
                raise AppDefError(
                    f"{place} names a field of the pod with a pipeline channel inside. The field must be known when "
                    "the pipeline is compiled."
                )
            field_paths[key] = parts[0].removeprefix(_FIELD_PATH)
            if not is_shell_variable(key):
                raise AppDefError(
                    f"{place} names a field of the pod, but shells do not pass on a variable of that name. Give it a "
                    "name of ASCII letters, digits and '_'."
                )
        else:
            env[key] = parts
    entrypoint = parse_checked(role.entrypoint, f"entrypoint of {where}")
    args = [read(value, f"args[{index}] of {where}") for index, value in enumerate(role.args)]
    args, expanded = expand_channels(entrypoint, args, where, {*variables, *secret_variables(secrets)})
    env.update({variable: (reference,) for variable, reference in expanded.items()})
    if options.inputs:
        env[protocol.STAGE_INPUTS] = (":".join(options.inputs),)
    args = [check_text(parts, f"args[{index}] of {where}") for index, parts in enumerate(args)]
    image = parse_checked(role.image, f"image of {where}")
    # Shells before the application would drop these.
    odd = {name: env.pop(name) for name in [*env] if not is_shell_variable(name)}
    words = [*(_assignments(odd, where, entrypoint) if odd else ()), entrypoint, *args]
    workspace = role_workspace(role, options.workspace)
    unpacker = [*((word,) for word in workspace_words("")[:-1]), workspace] if workspace else []
    return Application(words, env, field_paths, image, unpacker, (LAUNCHER_FAILED,) if workspace else ())


def macro_values(app: specs.AppDef, replica: str) -> specs.macros.Values:
    """Return the values of TorchX's macros.

    ``app_id`` is the AppDef's name: a value that changed with each run would defeat KFP's cache. ``img_root`` is empty,
    as in TorchX's Kubernetes scheduler.
    """
    return specs.macros.Values(img_root="", app_id=app.name, replica_id=replica, rank0_env=protocol.RANK0_HOST)


def role_workspace(role: specs.Role, workspace: object) -> Text:
    """Return the workspace of a role: its own folders, or the stage's option; empty without one."""
    folders = role_workspace_folders(role, f"role {role.name!r}")
    is_given = workspace is not None and not (isinstance(workspace, str) and not workspace)
    if folders and is_given:
        raise AppDefError(
            f"Role {role.name!r} has its own workspace ({', '.join(map(repr, folders))}), and the stage has the "
            "option workspace. Remove one of them: set Role.workspace to None, or pass workspace=None to task()."
        )
    if not is_given:
        return (folders_placeholder(folders),) if folders else ()
    if isinstance(workspace, pipeline_channel.PipelineChannel):
        fits = ir_type(workspace) == "STRING"
    else:
        fits = isinstance(workspace, str) and not find_rewritten(workspace) and bool(workspace_digest(workspace))
    if not fits:
        raise AppDefError(
            f"workspace is {shown_value(workspace)}. Give the pipeline's parameter, workspace: str = '', which "
            "`torchx-kfp submit --workspace DIR` fills in, or the URL of a stored workspace, which ends in its "
            "SHA-256 and .tar."
        )
    return parse_checked(workspace, "workspace")


def env_words(application: Application, where: str, *, first: bool) -> tuple[Text, ...]:
    """Return the words of ``env`` that set the application's variables, if it needs them.

    ``first`` is true if these words begin the command: older backends do not fill placeholders into the first word.
    """
    entrypoint = () if application.starter else application.words[0]
    if not application.env and not (first and entrypoint and not is_constant(entrypoint)):
        return ()
    return _assignments(application.env, where, entrypoint)


def _assignments(env: Mapping[str, Text], where: str, entrypoint: Text) -> tuple[Text, ...]:
    """Return the words of ``env`` that set these variables."""
    if any(isinstance(part, str) and "=" in part for part in entrypoint):
        shown = "".join(part if isinstance(part, str) else f"<{part.name}>" for part in entrypoint)
        raise AppDefError(
            f"The entrypoint of {where} contains '=' ({shown!r}), so the `env` before it reads it as a "
            "variable. Call it through a shell, or a link without '='."
        )
    words = [
        check_text(join_constants((f"{name}=", *parts)), f"env[{name!r}] of {where}") for name, parts in env.items()
    ]
    return (("env",), *words)
