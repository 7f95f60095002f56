"""The places where a shell program may contain values: only those where every examined shell treats them as data.

Values come from pipeline channels. They spread to variables that are assigned from them, to the output of commands, and
to files. A value may be an argument of a program, of ``echo``, ``printf`` (after its format) or ``cd``; an operand in a
comparison with ``[``; the value of a variable in lower case, which POSIX reserves for applications; the subject of
``case``, an item of ``for``, a line of a here-document, or a file's name. Everything else is rejected, because shells
evaluate values in more places than anyone has listed (arithmetic, subscripts, ``[ -v``, ``PS4``, ``BASH_ENV``, ...).
Unknown builtins are also rejected, and so are values in the arguments or the input of programs that run code.

An author's own program gets the same arguments as it would without a shell, and must handle them itself: they may begin
with a dash, for example. Files that a shell sources or runs are trusted as the author's, unless the program writes
values into a file with that name, or copies such a file there. Programs that run the command after their options
(``ionice``, ``uv run``) may have values after the name of a script. Variables that bash sets (``$_``), ``$PWD`` after
``cd``, and names of files count as values.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

from torchx_kfp.adapter.values.shell.flow import NAME, Flow, declared, file_name, is_assignment, is_pattern
from torchx_kfp.adapter.values.shell.parser import Parser
from torchx_kfp.adapter.values.shell.programs import (
    CODE_FILE,
    DECLARE,
    INTERPRETERS,
    KNOWN_BUILTINS,
    KNOWN_SHELLS,
    LAUNCHERS,
    OF_SHELLS,
    OPTIONS,
    PYTHON,
    REFUSED_BUILTINS,
    RESERVED_WORDS,
    RUN_CODE,
    RUN_CODE_MODULES,
    SHELL,
    TAKE_CONSTANTS,
    TAKE_VALUES,
    WRAPPERS,
    shell_options,
)
from torchx_kfp.adapter.values.shell.tree import (
    COMPARE,
    COMPUTE,
    Command,
    Compound,
    Function,
    NotUnderstood,
    Script,
    Simple,
    Word,
    literal,
)

_BINARY = frozenset({"=", "==", "!="})
_NUMERIC = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_UNARY = frozenset(["-n", "-z", "-e", "-f", "-d", "-s", "-r", "-w", "-x", "-L", "-h"])


def check(
    script: Script,
    *,
    bash: bool,
    values: Collection[str] = (),
    written: Collection[str | None] = (),
    stdin: bool = False,
    assigns: bool = True,
) -> None:
    """Reject a program that has a value where a shell might read it as code.

    Args:
        script: the program.
        bash: whether bash runs it.
        values: variables that contain values when it starts.
        written: names of files that contain values when it starts.
        stdin: whether its input contains values.
        assigns: whether it may assign values to further variables.

    Raises:
        NotUnderstood: a value is in a place that is not known to treat it as data.
    """
    flow = Flow(set(values), written=set(written))
    flow.follow(script)
    if not assigns and flow.values - set(values):
        _refuse("assigns a value in a trap")
    _Rules(flow, bash).script(script, stdin)


def _refuse(why: str, instead: str = "") -> NoReturn:
    raise NotUnderstood(why, instead)


@dataclass
class _Rules:
    """Checks how each command uses values."""

    flow: Flow
    bash: bool

    def script(self, script: Script, stdin: bool) -> None:
        """Check the commands of a script; ``stdin`` tells whether their input contains values."""
        for pipeline in script.pipelines:
            fed = stdin
            for command in pipeline:
                self._command(command, fed)
                held = any(map(self.flow.command_holds, Script([[command]]).commands()))
                fed = fed or held or bool(self.flow.written)

    def _command(self, command: Command, stdin: bool) -> None:
        if isinstance(command, Function):
            # A function may be called with values, so its arguments always count as values.
            self._command(command.body, True)
            return
        enters = any(redirect.operator.startswith("<") for redirect in command.redirects)
        if enters and isinstance(command, Simple) and command.words and literal(command.words[0]) == "exec":
            _refuse("redirects the input of everything after it")
        for redirect in command.redirects:
            if redirect.operator.startswith("<"):
                stdin |= self.flow.holds(redirect.word) or redirect.operator == "<&"
                stdin |= redirect.operator == "<" and bool(self.flow.written)
            self._word(redirect.word, stdin, splits=redirect.operator != "<<<")
        held = stdin or any(map(self.flow.command_holds, Script([[command]]).commands()))
        for redirect in command.redirects:
            file = file_name(redirect.word) or ""
            if held and redirect.operator.strip("&") in (">", ">>") and CODE_FILE.fullmatch(file):
                _refuse(f"writes it into {file!r}, which programs read as code")
        if isinstance(command, Compound):
            for word in command.words:
                self._word(word, stdin)
            for script in command.scripts:
                self.script(script, stdin)
            return
        for name, word in command.assignments:
            self._word(word, stdin, splits=False)
            self._assignment(name, word)
        for word in command.words:
            self._word(word, stdin)
        if command.words:
            document = any(redirect.operator == "<<" for redirect in command.redirects) and not stdin
            self._run(list(command.words), stdin, document=document)

    def _word(self, word: Word, stdin: bool, *, splits: bool = True) -> None:
        for piece in word:
            if piece.script:
                self.script(piece.script, stdin)
            if piece.kind == "arithmetic" and not set(piece.names) <= self.flow.numbers:
                names = ", ".join(map(repr, piece.names))
                _refuse(f"has {names} in arithmetic, where the shell evaluates values as code", COMPUTE)
            if splits and not piece.quoted and self.flow.piece_holds(piece):
                what = f"${piece.text}" if piece.kind == "variable" else "$( )"
                _refuse(f'has {what}, which contains a value, without quotes: write "{what}"')

    def _assignment(self, name: str, word: Word) -> None:
        if OF_SHELLS.fullmatch(name):
            _refuse(f"sets {name}, which shells read")
        if self.flow.holds(word) and not re.search("[a-z]", name):
            _refuse(
                f"assigns it to {name}. Names without a lower-case letter belong to shells and programs: write "
                f"{name.lower()}, or set {name} in the role's env"
            )
        if not re.search("[a-z]", name) and re.search("[$`]", literal(word) or ""):
            _refuse(f"sets {name} to code")

    def _run(self, words: list[Word], stdin: bool, *, document: bool = False) -> None:
        """Check a command by its name."""
        name = self._name_of(words[0])
        program, arguments = name.rpartition("/")[2], words[1:]
        given = any(map(self.flow.holds, arguments))
        if name in RESERVED_WORDS:
            _refuse(f"has {name!r} after another command")
        if "/" in name or program not in KNOWN_BUILTINS:
            self._not_written(words[0])
        if program in REFUSED_BUILTINS:
            instead = COMPUTE if program == "let" else ""
            why = "reads its arguments as code or as names, or changes how others are read"
            _refuse(f"contains {name!r}, which {why}", instead)
        if program in TAKE_VALUES:
            return
        if rule := _RULES.get(program):
            rule(self, name, arguments, stdin)
        elif program in TAKE_CONSTANTS:
            for word in arguments:
                if literal(word) is None and not self.flow.is_number(word):
                    _refuse(f"has an argument of {name!r} that is neither constant nor a number")
        elif SHELL.fullmatch(program):
            self._shell(program, arguments, stdin)
        elif PYTHON.fullmatch(program):
            if given or stdin or self.flow.written or not arguments:
                self._python(name, arguments, document)
        elif program in RUN_CODE and (given or stdin or self._names_written(arguments)):
            _refuse(f"gives it to {name!r}, which runs its arguments or its input as code")
        elif program in LAUNCHERS and given and not self._is_after_script(arguments):
            _refuse(f"gives it to {name!r}, which runs the command after its options")
        elif program in INTERPRETERS and (given or stdin or self.flow.written):
            self._scriptfile_name(name, arguments[0] if arguments else ())
        else:
            self._inside(arguments, stdin)

    def _names_written(self, arguments: list[Word]) -> bool:
        """Tell whether an argument names a file that the program writes."""
        names = [literal(word) or "" for word in arguments]
        return any(re.split("[/=]", name)[-1] in self.flow.written for name in names)

    def _is_after_script(self, arguments: list[Word]) -> bool:
        """Tell whether a script or an interpreter comes before the first value."""
        for word in arguments:
            file = file_name(word) or ""
            if PYTHON.fullmatch(file) or SHELL.fullmatch(file) or CODE_FILE.fullmatch(file) or file == "torchrun":
                return True
            if self.flow.holds(word):
                return False
        return True

    def _name_of(self, word: Word) -> str:
        name = literal(word)
        patterns = is_pattern(word) or any(piece.text in "~{" and not piece.quoted for piece in word if piece.text)
        if not name or (patterns and name not in ("[", "[[")):
            _refuse("has a command whose name is not plain text, so it is unknown what runs")
        return name

    def _inside(self, arguments: list[Word], stdin: bool) -> None:
        """Check a shell or Python among the arguments of a program, which may run it."""
        for index, word in enumerate(arguments):
            program = file_name(word) or ""
            further = arguments[index + 1 :]
            given = any(map(self.flow.holds, further)) or bool(self.flow.written)
            runs = any(re.match(r"-\w*c", literal(each) or "") for each in further)
            if (SHELL.fullmatch(program) and (given or stdin or runs)) or (PYTHON.fullmatch(program) and given):
                self._run(arguments[index:], stdin)
                return

    def _not_written(self, word: Word) -> None:
        """Reject running a file that the program itself may have written."""
        if file_name(word) in self.flow.written:
            _refuse(f"runs {literal(word)!r}, a file that it writes itself")

    def _scriptfile_name(self, name: str, word: Word) -> None:
        text = literal(word)
        if not text or text.startswith("-"):
            _refuse(f"gives it to {name!r} but not after the name of a script")
        self._not_written(word)
        if None in self.flow.written:
            _refuse(f"runs {text!r}, and writes a file whose name is a value")

    def _shell(self, program: str, arguments: list[Word], stdin: bool) -> None:
        if program not in KNOWN_SHELLS:
            _refuse(f"runs {program!r}, a shell whose programs are not understood")
        index, code = shell_options([literal(word) for word in arguments])
        if index is None:
            _refuse(f"runs {program!r} with unknown options, or without a script")
        if not code:
            self._scriptfile_name(program, arguments[index])
            return
        text = literal(arguments[index])
        if text is None:
            _refuse(f"has it in the program of another {program!r}, or such a program is not plain text")
        bash = program == "bash"
        flow = self.flow
        check(Parser(text, bash).parse(), bash=bash, values=flow.values, written=flow.written, stdin=stdin)

    def _python(self, name: str, arguments: list[Word], document: bool) -> None:
        texts = [literal(word) for word in arguments]
        index = 0
        while index < len(texts):
            text = texts[index] or ""
            if text in ("-m", "-c"):
                following = texts[index + 1] if index + 1 < len(texts) else None
                if following is None or (text == "-m" and following.partition(".")[0] in RUN_CODE_MODULES):
                    break
                if text == "-m" and {f"{part}.py" for part in following.split(".")} & self.flow.written:
                    _refuse(f"runs {following!r}, a module that it writes itself")
                return
            if text == "-" and document:
                return
            if text in ("-W", "-X"):
                index += 1
            elif not re.fullmatch("-[bBdEIOPqsSuv]+", text):
                self._scriptfile_name(name, arguments[index])
                return
            index += 1
        if not (index >= len(texts) and document):
            _refuse(f"gives it to {name!r} but not after the name of a script or a module")

    # Builtins and wrappers.

    def _command_builtin(self, name: str, arguments: list[Word], stdin: bool) -> None:
        if arguments and literal(arguments[0]) in ("-v", "-V"):
            if any(map(self.flow.holds, arguments)):
                _refuse("gives it to 'command -v'")
            return
        self._wrapper(name, arguments, stdin)

    def _wrapper(self, name: str, arguments: list[Word], stdin: bool) -> None:
        if not arguments:
            return
        if (literal(arguments[0]) or "").startswith("-"):
            _refuse(f"has {name!r} with options")
        self._run(arguments, stdin)

    def _env(self, name: str, arguments: list[Word], stdin: bool) -> None:
        rest = list(arguments)
        while rest and is_assignment(rest[0]):
            self._assignment(*declared(rest.pop(0)))
        self._wrapper(name, rest, stdin)

    def _timed(self, name: str, arguments: list[Word], stdin: bool) -> None:
        """Check ``timeout 10 COMMAND``, ``nice -n 5 COMMAND``, ``stdbuf -oL COMMAND``."""
        rest = list(arguments)
        if name.endswith("timeout"):
            if not rest or not re.fullmatch(r"[\d.]+[smhd]?", literal(rest.pop(0)) or ""):
                _refuse(f"has {name!r} with anything but a constant time before the command")
        else:
            while rest and re.fullmatch(r"-n|-?\d+|-[ioe]\w+", literal(rest[0]) or ""):
                rest.pop(0)
        self._wrapper(name, rest, stdin)

    def _source(self, name: str, arguments: list[Word], stdin: bool) -> None:
        if stdin or len(arguments) != 1 or self.flow.holds(arguments[0]):
            _refuse(f"gives it to {name!r}, which runs a file in this shell")
        self._scriptfile_name(name, arguments[0])

    def _printf(self, name: str, arguments: list[Word], stdin: bool) -> None:
        form = literal(arguments[0]) if arguments else None
        if not any(map(self.flow.holds, arguments)):
            if form is None or form.startswith("-"):
                _refuse("has 'printf' with options or without a constant format")
        elif form is None or form.startswith("-") or re.search(r"%(?![-\d.]*[sbq]|%)", form.replace("%%", "")):
            _refuse("gives it to 'printf', but not after a constant format of %s, %b and %q")

    def _test(self, name: str, arguments: list[Word], stdin: bool) -> None:
        closing = {"[": "]", "[[": "]]"}.get(name.rpartition("/")[2])
        words = list(arguments)
        if closing and (not words or literal(words.pop()) != closing):
            _refuse(f"has {name!r} without {closing!r}")
        texts = [literal(word) for word in words]
        if texts and texts[0] == "!":
            words, texts = words[1:], texts[1:]
        for word in words:
            if any(not piece.quoted and piece.kind != "text" for piece in word) and not self.flow.is_number(word):
                _refuse(f"has an expansion without quotes in {name!r}")
            if any(piece.kind == "variable" and piece.text in "@*" for piece in word):
                _refuse(f"has $@ or $* in {name!r}")
        held = any(map(self.flow.holds, words))
        numeric = len(words) == 3 and texts[1] in _NUMERIC and not held
        if numeric and all(self.flow.is_number(word) for word in (words[0], words[2])):
            return
        if len(words) == 1 or (len(words) == 2 and texts[0] in _UNARY) or (len(words) == 3 and texts[1] in _BINARY):
            return
        if len(words) == 3 and texts[1] in _NUMERIC:
            _refuse(f"compares numbers in {name!r}, where a shell may evaluate a value as code", COMPARE)
        _refuse(f"has a test in {name!r} that is not of text or files: compare with = or !=")

    def _set(self, name: str, arguments: list[Word], stdin: bool) -> None:
        words = iter([literal(word) for word in arguments])
        for word in words:
            found = re.fullmatch(r"[-+][abefhmuvxC]*(o?)", word or "")
            if not found or word in ("-", "+") or (found[1] and next(words, None) not in OPTIONS):
                _refuse("has 'set' with anything but options such as -e, -u, -x and -o pipefail")

    def _names(self, name: str, arguments: list[Word], stdin: bool) -> None:
        """Check ``unset`` and ``read`` of plain names."""
        words = [literal(word) or "" for word in arguments]
        if name == "read":
            words = [word for word in words if word != "-r"]
        if not words or not all(NAME.fullmatch(word) for word in words):
            _refuse(f"has {name!r} with anything but plain names")
        if name == "read" and not all(re.search("[a-z]", word) and not OF_SHELLS.fullmatch(word) for word in words):
            _refuse("reads values into variables in capital letters, which belong to shells and programs")

    def _declare(self, name: str, arguments: list[Word], stdin: bool) -> None:
        for word in arguments:
            variable, value = declared(word)
            if not NAME.fullmatch(variable):
                _refuse(f"has {name!r} with anything but NAME or NAME=value")
            self._assignment(variable, value)

    def _trap(self, name: str, arguments: list[Word], stdin: bool) -> None:
        texts = [literal(word) for word in arguments]
        if not texts or any(text is None for text in texts):
            _refuse("has 'trap' with anything but constant text")
        if texts[0] not in ("", "-"):
            nested = Parser(texts[0] or "", self.bash).parse()
            values, written = self.flow.values, self.flow.written
            check(nested, bash=self.bash, values=values, written=written, stdin=True, assigns=False)


_RULES = {
    **dict.fromkeys(WRAPPERS, _Rules._wrapper),
    **dict.fromkeys(DECLARE, _Rules._declare),
    **dict.fromkeys(("timeout", "nice", "stdbuf"), _Rules._timed),
    **dict.fromkeys((".", "source"), _Rules._source),
    **dict.fromkeys(("test", "[", "[["), _Rules._test),
    **dict.fromkeys(("unset", "read"), _Rules._names),
    "command": _Rules._command_builtin,
    "env": _Rules._env,
    "printf": _Rules._printf,
    "set": _Rules._set,
    "trap": _Rules._trap,
}
