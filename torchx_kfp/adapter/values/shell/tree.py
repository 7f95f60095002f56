"""What a shell program is made of, once it is read: scripts, commands, words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class NotUnderstood(Exception):
    """The program is not one of which is known what it does; the message is a clause that says why."""


@dataclass(frozen=True)
class Piece:
    """A part of a word: text, a channel, a variable, a command substitution or arithmetic."""

    kind: str
    #: The text itself; the variable's name.
    text: str = ""
    quoted: bool = False
    script: Script | None = None
    #: The variables that arithmetic reads; the one that ``${x:=text}`` may set.
    names: tuple[str, ...] = ()
    #: Whether a variable's value is changed where it is expanded (``${x:+text}``).
    changed: bool = False


Word = tuple[Piece, ...]


@dataclass(frozen=True)
class Redirect:
    """``operator`` without its file descriptor; for ``<<`` the word is the document."""

    operator: str
    word: Word


@dataclass(frozen=True)
class Simple:
    """A simple command."""

    assignments: Sequence[tuple[str, Word]] = ()
    words: Sequence[Word] = ()
    redirects: Sequence[Redirect] = ()


@dataclass(frozen=True)
class Compound:
    """``if``, ``while``, ``for``, ``case``, braces, a subshell: what they hold, without how often and when it runs."""

    scripts: Sequence[Script]
    #: The subject of ``case`` and its patterns, the items of ``for``.
    words: Sequence[Word] = ()
    #: What ``for`` assigns its items to.
    variable: str | None = None
    redirects: Sequence[Redirect] = ()


@dataclass(frozen=True)
class Function:
    """The definition of a function."""

    name: str
    body: Compound


Command = Simple | Compound | Function


@dataclass(frozen=True)
class Script:
    """Pipelines, one after the other."""

    pipelines: Sequence[Sequence[Command]]

    def scripts(self) -> Iterator[Script]:
        """This script, and every one inside of it."""
        yield self
        for pipeline in self.pipelines:
            for command in pipeline:
                for script in _scripts_in(command):
                    yield from script.scripts()

    def commands(self) -> Iterator[Command]:
        """Every command, those inside of others and of words too."""
        for pipeline in self.pipelines:
            for command in pipeline:
                yield from _inside(command)


def _inside(command: Command) -> Iterator[Command]:
    yield command
    if isinstance(command, Function):
        yield command.body
    for script in _scripts_in(command):
        yield from script.commands()


def _scripts_in(command: Command) -> list[Script]:
    if isinstance(command, Function):
        return _scripts_in(command.body)
    scripts = list(command.scripts) if isinstance(command, Compound) else []
    return scripts + [piece.script for word in words_of(command) for piece in word if piece.script]


def words_of(command: Simple | Compound) -> list[Word]:
    """Every word of a command itself: assigned values, arguments, redirections."""
    words = [*command.words, *(redirect.word for redirect in command.redirects)]
    return [*(word for _, word in command.assignments), *words] if isinstance(command, Simple) else words


def literal(word: Word) -> str | None:
    """The word's text, if it is known without running anything."""
    if all(piece.kind == "text" for piece in word):
        return "".join(piece.text for piece in word)
    return None
