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
#: Commands that read their arguments as code or as arithmetic.
_READS_CODE = re.compile(
    r"(?:^|\s)(?:builtin\s+|command\s+)?(eval|trap|let|read|unset|declare|typeset|printf\s+-v|test\s+-v)(?=\s)"
    r"|(?:^|[\s/'\"])((?:sh|bash|rbash|dash|ash|ksh|mksh|yash|zsh|python[\d.]*|perl|ruby|node)"
    r"(?:\s+-[\w-]+)*\s+-\w*[ce])(?=\s)"
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
        if word and word.rpartition("/")[2] in _SHELLS:
            found = _program_of(words[start + 1 :])
            if found is not None:
                return start + found
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
        here.command += expansion
    return text, {name: reference for reference, name in variables.items()}


def _is_past_a_word(text: str) -> bool:
    """Whether the text has a whole word, so that what follows it is part of a later one."""
    unquoted = _QUOTED.sub("Q", text).lstrip()
    return re.search(r"\s", re.split("['\"]", unquoted)[0]) is not None


@dataclass
class _Place:
    kind: str
    #: How many ``case`` are open: their patterns end in a parenthesis that closes nothing.
    cases: int = 0


class _Position:
    """Where a program has come to: the quotes and brackets that are open, the innermost last, and the command."""

    def __init__(self) -> None:
        self._places = [_Place("plain")]
        #: What there is so far of the simple command.
        self.command = ""

    @property
    def place(self) -> str:
        return self._places[-1].kind

    def problem(self, text: str) -> str | None:
        """Why no channel may follow the text, as words before 'of a shell program'."""
        for place in self._places:
            if place.kind not in _EXPANSIONS:
                return f"in {place.kind}"
        if self.place in ("plain", "double") and re.search(r"(?<!\\)(?:\\\\)*[\\$]$", text):
            return f"behind {text[-1]!r}"
        for found in _READS_CODE.finditer(self.command):
            # Of an interpreter's arguments the first is the program.
            if found[1] or not _is_past_a_word(self.command[found.end() :]):
                return f"in {(found[1] or found[2]).strip()!r}"
        return None

    def follow(self, text: str) -> None:
        """Go through a piece of the program."""
        position = 0
        while found := _TOKENS[self.place].search(text, position):
            self.command += text[position : found.end()]
            position = found.end()
            self._take(found.group())
        self.command += text[position:]

    def _take(self, token: str) -> None:
        top = self._places[-1]
        if token[0] in "\\#":
            return
        if token in _ENDS.get(top.kind, ()):
            self._places.pop()
        elif top.kind != "plain" or token in _BEGINS:
            self._places.append(_Place("arithmetic" if top.kind == "arithmetic" else _BEGINS[token]))
        elif token in ("case", "esac"):
            top.cases = max(0, top.cases + (1 if token == "case" else -1))
        elif token == ")" and not top.cases and len(self._places) > 1:
            self._places.pop()
        if token in (";", "&", "|", "\n", "(", "$(", ")"):
            self.command = ""
