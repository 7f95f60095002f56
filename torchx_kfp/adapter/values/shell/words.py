"""Read the words of shell programs: quotes, expansions, channels.

In the text, a NUL represents a pipeline channel, since an argument cannot contain a NUL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from torchx_kfp.adapter.values.shell.tree import COMPUTE, NotUnderstood, Piece, Redirect, Script, Word

CHANNEL = "\0"

DELIMITERS = " \t\n;&|()<>"
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?!$-])", re.ASCII)
_BRACED = re.compile(
    r"\$\{(?:#([A-Za-z_]\w*|[0-9]+|[@*])|([A-Za-z_]\w*|[0-9]+|[@*#?!$-])"
    r"(?:(:?[-=+?]|%%?|##?|//?)([\w ./:,@*?+~=-]*))?)\}",
    re.ASCII,
)
_ARITHMETIC = re.compile(r"[\w\s+\-*/%<>=!&|^~?:,$()]*", re.ASCII)
_ESCAPABLE = '$`"\\'


@dataclass
class Document:
    """A here-document that is announced on a line; its text begins on the next line."""

    end: str
    #: Whether its end is quoted, so that the shell does not expand its text.
    quoted: bool
    #: Whether tabs at the beginning of its lines are dropped.
    tabs: bool
    #: The redirections of its command, and the index of this one among them.
    redirects: list[Redirect]
    index: int


@dataclass
class Words:
    """Reads the words of a program, from left to right.

    Args:
        text: the program.
        bash: whether bash runs it. Otherwise, only syntax that all shells read alike is accepted.
    """

    text: str
    bash: bool = False
    at: int = 0
    #: The kind of place of each channel, by the channel's position in the text.
    places: dict[int, str] = field(default_factory=dict)
    documents: list[Document] = field(default_factory=list)

    def parse(self) -> Script:
        """Parse the whole program."""
        raise NotImplementedError

    def _script(self, ends: tuple[str, ...]) -> Script:
        raise NotImplementedError

    def _refuse(self, why: str, instead: str = "") -> NoReturn:
        raise NotUnderstood(why, instead)

    def _here(self) -> str:
        return self.text[self.at : self.at + 12].replace(CHANNEL, "<channel>")

    def _starts(self, *texts: str) -> bool:
        return self.text.startswith(texts, self.at)

    def _close(self, token: str) -> None:
        if not self._starts(token):
            self._refuse(f"has no {token!r} where one is expected")
        self.at += len(token)

    def _blanks(self) -> None:
        """Skip blanks, continued lines and a comment."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self._starts("\\\n") and (self.at == 0 or self.text[self.at - 1] in " \t\n;&|"):
                self.at += 2
            elif self.text[self.at] == "#" and (self.at == 0 or self.text[self.at - 1] in DELIMITERS):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                for position in range(self.at, end):
                    if self.text[position] == CHANNEL:
                        self.places[position] = "comment"
                self.at = end
            else:
                return

    def _word(self, *, optional: bool = False) -> Word:
        pieces: list[Piece] = []
        start, braces = self.at, False
        while self.at < len(self.text) and (here := self.text[self.at]) not in DELIMITERS:
            if here == "'":
                pieces += self._single()
            elif here == '"':
                self.at += 1
                pieces += [Piece("text", "", quoted=True), *self._quoted(None, "double")]
            elif here == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following in ("", "\n", CHANNEL):
                    at_end = "has a backslash at the end of a line, without a blank before it"
                    self._refuse("has it after a backslash" if following == CHANNEL else at_end)
                pieces.append(Piece("text", following, quoted=True))
                self.at += 2
            elif here == CHANNEL:
                pieces.append(self._channel("plain"))
            elif here in "$`":
                pieces.append(self._expansion(quoted=False))
            else:
                braces |= here in "{}"
                pieces.append(Piece("text", here))
                self.at += 1
        if braces and self._starts("<", ">"):
            self._refuse("has braces before a redirection")
        if braces and any(piece.kind != "text" for piece in pieces):
            self._refuse("has it, or a variable, in a word with braces that are not quoted")
        if self.at == start and not optional:
            self._refuse(f"has {self._here()!r} where a word is expected")
        if self.documents and "\n" in self.text[start : self.at]:
            self._refuse("has a line's end in the word after <<")
        if self._starts("(") and self.at > start and not (self.text[start : self.at].isidentifier()):
            self._refuse(f"contains {self._here()!r} inside a word")
        return tuple(pieces)

    def _channel(self, place: str) -> Piece:
        self.places[self.at] = place
        self.at += 1
        return Piece("channel", quoted=True)

    def _single(self) -> Iterator[Piece]:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self._refuse("has a quote that is not closed")
        self.at += 1
        yield Piece("text", "", quoted=True)
        while self.at < end:
            if self._starts(CHANNEL):
                yield self._channel("single")
            else:
                yield Piece("text", self.text[self.at], quoted=True)
                self.at += 1
        self.at = end + 1

    def _quoted(self, stop: int | None, place: str) -> list[Piece]:
        """Read the pieces inside double quotes, or inside a here-document that ends at ``stop``."""
        pieces: list[Piece] = []
        while self.at < (len(self.text) if stop is None else stop):
            here = self.text[self.at]
            if here == '"' and stop is None:
                self.at += 1
                return pieces
            if here == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following == CHANNEL:
                    self._refuse("has it after a backslash")
                if following == "\n":
                    text = ""
                elif following and following in _ESCAPABLE and not (following == '"' and stop is not None):
                    text = following
                else:
                    text = "\\" + following
                pieces.append(Piece("text", text, quoted=True))
                self.at += 2
            elif here == CHANNEL:
                pieces.append(self._channel(place))
            elif here in "$`":
                pieces.append(self._expansion(quoted=True))
            else:
                pieces.append(Piece("text", here, quoted=True))
                self.at += 1
        if stop is None:
            self._refuse("has a quote that is not closed")
        if self.at != stop:
            self._refuse("has a here-document that ends inside an expansion")
        return pieces

    def _expansion(self, *, quoted: bool) -> Piece:
        if self._starts("`"):
            return self._backquotes(quoted)
        if self._starts("$(("):
            return self._arithmetic(quoted)
        if self._starts("$("):
            self.at += 2
            pending, self.documents = self.documents, []
            script = self._script(())
            if self.documents:
                self._refuse("has a here-document without its text inside $( )")
            self.documents = pending
            self._close(")")
            return Piece("command", quoted=quoted, script=script)
        if found := _BRACED.match(self.text, self.at):
            operator = found[3] or ""
            if operator.startswith("/") and not self.bash:
                self._refuse("contains ${.../...}, which only bash has")
            self.at = found.end()
            if found[1]:
                return Piece("length", found[1], quoted=quoted)
            names = (found[2],) if "=" in operator else ()
            return Piece("variable", found[2], quoted=quoted, names=names, changed=bool(operator))
        if found := _VARIABLE.match(self.text, self.at):
            self.at = found.end()
            return Piece("variable", found[1], quoted=quoted)
        following = self.text[self.at + 1 : self.at + 2]
        if following == CHANNEL:
            self._refuse("has it after '$'")
        if following in ("{", "[") or self._starts("$\\\n") or (not quoted and following in ("'", '"')):
            self._refuse(
                f"contains {self._here()!r}, an expansion that shells read differently or that evaluates values"
            )
        self.at += 1
        return Piece("text", "$", quoted=True)

    def _backquotes(self, quoted: bool) -> Piece:
        end = self.text.find("`", self.at + 1)
        inside = self.text[self.at + 1 : end]
        if end < 0 or "\\" in inside or CHANNEL in inside or (quoted and '"' in inside):
            self._refuse("has it or an escape in backquotes; write $( )" if end > 0 else "has a ` that is not closed")
        self.at = end + 1
        return Piece("command", quoted=quoted, script=type(self)(inside, self.bash).parse())

    def _arithmetic(self, quoted: bool) -> Piece:
        found = _ARITHMETIC.match(self.text, self.at + 3)
        depth = 0
        for position in range(self.at + 3, found.end() if found else 0):
            if self.text[position] == "(":
                depth += 1
            elif self.text[position] == ")" and depth:
                depth -= 1
            elif self.text[position] == ")":
                if not self.text.startswith("))", position):
                    break
                inside = self.text[self.at + 3 : position]
                if re.search(r"\$(?![A-Za-z_])", inside):
                    break
                self.at = position + 2
                names = tuple(re.findall(r"(?<![\w])[A-Za-z_]\w*", inside))
                return Piece("arithmetic", quoted=quoted, names=names)
        return self._refuse("contains arithmetic of anything but numbers and plain names", COMPUTE)
