"""Shell programs in an AppDef's arguments, such as the one that ``dist.ddp`` builds for ``bash -c``.

KFP fills a channel into a word as text. In a program, that text would be code: whoever sets a parameter could close the
quotes around it. So a channel inside a program becomes an environment variable, which the program expands in quotes,
where the value is one word, whatever it contains. A channel is accepted only where every shell that was examined treats
it as data (``rules``), and only in a program that consists of simple commands (``syntax``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from torchx_kfp.adapter.values.names import input_name
from torchx_kfp.adapter.values.references import Parts, Reference
from torchx_kfp.adapter.values.shell.programs import KNOWN_SHELLS, SHELL, shell_options
from torchx_kfp.adapter.values.shell.rules import Rules
from torchx_kfp.adapter.values.shell.syntax import CHANNEL, NotUnderstood, Parser
from torchx_kfp.errors import ChannelError

#: Programs that start another one in the same environment, and options that make ``env`` change the environment.
_WRAPPERS = ("env", "timeout", "nohup", "nice", "stdbuf", "setsid", "time", "tini", "dumb-init", "busybox", "toybox")
_OTHER_ENVIRONMENTS = ("-i", "-", "-u", "-S", "--ignore-environment", "--unset", "--split-string")
_SPLITS = re.compile(r"-\w*S|--split-string")
#: Programs that give one of their arguments to a shell.
_READ_TEXT = ("su", "runuser", "script", "watch", "ssh", "flock", "sg", "cmd")
#: Shells' options that take the next word as their value.
_WITH_VALUE = ("--rcfile", "--init-file")

#: The expansion of a variable for each kind of place; open quotes are closed before it and opened again after it.
_EXPANSIONS = {
    "plain": '"${{{}}}"',
    "double": "${{{}}}",
    "comment": "${{{}}}",
    "single": "'\"${{{}}}\"'",
}


def find_program(entrypoint: Parts, args: Sequence[Parts]) -> int | None:
    """Return the index of the argument that is a shell's program; None if there is none.

    Args:
        entrypoint: a shell, or a program that starts one (``env sh -c PROGRAM``, ``timeout 10 bash -c PROGRAM``).
        args: its arguments.
    """
    words = _texts(entrypoint, args)
    for start, word in enumerate(words):
        if _is_shell(word):
            found = _program_of(words[start + 1 :])
            return None if found is None else start + found
        if (start == 0 and _program(word) not in _WRAPPERS) or word in _OTHER_ENVIRONMENTS:
            return None
    return None


def lift_arguments(
    entrypoint: Parts, args: Sequence[Parts], env: Mapping[str, Parts], where: str, taken: Collection[str] = ()
) -> tuple[list[Parts], dict[str, Reference]]:
    """Replace the channels inside a shell's program by variables; return the arguments and the variables.

    Args:
        entrypoint: the program.
        args: its arguments.
        env: the role's variables.
        where: the role, for errors.
        taken: names of further variables that are in use.

    Raises:
        ChannelError: a shell might read the value of a channel as code.
    """
    args = list(args)
    index = find_program(entrypoint, args)
    _refuse_hidden_programs(entrypoint, args, index, where)
    if index is None or len(args[index]) == 1:
        return args, {}
    place = f"args[{index}] of {where}"
    words = _texts(entrypoint, args)[: index + 2]
    start = next(position for position, word in enumerate(words) if _is_shell(word))
    shell = _program(words[start])
    if shell not in KNOWN_SHELLS:
        _refuse(args[index], place, f"is for {shell!r}, but only programs of {', '.join(KNOWN_SHELLS)} are understood")
    if shell_options(words[start + 1 :]) != (index - start, True):
        _refuse(args[index], place, f"is run with unknown options of {shell!r}")
    values = [name for name, parts in env.items() if any(isinstance(part, Reference) for part in parts)]
    text, lifted = lift_channels(args[index], place, {*taken, *env}, values=values)
    args[index] = (text,)
    return args, lifted


def lift_channels(
    program: Parts, where: str, taken: Collection[str] = (), *, values: Collection[str] = ()
) -> tuple[str, dict[str, Reference]]:
    """Replace the channels of the program by expansions; return the program and the variables.

    Args:
        program: text with channels.
        where: its place in the AppDef, for errors.
        taken: names of variables that are in use.
        values: further environment variables whose values come from channels.

    Raises:
        ChannelError: a shell might read the value of a channel as code, or the program is not understood.
    """
    source = "".join(part if isinstance(part, str) else CHANNEL for part in program)
    if source.count(CHANNEL) != sum(isinstance(part, Reference) for part in program):
        raise ChannelError(f"{where} contains a NUL character, which an argument cannot. Remove it.")
    parser = Parser(source)
    try:
        script = parser.parse()
        Rules(values).check_program(script, background=parser.background)
    except NotUnderstood as error:
        _refuse(program, where, str(error), error.instead)
    variables: dict[Reference, str] = {}
    taken = {*taken, *re.findall(r"\w+", source)}
    text = ""
    at = 0
    for part in program:
        if isinstance(part, str):
            text += part
            at += len(part)
            continue
        if part not in variables:
            variables[part] = input_name(f"TORCHX_KFP_{part.name.upper()}", {*taken, *variables.values()})
        text += _EXPANSIONS[parser.places[at]].format(variables[part])
        at += 1
    return text, {name: reference for reference, name in variables.items()}


def _refuse(program: Parts, where: str, why: str, instead: str = "") -> NoReturn:
    name = next(part.name for part in program if isinstance(part, Reference))
    rule = "A channel is accepted only where shells are known to treat its value as data. Pass"
    way_out = f"{instead.format(f'{{{name}}}')} Or pass" if instead else rule
    raise ChannelError(
        f"{where} is a shell program with the pipeline channel {name!r}, and {why}. {way_out} it after the program, as "
        f"""an argument of one of your programs: args=["-c", 'python train.py --{name} "$1"', "sh", f"{{{name}}}"]."""
    )


def _refuse_hidden_programs(entrypoint: Parts, args: Sequence[Parts], index: int | None, where: str) -> None:
    """Reject channels in arguments that may be a shell's program, if it is unknown how the shell is started."""
    words = _texts(entrypoint, args)
    env = "env" in map(_program, words)
    # Whether a program that takes text as code has begun, and a word that is its script's name.
    shell = script = False
    split = _program(words[0]) in _READ_TEXT
    for position, word in enumerate(words):
        mixed = position > 0 and len(args[position - 1]) > 1
        if index is not None and position > index:
            return
        if mixed and (split or (shell and not script) or (env and _splits(args[position - 1]))):
            _refuse(args[position - 1], f"args[{position - 1}] of {where}", "it is unknown how the shell is started")
        code = shell and word is not None and re.match(r"[-+]\w*c", word) is not None
        split |= code or (env and re.match(_SPLITS, word or "") is not None)
        script |= shell and word is not None and word[:1] not in ("-", "+")
        shell |= _is_shell(word)


def _splits(parts: Parts) -> bool:
    """Tell whether the argument is ``env``'s ``-S``, whose text becomes a command."""
    return isinstance(parts[0], str) and re.match(_SPLITS, parts[0]) is not None


def _texts(entrypoint: Parts, args: Sequence[Parts]) -> list[str | None]:
    return [parts[0] if len(parts) == 1 and isinstance(parts[0], str) else None for parts in (entrypoint, *args)]


def _program(word: str | None) -> str:
    return (word or "").rpartition("/")[2]


def _is_shell(word: str | None) -> bool:
    return SHELL.fullmatch(_program(word)) is not None


def _program_of(words: Sequence[str | None]) -> int | None:
    """Return the index of a shell's program among its arguments."""
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
