"""The places where a shell program may contain values: only those where every examined shell treats them as data.

A value may be an argument of a program, of ``echo``, ``cd`` or ``printf`` (after its format), and a quoted operand of
``[``. It may spread, so whatever may be made from one counts as a value: channels, variables, substitutions, patterns
for names of files, and names of files that commands have written. Nothing of that may be the name of a command, of a
script or of a module, nor an argument or the input of a program that runs these as code. Builtins that evaluate
anything are refused altogether.

Programs can do more than is known here: copy a value into a file that a later command runs, for example. So once a
command has had a value, only commands that cannot do that may follow, and the author's own programs. The last command
may be any program, since nothing runs after it.

An author's own program gets the same arguments as it would without a shell, and must handle them itself: they may begin
with a dash, for example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from torchx_kfp.adapter.values.shell.programs import (
    CODE_FILE,
    CONSTANT_OUTPUT,
    HARMLESS,
    INTERPRETERS,
    KNOWN_SHELLS,
    LAUNCHERS,
    OF_SHELLS,
    OPTIONS,
    PRINT_VALUES,
    PYTHON,
    REFUSED_BUILTINS,
    RUN_CODE,
    RUN_CODE_MODULES,
    SHELL,
    SHELL_INSIDE,
    TAKE_CONSTANTS,
    TAKE_VALUES,
    WRAPPERS,
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
    #: Names of files that commands write.
    _written: set[str] = field(default_factory=set)
    #: Whether an earlier command had a value, wrote a file, or changed the directory to a value.
    _spreads: bool = False
    _writes: bool = False
    _moves: bool = False

    def check_program(self, script: Script, *, background: bool) -> None:
        """Check a whole program; ``background`` tells whether some of its commands run at the same time.

        Raises:
            NotUnderstood: a value is in a place that is not known to treat it as data.
        """
        self._script(script, fed=False, last=True)
        # Commands may run at the same time as those that write files later in the text.
        self._spreads = self._writes = background
        self._script(script, fed=False, last=True)

    def _script(self, script: Script, *, fed: bool, last: bool) -> None:
        """Check the commands of a script.

        Args:
            script: the whole program, or that of a substitution or of another shell.
            fed: whether its input contains values.
            last: whether no command follows it.
        """
        for index, pipeline in enumerate(script):
            piped = fed
            for command in pipeline:
                piped = self._command(command, piped, last=last and index + 1 == len(script))

    def _command(self, command: Command, fed: bool, *, last: bool) -> bool:
        """Check a command, and tell whether its output may contain values."""
        files = [(operator, word) for operator, word in command.redirects if word]
        for word in command.assignments:
            self._assignment(word)
        for word in (*command.assignments, *command.words, *(word for _, word in files)):
            self._word(word, fed)
        name = literal(command.words[0]) if command.words else ""
        fed |= any(operator == "<" and self._may_vary(word) for operator, word in files)
        varies = fed or name in PRINT_VALUES or any(map(self._may_vary, command.words))
        if command.words:
            self._run(list(command.words), fed, last=last)
        self._spreads |= varies
        self._moves |= name == "cd" and any(map(self._may_vary, command.words))
        for operator, word in files:
            if operator != "<":
                self._write(word)
            elif name == "exec":
                _refuse("redirects the input of everything after it")
        return varies

    def _word(self, word: Word, fed: bool) -> None:
        text = literal(word) or ""
        if re.match(r"/(?:proc|dev/(?!null$|stdout$|stderr$))", text):
            _refuse(f"names {text!r}, which may contain it")
        for piece in word:
            self._script(piece.script, fed=fed, last=False)
            if piece.assigns and OF_SHELLS.fullmatch(piece.text):
                _refuse(f"sets {piece.text!r}, which shells may read as code")
            if not piece.quoted and self._holds(piece):
                what = f"${piece.text}" if piece.kind == "variable" else "$( )"
                _refuse(f'has {what}, which contains a value, without quotes: write "{what}"')

    def _holds(self, piece: Piece) -> bool:
        """Tell whether a part of a word is a value, or made from one."""
        if piece.kind == "command":
            programs = CONSTANT_OUTPUT if self._moves else CONSTANT_OUTPUT | {"pwd"}
            return any(
                command.redirects or command.assignments or not _is_constant(command.words, programs)
                for pipeline in piece.script
                for command in pipeline
            )
        if piece.kind == "variable":
            # $0 is the word after the program, and bash keeps the last argument in $_.
            of_shell = piece.text in ("@", "*", "_") or piece.text.isdigit()
            return of_shell or piece.text in self.values or (self._moves and piece.text in ("PWD", "OLDPWD"))
        return piece.kind == "channel"

    def _may_vary(self, word: Word) -> bool:
        """Tell whether a word may be a value, or name a file that contains one."""
        text = "".join(piece.text for piece in word)
        written = not self._written.isdisjoint(re.split("[/=]", text))
        return written or is_pattern(word) or any(map(self._holds, word))

    def _write(self, word: Word) -> None:
        name = literal(word)
        if name is None or is_pattern(word):
            _refuse("redirects output to a file whose name is not constant")
        file = re.split("[/=]", name)[-1]
        if CODE_FILE.fullmatch(file):
            _refuse(f"writes into {file!r}, which programs read as code")
        if not name.startswith("/dev/"):
            self._written.add(file)
            self._writes = True

    def _assignment(self, word: Word) -> None:
        """Check an assignment before a command or in the arguments of ``env`` and ``export``."""
        name = "".join(piece.text if piece.kind == "text" else "$" for piece in word).partition("=")[0]
        if any(map(self._holds, word)):
            _refuse(f"assigns it to {name!r}", f"Set it in the role's env: env={{{{{name!r}: f'{{}}'}}}}.")
        if OF_SHELLS.fullmatch(name) or re.search("[$`]", literal(word) or ""):
            _refuse(f"sets {name!r}, which shells may read as code")

    def _run(self, words: list[Word], fed: bool, *, last: bool) -> None:
        """Check a command by its name."""
        name = literal(words[0])
        if not name or (self._may_vary(words[0]) and name != "[") or not _NAME.fullmatch(name):
            _refuse("has a command whose name is not plain text, or a file that it writes: it is unknown what runs")
        program, arguments = name.rpartition("/")[2], words[1:]
        varies = any(map(self._may_vary, arguments))
        if program in REFUSED_BUILTINS:
            why = "reads its arguments as code or as names, or changes how others are read"
            _refuse(f"contains {name!r}, which {why}", COMPUTE if program == "let" else "")
        if program in WRAPPERS:
            self._wrapper(program, list(arguments), fed, last=last)
        elif SHELL.fullmatch(program):
            self._shell(program, arguments, fed, last=last)
        elif rule := _RULES.get(program):
            rule(self, name, arguments, fed)
        elif program not in TAKE_VALUES:
            self._program(name, arguments, varies=varies, fed=fed, last=last)

    def _program(self, name: str, arguments: Sequence[Word], *, varies: bool, fed: bool, last: bool) -> None:
        base = name.rpartition("/")[2]
        # Without what versions and variants of a program add to its name: perl5.36, vim.basic.
        short = re.match(r"[A-Za-z_-]*[A-Za-z]|", base)
        program = base if short is None or base in LAUNCHERS else short[0]
        is_author = "/" in name and not name.startswith(("/bin/", "/sbin/", "/usr/"))
        if varies or fed:
            if PYTHON.fullmatch(base):
                self._python(name, arguments)
            elif program in INTERPRETERS:
                script = arguments[0] if arguments else ()
                self._script_file(name, script if re.search("[./]", literal(script) or "") else ())
            elif program in RUN_CODE:
                _refuse(f"gives it to {name!r}, which runs its arguments or its input as code")
            elif program in LAUNCHERS and varies and not self._is_after_script(arguments):
                _refuse(f"gives it to {name!r}, which runs the command after its options")
            self._inside(arguments, fed, last=last)
        is_author |= bool(PYTHON.fullmatch(base)) or program in INTERPRETERS | {"torchrun"}
        files = [(literal(word) or "").rpartition("/")[2] for word in arguments]
        is_author |= program in LAUNCHERS and any(
            kind.fullmatch(file) for file in files for kind in (PYTHON, SHELL_INSIDE, CODE_FILE)
        )
        if (varies or fed or self._spreads) and not (is_author or program in HARMLESS or (last and not self._writes)):
            _refuse(
                f"runs {name!r} where it may write a value into a file that a later command runs. Make it the last "
                "command, or do it in your program"
            )
        if program == "tee":
            for word in arguments:
                self._write(word)

    def _inside(self, arguments: Sequence[Word], fed: bool, *, last: bool) -> None:
        """Check a shell or Python among the arguments of a program, which may run it."""
        for index, word in enumerate(arguments):
            inner = (literal(word) or "").rpartition("/")[2]
            if SHELL_INSIDE.fullmatch(inner) or PYTHON.fullmatch(inner):
                self._run(list(arguments[index:]), fed, last=last)
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

    def _wrapper(self, name: str, arguments: list[Word], fed: bool, *, last: bool) -> None:
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
        self._run(arguments, fed, last=last)

    def _constants(self, name: str, arguments: Sequence[Word], fed: bool) -> None:
        if any(piece.kind != "text" and piece.text not in tuple("!?#$") for word in arguments for piece in word):
            _refuse(f"has an argument of {name!r} that is not constant")

    def _export(self, name: str, arguments: Sequence[Word], fed: bool) -> None:
        for word in arguments:
            self._assignment(word)

    def _set(self, name: str, arguments: Sequence[Word], fed: bool) -> None:
        for word in arguments:
            text = literal(word) or ""
            if text not in OPTIONS and not re.fullmatch("[-+][euxvfCo]+", text):
                _refuse(f"gives {text!r} to {name!r}, which changes how this shell reads the program")

    def _source(self, name: str, arguments: Sequence[Word], fed: bool) -> None:
        if fed or len(arguments) != 1 or self._may_vary(arguments[0]):
            _refuse(f"gives it to {name!r}, which runs a file in this shell")

    def _printf(self, name: str, arguments: Sequence[Word], fed: bool) -> None:
        form = literal(arguments[0]) if arguments else None
        if form is None or form.startswith("-") or not _STRINGS.fullmatch(form):
            _refuse(f"has {name!r} with anything but a constant format of %s first")

    def _test(self, name: str, arguments: Sequence[Word], fed: bool) -> None:
        words = list(arguments)
        if name == "[" and (not words or literal(words.pop()) != "]"):
            _refuse("has a [ without its ]")
        texts = [literal(word) for word in words]
        # What is not quoted may become several words, and none.
        whole = all(piece.quoted or piece.kind == "text" for word in words for piece in word)
        if not whole or any(map(is_pattern, words)):
            _refuse(f"has {name!r} with an operand that is not quoted")
        if not (len(words) == 2 and texts[0] in _UNARY) and not (len(words) == 3 and texts[1] in ("=", "!=")):
            instead = COMPARE if _NUMERIC & set(texts) else ""
            _refuse(f"has {name!r} with anything but -n, -z, -e, ... and one word, or = or != between two", instead)

    def _script_file(self, name: str, word: Word) -> None:
        text = literal(word)
        if not text or text.startswith("-"):
            _refuse(f"gives it to {name!r} but not after the name of a script")
        if self._may_vary(word):
            _refuse(f"runs {text!r}, a file that it writes itself")

    def _shell(self, program: str, arguments: Sequence[Word], fed: bool, *, last: bool) -> None:
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
        parser = Parser(text)
        script = parser.parse()
        self._spreads |= parser.background
        self._script(script, fed=fed, last=last)

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


def _is_constant(words: Sequence[Word], programs: Collection[str]) -> bool:
    """Tell whether these are the constant words of one of the programs."""
    texts = [None if is_pattern(word) else literal(word) for word in words]
    return None not in texts and bool(texts) and texts[0] in programs


_RULES: Mapping[str, Callable[[Rules, str, Sequence[Word], bool], None]] = {
    **dict.fromkeys(TAKE_CONSTANTS, Rules._constants),
    **dict.fromkeys(("export", "readonly"), Rules._export),
    **dict.fromkeys(("[", "test"), Rules._test),
    "set": Rules._set,
    ".": Rules._source,
    "printf": Rules._printf,
}
