r"""The command of a stage: a program that runs before the application, and the application's own words.

A tracked stage's command is::

    env TORCHX_TRACKER_BASE=... \
        sh -ec SCRIPT SIGNATURE RUN_ID_FILE VALUES [PARENTS...] [UI_FILE UI_METADATA] [MASK] \
        [env NAME=VALUE...] [WORKSPACE...] [RETRIES...] WORDS...

``env`` comes first because older backends do not fill placeholders into a command's first element; it sets a variable
whose value is known only at run time. The script makes the run id, writes it to KFP's output, checks the run ids of
PARENTS, and ends with ``exec WORDS``, so that signals reach the application and the exit code is the application's.
WORDS are the application's entrypoint and arguments. An ``env`` before them sets the role's variables, because KFP's
cache key covers the command but not the container's environment. It also sets the variables of further trackers, which
replace those of the script. WORKSPACE (``scripts.workspace_words``) unpacks code and starts the rest in it, and RETRIES
(``scripts.retry_words``) start WORDS again if they fail. A distributed stage has neither: its WORDS are those of the
launcher (``launcher_words``) and of its replicas, and the command of each replica begins with WORKSPACE.

A stage with outputs has a PUBLISHER (``carried.publisher``), which runs WORDS as its child and passes on signals and
the exit code. It also does what the script does, in a fraction of the text: the state of a run has six copies of each
stage's command (``execution.model.workflow``). The script only says what is missing if there is no python3::

    env TORCHX_TRACKER_BASE=... [NAME=VALUE...] sh -ec SCRIPT SIGNATURE [UI_FILE UI_METADATA] \
        PUBLISHER... VALUES [env NAME=VALUE...] [WORKSPACE...] [RETRIES...] WORDS...

VALUES is the input ``stage``: the stage's name, the names that PARENTS lack, and the values of the words that MASK
marks. Everything else is the same for all stages of the same shape. KFP's backend stores such a container once, with
one component, and compares only the text of containers. So the text must differ if the components do: SIGNATURE
represents the component's inputs, their defaults and its outputs.

Scripts are constants; everything that comes from an AppDef is an argument. They run in dash, busybox and bash, do not
start processes (except ``mkdir`` if the output's folder is missing), and do not contain ``$(``, ``$$`` or ``{{``, which
the kubelet and Argo rewrite.

This is version 1. In version 0, 0.1.0's, a script starts the stage even if there is a PUBLISHER, which stands before
WORDS, and values are separated by spaces; before there were values, SIGNATURE was the stage's name, and a variable had
all of PARENTS. Neither names its version. A later version that cannot be read as this one
does so in its signature: ``torchx-kfp-2-<digits>``. Readers take such a command for a foreign one.
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
from typing import Any, Literal, NamedTuple

from torchx_kfp.contract import protocol
from torchx_kfp.contract.inputs import (
    RUN_ID,
    SEPARATOR,
    STAGE,
    artifact_placeholder,
    output_placeholder,
    parameter_placeholder,
    plain_json,
    unescape,
)
from torchx_kfp.contract.scripts import (
    OF_LAUNCHER,
    OF_MAY_FAIL,
    OF_PUBLISHER,
    Script,
    assigned,
    assignment,
    retries_in,
    workspace_in,
)
from torchx_kfp.contract.specification import ReplicaRole, Specification
from torchx_kfp.errors import ProtocolError

#: The artifact that tells KFP's UI what to show. Its name comes from KFP v1.
UI_METADATA = "mlpipeline_ui_metadata"
#: KFP's ExecutorInput.
EXECUTOR_INPUT = "{{$}}"
#: The names of variables that programs read before their code runs.
EARLY = re.compile(r"PATH|PYTHON\w*|LD_\w+", re.ASCII)
#: What the names of variables begin with that ``set_aside`` has renamed.
ASIDE = "TORCHX_KFP_NOT_"
#: A program for an image that has torchx-kfp. With ``-m``, Python would import modules from the working directory.
_INSTALLED = "import sys;sys.path=[*filter(None,sys.path)];from {} import {name};{name}.main(*sys.argv[1:])"


class Word(NamedTuple):
    """A word of the application's command line, as text for KFP.

    ``kind`` is ``b`` if the text is escaped, ``v`` if it is to be followed by a value of the input ``stage``.
    """

    text: str
    kind: Literal["s", "b", "v"] = "s"


class Read(NamedTuple):
    """A stage that is read.

    The name ``alias`` is empty if the input ``stage`` has it. ``source`` is the name of an input, a run id after ``=``,
    or a list of these; ``is_list`` tells whether the input is a list of run ids.
    """

    alias: str
    source: str | Sequence[str]
    is_list: bool = False


@dataclass(frozen=True)
class Outputs:
    """The results and artifacts that a stage publishes, by KFP's names of the outputs.

    A result has a type and the name under which the application records it; an artifact has a schema title, its name
    and whether KFP's UI shows its content. If the stage may fail, ``may_fail`` are the exit codes that fail it anyway.
    """

    results: Mapping[str, tuple[str, str]]
    artifacts: Mapping[str, tuple[str, str, bool]]
    may_fail: tuple[int, ...] | None = None

    def words(self, program: str, start: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Return the words that run the program around the application, whose words follow.

        Args:
            program: the text of the program.
            start: what the program needs to start a stage; None if it publishes the results of another one.
        """
        spec: dict[str, Any] = {
            "results": {output: list(one) for output, one in self.results.items()},
            "artifacts": {output: [kind, name, int(shown)] for output, (kind, name, shown) in self.artifacts.items()},
        }
        if self.may_fail is not None:
            spec["may_fail"] = list(self.may_fail)
        paths = map(artifact_placeholder, self.artifacts)
        return ("python3", "-c", program, plain_json({**spec, **(start or {})}), EXECUTOR_INPUT, *paths)


@dataclass(frozen=True)
class Application:
    """The application: the words of ``env`` that set its variables, a program that starts it, and its command line."""

    variables: Sequence[Word]
    words: Sequence[Word]
    program: Sequence[str] = ()
    ui_metadata: str | None = None

    def _script(self, signature: str, *, needs_python: str = "", **parts: bool) -> tuple[str, ...]:
        message = OF_LAUNCHER if self.program[:1] == ("python3",) else needs_python
        return Script(shows=self.ui_metadata is not None, needs_python=message, **parts).words(signature)

    @property
    def _shown(self) -> tuple[str, ...]:
        return () if self.ui_metadata is None else (artifact_placeholder(UI_METADATA), self.ui_metadata)

    def _texts(self, variables: Sequence[Word]) -> tuple[str, tuple[str, ...]]:
        """Return the mask and the text of all words; those of the program need no script."""
        mask = "".join([*(one.kind for one in variables), "s" * len(self.program), *(one.kind for one in self.words)])
        return mask.rstrip("s"), (*(one.text for one in variables), *self.program, *(one.text for one in self.words))

    def untracked(self, signature: str) -> tuple[str, ...]:
        """Return the application's words, after a script if something must be done before."""
        mask, texts = self._texts(self.variables)
        if not mask and self.ui_metadata is None:
            return texts
        return (*self._script(signature, has_mask=bool(mask)), *self._shown, *((mask,) if mask else ()), *texts)

    def tracked(self, signature: str, tracker_base: str, reads: Sequence[Read]) -> tuple[str, ...]:
        """Return the command of a tracked stage: see the module."""
        mask, texts = self._texts(self.variables)
        parents = protocol.parent_words([(read.alias, _ids(read)) for read in reads]) if reads else ()
        return (
            *("env", assignment(tracker_base)),
            *self._script(signature, makes_run_id=True, has_parents=bool(reads), has_mask=bool(mask)),
            *(output_placeholder(RUN_ID), parameter_placeholder(STAGE)),
            *parents,
            *self._shown,
            *((mask,) if mask else ()),
            *texts,
        )

    def published(
        self, signature: str, tracker_base: str, reads: Sequence[Read], outputs: Outputs, publisher: str
    ) -> tuple[str, ...]:
        """Return the command of a tracked stage with outputs; ``publisher`` is the text of the program."""
        # The publisher needs some variables when it starts.
        early = [word for word in self.variables[1:] if word.kind == "s" and _is_early(word.text)]
        late = [word for word in self.variables[1:] if word not in early]
        mask, texts = self._texts([*self.variables[:1], *late] if late else [])
        start: dict[str, Any] = {"reads": [[read.alias, read.source] for read in reads]}
        start |= ({"mask": mask} if mask else {}) | ({"env": len(late)} if late else {})
        return (
            *("env", assignment(tracker_base), *(word.text for word in early)),
            *self._script(signature, needs_python=OF_PUBLISHER if outputs.may_fail is None else OF_MAY_FAIL),
            *self._shown,
            *outputs.words(publisher, start),
            parameter_placeholder(STAGE),
            *texts,
        )


def publish_other(signature: str, tracker_base: str, run_id: str, outputs: Outputs, publisher: str) -> tuple[str, ...]:
    """Return the command of a stage that publishes the records of another stage's run."""
    return (
        *("env", assignment(tracker_base), f"{protocol.JOB_ID}={run_id}"),
        *Script(copies_run_id=True, needs_python=OF_PUBLISHER).words(signature),
        output_placeholder(RUN_ID),
        *outputs.words(publisher),
    )


def installed_program(package: str, name: str) -> str:
    """Return a program that runs a module of the package, for images that have it."""
    return _INSTALLED.format(package, name=name)


def launcher_words(program: str, specification: Specification) -> tuple[str, ...]:
    """Return the words that run the launcher of a distributed stage; the words of its replicas follow."""
    return ("python3", "-c", program, plain_json(specification.to_json()), EXECUTOR_INPUT)


def _is_early(word: str) -> bool:
    return EARLY.fullmatch(word.partition("=")[0]) is not None


def _text(source: str) -> str:
    return source[1:] if source.startswith("=") else parameter_placeholder(source)


def _ids(read: Read) -> str | protocol.RawJson | list[str]:
    """Return the run ids that are read, with placeholders for those that only a run knows."""
    if not isinstance(read.source, str):
        return [_text(one) for one in read.source]
    return protocol.RawJson(_text(read.source)) if read.is_list else _text(read.source)


@dataclass(frozen=True)
class StageFacts:
    """The facts of a command about its stage; placeholders that are not filled in stay.

    Attributes:
        version: the version of the form; None for a command that this package did not make, or one without a script.
        stage: the name in the run id that the stage makes; empty if it makes none.
        words: the whole command, with values filled in.
        reads: the run ids that the stage reads, by alias.
        variables: the variables of the application that the command sets.
        application: the application's command line. For a distributed stage, it starts the launcher.
        workspace: where the code is with which the application starts; None if it has no workspace.
        retries: how often the stage's own program starts the application again if it fails.
        outputs: what the stage publishes.
        ui_metadata: the JSON text of KFP v1's UI metadata.
        specification: that of the launcher of a distributed stage.
    """

    words: tuple[str, ...]
    version: int | None = None
    stage: str = ""
    reads: Mapping[str, protocol.RunIds] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    application: tuple[str, ...] = ()
    workspace: str | None = None
    retries: int = 0
    outputs: Outputs | None = None
    ui_metadata: str | None = None
    specification: Specification | None = None

    @property
    def tracker_bases(self) -> tuple[str, ...]:
        """All tracker bases that the command sets."""
        return assigned(self.words)

    @property
    def tracker_base(self) -> str | None:
        """The tracker base of the stage; None if it is not tracked."""
        return next(iter(self.tracker_bases), None)

    @property
    def replica_words(self) -> Sequence[str]:
        """The words of a launcher to which its specification refers by number."""
        return self.application[5:]

    @property
    def replica_roles(self) -> list[ReplicaRole]:
        """The roles of a distributed stage; none if it is not distributed, or the specification is damaged."""
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            return self.specification.replica_roles(self.replica_words) if self.specification else []
        return []


def decode(command: Sequence[str]) -> StageFacts:
    """Read a command of any stage, with or without its placeholders filled in. A damaged one counts as foreign."""
    if (found := Script.find(command)) is not None:
        with contextlib.suppress(LookupError, ValueError, TypeError, AttributeError, RecursionError):
            return _decode_own(list(command), *found)
    return StageFacts(tuple(command), **_application(command, 0, {}))


def set_aside(command: Sequence[str], names: Pattern[str]) -> list[str]:
    """Return a command whose application does not get these variables from it.

    They are renamed: values follow the words' places.
    """
    facts, words = decode(command), list(command)
    start = len(words) - len(facts.application)
    for place, word in enumerate(words[:start]):
        name, equals, _ = word.partition("=")
        if equals and names.fullmatch(name):
            words[place] = f"{ASIDE}{word}"
    if facts.specification is not None:
        # The roles' own variables, as pairs of a name and a text.
        of_role = re.compile(rf'\["({names.pattern})",', names.flags)
        words[start + 3] = of_role.sub(rf'["{ASIDE}\1",', words[start + 3])
    return words


def _decode_own(words: list[str], script: Script, at: int) -> StageFacts:
    facts: dict[str, Any] = {"version": script.version}
    before = _assignments(words[2:]) if words[0] == "env" else {}
    # A publisher needs some of the application's variables itself.
    variables = {name: value for name, value in before.items() if name not in protocol.VARIABLES}
    if script.has_stage:
        facts |= {"stage": words[at - 1], "reads": _decoded(before.get(protocol.PARENT_RUN_IDS, "{}"))}
    values: list[str] = []
    if script.makes_run_id:
        words[at + 1], *values = words[at + 1].split(SEPARATOR if script.version else " ")
        facts["stage"] = words[at + 1]
        at += 2
    at += script.copies_run_id
    if script.has_parents:
        facts["reads"], at = _parents(words, at, values)
    if script.shows:
        facts["ui_metadata"] = unescape(words[at + 1])
        at += 2
    mask = words[at] if script.has_mask else ""
    at += script.has_mask
    spec, after = _publisher(words, at)
    if "reads" in spec:
        words[after], *values = words[after].split(SEPARATOR)
        facts |= {"stage": words[after], "reads": _reads(spec["reads"], words[at + 4], values)}
        mask, at = spec.get("mask", ""), after + 1
    _fill(words, at, mask, values)
    if "reads" in spec:
        facts["outputs"] = _outputs(spec)
    return StageFacts(tuple(words), **{**facts, **_application(words, at, variables, published="reads" not in spec)})


def _application(
    words: Sequence[str], at: int, variables: Mapping[str, str], *, published: bool = False
) -> dict[str, Any]:
    """Read the words from ``at`` on; ``published`` tells whether they may begin with a publisher."""
    facts: dict[str, Any] = {}
    if words[at:] and os.path.basename(words[at]) == "env":
        own = _assignments(words[at + 1 :])
        variables = {**variables, **own}
        at += 1 + len(own)
    spec, after = _publisher(words, at) if published else ({}, at)
    if spec:
        facts["outputs"] = _outputs(spec)
        at = after
    if (workspace := workspace_in(words[at:])) is not None:
        facts["workspace"] = workspace
        at += 4
    if retries := retries_in(words[at:]):
        facts["retries"] = retries
        at += 4
    application = tuple(words[at:])
    if application[:2] == ("python3", "-c") and len(application) > 4 and application[3].startswith("{"):
        # Another program's argument may look like it.
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            facts["specification"] = Specification.from_json(json.loads(application[3]))
    return {**facts, "variables": variables, "application": application}


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """Return the variables at the beginning of the words after ``env``."""
    found = itertools.takewhile(lambda parts: parts[1], (word.partition("=") for word in words))
    return {name: value for name, _, value in found}


def _publisher(words: Sequence[str], at: int) -> tuple[dict[str, Any], int]:
    """Return the specification of a publisher at this place, and the place after its words; empty if there is none."""
    if tuple(words[at : at + 2]) == ("python3", "-c"):
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            spec = json.loads(words[at + 3])
            if {"results", "artifacts"} <= spec.keys():
                return spec, at + 5 + len(spec["artifacts"])
    return {}, at


def _outputs(spec: Mapping[str, Any]) -> Outputs:
    return Outputs(
        {output: (kind, name) for output, (kind, name) in spec["results"].items()},
        {output: (kind, name, bool(shown)) for output, (kind, name, shown) in spec["artifacts"].items()},
        tuple(spec["may_fail"]) if "may_fail" in spec else None,
    )


def _parents(words: Sequence[str], at: int, values: list[str]) -> tuple[Mapping[str, protocol.RunIds], int]:
    """Return the run ids among the words of a script, and the place after them; take the names from the values."""
    text = "{"
    while True:
        # Constant text alternates with run ids; an empty name stands for the next value.
        for part in re.split('("")', words[at]):
            text += f'"{values.pop(0) if values else ""}"' if part == '""' else part
        if words[at].endswith("}"):
            break
        if text.endswith(" "):
            text += words[at + 1] if words[at + 1].startswith("[") else json.dumps(words[at + 1])
        else:
            text += json.dumps(words[at + 1])[1:-1]
        at += 2
    return _decoded(text), at + 1


def _decoded(parents: str) -> Mapping[str, protocol.RunIds]:
    with contextlib.suppress(ProtocolError):
        return protocol.decode_parents(parents)
    return {}


def _reads(reads: Sequence[Any], executor_input: str, values: list[str]) -> Mapping[str, protocol.RunIds]:
    """Return the run ids that a publisher gets; take the names from the values."""
    given: Mapping[str, Any] = {}
    with contextlib.suppress(ValueError, LookupError, TypeError):
        given = json.loads(executor_input)["inputs"]["parameterValues"]

    def ids(source: Any) -> Any:
        if not isinstance(source, str):
            return tuple(map(ids, source))
        found = given.get(source, parameter_placeholder(source)) if source[:1] != "=" else source[1:]
        return found if isinstance(found, str) else tuple(found)

    return {alias or json.loads(f'"{values.pop(0) if values else ""}"'): ids(source) for alias, source in reads}


def _fill(words: list[str], start: int, mask: str, values: list[str]) -> None:
    """Fill values into the words from ``start`` on that the mask marks; without values, their text is unknown."""
    for place, kind in enumerate(mask, start):
        if kind == "v" and values:
            words[place] += values.pop(0)
        if kind in "bv":
            words[place] = unescape(words[place])
