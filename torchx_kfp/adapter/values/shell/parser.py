"""A parser for the shell syntax that sh, dash, busybox and bash read alike.

It exists to be strict: it raises ``NotUnderstood`` for syntax that it does not know, or that shells read differently.
Existing parsers accept more and guarantee less: bashlex is under the GPL and does not know arithmetic or ``case``;
tree-sitter-bash recovers from syntax errors, and misreads here-documents in valid programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchx_kfp.adapter.values.shell.tree import (
    COMPUTE,
    Command,
    Compound,
    Function,
    Piece,
    Redirect,
    Script,
    Simple,
    Word,
    literal,
)
from torchx_kfp.adapter.values.shell.words import CHANNEL, Document, Words

_RESERVED = ("if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for", "in", "{", "}")
_UNKNOWN_WORDS = {"function", "select", "coproc"}
# White space other than blanks and newlines is part of a word.
_KEYWORD = re.compile(r"(?:[a-z]+|[{}!]|\[\[|\]\])(?=[ \t\n;&|()<>]|\Z)")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_REDIRECT = re.compile(r"[0-9]*(<<<|<<-|<<|<&|>&|<>|>>|>\||<|>)|(&>>|&>)")
_DOCUMENT_END = re.compile(r"[ \t]*(?:'([\w.!-]+)'|\"([\w.!-]+)\"|\\([\w.!-]+)|([\w.!-]+))(?=[ \t\n;&|()<>])", re.ASCII)


class Parser(Words):
    """Reads the commands of a program."""

    def parse(self) -> Script:
        """Parse the whole program.

        Raises:
            NotUnderstood: shells might read it in different ways.
        """
        try:
            script = self._script(())
        except RecursionError:
            self._refuse("is nested too deeply")
        if self.at < len(self.text):
            self._refuse(f"contains {self._here()!r} where a command would begin")
        if self.documents:
            self._refuse("has a here-document without its text")
        return script

    def _newlines(self) -> None:
        self._blanks()
        while self._starts("\n"):
            self.at += 1
            self._read_documents()
            self._blanks()

    def _keyword(self) -> str | None:
        found = _KEYWORD.match(self.text, self.at)
        return found.group() if found else None

    def _expect(self, keyword: str) -> None:
        self._newlines()
        if self._keyword() != keyword:
            self._refuse(f"has {self._here()!r} where {keyword!r} is expected")
        self.at += len(keyword)

    def _script(self, ends: tuple[str, ...]) -> Script:
        """Read commands up to one of these keywords, or ``)``, ``;;``, or the end."""
        pipelines: list[tuple[Command, ...]] = []
        while True:
            self._newlines()
            if self.at == len(self.text) or self._starts(")", ";;") or self._keyword() in ends:
                return Script(tuple(pipelines))
            pipelines += self._and_or()
            self._blanks()
            if self._starts(";;", ")", "\n") or self.at == len(self.text):
                continue
            if self._starts(";", "&"):
                self.at += 1
            else:
                self._refuse(f"has {self._here()!r} after a command")

    def _and_or(self) -> Iterator[tuple[Command, ...]]:
        while True:
            yield tuple(self._pipeline())
            self._blanks()
            if not self._starts("&&", "||"):
                return
            self.at += 2
            self._newlines()

    def _pipeline(self) -> Iterator[Command]:
        self._blanks()
        while self._keyword() == "!":
            self.at += 1
            self._blanks()
        while True:
            yield self._command()
            self._blanks()
            if not self._starts("|") or self._starts("||"):
                return
            self.at += 1
            if self._starts("&"):
                self._refuse("contains '|&', which shells read differently")
            self._newlines()

    def _command(self) -> Command:
        self._blanks()
        keyword = self._keyword()
        if self._starts("(("):
            self._refuse("contains (( )), where the shell evaluates values as code", COMPUTE)
        if keyword in _UNKNOWN_WORDS:
            self._refuse(f"contains {keyword!r}")
        if self._starts("(") or keyword in ("{", "if", "while", "until", "for", "case"):
            return self._compound(keyword)
        if keyword in _RESERVED:
            self._refuse(f"has {keyword!r} where a command would begin")
        return self._simple()

    def _compound(self, keyword: str | None) -> Compound:
        self.at += len(keyword) if keyword else 1
        words: tuple[Word, ...] = ()
        variable = None
        if keyword is None:
            scripts = [self._script(())]
            self._close(")")
        elif keyword == "{":
            scripts = [self._script(("}",))]
            self._expect("}")
        elif keyword == "if":
            scripts = [self._script(("then",))]
            self._expect("then")
            scripts.append(self._script(("elif", "else", "fi")))
            while self._keyword() == "elif":
                self.at += 4
                scripts.append(self._script(("then",)))
                self._expect("then")
                scripts.append(self._script(("elif", "else", "fi")))
            if self._keyword() == "else":
                self.at += 4
                scripts.append(self._script(("fi",)))
            self._expect("fi")
        elif keyword == "case":
            words, scripts = self._case()
        else:
            if keyword == "for":
                variable, words = self._items()
                scripts = []
            else:
                scripts = [self._script(("do",))]
            self._expect("do")
            scripts.append(self._script(("done",)))
            self._expect("done")
        redirects: list[Redirect] = []
        while self._redirect(redirects):
            pass
        # The text of a here-document follows on the next line, and is added to the same list.
        return Compound(scripts, words, variable, redirects)

    def _items(self) -> tuple[str, tuple[Word, ...]]:
        self._blanks()
        name = _NAME.match(self.text, self.at)
        if not name:
            self._refuse("has a 'for' without a variable's name")
        self.at = name.end()
        self._newlines()
        words = []
        if self._keyword() == "in":
            self.at += 2
            self._blanks()
            while self.at < len(self.text) and not self._starts(";", "\n"):
                words.append(self._word())
                self._blanks()
        else:
            words.append((Piece("variable", "@", quoted=True),))
        if self._starts(";"):
            self.at += 1
        return name.group(), tuple(words)

    def _case(self) -> tuple[tuple[Word, ...], list[Script]]:
        self._blanks()
        words, scripts = [self._word()], []
        self._expect("in")
        self._newlines()
        while self._keyword() != "esac":
            if self._starts("("):
                self.at += 1
            while True:
                self._blanks()
                words.append(self._word())
                self._blanks()
                if not self._starts("|"):
                    break
                self.at += 1
            self._close(")")
            scripts.append(self._script(("esac",)))
            if self._starts(";;"):
                self.at += 2
                if self._starts("&"):
                    self._refuse("contains ';;&'")
            self._newlines()
        self._expect("esac")
        return tuple(words), scripts

    def _simple(self) -> Command:
        assignments: list[tuple[str, Word]] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        if self._keyword() == "[[":
            words += self._test()
        while True:
            self._blanks()
            if self._redirect(redirects):
                continue
            if self.at == len(self.text) or self.text[self.at] in "\n;&|)":
                break
            if self._starts("("):
                return self._function(words, assignments, redirects)
            name = _NAME.match(self.text, self.at)
            if name and not words and self.text[name.end() :].startswith("="):
                self.at = name.end() + 1
                if self._starts("("):
                    self._refuse("contains an array")
                assignments.append((name.group(), self._word(optional=True)))
                continue
            if name and not words and self.text[name.end() :].startswith(("[", "+=")):
                self._refuse(f"contains {self._here()!r}, an assignment of bash's")
            words.append(self._word())
        if not (words or assignments or redirects):
            self._refuse(f"has {self._here()!r} where a command would begin")
        return Simple(assignments, words, redirects)

    def _test(self) -> Iterator[Word]:
        if not self.bash:
            self._refuse("contains [[ ]], which only bash has")
        while True:
            self._blanks()
            if self.at == len(self.text) or self.text[self.at] in "\n;&|()<>":
                self._refuse("contains a [[ ]] that is more than one test")
            start = self.at
            yield self._word()
            if self.text[start : self.at] == "]]":
                return

    def _function(self, words: list[Word], assignments: list[tuple[str, Word]], redirects: list[Redirect]) -> Function:
        found = re.compile(r"\([ \t]*\)").match(self.text, self.at)
        name = literal(words[0]) if len(words) == 1 else None
        if not found or assignments or redirects or not name or not _NAME.fullmatch(name):
            self._refuse(f"contains {self._here()!r}")
        self.at = found.end()
        self._newlines()
        keyword = self._keyword()
        if not self._starts("(") and keyword not in ("{", "if", "while", "until", "for", "case"):
            self._refuse(f"has {self._here()!r} where the body of {name} is expected")
        body = self._compound(keyword)
        return Function(name, body)

    def _redirect(self, redirects: list[Redirect]) -> bool:
        """Read a redirection if one begins here, and tell whether it did."""
        self._blanks()
        found = _REDIRECT.match(self.text, self.at)
        if not found:
            return False
        operator = found[1] or found[2]
        if operator in ("<<<", "&>", "&>>") and not self.bash:
            self._refuse(f"contains {operator!r}, which only bash has")
        if operator in ("<>", ">|"):
            self._refuse(f"contains {operator!r}")
        self.at = found.end()
        if self._starts("("):
            self._refuse(f"contains {operator}( ), a process as a file")
        if operator in ("<<", "<<-"):
            end = _DOCUMENT_END.match(self.text, self.at)
            if not end:
                self._refuse("has a here-document whose end is not a plain word on its own line")
            self.at = end.end()
            delimiter = next(group for group in end.groups() if group)
            self.documents.append(Document(delimiter, end[4] is None, operator == "<<-", redirects, len(redirects)))
            redirects.append(Redirect("<<", ()))
            return True
        self._blanks()
        word = self._word()
        if operator in ("<&", ">&") and not re.fullmatch(r"\d+|-", literal(word) or "", re.ASCII):
            self._refuse(f"has {operator!r} before anything but a number")
        redirects.append(Redirect(operator, word))
        return True

    def _read_documents(self) -> None:
        """Read the here-documents that were announced on the line that just ended."""
        for document in self.documents:
            start = self.at
            while True:
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                if (line.lstrip("\t") if document.tabs else line) == document.end:
                    break
                if end < 0:
                    self._refuse(f"has a here-document that does not end in {document.end!r}")
                if not document.quoted and re.search(r"(?<!\\)(?:\\\\)*\\$", line):
                    self._refuse("has a here-document with a continued line")
                self.at = end + 1
            stop, after = self.at, self.at + len(line)
            body = self.text[start:stop]
            if document.quoted:
                if CHANNEL in body:
                    self._refuse("has it in a here-document whose end is quoted, where the shell expands nothing")
                pieces: list[Piece] = [Piece("text", body, quoted=True)]
            else:
                self.at = start
                pieces = self._quoted(stop, "document")
            document.redirects[document.index] = Redirect("<<", tuple(pieces))
            self.at = after
            # The newline after the last document belongs to the command.
            if document is not self.documents[-1]:
                self.at += 1
        self.documents.clear()
