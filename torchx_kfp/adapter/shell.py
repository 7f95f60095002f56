"""Shell programs in an AppDef's arguments, such as the one that ``dist.ddp`` builds for ``bash -c``.

KFP fills a channel into a word as text, and in a program that text would be code: whoever sets a parameter could end
the quotes around it. So a channel beside other text of a program becomes a variable of the environment, and the program
expands it, quoted as its place asks for: the value is one word there, whatever it holds. Where a shell would read the
value as code all the same (arithmetic, ``eval``, a program inside of the program), the channel is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchx_kfp.adapter.names import input_name
from torchx_kfp.adapter.references import Parts, Reference
from torchx_kfp.errors import ChannelError

_SHELLS = ("sh", "bash", "rbash", "dash", "ash", "ksh", "mksh", "yash", "zsh")
#: Programs that start another one in the same environment, and options of ``env`` with which it does not.
_WRAPPERS = ("env", "timeout", "nohup", "nice", "stdbuf", "setsid", "time", "tini", "dumb-init", "busybox", "toybox")
_OTHER_ENVIRONMENTS = ("-i", "-", "-u", "-S", "--ignore-environment", "--unset", "--split-string")
#: Options of shells that the next word belongs to.
_WITH_VALUE = ("--rcfile", "--init-file")

#: How a variable is expanded in each kind of place: quotes that are open are closed around it.
_EXPANSIONS = {
    "plain": '"${{{}}}"',
    "double": "${{{}}}",
    "single": "'\"${{{}}}\"'",
    "ansi": "'\"${{{}}}\"$'",
}
#: What begins or ends a kind of place, from each of them.
_TOKENS = {
    "plain": re.compile(
        r"\\.|\$'|\$\(\(|\$\(|\$\[|\$\{|\(\(|['\"`();&|\n]|(?<!<)<<(?!<)|\[\[(?=\s)|(?:^|(?<=[\s;&|(]))#[^\n]*"
        r"|(?<![\w$/.-])(?:case|esac)(?![\w/.=-])",
        re.DOTALL,
    ),
    "double": re.compile(r"\\.|\$\(\(|\$\(|\$\[|\$\{|[\"`]", re.DOTALL),
    "single": re.compile("'"),
    "ansi": re.compile(r"\\.|'", re.DOTALL),
    "backquotes": re.compile(r"\\.|`", re.DOTALL),
    "arithmetic": re.compile(r"\$?\(|\)\)?|\]"),
    "${...}": re.compile(r"\\.|\$\{|\}", re.DOTALL),
    "[[ ]]": re.compile(r"(?<=\s)\]\]"),
    "a here-document": re.compile(r"(?!)"),
}
_BEGINS = {
    "$'": "ansi",
    "'": "single",
    '"': "double",
    "`": "backquotes",
    "$((": "arithmetic",
    "((": "arithmetic",
    "$[": "arithmetic",
    "${": "${...}",
    "[[": "[[ ]]",
    "<<": "a here-document",
    "$(": "plain",
    "(": "plain",
}
_ENDS = {
    "double": ('"',),
    "single": ("'",),
    "ansi": ("'",),
    "backquotes": ("`",),
    "arithmetic": (")", "))", "]"),
    "${...}": ("}",),
    "[[ ]]": ("]]",),
}
#: Commands that read their arguments as code or as arithmetic, where a command begins.
_BUILTINS = re.compile(
    r"\s*(?:(?:if|while|until|then|do|else|elif|!|\{|builtin|command|exec|\w+=\S*)\s+)*[\\'\"]?"
    r"(eval|trap|let|read|unset|declare|typeset|local|source|\.|printf\s+-v|test\s+-v|\[\s+-v|\w+\[)(?![\w=.-])"
)
#: Interpreters whose next word is a program.
_PROGRAMS = re.compile(
    r"(?<![\w.-])((?:sh|bash|rbash|dash|ash|ksh|mksh|yash|zsh|python[\d.]*|perl|ruby|node|su|script|flock)['\"]?"
    r"(?:\s+(?:[-+]\w*[oOWX]|--rcfile|--init-file)\s+\S+|\s+[-+][\w-]+|\s+\\\n)*\s+-\w*[ce])(?=[\s'\"]|$)"
)
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)


def find_program(entrypoint: Parts, args: Sequence[Parts]) -> int | None:
    """The index of the argument that a shell takes for its program; None where there is none.

    Args:
        entrypoint: a shell, or a program that starts one (``env sh -c PROGRAM``, ``timeout 10 bash -c PROGRAM``).
        args: its arguments.
    """
    words = [parts[0] if len(parts) == 1 and isinstance(parts[0], str) else None for parts in (entrypoint, *args)]
    for start, word in enumerate(words):
        program = (word or "").rpartition("/")[2]
        if program in _SHELLS:
            found = _program_of(words[start + 1 :])
            return None if found is None else start + found
        if (start == 0 and program not in _WRAPPERS) or word in _OTHER_ENVIRONMENTS:
            return None
    return None


def _program_of(words: Sequence[str | None]) -> int | None:
    """The index of a shell's program among its arguments."""
    takes_program = takes_value = False
    for index, word in enumerate(words):
        if takes_value:
            takes_value = False
        elif word is not None and word[:1] in ("-", "+") and word not in ("-", "--"):
            takes_program |= not word.startswith("--") and "c" in word
            takes_value = word in _WITH_VALUE or (word[-1:] in ("o", "O") and not word.startswith("--"))
        elif word not in ("-", "--"):
            return index if takes_program else None
    return None


def lift_channels(program: Parts, where: str, taken: Iterable[str] = ()) -> tuple[str, dict[str, Reference]]:
    """The program with expansions in place of its channels, and the variables that it expands.

    Args:
        program: text with channels.
        where: its place in the AppDef, for errors.
        taken: names of variables that are used already.

    Raises:
        ChannelError: a channel in a place where a shell has no quotes for it, or would read its value as code.
    """
    variables: dict[Reference, str] = {}
    text = ""
    here = _Position()
    for part in program:
        if isinstance(part, str):
            text += part
            here.follow(part)
            continue
        problem = here.problem(text)
        if problem:
            raise ChannelError(
                f"{where} has the pipeline channel {part.name!r} {problem} of a shell program, where its value could "
                "not be quoted. Put it into a variable first, VALUE=..., and use that there; or pass it as an argument "
                "of its own."
            )
        if part not in variables:
            variables[part] = input_name(f"TORCHX_KFP_{part.name.upper()}", {*taken, *variables.values()})
        expansion = _EXPANSIONS[here.place].format(variables[part])
        text += expansion
        here.append(expansion)
    if not here.is_outside:
        raise ChannelError(
            f"{where} is a shell program with a pipeline channel that ends inside of {here.place!r}: how its quotes "
            f"pair cannot be told. Close them, or pass the channel as an argument of its own: {text[:500]!r}."
        )
    return text, {name: reference for reference, name in variables.items()}


def _is_past_a_word(text: str) -> bool:
    """Whether the text has a whole word, so that what follows it is part of a later one."""
    unquoted = _QUOTED.sub("Q", text).lstrip()
    unquoted = re.sub(r"\\.", "Q", unquoted.removeprefix("-- "))
    return re.search(r"\s", re.split("['\"]", unquoted)[0]) is not None


@dataclass
class _Place:
    kind: str
    #: What there is so far of the simple command, in a plain place.
    command: str = ""
    #: How many ``case`` are open: their patterns end in a parenthesis that closes nothing.
    cases: int = 0


class _Position:
    """Where a program has come to: the quotes and brackets that are open, the innermost last."""

    def __init__(self) -> None:
        self._places = [_Place("plain")]

    @property
    def place(self) -> str:
        return self._places[-1].kind

    @property
    def is_outside(self) -> bool:
        """Whether nothing is open."""
        return len(self._places) == 1

    def problem(self, text: str) -> str | None:
        """Why no channel may follow the text, as words before 'of a shell program'."""
        for place in self._places:
            if place.kind not in _EXPANSIONS:
                return f"in {place.kind}"
            if found := _BUILTINS.match(place.command):
                return f"in {found[1].strip()!r}"
            for found in _PROGRAMS.finditer(place.command):
                if not _is_past_a_word(place.command[found.end() :]):
                    return f"in {found[1].strip()!r}"
        if self.place != "single" and re.search(r"(?<!\\)(?:\\\\)*[\\$]$", text):
            return f"behind {text[-1]!r}"
        return None

    def append(self, text: str) -> None:
        """Add text to the command that is being written."""
        next(place for place in reversed(self._places) if place.kind == "plain").command += text

    def follow(self, text: str) -> None:
        """Go through a piece of the program."""
        position = 0
        while found := _TOKENS[self.place].search(text, position):
            self.append(text[position : found.end()])
            position = found.end()
            if found.group() == "<<" and (end := _end_of_document(text, position)) is not None:
                position = end
            else:
                self._take(found.group())
        self.append(text[position:])

    def _take(self, token: str) -> None:
        top = self._places[-1]
        if token[0] in "\\#":
            return
        if token in _ENDS.get(top.kind, ()):
            self._places.pop()
        elif top.kind != "plain" or token in _BEGINS:
            self._places.append(_Place("arithmetic" if top.kind == "arithmetic" else _BEGINS[token]))
        elif token in ("case", "esac"):
            if _KEYWORDS.fullmatch(top.command.removesuffix(token)):
                top.cases = max(0, top.cases + (1 if token == "case" else -1))
        elif token == ")" and not top.cases and len(self._places) > 1:
            self._places.pop()
        else:  # a separator, or a pattern's end: another command
            top.command = ""


#: What may stand before a command.
_KEYWORDS = re.compile(r"\s*(?:(?:if|while|until|then|do|else|elif|!|\{)\s+)*")


def _end_of_document(text: str, position: int) -> int | None:
    """The end of the here-document that begins here, if it is in this piece."""
    word = re.compile(r"-?[ \t]*\\?['\"]?([\w.]+)['\"]?").match(text, position)
    end = word and re.compile(rf"\n[ \t]*{re.escape(word[1])}(?=\n|$)").search(text, word.end())
    return end.end() if end else None
