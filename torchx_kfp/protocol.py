"""The stage protocol, version 1: how a stage learns who it is and whose results it may read.

Every name of an environment variable, and the only encoder and decoder of their values. Applications decode. In a
stage a shell script sets the variables, some of whose values are known at run time only: ``encode`` says what it has to
set, also for whoever starts an application by hand. Nothing is needed beyond the standard library.

A run id is ``<pipeline run>/<stage>/<execution>``. It is also the key under which the stage's results are
stored below the tracker base.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torchx_kfp.errors import NotInStageError, ProtocolError

VERSION = 1

#: fsspec URL or local directory under which results are stored.
TRACKER_BASE = "TORCHX_TRACKER_BASE"
#: Run id of this stage. TorchX's own name: ``torchx.settings.ENV_TORCHX_JOB_ID``.
JOB_ID = "TORCHX_JOB_ID"
#: Run id of the first stage that this one reads. TorchX's own name.
PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
#: JSON object: alias of each stage read -> its run id, or the list of run ids of a fan-in.
PARENT_RUN_IDS = "TORCHX_PARENT_RUN_IDS"
#: Names of the tracker backends that ``torchx.tracker`` shall load, separated by commas. TorchX's own
#: name.
TRACKERS = "TORCHX_TRACKERS"
#: This project's name among torchx's tracker backends.
TRACKER_NAME = "torchx_kfp"
#: Configuration of that backend: ``TORCHX_TRACKER_<NAME>_CONFIG``, the tracker base.
TRACKER_CONFIG = "TORCHX_TRACKER_TORCHX_KFP_CONFIG"

#: What the protocol sets in a stage, beside the configuration of further trackers; an AppDef that sets one of these
#: itself cannot be tracked.
VARIABLES = (TRACKER_BASE, JOB_ID, PARENT_RUN_ID, PARENT_RUN_IDS, TRACKERS, TRACKER_CONFIG)

#: Not read by applications: where the engine puts the pipeline's run id, for the stage to make its own from.
PIPELINE_RUN = "KFP_RUN_ID"
#: Set on every pod by KFP's backend; the execution's part of the run id where it is there.
POD_NAME = "KFP_POD_NAME"
#: The image of a stage in a container, where the engine tells it: the local runner does. For the record of its start.
IMAGE = "TORCHX_KFP_IMAGE"

RunIds = str | tuple[str, ...]


class RawJson(str):
    """Text that is JSON already: a list of run ids that an engine fills in at run time."""


@dataclass(frozen=True)
class StageContext:
    """What the protocol tells a stage.

    ``parents`` maps the alias of each stage read, in order, to its run id, or to the run ids of a fan-in
    in loop order. ``trackers`` maps the names of further trackers, in order, to their configuration, if they have one.
    """

    tracker_base: str
    run_id: str
    parents: Mapping[str, RunIds] = field(default_factory=dict)
    trackers: Mapping[str, str | None] = field(default_factory=dict)


def tracker_config_variable(name: str) -> str:
    """The variable from which TorchX reads a tracker's configuration."""
    return f"TORCHX_TRACKER_{name.upper()}_CONFIG"


def encode_tracker_names(further: Iterable[str]) -> str:
    """``TORCHX_TRACKERS`` for this project's own tracker and these further ones."""
    return ",".join([TRACKER_NAME, *further])


def decode_trackers(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The further trackers that the environment names, in order, and the configuration of each."""
    names = environ.get(TRACKERS, "").split(",")
    return {
        name: environ.get(tracker_config_variable(name)) or None for name in names if name not in ("", TRACKER_NAME)
    }


def parent_words(parents: Mapping[str, str | RawJson | Sequence[str]], unnamed: Collection[str] = ()) -> list[str]:
    """What a script puts ``PARENT_RUN_IDS`` together from: constant text and run ids in turn, text at both ends.

    So the script can look at each run id, which is known at run time only, before it becomes a part of the JSON: one
    with a quote in it would make another alias. The text lacks the brace at its beginning (KFP reads a word that begins
    with ``{"Concat"`` as a placeholder); text before a list that an engine fills in ends with a blank, before a run id
    with a quote, and the last one alone with a brace. The names of ``unnamed`` aliases are empty, for the script to
    fill in what ``encode_alias`` makes of them: nothing else in the text is ``""``.
    """
    words: list[str] = []
    text = ""
    for alias, ids in parents.items():
        name = "" if alias in unnamed else encode_alias(alias)
        text += (", " if words or text else "") + f'"{name}": '
        if isinstance(ids, RawJson):
            words += [text, ids]
            text = ""
            continue
        alone = isinstance(ids, str)
        text += "" if alone else "["
        for number, run_id in enumerate([ids] if isinstance(ids, str) else ids):
            words += [f'{text}, "' if number else f'{text}"', run_id]
            text = '"'
        text += "" if alone else "]"
    return [*words, text + "}"]


def encode_parents(parents: Mapping[str, RunIds | Sequence[str]]) -> str:
    """``TORCHX_PARENT_RUN_IDS`` for these parents."""
    members = [
        f'"{encode_alias(alias)}": {json.dumps(ids if isinstance(ids, str) else list(ids))}'
        for alias, ids in parents.items()
    ]
    return "{" + ", ".join(members) + "}"


def encode_alias(alias: str) -> str:
    """The alias as the name of a member of a JSON object, without the quotes around it.

    Pure ASCII, and neither ``$``, ``{`` nor quotes inside: the text passes engines that rewrite templates, and a shell
    that looks for the first run id.
    """
    name = json.dumps(alias)[1:-1]
    for character in '\\"', "$", "{", "\x7f":
        name = name.replace(character, f"\\u{ord(character[-1]):04x}")
    return name


def decode_parents(text: str) -> dict[str, RunIds]:
    """The parents in ``TORCHX_PARENT_RUN_IDS``, in order.

    Raises:
        ProtocolError: the text is not a JSON object of run ids and lists of run ids, or has an alias twice.
    """
    problem = f"{PARENT_RUN_IDS} must be a JSON object: alias -> run id, or a list of run ids. Got: {text[:1000]!r}."

    try:
        parents = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{problem} ({error})") from None
    if not isinstance(parents, dict):
        raise ProtocolError(problem)
    decoded: dict[str, RunIds] = {}
    for alias, ids in parents.items():
        if isinstance(ids, str):
            decoded[alias] = ids
        elif isinstance(ids, list) and all(isinstance(run_id, str) for run_id in ids):
            decoded[alias] = tuple(ids)
        else:
            raise ProtocolError(f"{problem} The alias {alias!r} has {ids!r}.")
    return decoded


def _without_duplicates(members: list[tuple[str, object]]) -> dict[str, object]:
    """The members of a JSON object. Of two with one name, readers in other languages may take either."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError(f"two members have one name: {', '.join(repr(name) for name, _ in members)}")
    return found


def first_run_id(parents: Mapping[str, RunIds]) -> str | None:
    """``TORCHX_PARENT_RUN_ID``: the first run id of the first parent; None without one."""
    for ids in parents.values():
        if isinstance(ids, str):
            return ids
        return ids[0] if ids else None
    return None


def encode(context: StageContext) -> dict[str, str]:
    """The environment variables that tell a stage its context."""
    environ = {
        TRACKER_BASE: context.tracker_base,
        JOB_ID: context.run_id,
        TRACKERS: encode_tracker_names(context.trackers),
        TRACKER_CONFIG: context.tracker_base,
    }
    environ.update({tracker_config_variable(name): config for name, config in context.trackers.items() if config})
    if context.parents:
        environ[PARENT_RUN_IDS] = encode_parents(context.parents)
        first = first_run_id(context.parents)
        if first is not None:
            environ[PARENT_RUN_ID] = first
    return environ


def decode(environ: Mapping[str, str]) -> StageContext:
    """The context of the stage that this environment belongs to.

    Raises:
        NotInStageError: variables are missing or empty, that is, no tracked stage was started with them.
        ProtocolError: a variable is malformed.
    """
    missing = [name for name in (TRACKER_BASE, JOB_ID) if not environ.get(name)]
    if missing:
        raise NotInStageError(
            f"This process was not started as a tracked stage: {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set. Run the application as a stage of a pipeline "
            "(task_from_app(..., tracker_base=...)), or set the variables to try it by hand, for example "
            f"{TRACKER_BASE}=/tmp/results {JOB_ID}=try/app/1."
        )
    parents: dict[str, RunIds] = {}
    if environ.get(PARENT_RUN_IDS):
        parents = decode_parents(environ[PARENT_RUN_IDS])
    elif environ.get(PARENT_RUN_ID):
        # Started by TorchX's own runner, which knows one parent and no alias.
        parents = {"parent": environ[PARENT_RUN_ID]}
    return StageContext(environ[TRACKER_BASE], environ[JOB_ID], parents, decode_trackers(environ))
