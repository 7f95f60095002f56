"""The syntax tree of a shell program: scripts, commands, words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: What to write in place of arithmetic; ``{}`` stands for the value.
COMPUTE = """Compute whole numbers with expr, to which a value is data: "$(expr {} + 1)"."""
#: What to write in place of a comparison of numbers.
COMPARE = """Compare whole numbers with expr, to which a value is data: if expr {} ">" 3 >/dev/null; then ...; fi."""


class NotUnderstood(Exception):
    """It is unknown how the program uses values. The message is a clause that says why.

    Args:
        why: the clause.
        instead: a sentence that says what to write, with ``{}`` for the value.
    """

    def __init__(self, why: str, instead: str = "") -> None:
        super().__init__(why)
        self.instead = instead


@dataclass(frozen=True)
class Piece:
    """Part of a word: text, a channel, a variable, a command substitution or arithmetic."""

    kind: str
    #: The text itself, or the variable's name.
    text: str = ""
    quoted: bool = False
    script: Script | None = None
    #: The variables that arithmetic reads, or the variable that ``${x:=text}`` may set.
    names: tuple[str, ...] = ()
    #: Whether the expansion changes the variable's value (``${x:+text}``).
    changed: bool = False


Word = tuple[Piece, ...]


@dataclass(frozen=True)
class Redirect:
    """A redirection. ``operator`` excludes the file descriptor; for ``<<``, the word is the document."""

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
    """``if``, ``while``, ``for``, ``case``, braces or a subshell: its content, but not when and how often it runs."""

    scripts: Sequence[Script]
    #: The subject of ``case`` and its patterns, or the items of ``for``.
    words: Sequence[Word] = ()
    #: The variable of ``for``.
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
    """A sequence of pipelines."""

    pipelines: Sequence[Sequence[Command]]

    def scripts(self) -> Iterator[Script]:
        """Yield this script, and every script inside it."""
        yield self
        for pipeline in self.pipelines:
            for command in pipeline:
                for script in _scripts_in(command):
                    yield from script.scripts()

    def commands(self) -> Iterator[Command]:
        """Yield every command, including those inside other commands and inside words."""
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
    """Return every word of the command itself: assigned values, arguments, redirections."""
    words = [*command.words, *(redirect.word for redirect in command.redirects)]
    return [*(word for _, word in command.assignments), *words] if isinstance(command, Simple) else words


def literal(word: Word) -> str | None:
    """Return the word's text; None if it is not known without running anything."""
    if all(piece.kind == "text" for piece in word):
        return "".join(piece.text for piece in word)
    return None
