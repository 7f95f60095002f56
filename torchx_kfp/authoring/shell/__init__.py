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

from torchx_kfp.authoring.naming import input_name
from torchx_kfp.authoring.references import REPLICA, Parts, Reference, is_constant, join_constants
from torchx_kfp.authoring.shell.rules import KNOWN_SHELLS, SHELL, Rules, shell_options
from torchx_kfp.authoring.shell.syntax import CHANNEL, NotUnderstood, Parser
from torchx_kfp.errors import ChannelError

#: Programs that start another one in the same environment, and the words that may come before its name.
_OPTION = r"-[-\w=.]+"
_WRAPPERS = {
    "env": rf"{_OPTION}|[A-Za-z_]\w*=.*",
    "timeout": rf"{_OPTION}|[\d.]+[smhd]?",
    "nice": rf"{_OPTION}|\d+",
    **dict.fromkeys(("nohup", "stdbuf", "setsid", "time", "tini", "dumb-init", "busybox", "toybox"), _OPTION),
}
#: Options that make ``env`` change the environment.
_OTHER_ENVIRONMENTS = ("-i", "-", "-u", "-S", "--ignore-environment", "--unset", "--split-string")
_SPLITS = re.compile(r"-\w*S|--split-string")
#: Programs that give one of their arguments to a shell.
_READ_TEXT = ("su", "runuser", "script", "watch", "ssh", "flock", "sg", "cmd")
#: The expansion of a variable inside of these quotes, which are closed before it and opened again after it.
_EXPANSIONS = {"": '"${{{}}}"', '"': "${{{}}}", "'": "'\"${{{}}}\"'"}


def find_program(entrypoint: Parts, args: Sequence[Parts]) -> int | None:
    """Return the index of the argument that is a shell's program; None if there is none.

    The entrypoint is a shell, or a program that starts one (``env sh -c PROGRAM``, ``timeout 10 bash -c PROGRAM``).
    """
    words = _texts(entrypoint, args)
    own = None
    for start, word in enumerate(words):
        if word is None or word in _OTHER_ENVIRONMENTS:
            return None
        if own is not None and re.fullmatch(own, word, re.DOTALL):
            continue
        if _is_shell(word):
            index, code, _ = shell_options(words[start + 1 :])
            return start + index if code and index is not None else None
        own = _WRAPPERS.get(_program(word))
        if own is None:
            return None
    return None


def lift_arguments(
    entrypoint: Parts, args: Sequence[Parts], env: Mapping[str, Parts], where: str, taken: Collection[str] = ()
) -> tuple[list[Parts], dict[str, Reference]]:
    """Replace the channels inside a shell's program by variables; return the arguments and the variables.

    To a shell, the index of a replica is a number in the text of its program. ``taken`` are names of variables that are
    in use besides ``env``.
    """
    args = list(args)
    numbered = [join_constants("0" if part == REPLICA else part for part in parts) for parts in args]
    index = find_program(entrypoint, numbered)
    _refuse_hidden_programs(entrypoint, numbered, index, where)
    if index is None or len(numbered[index]) == 1:
        return args, {}
    place = f"args[{index}] of {where}"
    words = _texts(entrypoint, numbered)
    start = next(position for position, word in enumerate(words) if _is_shell(word))
    shell = _program(words[start])
    if shell not in KNOWN_SHELLS:
        _refuse(args[index], place, f"is for {shell!r}, but only programs of {', '.join(KNOWN_SHELLS)} are understood")
    if not shell_options(words[start + 1 :])[2]:
        _refuse(args[index], place, f"is run with unknown options of {shell!r}")
    values = [name for name, parts in env.items() if any(map(_is_channel, parts))]
    args[index], lifted = lift_channels(args[index], place, {*taken, *env}, values=values)
    return args, lifted


def lift_channels(
    program: Parts, where: str, taken: Collection[str] = (), *, values: Collection[str] = ()
) -> tuple[Parts, dict[str, Reference]]:
    """Replace the channels of the program by expansions; return the program and the variables.

    Args:
        program: text with channels.
        where: its place in the AppDef, for errors.
        taken: names of variables that are in use.
        values: further environment variables whose values come from channels.
    """
    source = "".join(part if isinstance(part, str) else CHANNEL if _is_channel(part) else "0" for part in program)
    if source.count(CHANNEL) != sum(map(_is_channel, program)):
        raise ChannelError(f"{where} contains a NUL character, which an argument cannot. Remove it.")
    parser = Parser(source)
    try:
        script = parser.parse()
        Rules(values).check_program(script, background=parser.background)
    except NotUnderstood as error:
        _refuse(program, where, str(error), error.instead)
    variables: dict[Reference, str] = {}
    taken = {*taken, *re.findall(r"\w+", source)}
    lifted = list(program)
    quotes = iter(parser.quotes)
    for index, part in enumerate(program):
        if isinstance(part, str) or not _is_channel(part):
            continue
        if part not in variables:
            variables[part] = input_name(f"TORCHX_KFP_{part.name.upper()}", {*taken, *variables.values()})
        lifted[index] = _EXPANSIONS[next(quotes)].format(variables[part])
    return join_constants(lifted), {name: reference for reference, name in variables.items()}


def _is_channel(part: str | Reference) -> bool:
    return isinstance(part, Reference) and part != REPLICA


def _refuse(program: Parts, where: str, why: str, instead: str = "") -> NoReturn:
    name = next(part.name for part in program if isinstance(part, Reference) and part != REPLICA)
    rule = "A channel is accepted only where shells are known to treat its value as data. Pass"
    way_out = f"{instead.replace('{}', f'{{{name}}}')} Or pass" if instead else rule
    raise ChannelError(
        f"{where} is a shell program with the pipeline channel {name!r}, and {why}. {way_out} it after the program, as "
        f"""an argument of one of your programs: args=["-c", 'python train.py --{name} "$1"', "sh", f"{{{name}}}"]."""
    )


def _refuse_hidden_programs(entrypoint: Parts, args: Sequence[Parts], index: int | None, where: str) -> None:
    """Reject channels in arguments that may be a shell's program, if it is unknown how the shell is started."""
    words = _texts(entrypoint, args)
    env = "env" in map(_program, words)
    # Whether a program that takes text as code has begun, and a word that is its script's name.
    shell, script, split = _is_shell(words[0]), False, _program(words[0]) in _READ_TEXT
    for position, (word, parts) in enumerate(zip(words[1:], args, strict=True)):
        if position == index:
            return
        first = parts[0] if isinstance(parts[0], str) else ""
        splits = env and _SPLITS.match(first) is not None
        if len(parts) > 1 and (split or (shell and not script) or splits):
            _refuse(parts, f"args[{position}] of {where}", "it is unknown how the shell is started")
        split |= splits or (shell and re.match(r"[-+]\w*c", word or "") is not None)
        script |= shell and word is not None and word[:1] not in ("-", "+")
        shell |= _is_shell(word)


def _texts(entrypoint: Parts, args: Sequence[Parts]) -> list[str | None]:
    return [str(parts[0]) if is_constant(parts) else None for parts in (entrypoint, *args)]


def _program(word: str | None) -> str:
    return (word or "").rpartition("/")[2]


def _is_shell(word: str | None) -> bool:
    return SHELL.fullmatch(_program(word)) is not None
