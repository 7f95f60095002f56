"""Parse the part of the shell's language in which pipeline channels are accepted.

A program is a list of pipelines of simple commands. Their words consist of plain text, quotes, variables
(``$NAME``, ``${NAME}``, ``${NAME:-text}``) and substitutions (``$(commands)``, not one inside another). All shells that
were examined read these alike. Everything else is refused: compound commands, functions, arithmetic, arrays,
here-documents, backquotes, and whatever only some shells have.

In the text, a NUL represents a pipeline channel, since an argument cannot contain a NUL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

CHANNEL = "\0"
#: Words that shells read as part of their language where a command begins.
_RESERVED = re.compile(
    r"[!{}]|\[\[|if|then|else|elif|fi|do|done|case|esac|while|until|for|in|function|select|time|coproc"
)
_DELIMITERS = " \t\n;&|()<>"
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?!$-])|\$\{([A-Za-z_]\w*)(?::?([-=+?])[\w ./:,@-]*)?\}", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_REDIRECTION = re.compile(r"[0-9]*(?:>&[0-9]+(?=[\s;&|)]|$)|<&[0-9]+(?=[\s;&|)]|$)|>>|>(?![|&(])|<(?![<&>(]))")
_SEPARATOR = re.compile(r"&&|\|\||[;\n]|&(?!>)")
_ESCAPABLE = '$`"\\'

#: What to write in place of arithmetic and comparisons; ``{}`` stands for the value.
COMPUTE = """Compute whole numbers with expr, to which a value is data: "$(expr {} + 1)"."""
COMPARE = """Compare whole numbers with expr, to which a value is data: expr {} ">" 3 >/dev/null && train."""


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
    """Part of a word: ``text``, a ``channel``, a ``variable`` or a ``command`` substitution."""

    kind: str
    text: str = ""
    quoted: bool = False
    script: Script = ()
    #: Whether the expansion sets the variable: ``${NAME:=text}``.
    assigns: bool = False


Word = tuple[Piece, ...]


@dataclass(frozen=True)
class Command:
    """A simple command: assignments before it, words, and redirections (operator and file)."""

    assignments: Sequence[Word]
    words: Sequence[Word]
    redirects: Sequence[tuple[str, Word]]


#: Pipelines of commands.
Script = Sequence[Sequence[Command]]


def literal(word: Word) -> str | None:
    """Return the text of a constant word; None if anything in it is expanded."""
    if any(piece.kind != "text" for piece in word):
        return None
    return "".join(piece.text for piece in word)


def is_pattern(word: Word) -> bool:
    """Tell whether the shell may replace the word by names of files."""
    return any(not piece.quoted and re.search(r"[*?\[]", piece.text) for piece in word if piece.kind == "text")


@dataclass
class Parser:
    """Parses a program, from left to right."""

    text: str
    at: int = 0
    #: The kind of place of each channel (plain, single, double, comment), by the channel's position in the text.
    places: dict[int, str] = field(default_factory=dict)
    #: Whether a command runs in the background.
    background: bool = False
    _depth: int = 0

    def parse(self) -> Script:
        """Parse the whole program.

        Raises:
            NotUnderstood: it contains anything else than the accepted part of the language.
        """
        script = self._script()
        if self.at < len(self.text):
            self._refuse(f"contains {self._here()!r}")
        return script

    def _refuse(self, why: str, instead: str = "") -> NoReturn:
        raise NotUnderstood(why, instead)

    def _here(self) -> str:
        return self.text[self.at : self.at + 12].replace(CHANNEL, "<channel>")

    def _starts(self, *texts: str) -> bool:
        return self.text.startswith(texts, self.at)

    def _script(self) -> list[list[Command]]:
        pipelines: list[list[Command]] = []
        needed = False
        while True:
            self._blanks(newlines=True)
            if self.at == len(self.text) or self._starts(")"):
                if needed:
                    self._refuse("ends where a command is expected")
                return pipelines
            pipelines.append(self._pipeline())
            self._blanks()
            found = _SEPARATOR.match(self.text, self.at)
            if not found:
                return pipelines
            self.at, needed = found.end(), found[0] in ("&&", "||")
            self.background |= found[0] == "&"

    def _pipeline(self) -> list[Command]:
        commands = [self._command()]
        while self._starts("|") and not self._starts("||", "|&"):
            self.at += 1
            self._blanks(newlines=True)
            commands.append(self._command())
        return commands

    def _command(self) -> Command:
        assignments: list[Word] = []
        words: list[Word] = []
        redirects: list[tuple[str, Word]] = []
        while True:
            self._blanks()
            if found := _REDIRECTION.match(self.text, self.at):
                self.at = found.end()
                self._blanks()
                redirects.append((found[0].lstrip("0123456789"), () if "&" in found[0] else self._word()))
            elif self.at == len(self.text) or self.text[self.at] in "\n;&|)":
                break
            elif not words and _ASSIGNMENT.match(self.text, self.at):
                assignments.append(self._word())
            else:
                start = self.at
                words.append(self._word())
                if len(words) == 1 and _RESERVED.fullmatch(self.text[start : self.at]):
                    self._refuse_compound(self.text[start : self.at])
        if not words and not assignments:
            self._refuse(f"has {self._here()!r} where a command is expected")
        return Command(assignments, words, redirects)

    def _refuse_compound(self, name: str) -> NoReturn:
        if name == "[[":
            self._refuse("contains [[ ]], which only bash has", COMPARE)
        self._refuse(f"contains {name!r}: only simple commands, joined by ; && || and |, may contain a channel")

    def _blanks(self, *, newlines: bool = False) -> None:
        """Skip blanks, continued lines and comments."""
        while self.at < len(self.text):
            before = self.text[self.at - 1] if self.at else "\n"
            if self.text[self.at] in (" \t\n" if newlines else " \t"):
                self.at += 1
            elif self._starts("\\\n") and before in " \t\n;&|":
                self.at += 2
            elif self.text[self.at] == "#" and before in _DELIMITERS:
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                self.places.update((at, "comment") for at in range(self.at, end) if self.text[at] == CHANNEL)
                self.at = end
            else:
                return

    def _word(self) -> Word:
        pieces: list[Piece] = []
        start, braces = self.at, False
        while self.at < len(self.text) and (here := self.text[self.at]) not in _DELIMITERS:
            if here == "'":
                self._single(pieces)
            elif here == '"':
                self.at += 1
                self._double(pieces)
            elif here == "\\":
                following = self._escaped()
                if following in ("", "\n"):
                    self._refuse("has a backslash at the end of a line, without a blank before it")
                pieces.append(Piece("text", following, quoted=True))
            elif here == CHANNEL:
                pieces.append(self._channel("plain"))
            elif here in "$`":
                pieces.append(self._expansion(quoted=False))
            elif not here.isprintable():
                self._refuse(f"contains {here!r} outside of quotes")
            else:
                braces |= here in "{}"
                pieces.append(Piece("text", here))
                self.at += 1
        if self._starts("((") and self.at == start:
            self._refuse("contains (( ))", COMPUTE)
        if self.at == start or self._starts("("):
            self._refuse(f"contains {self._here()!r}")
        if braces and (self._starts("<", ">") or any(piece.kind != "text" for piece in pieces)):
            self._refuse("has it, a variable or a redirection in a word with braces that are not quoted")
        return tuple(pieces)

    def _channel(self, place: str) -> Piece:
        self.places[self.at] = place
        self.at += 1
        return Piece("channel", quoted=True)

    def _escaped(self) -> str:
        """Read a backslash and the character after it, and return that."""
        following = self.text[self.at + 1 : self.at + 2]
        if following == CHANNEL:
            self._refuse("has it after a backslash")
        self.at += 2
        return following

    def _single(self, pieces: list[Piece]) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self._refuse("has a quote that is not closed")
        self.at += 1
        pieces.append(Piece("text", "", quoted=True))
        while self.at < end:
            if self._starts(CHANNEL):
                pieces.append(self._channel("single"))
            else:
                pieces.append(Piece("text", self.text[self.at], quoted=True))
                self.at += 1
        self.at = end + 1

    def _double(self, pieces: list[Piece]) -> None:
        pieces.append(Piece("text", "", quoted=True))
        while self.at < len(self.text):
            here = self.text[self.at]
            if here == '"':
                self.at += 1
                return
            if here == "\\":
                following = self._escaped()
                kept = "" if following in _ESCAPABLE else "\\"
                pieces.append(Piece("text", "" if following == "\n" else kept + following, quoted=True))
            elif here == CHANNEL:
                pieces.append(self._channel("double"))
            elif here in "$`":
                pieces.append(self._expansion(quoted=True))
            else:
                pieces.append(Piece("text", here, quoted=True))
                self.at += 1
        self._refuse("has a quote that is not closed")

    def _expansion(self, *, quoted: bool) -> Piece:
        if self._starts("`"):
            self._refuse("contains a `: write $( )")
        if self._starts("$((", "$["):
            self._refuse("contains arithmetic, where shells evaluate values as code", COMPUTE)
        if self._starts("$("):
            if self._depth:
                self._refuse("contains a $( ) inside another one")
            self.at, self._depth = self.at + 2, 1
            script = self._script()
            if not self._starts(")"):
                self._refuse(f"contains {self._here()!r} inside $( )" if self._here() else "has no ) after $(")
            self.at, self._depth = self.at + 1, 0
            return Piece("command", quoted=quoted, script=script)
        if found := _VARIABLE.match(self.text, self.at):
            self.at = found.end()
            return Piece("variable", found[1] or found[2], quoted=quoted, assigns=found[3] == "=")
        following = self.text[self.at + 1 : self.at + 2]
        if following in (CHANNEL, "{", "\\") or (not quoted and following in ("'", '"') and following):
            self._refuse(f"contains {self._here()!r}, which shells read differently, or evaluate")
        self.at += 1
        return Piece("text", "$", quoted=True)
