"""The input ``stage``: constant text that differs from stage to stage, so that similar stages share a container.

Argo allows 1 MiB for a whole run. KFP's backend stores a container and its component once for all tasks whose
container has the same text: about 2 kB for an image with torchx-kfp, 4 kB with the program that publishes. The value
of an input is stored twice for each task. So text that tends to differ goes into an input: the stage's name, the names
of the stages that it reads, and short values of arguments and variables. Text that stages of one kind tend to share
stays in the container: the program, the names of options and variables, and long values. All values share one input,
because each further input would cost 130 bytes per task plus its text::

    stage-7|stage-6|app.train|0.01

The rule considers each stage by itself: a stage's command, and so KFP's cache key, must not depend on other stages. The
text is one line of ASCII, which the databases on the way do not change. Values are escaped (``contract.escapes``), and
so are names of stages (as in JSON); neither contains a ``|``.

Two kinds of text stay in the container because stages share them, though they are short: variables that the program
which publishes results needs when it starts, such as PATH, and a program after ``python -c`` that reads ``sys.argv``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torchx_kfp.adapter.stage.reads import StageName
from torchx_kfp.adapter.values.names import is_shell_variable
from torchx_kfp.adapter.values.references import Parts
from torchx_kfp.contract.command import EARLY
from torchx_kfp.contract.inputs import encode_aliases, encode_value, join_values

#: The bytes that one value may have, and all of them. Storing more than that twice would take more than another
#: container.
LONGEST, MOST = 256, 1024
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
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
    names = encode_aliases(named)
    split = [*(_split_variable(word, kept) for word in variables), None, *map(_split_argument, words[1:])]
    if _is_program(words):
        split[len(variables) + 2] = None
    values = [encode_value(word[1]) for word in split if word]
    if sum(map(len, (*names, *values))) > MOST:
        return Lifted(stage, (), variables, words)
    parts = [(Prefix(found[0]),) if found else word for found, word in zip(split, (*variables, *words), strict=True)]
    return Lifted(join_values(stage, names, values), named, parts[: len(variables)], parts[len(variables) :])


def _split_variable(word: Parts, kept: Collection[str]) -> tuple[str, str] | None:
    if len(word) != 1 or not isinstance(word[0], str):
        return None
    name, equals, value = word[0].partition("=")
    stays = name in kept or EARLY.fullmatch(name) or not is_shell_variable(name)
    return None if stays or not _is_value(value) else (name + equals, value)


def _split_argument(word: Parts) -> tuple[str, str] | None:
    if len(word) != 1 or not isinstance(word[0], str) or not _is_value(word[0]) or _OPTION.fullmatch(word[0]):
        return None
    return "", word[0]


def _is_program(words: Sequence[Parts]) -> bool:
    """Return whether the third word is a program for Python that finds what differs in its arguments."""
    return (
        len(words) > 2
        and all(isinstance(word[0], str) for word in words[:3])
        and _PYTHON.fullmatch(str(words[0][0])) is not None
        and words[1][0] == "-c"
        and "argv" in str(words[2][0])
    )


def _is_value(text: str) -> bool:
    return 0 < len(text) <= LONGEST and text.isascii() and text.isprintable()
