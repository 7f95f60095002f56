"""The input ``stage``: constant text that differs from stage to stage, so that similar stages share a container.

Argo allows 1 MiB for a whole run. KFP's backend stores a container and its component once for all tasks whose
container has the same text: about 2 kB for an image with torchx-kfp, 4 kB with the program that publishes. The value
of an input is stored twice for each task. So text that tends to differ goes into an input: the stage's name, the names
of the stages that it reads, and short values of arguments and variables. Text that stages of one kind tend to share
stays in the container: the program, the names of options and variables, and long values. All values share one input,
because each further input would cost 130 bytes per task plus its text::

    stage-7 stage-6 app.train 0.01

The rule considers each stage by itself: a stage's command, and so KFP's cache key, must not depend on other stages. The
text is one line of ASCII, which the databases on the way do not change. Values are escaped (``escapes.escape``), and so
are names of stages (as in JSON); neither contains a space.
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

#: The bytes that one value may have, and all of them. Storing more than that twice would take more than another
#: container.
LONGEST, MOST = 256, 1024
_OPTION = re.compile(r"--?[A-Za-z][\w-]*", re.ASCII)


class Prefix(str):
    """The part of a word that stays in the container: ``NAME=`` of a variable, an empty text of an argument."""


@dataclass(frozen=True)
class Lifted:
    """The text of the input ``stage``, and the words that stay in the container.

    The text contains the names ``aliases``. ``variables`` and ``words`` have a ``Prefix`` where the text has the value.
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
    """Move names and values into the input ``stage``.

    Args:
        stage: the stage's part of run ids.
        aliases: the aliases of the stages that are read.
        variables: ``env`` and ``NAME=value``.
        words: the program and its arguments.
        kept: variables that stay in the container, because the stages of a pipeline share them.
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
