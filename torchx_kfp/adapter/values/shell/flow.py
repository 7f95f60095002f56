"""Follow values through a shell program: into variables, the output of commands, and files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torchx_kfp.adapter.values.shell.programs import DECLARE, PRINT_VALUES, SHELL, WRITERS
from torchx_kfp.adapter.values.shell.tree import (
    Command,
    Compound,
    Function,
    Piece,
    Script,
    Simple,
    Word,
    literal,
    words_of,
)

_REDIRECTED = re.compile(r">\s*([\w./-]+)")
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def assigned(command: Simple) -> Iterable[tuple[str, Word]]:
    """Yield the variables that a command sets, and the words that it assigns."""
    yield from command.assignments
    declares = bool(command.words) and literal(command.words[0]) in DECLARE
    # ``env`` may follow other commands.
    yield from (declared(word) for word in command.words[1:] if declares or is_assignment(word))


def declared(word: Word) -> tuple[str, Word]:
    """Split an argument ``name=value`` into its two parts."""
    name = ""
    for index, piece in enumerate(word):
        if piece.kind != "text" or piece.quoted:
            return "", ()
        if piece.text == "=":
            return name, word[index + 1 :]
        name += piece.text
    return name, ()


def is_assignment(word: Word) -> bool:
    name, _ = declared(word)
    return NAME.fullmatch(name) is not None and len(name) < len(word)


def is_pattern(word: Word) -> bool:
    """Tell whether a shell may replace the word with names of files."""
    return any(piece.text in "*?[" and not piece.quoted for piece in word if piece.text)


def file_name(word: Word) -> str | None:
    """Return the name of a file without its folder; None if it is not known."""
    text = literal(word)
    return None if text is None else text.rpartition("/")[2]


@dataclass
class Flow:
    """The places that values may reach in a program, regardless of the order in which its commands run."""

    values: set[str]
    functions: set[str] = field(default_factory=set)
    #: Variables whose values are always numbers.
    numbers: set[str] = field(default_factory=set)
    #: Names of files that the program writes; None for a name that is a value.
    written: set[str | None] = field(default_factory=set)

    def follow(self, script: Script) -> None:
        """Find out which variables have values, and which functions and files the program creates."""
        commands = list(script.commands())
        fed = {id(command) for each in script.scripts() for pipeline in each.pipelines for command in pipeline[1:]}
        for command in commands:
            if isinstance(command, Function):
                self.functions.add(command.name)
        before = None
        while before != (len(self.values), len(self.written)):
            before = (len(self.values), len(self.written))
            for command in commands:
                if not isinstance(command, Function):
                    self._write(command, id(command) in fed)
                self._assign(command)
        self.numbers = self._numbers(commands)

    def _write(self, command: Simple | Compound, fed: bool) -> None:
        targets = [redirect.word for redirect in command.redirects if redirect.operator.strip("&") in (">", ">>")]
        for word in targets:
            if not (literal(word) or "").startswith("/dev/"):
                self.written.add(None if self.holds(word) else file_name(word) or "")
        names = [file_name(word) or "" for word in command.words] if isinstance(command, Simple) else []
        for text in [literal(word) or "" for word in command.words] if isinstance(command, Simple) else []:
            # The word may be the program of a nested shell or of a trap.
            self.written.update(name.rpartition("/")[2] for name in _REDIRECTED.findall(text))
        if writer := next((name for name in names if name in WRITERS), None):
            known = {name.rpartition("=")[2] for name in names[names.index(writer) + 1 :] if name}
            # They copy a file, or their input, into another file.
            if fed or command.redirects or known & self.written or any(map(self.holds, command.words)):
                self.written |= known
                if writer == "tee" and any(map(self.holds, command.words)):
                    self.written.add(None)

    def _assign(self, command: Command) -> None:
        if isinstance(command, Compound):
            # Programs may have created files whose names are values.
            if command.variable and any(self.holds(word) or is_pattern(word) for word in command.words):
                self.values.add(command.variable)
        elif isinstance(command, Simple):
            self.values.update(name for name, word in assigned(command) if self.holds(word))
            words = [literal(word) for word in command.words]
            if "cd" in words and any(map(self.holds, command.words)):
                self.values |= {"PWD", "OLDPWD"}
            if "read" in words:
                self.values.update(word for word in words if word and NAME.fullmatch(word) and word != "read")

    def _numbers(self, commands: Sequence[Command]) -> set[str]:
        given: dict[str, list[Word]] = {}
        for command in commands:
            if isinstance(command, Function):
                continue
            if isinstance(command, Simple):
                for name, word in assigned(command):
                    given.setdefault(name, []).append(word)
            elif command.variable:
                given.setdefault(command.variable, []).extend(command.words)
            for word in words_of(command):
                for piece in word:
                    if piece.kind == "variable":  # ${x:=text}
                        given.update({name: [()] for name in piece.names})
        candidates = set(given) - self.values
        while wrong := {
            name for name in candidates if not all(self._is_number(word, candidates) for word in given[name])
        }:
            candidates -= wrong
        return candidates

    def _is_number(self, word: Word, numbers: Collection[str]) -> bool:
        word = tuple(piece for piece in word if piece.kind != "text" or piece.text)
        if len(word) == 1 and word[0].kind != "text":
            piece = word[0]
            if piece.kind == "arithmetic":
                return all(name in numbers for name in piece.names)
            return piece.kind == "length" or (
                piece.kind == "variable" and not piece.changed and (piece.text in numbers or piece.text in "?#$!")
            )
        return re.fullmatch(r"[0-9]+", literal(word) or "") is not None

    def is_number(self, word: Word) -> bool:
        """Tell whether the word is always a number."""
        return self._is_number(word, self.numbers)

    def holds(self, word: Word) -> bool:
        """Tell whether the word contains a value, or output that a command has made from one."""
        return any(map(self.piece_holds, word))

    def piece_holds(self, piece: Piece) -> bool:
        """Tell whether this part of a word may be a value."""
        if piece.kind == "channel":
            return True
        if piece.kind == "variable":
            # $0 is the word after the program, and bash keeps the last argument in $_.
            return piece.text in self.values or piece.text in ("@", "*", "_") or piece.text.isdigit()
        if piece.script is None:
            return False
        # The command may read files that the program has written, and functions may do anything.
        return bool(self.written) or any(map(self.command_holds, piece.script.commands()))

    def command_holds(self, command: Command) -> bool:
        """Tell whether a command has values in its words, or may get them in another way."""
        if isinstance(command, Function):
            return False
        if isinstance(command, Simple) and command.words:
            program = file_name(command.words[0]) or ""
            if program in self.functions or program in PRINT_VALUES or SHELL.fullmatch(program):
                return True
            if program == "env" and all(map(is_assignment, command.words[1:])):
                return True
            if program == "pwd" and "PWD" in self.values:
                return True
            if any(map(is_pattern, command.words[1:])):  # names of files
                return True
        return any(map(self.holds, words_of(command)))
