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

CHANNEL = "\0"
#: Words that shells read as part of their language where a command begins.
_RESERVED = re.compile(
    r"[!{}]|\[\[|if|then|else|elif|fi|do|done|case|esac|while|until|for|in|function|select|time|coproc"
)
_DELIMITERS = " \t\n;&|()<>"
#: Text without a meaning outside of quotes, and inside of double ones.
_PLAIN = re.compile(r"""[^\s;&|()<>'"\\$`{}\0]+""")
_QUOTED = re.compile(r'[^"\\$`\0]+')
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?!$-])|\$\{([A-Za-z_]\w*)(?::?([-=+?])[\w ./:,@-]*)?\}", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_REDIRECTION = re.compile(r"[0-9]*(?:>&[0-9]+(?=[\s;&|)]|$)|<&[0-9]+(?=[\s;&|)]|$)|>>|>(?![|&(])|<(?![<&>(]))")
_SEPARATOR = re.compile(r"&&|\|\||\|(?!&)|[;\n]|&(?!>)")
#: Matches variables that shells evaluate as code, or that change the behavior of shells.
OF_SHELLS = re.compile(r"PS\d|BASH\w*|ENV|IFS|PATH|LD_\w+|CDPATH|SHELLOPTS|PROMPT_COMMAND|histchars|auto_resume")

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
    return "".join(piece.text for piece in word) if all(piece.kind == "text" for piece in word) else None


def is_pattern(word: Word) -> bool:
    """Tell whether the shell may replace the word by names of files."""
    return any(not piece.quoted and re.search(r"[*?\[]", piece.text) for piece in word if piece.kind == "text")


@dataclass
class Parser:
    """Parses a program, from left to right."""

    text: str
    at: int = 0
    #: The quotes around each channel, in order: ``'``, ``"`` or none.
    quotes: list[str] = field(default_factory=list)
    #: Whether a command runs in the background.
    background: bool = False
    _inside: bool = False

    def parse(self) -> Script:
        """Parse the whole program.

        Raises:
            NotUnderstood: it contains anything else than the accepted part of the language.
        """
        script = self._script()
        if self.at < len(self.text):
            raise NotUnderstood(f"contains {self._here()!r}")
        return script

    def _here(self) -> str:
        return self.text[self.at : self.at + 12].replace(CHANNEL, "<channel>")

    def _starts(self, *texts: str) -> bool:
        return self.text.startswith(texts, self.at)

    def _script(self) -> Script:
        """Parse commands up to the end of the program, or of a substitution."""
        pipelines: list[list[Command]] = []
        operator = ";"
        while True:
            self._blanks(newlines=True)
            if self.at == len(self.text) or self._starts(")"):
                if operator in ("&&", "||", "|"):
                    raise NotUnderstood("ends where a command is expected")
                return pipelines
            if operator != "|":
                pipelines.append([])
            pipelines[-1].append(self._command())
            self._blanks()
            found = _SEPARATOR.match(self.text, self.at)
            if not found:
                return pipelines
            self.at, operator = found.end(), found[0]
            self.background |= operator == "&"

    def _command(self) -> Command:
        assignments: list[Word] = []
        words: list[Word] = []
        redirects: list[tuple[str, Word]] = []
        while True:
            self._blanks()
            start = self.at
            if found := _REDIRECTION.match(self.text, start):
                self.at = found.end()
                self._blanks()
                redirects.append((found[0].lstrip("0123456789"), () if "&" in found[0] else self._word()))
            elif start == len(self.text) or self.text[start] in "\n;&|)":
                break
            elif not words and _ASSIGNMENT.match(self.text, start):
                assignments.append(self._word())
            else:
                words.append(self._word())
                name = self.text[start : self.at]
                if len(words) == 1 and name == "[[":
                    raise NotUnderstood("contains [[ ]], which only bash has", COMPARE)
                if len(words) == 1 and _RESERVED.fullmatch(name):
                    raise NotUnderstood(
                        f"contains {name!r}: only simple commands, joined by ; && || and |, may contain a channel"
                    )
        if not words and not assignments:
            raise NotUnderstood(f"has {self._here()!r} where a command is expected")
        return Command(assignments, words, redirects)

    def _blanks(self, *, newlines: bool = False) -> None:
        """Skip blanks, continued lines and comments."""
        while self.at < len(self.text):
            before = self.text[self.at - 1] if self.at else "\n"
            if self.text[self.at] in (" \t\n" if newlines else " \t"):
                self.at += 1
            elif self._starts("\\\n") and before in " \t\n;&|":
                self.at += 2
            elif self.text[self.at] == "#" and before in _DELIMITERS:
                comment = self.text[self.at :].partition("\n")[0]
                if CHANNEL in comment:
                    raise NotUnderstood("has it in a comment")
                self.at += len(comment)
            else:
                return

    def _word(self) -> Word:
        pieces: list[Piece] = []
        start, braces = self.at, False
        while self.at < len(self.text) and (here := self.text[self.at]) not in _DELIMITERS:
            if here == "'":
                pieces += self._single()
            elif here == '"':
                pieces += self._double()
            elif here == "\\":
                if self.text[self.at + 1 : self.at + 2] in ("", "\n"):
                    raise NotUnderstood("has a backslash at the end of a line, without a blank before it")
                pieces.append(Piece("text", self._escaped(), quoted=True))
            elif here in "{}":
                braces = True
                pieces.append(Piece("text", here))
                self.at += 1
            elif found := _PLAIN.match(self.text, self.at):
                if not found[0].isprintable():
                    raise NotUnderstood(f"contains {found[0]!r} outside of quotes")
                pieces.append(Piece("text", found[0]))
                self.at = found.end()
            else:
                pieces.append(self._expansion(""))
        if self._starts("((") and self.at == start:
            raise NotUnderstood("contains (( ))", COMPUTE)
        if self.at == start or self._starts("("):
            raise NotUnderstood(f"contains {self._here()!r}")
        if braces and (self._starts("<", ">") or any(piece.kind != "text" for piece in pieces)):
            raise NotUnderstood("has it, a variable or a redirection in a word with braces that are not quoted")
        return tuple(pieces)

    def _escaped(self) -> str:
        """Read a backslash and the character after it, and return that."""
        self.at += 2
        following = self.text[self.at - 1 : self.at]
        if following == CHANNEL:
            raise NotUnderstood("has it after a backslash")
        return following

    def _single(self) -> list[Piece]:
        text, quote, _ = self.text[self.at + 1 :].partition("'")
        if not quote:
            raise NotUnderstood("has a quote that is not closed")
        self.at += len(text) + 2
        self.quotes += "'" * text.count(CHANNEL)
        parts = re.split(f"({CHANNEL})", text)
        return [Piece("channel" if part == CHANNEL else "text", part.strip(CHANNEL), quoted=True) for part in parts]

    def _double(self) -> list[Piece]:
        pieces = [Piece("text", quoted=True)]
        self.at += 1
        while self.at < len(self.text):
            if self._starts('"'):
                self.at += 1
                return pieces
            if self._starts("\\"):
                following = self._escaped()
                kept = following if following in ("$", "`", '"', "\\") else f"\\{following}"
                pieces.append(Piece("text", "" if following == "\n" else kept, quoted=True))
            elif found := _QUOTED.match(self.text, self.at):
                pieces.append(Piece("text", found[0], quoted=True))
                self.at = found.end()
            else:
                pieces.append(self._expansion('"'))
        raise NotUnderstood("has a quote that is not closed")

    def _expansion(self, quote: str) -> Piece:
        """Read a channel, or what follows a dollar sign."""
        if self._starts(CHANNEL):
            self.quotes.append(quote)
            self.at += 1
            return Piece("channel", quoted=True)
        if self._starts("$((", "$["):
            raise NotUnderstood("contains arithmetic, where shells evaluate values as code", COMPUTE)
        if self._starts("$("):
            if self._inside:
                raise NotUnderstood("contains a $( ) inside another one")
            self.at, self._inside = self.at + 2, True
            script = self._script()
            if not self._starts(")"):
                raise NotUnderstood(f"contains {self._here()!r} inside $( )" if self._here() else "has no ) after $(")
            self.at, self._inside = self.at + 1, False
            return Piece("command", quoted=bool(quote), script=script)
        if found := _VARIABLE.match(self.text, self.at):
            self.at = found.end()
            name = found[1] or found[2]
            if found[3] == "=" and OF_SHELLS.fullmatch(name):
                raise NotUnderstood(f"sets {name!r}, which shells may read as code")
            return Piece("variable", name, quoted=bool(quote))
        if self._starts("`"):
            raise NotUnderstood("contains a `: write $( )")
        following = self.text[self.at + 1 : self.at + 2]
        if not self._starts("$") or following in (CHANNEL, "{", "\\") or (not quote and following in ("'", '"')):
            raise NotUnderstood(f"contains {self._here()!r}, which shells read differently, or evaluate")
        self.at += 1
        return Piece("text", "$", quoted=True)
