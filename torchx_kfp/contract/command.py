r"""The command of a stage: a program that runs before the application, and the application's own words.

A tracked stage's command is::

    env TORCHX_TRACKER_BASE=... \
        sh -ec SCRIPT NAME [METRICS] RUN_ID_FILE VALUES [PARENT... ""] [MASK] \
        [env NAME=VALUE...] [PUBLISHER...] [WORKSPACE...] [RETRIES...] WORDS...

``env`` comes first because older backends do not fill placeholders into the first word of a command. The script makes
the execution id (METRICS is the path of an artifact), writes it to KFP's output, checks the execution ids in each
PARENT (``scripts.parent_words``), and ends with ``exec WORDS``: the application gets the signals, and its exit code is
that of the stage. WORDS are the application's entrypoint and arguments. An ``env`` before them sets the role's
variables, because KFP's cache key includes the command, but not the environment of the container. It also sets
variables of further trackers, replacing the script's.

A stage with outputs has a PUBLISHER (``carried.publisher``), which runs WORDS as its child, passes on signals and the
exit code, and publishes the records of the application. WORKSPACE (``scripts.workspace_words``) unpacks code and starts
the rest in it, and RETRIES (``scripts.retry_words``) starts WORDS again if they fail. A distributed stage has neither:
its WORDS run the launcher (``launcher_words``), and the command of each replica begins with WORKSPACE.

VALUES is the input ``stage``: the stage's name, the alias of each PARENT, and the values of the words that MASK marks.
Everything else is equal for all stages of the same shape. KFP's backend stores such a container only once, together
with one component, and compares only the text of containers. So the text must differ if the components do: the script's
NAME contains a digest of the component's inputs, defaults and outputs. It also contains the version of the command's
form and the parts of the script. Readers treat a command of another version as foreign.

Scripts are constants; all text from an AppDef is an argument. They run in dash, busybox and bash. They only start
``mkdir``, if the output's folder is missing, and a copy of the shell for each word with escapes. They do not contain
``$(``, ``$$`` or ``{{``, which the kubelet and Argo rewrite.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from re import Pattern
from typing import Any

from torchx_kfp.contract import protocol
from torchx_kfp.contract.carried import programs
from torchx_kfp.contract.inputs import (
    RUN_ID,
    SEPARATOR,
    artifact_placeholder,
    output_placeholder,
    plain_json,
    unescape,
)
from torchx_kfp.contract.scripts import (
    COPIES_RUN_ID,
    FINDS_RUN,
    HAS_MASK,
    HAS_PARENTS,
    MAKES_RUN_ID,
    find_script,
    parent_words,
    parents_in,
    retries_in,
    script_words,
    workspace_in,
)
from torchx_kfp.contract.specification import LauncherSpec, RoleSpec

#: The artifact that shows all numbers of a stage with outputs in KFP's UI.
METRICS = "metrics"
#: KFP's ExecutorInput.
EXECUTOR_INPUT = "{{$}}"
#: The prefix of the word that sets the tracker base.
SETS_BASE = f"{protocol.TRACKER_BASE}="
#: The prefix of variables that ``set_aside`` has renamed.
ASIDE = "TORCHX_KFP_NOT_"
#: A program for an image that has torchx-kfp. With ``-m``, Python would import modules from the working directory.
_INSTALLED = "import sys;sys.path=[*filter(None,sys.path)];from {} import {name};{name}.main(*sys.argv[1:])"


@dataclass(frozen=True)
class Outputs:
    """The results and artifacts that a stage publishes besides ``METRICS``, by KFP's names of the outputs.

    A result is its type and the name under which the application records it. An artifact is that name, and whether
    KFP's UI shows its content. If the stage may fail, ``may_fail`` has the exit codes that fail it anyway.
    """

    results: Mapping[str, tuple[str, str]]
    artifacts: Mapping[str, tuple[str, bool]]
    may_fail: tuple[int, ...] | None = None

    def words(self, program: str) -> tuple[str, ...]:
        """Return the words that run this program; the words of the application follow."""
        spec: dict[str, Any] = {"results": self.results}
        if self.artifacts:
            spec["artifacts"] = {output: [name, int(shown)] for output, (name, shown) in self.artifacts.items()}
        if self.may_fail is not None:
            spec["may_fail"] = self.may_fail
        paths = map(artifact_placeholder, (METRICS, *self.artifacts))
        return ("python3", "-c", program, plain_json(spec), EXECUTOR_INPUT, *paths)


def encode_command(
    digest: str,
    words: Sequence[str],
    mask: str = "",
    *,
    needs_python: str = "",
    tracker_base: str = "",
    run_id: str = "",
    has_outputs: bool = False,
    values: str = "",
    parents: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the command of a stage: a script, if needed, and the words.

    Args:
        digest: that of the component.
        words: ``env`` and variables, the programs that start the application, and its command line, as text for KFP.
        mask: MASK, with a letter for each word; empty if no word has to be decoded.
        needs_python: the message for an image without python3; empty if the stage does not need it.
        tracker_base: the tracker base, with placeholders; empty if the stage is not tracked.
        run_id: the execution of another stage whose records this stage publishes.
        has_outputs: whether the stage publishes its own records.
        values: the placeholder of the input with VALUES.
        parents: the execution ids of parents as JSON.
    """
    parts = ""
    before: list[str] = ["env", SETS_BASE + tracker_base] if tracker_base else []
    given: list[str] = []
    if run_id:
        before.append(f"{protocol.JOB_ID}={run_id}")
        parts += COPIES_RUN_ID
        given.append(output_placeholder(RUN_ID))
    elif tracker_base:
        if has_outputs:
            parts += FINDS_RUN
            given.append(artifact_placeholder(METRICS))
        parts += MAKES_RUN_ID
        given += [output_placeholder(RUN_ID), values]
        if parents:
            parts += HAS_PARENTS
            given += parent_words(parents)
    if mask:
        parts += HAS_MASK
        given.append(mask)
    return (*before, *(script_words(parts, digest, needs_python) if parts else ()), *given, *words)


def carried_program(name: str, *, inline: bool) -> str:
    """Return a program of ``contract.carried``: its text, or one that imports it from the image."""
    texts = {"publisher": programs.PUBLISHER, "launcher": programs.LAUNCHER}
    return texts[name] if inline else installed_program("torchx_kfp.contract.carried", name)


def installed_program(package: str, name: str) -> str:
    """Return a program that runs a module of the package, for images that have it."""
    return _INSTALLED.format(package, name=name)


def launcher_words(program: str, specification: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words that run the launcher of a distributed stage; the words of its replicas follow."""
    return ("python3", "-c", program, plain_json(specification), EXECUTOR_INPUT)


@dataclass(frozen=True)
class DecodedCommand:
    """The decoded command of a stage. Placeholders that are not filled in remain.

    Attributes:
        is_own: whether the command has a script of this package.
        stage: the stage's name in its execution id; empty if it is not tracked.
        words: the whole command, with values filled in; of the input ``stage``, only the stage's name is left.
        reads: the execution ids of parents by alias; empty unless the input ``stage`` is filled in.
        variables: the variables that the command sets for the application.
        application: the application's command line; that of the launcher of a distributed stage.
        workspace: the URL or name of the workspace with which the application starts; None without a workspace.
        retries: how often the command starts the application again if it fails.
        outputs: the outputs that the stage publishes.
        specification: the specification of the launcher of a distributed stage.
    """

    words: tuple[str, ...]
    is_own: bool = False
    stage: str = ""
    reads: Mapping[str, protocol.RunIds] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    application: tuple[str, ...] = ()
    workspace: str | None = None
    retries: int = 0
    outputs: Outputs | None = None
    specification: LauncherSpec[str] | None = None

    @property
    def may_fail(self) -> bool:
        """Whether the stage succeeds if its application fails."""
        return self.outputs is not None and self.outputs.may_fail is not None

    @property
    def tracker_bases(self) -> tuple[str, ...]:
        """All tracker bases in the command, including one that the application sets for another program."""
        return tuple(word.removeprefix(SETS_BASE) for word in self.words if word.startswith(SETS_BASE))

    @property
    def tracker_base(self) -> str | None:
        """The tracker base of the stage; None if it is not tracked."""
        return next(iter(self.tracker_bases), None)

    @property
    def replica_roles(self) -> Sequence[RoleSpec[str]]:
        """The roles of a distributed stage; empty if the stage is not distributed."""
        return self.specification.roles if self.specification is not None else ()


def decode_command(command: Sequence[str]) -> DecodedCommand:
    """Decode the command of any stage, with or without placeholders. A malformed command counts as foreign."""
    if (found := find_script(command)) is not None:
        with contextlib.suppress(LookupError, ValueError, TypeError, AttributeError, RecursionError):
            return _decode_own(list(command), *found)
    return DecodedCommand(tuple(command), **_application(command, 0))


def set_aside(command: Sequence[str], names: Pattern[str]) -> list[str]:
    """Return a command that does not set these variables.

    They are renamed: values depend on word positions.
    """
    decoded, words = decode_command(command), list(command)
    start = len(words) - len(decoded.application)
    for place, word in enumerate(words[:start]):
        name, equals, _ = word.partition("=")
        if equals and names.fullmatch(name):
            words[place] = f"{ASIDE}{word}"
    if decoded.specification is not None:
        # The variables of roles, as pairs of a name and a text.
        of_role = re.compile(rf'\["({names.pattern})",', names.flags)
        words[start + 3] = of_role.sub(rf'["{ASIDE}\1",', words[start + 3])
    return words


def _decode_own(words: list[str], parts: str, at: int) -> DecodedCommand:
    decoded: dict[str, Any] = {"is_own": True}
    values: list[str] = []
    at += FINDS_RUN in parts
    if MAKES_RUN_ID in parts:
        words[at + 1], *values = words[at + 1].split(SEPARATOR)
        decoded["stage"] = words[at + 1]
        at += 2
    at += COPIES_RUN_ID in parts
    if HAS_PARENTS in parts:
        end = words.index("", at)
        aliases, values = values[: end - at], values[end - at :]
        decoded["reads"] = parents_in(aliases, words[at:end])
        at = end + 1
    if HAS_MASK in parts:
        _fill(words, at + 1, words[at], values)
        at += 1
    return DecodedCommand(tuple(words), **{**decoded, **_application(words, at)})


def _application(words: Sequence[str], at: int) -> dict[str, Any]:
    """Decode the words from position ``at``."""
    decoded: dict[str, Any] = {}
    if words[at:] and os.path.basename(words[at]) == "env":
        decoded["variables"] = _assignments(words[at + 1 :])
        at += 1 + len(decoded["variables"])
    if (outputs := _outputs(words[at:])) is not None:
        decoded["outputs"] = outputs
        at += len(outputs.words(""))
    if (workspace := workspace_in(words[at:])) is not None:
        decoded["workspace"] = workspace
        at += 4
    if retries := retries_in(words[at:]):
        decoded["retries"] = retries
        at += 4
    application = tuple(words[at:])
    if application[:2] == ("python3", "-c") and len(application) > 4 and application[3].startswith("{"):
        # The argument of another program may look similar.
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            decoded["specification"] = LauncherSpec.decode(json.loads(application[3]), application[5:])
    return {**decoded, "application": application}


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """Return the variables at the beginning of these words, which follow ``env``."""
    pairs = itertools.takewhile(lambda parts: parts[1], (word.partition("=") for word in words))
    return {name: value for name, _, value in pairs}


def _outputs(words: Sequence[str]) -> Outputs | None:
    """Return the outputs of a publisher at the beginning of the words; None without a publisher."""
    if tuple(words[:2]) == ("python3", "-c"):
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            spec = json.loads(words[3])
            return Outputs(
                {output: (kind, name) for output, (kind, name) in spec["results"].items()},
                {output: (name, bool(shown)) for output, (name, shown) in spec.get("artifacts", {}).items()},
                tuple(spec["may_fail"]) if "may_fail" in spec else None,
            )
    return None


def _fill(words: list[str], start: int, mask: str, values: list[str]) -> None:
    """Fill values into the words from ``start`` on that the mask marks. Without values, their text is incomplete."""
    for place, kind in enumerate(mask, start):
        if kind == "v" and values:
            words[place] += values.pop(0)
        elif kind == "b":
            words[place] = unescape(words[place])
