"""Channels inside code that is an argument: the programs of ``sh -c``, ``python -c``, ``perl -e``.

KFP fills a channel into a word as text. Inside code, the text would be code: a value could close the quotes around it.
So a channel cannot be a part of code, with one exception. TorchX's components, such as ``dist.ddp`` and ``utils.sh``,
join the words of one command into a shell program, as ``shlex.join`` does. In such a program, a quoted channel becomes
a variable, which the shell expands to one word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from typing import NoReturn

from torchx_kfp.authoring.naming import input_name
from torchx_kfp.authoring.references import REPLICA, Reference, Text, join_constants
from torchx_kfp.errors import AppDefError

#: Stands for a channel in text. No argument of a process contains it.
_CHANNEL = "\0"


#: The version after the name of an interpreter.
_VERSION = r"(?:[-.]?\d[\w.+-]*)?"
_SHELLS = re.compile(
    r"(?:.*/)?(?:sh|r?bash|d?ash|[mlop]?ksh|pdksh|loksh|[hmoy]sh|hush|sash|yash|posh|zsh|fish|t?csh|rc|es|oil|nu|elvish"
    rf"|xonsh|pwsh|powershell){_VERSION}",
    re.ASCII,
)
_PYTHON = re.compile(rf"(?:.*/)?(?:i?python|pypy){_VERSION}", re.ASCII)
_OTHERS = re.compile(
    r"(?:.*/)?(?:perl|ruby|node|nodejs|deno|bun|php|lua|luajit|Rscript|julia|scala|groovy|raku|elixir|osascript)"
    rf"{_VERSION}",
    re.ASCII,
)
#: Programs that start a shell, or split an argument into words.
_STARTERS = re.compile(r"(?:.*/)?(?:su|runuser|script|watch|ssh|flock|sg|cmd)")
_ENV = re.compile(r"(?:.*/)?env")
#: For each kind of interpreter, the options that are followed by code, and those that are followed by an argument.
_OPTIONS = {
    _SHELLS: (r"[-+]\w*c\w*|--command", r"[-+]\w*[oO]|--rcfile|--init-file"),
    _PYTHON: (r"-\w*c", r"-\w*[WX]|--check-hash-based-pycs"),
    # Several pieces of code may follow one another.
    _OTHERS: (r"-\w*[eEpr]|--eval|--print|eval", r"-\w*[CIMdleEpr]|--eval|--print|eval"),
}
#: An option with code in the same word, recognized by the channel inside.
_JOINED = {
    _SHELLS: re.compile(rf"(?:[-+]\w*c|--command).*{_CHANNEL}.*", re.ASCII | re.DOTALL),
    _PYTHON: re.compile(rf"-\w*c.*{_CHANNEL}.*", re.ASCII | re.DOTALL),
    _OTHERS: re.compile(rf"(?:-\w*[eEpr]|--eval|--print|eval).*{_CHANNEL}.*", re.ASCII | re.DOTALL),
}

#: Matches shells and options with which a program is read as ``shlex.join`` writes it.
_SHELL = re.compile(r"(?:[^ ]*/)?(?:sh|bash|dash|ash)(?: (?:-[aefluvx]+|-[aefluvx]*o pipefail|--\w+))* -[aefluvx]*c")
#: Shell builtins that evaluate their arguments as code, names or numbers.
_EVALUATING = (
    r"\.|alias|bind|builtin|command|compgen|complete|compopt|coproc|declare|enable|eval|exec|export|fc|getopts|hash"
    r"|jobs|let|local|mapfile|read|readarray|readonly|source|test|time|trap|typeset|unset|wait"
)
#: Matches a word written by ``shlex.quote``, or the address of the first replica in ``dist.ddp``.
_WORD = r"""(?:[\w@%+=:,./-]+|'[^']*'(?:"'"'[^']*')*|\$\{\w+:=\w+\}[\w:]*)"""
#: Matches one command with a constant name and without redirections. ``printf`` may have values after its format.
_COMMAND = re.compile(
    rf"(?!(?:{_EVALUATING})(?: |\Z)|printf (?:-|'[^']*{_CHANNEL}))[\w@%+:,./-]+(?: {_WORD})*", re.ASCII
)


def find_program(entrypoint: Text, args: Sequence[Text]) -> int | None:
    """Return the index of the argument that is a program for the entrypoint, a shell; None without one."""
    position = _find_code([_text(parts) for parts in (entrypoint, *args)])
    return position[0] - 1 if position and position[1] else None


def expand_channels(
    entrypoint: Text, args: Sequence[Text], where: str, taken: Collection[str] = ()
) -> tuple[list[Text], dict[str, Reference]]:
    """Replace the channels in a shell program with variables; return the arguments and the variables.

    The index of a replica is just a number in the program. ``taken`` are names of variables that are in use.
    """
    words = [_text(parts) for parts in (entrypoint, *args)]
    found = _find_mixed_code(words)
    if found is None:
        return list(args), {}
    program, index, joins = words[found[0]], found[0] - 1, found[1]
    # A quoted word of the command may itself be code.
    if not (joins and _COMMAND.fullmatch(program)) or _find_mixed_code(shlex.split(program)):
        _refuse(index, args[index], where)
    variables: dict[Reference, str] = {}
    taken = {*taken, *re.findall(r"\w+", program)}
    expanded = list(args[index])
    for number, part in enumerate(expanded):
        if isinstance(part, Reference) and part != REPLICA:
            if part not in variables:
                variables[part] = input_name(f"TORCHX_KFP_{part.name.upper()}", {*taken, *variables.values()})
            # Close the single quotes around it, and open them again.
            expanded[number] = f"""'"${{{variables[part]}}}"'"""
    lifted = [*args[:index], join_constants(expanded), *args[index + 1 :]]
    return lifted, {name: part for part, name in variables.items()}


def _find_code(words: Sequence[str]) -> tuple[int, bool] | None:
    """Return the position of the first word that is code, and whether a shell reads it as ``shlex.join`` writes it."""
    for start, word in enumerate(words):
        position = _code_after(words, start, word)
        if position is not None:
            return position, _SHELL.fullmatch(" ".join(words[:position])) is not None
    return None


def _code_after(words: Sequence[str], start: int, program: str) -> int | None:
    """Return the position of the code among the arguments of the program at ``start``; None if there is none.

    For programs that start a shell or split text into words, any text with a channel counts as code.
    """
    places = range(start + 1, len(words))
    if _STARTERS.fullmatch(program):
        return next((at for at in places if _CHANNEL in words[at] != _CHANNEL), None)
    if _ENV.fullmatch(program):
        splits = next((at for at in places if re.match(r"-\w*S|--split-string", words[at], re.ASCII)), len(words))
        return next((at for at in range(splits, len(words)) if _CHANNEL in words[at]), None)
    kind = next((kind for kind in _OPTIONS if kind.fullmatch(program)), None)
    if kind is None:
        return None
    code, argument = (re.compile(pattern, re.ASCII) for pattern in _OPTIONS[kind])
    # The places where an option can be: others may or may not have an argument.
    reached = {start + 1}
    for at in places:
        if at not in reached:
            continue
        word, after = words[at], words[at + 1] if at + 1 < len(words) else None
        if _JOINED[kind].fullmatch(word):
            return at
        if code.fullmatch(word) and after is not None and (kind is not _OTHERS or _CHANNEL in after):
            position = _program_of_shell(words, at) if kind is _SHELLS else at + 1
            if position is not None:
                return position
        if argument.fullmatch(word) and after is not None and (kind is not _OTHERS or _CHANNEL not in after):
            reached.add(at + 2)
        if word.startswith(("-", "+", _CHANNEL)):
            reached.add(at + 1)
    return None


def _program_of_shell(words: Sequence[str], option: int) -> int | None:
    """Return the position of a shell's program. Other options may follow the one at ``option``."""
    at = option + 1 + (re.search("[oO]", words[option].removeprefix("--command")) is not None)
    while at < len(words) - 1 and (words[at].startswith(("-", "+")) or words[at] == _CHANNEL):
        at += 1
    return at if at < len(words) else None


def _find_mixed_code(words: Sequence[str]) -> tuple[int, bool] | None:
    """Return the same as ``_find_code``, for code that contains a channel. A channel that is the whole word is fine."""
    found = _find_code(words)
    return found if found and _CHANNEL in words[found[0]] and words[found[0]] != _CHANNEL else None


def _text(parts: Text) -> str:
    return "".join(part if isinstance(part, str) else "0" if part == REPLICA else _CHANNEL for part in parts)


def _refuse(index: int, program: Text, where: str) -> NoReturn:
    name = next(part.name for part in program if isinstance(part, Reference) and part != REPLICA)
    raise AppDefError(
        f"args[{index}] of {where} is code with the pipeline channel {name!r} inside, so its value would be code. "
        f"""Pass it as an argument after it: args=["-c", 'python train.py --{name} "$1"', "sh", f"{{{name}}}"], """
        """or ["-c", "... sys.argv[1] ...", ...] for Python. In a program for sh, bash, dash or ash, a channel may """
        "only be in the words of one command that shlex.join has quoted, as in those of utils.sh and dist.ddp."
    )
