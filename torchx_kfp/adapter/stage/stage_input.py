"""Constant text that travels in the input ``stage``, so that stages that differ in nothing else share a container.

Argo takes 1 MiB for a whole run. KFP's backend keeps a container and its component once for all tasks whose container
has the same text, some 2 kB from an image and 4 kB with the program that publishes; what a task passes to an input
stands there twice. So text that tends to differ from stage to stage is an input's: the stage's name, those of the
stages that it reads, short values of arguments and of variables. What stages of one kind tend to share is the
container's: the program, the names of options and variables, long text. All of it is one input, since each further one
costs 130 bytes a task before its text::

    stage-7 stage-6 app.train 0.01

The rule looks at one stage at a time: a stage's command, and with it KFP's cache key, must not depend on its
neighbours. The text is ASCII on one line, which every database on the way keeps; values in it are escaped
(``text.escape``), names of stages as in JSON, and none has a space.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torchx_kfp import protocol
from torchx_kfp.adapter.stage.reads import StageName
from torchx_kfp.adapter.values.escapes import escape
from torchx_kfp.adapter.values.names import is_shell_variable
from torchx_kfp.adapter.values.references import Parts

#: Bytes of one value, and of all: a container of its own is shorter than more than that, twice.
LONGEST, MOST = 256, 1024
_OPTION = re.compile(r"--?[A-Za-z][\w-]*", re.ASCII)


class Prefix(str):
    """What the container has of a word whose value is in the input: ``NAME=`` of a variable, nothing of an argument."""


@dataclass(frozen=True)
class Lifted:
    """The text of the input ``stage``, and what it leaves to the container.

    ``aliases`` are those that it names. ``variables`` and ``words`` have a ``Prefix`` where it has their value.
    """

    text: str
    aliases: Sequence[str]
    variables: Sequence[Parts]
    words: Sequence[Parts]


def lift(
    stage: str,
    aliases: Iterable[str],
    variables: Sequence[Parts],
    words: Sequence[Parts],
    *,
    kept: Collection[str] = (),
) -> Lifted:
    """Lift names and values into the input ``stage``.

    Args:
        stage: the stage's part of run ids.
        aliases: of the stages that are read.
        variables: ``env`` and ``NAME=value``.
        words: the program and its arguments.
        kept: variables that the stages of a pipeline have in common.
    """
    named = [alias for alias in aliases if isinstance(alias, StageName)]
    names = [protocol.encode_alias(alias).replace(" ", r"\u0020") for alias in named]
    split = [*(_split_variable(word, kept) for word in variables), None, *map(_split_argument, words[1:])]
    values = [escape(word[1]).replace(" ", r"\0040") for word in split if word]
    if sum(map(len, (*names, *values))) > MOST:
        return Lifted(stage, (), variables, words)
    parts = [(Prefix(found[0]),) if found else word for found, word in zip(split, (*variables, *words), strict=True)]
    return Lifted(" ".join([stage, *names, *values]), named, parts[: len(variables)], parts[len(variables) :])


def _split_variable(word: Parts, kept: Collection[str]) -> tuple[str, str] | None:
    if len(word) != 1 or not isinstance(word[0], str):
        return None
    name, equals, value = word[0].partition("=")
    return (name + equals, value) if is_shell_variable(name) and name not in kept and _is_value(value) else None


def _split_argument(word: Parts) -> tuple[str, str] | None:
    if len(word) != 1 or not isinstance(word[0], str) or not _is_value(word[0]) or _OPTION.fullmatch(word[0]):
        return None
    return "", word[0]


def _is_value(text: str) -> bool:
    return 0 < len(text) <= LONGEST and text.isascii() and text.isprintable()
