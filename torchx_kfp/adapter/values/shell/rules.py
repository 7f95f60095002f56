"""The places where a shell program may contain values: only those where every examined shell treats them as data.

A value may be an argument of a program, of ``echo``, ``cd`` or ``printf`` (after its format), and an operand of ``[``.
It may spread, so everything that is not constant text counts as a value: channels, variables, substitutions, patterns
for names of files, and names of files that commands with a value have written. Nothing of that may be the name of a
command, of a script or of a module, nor an argument or the input of a program that runs these as code. Builtins that
evaluate anything are refused altogether.

An author's own program gets the same arguments as it would without a shell, and must handle them itself: they may begin
with a dash, for example.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from torchx_kfp.adapter.values.shell.programs import (
    CODE_FILE,
    INTERPRETERS,
    KNOWN_SHELLS,
    LAUNCHERS,
    OF_SHELLS,
    PRINT_VALUES,
    PYTHON,
    REFUSED_BUILTINS,
    RUN_CODE,
    RUN_CODE_MODULES,
    SHELL,
    TAKE_CONSTANTS,
    TAKE_VALUES,
    WRAPPERS,
    WRITERS,
    shell_options,
)
from torchx_kfp.adapter.values.shell.syntax import (
    COMPARE,
    COMPUTE,
    Command,
    NotUnderstood,
    Parser,
    Piece,
    Script,
    Word,
    is_pattern,
    literal,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"\[|[\w./+:@%,-]+")
_UNARY = frozenset(["-n", "-z", "-e", "-f", "-d", "-s", "-r", "-w", "-x", "-L", "-h"])
_STRINGS = re.compile(r"(?:[^%]|%%|%[-.\d]*[sb])*")
_NUMERIC = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def _refuse(why: str, instead: str = "") -> NoReturn:
    raise NotUnderstood(why, instead)


@dataclass
class Rules:
    """Checks how each command of a program uses values.

    Args:
        values: variables that contain values when the program starts.
    """

    values: Collection[str] = ()
    #: Names of files that contain values.
    _written: set[str] = field(default_factory=set)

    def check(self, script: Script, *, fed: bool = False) -> None:
        """Check the commands of a script; ``fed`` tells whether their input contains values.

        Raises:
            NotUnderstood: a value is in a place that is not known to treat it as data.
        """
        for pipeline in script:
            piped = fed
            for command in pipeline:
                piped = self._command(command, piped)

    def _command(self, command: Command, fed: bool) -> bool:
        """Check a command, and tell whether its output may contain values."""
        files = [(operator, word) for operator, word in command.redirects if word]
        for word in command.assignments:
            self._assignment(word)
        for word in (*command.assignments, *command.words, *(word for _, word in files)):
            self._word(word, fed)
        name = literal(command.words[0]) if command.words else ""
        fed |= any(operator == "<" and self._may_vary(word) for operator, word in files)
        varies = fed or name in PRINT_VALUES or any(map(self._may_vary, command.words))
        for operator, word in files:
            if operator != "<":
                # The files of `exec` get the output of everything after it.
                self._write(word, varies or name == "exec")
            elif name == "exec":
                _refuse("redirects the input of everything after it")
        if command.words:
            self._run(list(command.words), fed)
        return varies

    def _word(self, word: Word, fed: bool) -> None:
        for piece in word:
            self.check(piece.script, fed=fed)
            if piece.kind == "variable" and not piece.quoted and self._holds(piece):
                _refuse(f'has ${piece.text}, which contains a value, without quotes: write "${piece.text}"')
            if piece.kind == "command" and not piece.quoted and self._holds(piece):
                _refuse('has $( ), which contains a value, without quotes: write "$( )"')

    def _holds(self, piece: Piece) -> bool:
        """Tell whether a part of a word is a value, or made from one."""
        if piece.kind == "command":
            words = [word for pipeline in piece.script for command in pipeline for word in command.words]
            return any(map(self._may_vary, words))
        if piece.kind == "variable":
            # $0 is the word after the program, and bash keeps the last argument in $_.
            return piece.text in self.values or piece.text in ("@", "*", "_") or piece.text.isdigit()
        return piece.kind == "channel"

    def _may_vary(self, word: Word) -> bool:
        """Tell whether a word may be a value, or name a file that contains one."""
        text = literal(word)
        return text is None or is_pattern(word) or not self._written.isdisjoint(re.split("[/=]", text))

    def _write(self, word: Word, varies: bool) -> None:
        name = literal(word)
        if name is None or is_pattern(word):
            _refuse("redirects output to a file whose name is not constant")
        file = re.split("[/=]", name)[-1]
        if varies and CODE_FILE.fullmatch(file):
            _refuse(f"writes it into {file!r}, which programs read as code")
        if varies and name != "/dev/null":
            self._written.add(file)

    def _assignment(self, word: Word) -> None:
        """Check an assignment before a command or in the arguments of ``env`` and ``export``."""
        name = "".join(piece.text if piece.kind == "text" else "$" for piece in word).partition("=")[0]
        if any(map(self._holds, word)):
            _refuse(f"assigns it to {name!r}", f"Set it in the role's env: env={{{{{name!r}: f'{{}}'}}}}.")
        if OF_SHELLS.fullmatch(name) or re.search("[$`]", literal(word) or ""):
            _refuse(f"sets {name!r}, which shells may read as code")

    def _run(self, words: list[Word], fed: bool) -> None:
        """Check a command by its name."""
        name = literal(words[0])
        if not name or (self._may_vary(words[0]) and name != "[") or not _NAME.fullmatch(name):
            _refuse("has a command whose name is not plain text, or a file that it writes: it is unknown what runs")
        program, arguments = name.rpartition("/")[2], words[1:]
        varies = any(map(self._may_vary, arguments))
        if program in REFUSED_BUILTINS:
            why = "reads its arguments as code or as names, or changes how others are read"
            _refuse(f"contains {name!r}, which {why}", COMPUTE if program == "let" else "")
        if program in TAKE_VALUES:
            return
        if program in TAKE_CONSTANTS:
            if any(piece.kind != "text" and piece.text not in tuple("!?#$") for word in arguments for piece in word):
                _refuse(f"has an argument of {name!r} that is not constant")
        elif program in WRAPPERS:
            self._wrapper(program, list(arguments), fed)
        elif rule := {"printf": self._printf, "[": self._test, "test": self._test}.get(program):
            rule(name, arguments)
        elif program in ("export", "readonly", "set", "."):
            self._setting(program, arguments, varies)
        elif SHELL.fullmatch(program):
            self._shell(program, arguments, fed)
        elif varies or fed:
            self._program(name, program, arguments, varies, fed)

    def _program(self, name: str, program: str, arguments: Sequence[Word], varies: bool, fed: bool) -> None:
        """Check a program that gets values as arguments or as input."""
        if PYTHON.fullmatch(program):
            self._python(name, arguments)
        elif program in INTERPRETERS:
            self._script_file(name, arguments[0] if arguments else ())
        elif program in RUN_CODE:
            _refuse(f"gives it to {name!r}, which runs its arguments or its input as code")
        elif program in LAUNCHERS and varies and not self._is_after_script(arguments):
            _refuse(f"gives it to {name!r}, which runs the command after its options")
        elif program in WRITERS:
            for word in arguments:
                if self._may_vary(word) and literal(word) is None:
                    _refuse(f"gives it to {name!r}, which writes files, perhaps some that are code")
                self._write(word, varies=True)
                self._written.add(re.sub("^-.", "", literal(word) or ""))  # sort -oFILE
        for index, word in enumerate(arguments):
            # A program may run a shell or Python among its arguments.
            inner = (literal(word) or "").rpartition("/")[2]
            if SHELL.fullmatch(inner) or PYTHON.fullmatch(inner):
                self._run(list(arguments[index:]), fed)
                return

    def _is_after_script(self, arguments: Sequence[Word]) -> bool:
        """Tell whether a script or an interpreter comes before the first value."""
        for word in arguments:
            file = (literal(word) or "").rpartition("/")[2]
            if self._may_vary(word):
                return False
            if any(kind.fullmatch(file) for kind in (PYTHON, SHELL, CODE_FILE)) or file == "torchrun":
                return True
        return True

    def _wrapper(self, name: str, arguments: list[Word], fed: bool) -> None:
        """Check ``exec``, ``env A=b``, ``timeout 10``, ``nice -n 5``, ``stdbuf -oL``, ..., and the command after it."""
        while arguments and (match := _ASSIGNMENT.match("".join(piece.text or "$" for piece in arguments[0]))):
            if name != "env" or not match:
                break
            self._assignment(arguments.pop(0))
        pattern = {"timeout": r"[\d.]+[smhd]?", "nice": r"-n|-?\d+", "stdbuf": r"-[ioe]\w+"}.get(name, "")
        while arguments and pattern and re.fullmatch(pattern, literal(arguments[0]) or ""):
            arguments.pop(0)
        if not arguments:
            return
        if (literal(arguments[0]) or "-").startswith("-"):
            _refuse(f"has {name!r} with options, or with a value before the command")
        self._run(arguments, fed)

    def _setting(self, name: str, arguments: Sequence[Word], varies: bool) -> None:
        """Check ``export``, ``readonly``, ``set`` and ``.``, which take constants."""
        if name in ("export", "readonly"):
            for word in arguments:
                self._assignment(word)
        elif varies or (name == "." and len(arguments) != 1):
            _refuse(f"gives it to {name!r}, which changes this shell")

    def _printf(self, name: str, arguments: Sequence[Word]) -> None:
        form = literal(arguments[0]) if arguments else None
        if form is None or form.startswith("-") or not _STRINGS.fullmatch(form):
            _refuse(f"has {name!r} with anything but a constant format of %s first")

    def _test(self, name: str, arguments: Sequence[Word]) -> None:
        words = list(arguments)
        if name == "[" and (not words or literal(words.pop()) != "]"):
            _refuse("has a [ without its ]")
        texts = [literal(word) for word in words]
        if len(words) == 2 and texts[0] in _UNARY:
            return
        if len(words) == 3 and texts[1] in ("=", "!="):
            return
        if any(map(self._may_vary, words)):
            instead = COMPARE if _NUMERIC & set(texts) else ""
            _refuse(f"has {name!r} with anything but -n, -z, -e, ... and one word, or = or != between two", instead)

    def _script_file(self, name: str, word: Word) -> None:
        text = literal(word)
        if not text or text.startswith("-"):
            _refuse(f"gives it to {name!r} but not after the name of a script")
        if self._may_vary(word):
            _refuse(f"runs {text!r}, a file that it writes itself")

    def _shell(self, program: str, arguments: Sequence[Word], fed: bool) -> None:
        if program not in KNOWN_SHELLS:
            _refuse(f"runs {program!r}, a shell whose programs are not understood")
        index, code = shell_options([literal(word) for word in arguments])
        if index is None:
            _refuse(f"runs {program!r} with unknown options, or without a script")
        if not code:
            self._script_file(program, arguments[index])
            return
        text = literal(arguments[index])
        if text is None:
            _refuse(f"has it in the program of another {program!r}, or such a program is not plain text")
        self.check(Parser(text).parse(), fed=fed)

    def _python(self, name: str, arguments: Sequence[Word]) -> None:
        texts = [literal(word) for word in arguments]
        index = 0
        while index < len(texts):
            text = texts[index] or ""
            if text in ("-m", "-c"):
                following = texts[index + 1] if index + 1 < len(texts) else None
                if following is None or (text == "-m" and following.partition(".")[0] in RUN_CODE_MODULES):
                    break
                return
            if text in ("-W", "-X"):
                index += 1
            elif not re.fullmatch("-[bBdEIOPqsSuv]+", text):
                self._script_file(name, arguments[index])
                return
            index += 1
        _refuse(f"gives it to {name!r} but not after the name of a script or a module")
