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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from torchx_kfp.authoring.shell.syntax import (
    COMPARE,
    COMPUTE,
    OF_SHELLS,
    Command,
    NotUnderstood,
    Piece,
    Script,
    Word,
    is_pattern,
    literal,
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Matches names of shells, with versions.
SHELL = re.compile(
    r"(?:sh|dash|ash|bash|rbash|hush|msh|sash|[mlop]?ksh|pdksh|oksh|loksh|posh|yash|zsh|fish|t?csh|rc|es|osh|ysh|oil|nu"
    r"|elvish|xonsh|pwsh|powershell)(?:[-.]?\d[\w.+]*)?(?:[-.]static)?"
)
#: Shells whose grammar was examined. Programs for other shells are rejected.
KNOWN_SHELLS = ("sh", "dash", "ash", "bash")
#: Shells that other programs may start; other names of shells are words, too.
_SHELL_INSIDE = re.compile(r"(?:sh|dash|ash|bash|rbash|[mpl]?ksh|zsh|fish|t?csh|pwsh)(?:[-.]?\d[\w.+]*)?")
#: Builtins that may take values.
_TAKE_VALUES = _names(": true false echo cd")
#: Builtins that may take numbers and constant words.
_TAKE_CONSTANTS = _names("pwd exit return shift break continue wait kill umask ulimit times")
#: Commands that run the command after them.
_WRAPPERS = _names("exec env timeout nohup nice stdbuf setsid busybox toybox")
#: Builtins, including other shells', that read arguments as code, names or arithmetic, or change how others are read.
_REFUSED_BUILTINS = _names(
    """
    eval source trap read unset local command time alias unalias let declare typeset getopts builtin caller compgen
    complete compopt bind enable hash help history fc fg bg jobs disown dirs pushd popd chdir logout mapfile readarray
    shopt suspend type nameref integer float print whence autoload emulate zmodload noglob functions global rename
    """
)
#: Builtins that have their own rules, and words that begin compound commands.
_RULED = _names(". export readonly set printf test [ [[")
KNOWN_BUILTINS = _TAKE_VALUES | _TAKE_CONSTANTS | _WRAPPERS | _REFUSED_BUILTINS | _RULED
#: Programs that run code from their arguments or their input.
_RUN_CODE = _names(
    """
    awk gawk mawk nawk original-awk sed gsed ed ex vi vim nvim emacs xargs parallel pee sem find make gmake cmake ninja
    ssh scp sftp rsync autossh mosh su sudo doas runuser setpriv chroot unshare nsenter script watch flock expect
    tclsh wish gdb lldb bc dc m4 at batch crontab psql mysql mariadb sqlite3 docker podman nerdctl kubectl oc tar bsdtar
    git patch strace ltrace tmux screen socat nc ncat netcat telnet jshell ghci ocaml osascript ipython R octave gnuplot
    sox pydoc pip envdir ld-linux-x uevent tcpsvd
    """
)
#: Programs that run the command after their options. Values are accepted only after the name of an author's script.
_LAUNCHERS = _names(
    """
    ionice taskset chrt prlimit numactl setarch linux32 linux64 i386 x86_64 uname26 unbuffer valgrind catchsegv
    hyperfine perf firejail fakeroot proot bwrap cgexec systemd-run start-stop-daemon dbus-run-session xvfb-run rlwrap
    chronic ifne entr run-parts gosu su-exec pkexec sg chpst setuidgid tini dumb-init catatonit uv uvx npx bunx pipx npm
    mpirun mpiexec srun salloc sbatch accelerate deepspeed horovodrun ray nsys ncu ssh-agent choom capsh systemd-cat
    pnpm yarn poetry conda mamba micromamba pixi hatch pdm rye pipenv
    """
)
#: Programs that only read files, or change no contents. ``tee`` writes files that are known.
_HARMLESS = _names(
    """
    mkdir rmdir rm touch sleep expr date hostname uname nproc id whoami ls cat head tail wc grep df free seq basename
    dirname nvidia-smi pip tee
    """
)
#: Programs whose output is constant if their arguments are.
_CONSTANT_OUTPUT = _names("echo expr nproc date hostname uname whoami id")
#: Programs that print variables of the environment, or the names of files.
_PRINT_VALUES = _names("env printenv pwd set ps ls dir vdir find realpath readlink")
#: Matches names of files that programs run as code.
_CODE_FILE = re.compile(
    r".*\.(?:py|pth|pyc|ipynb|sh|bash|pl|pm|rb|js|mjs|cjs|lua|[Rr]|jl|mk|awk|sed|sql|so)"
    r"|(?:GNU)?[Mm]akefile|Dockerfile|Containerfile|\.\w*(?:rc|profile|login|logout|env)|config|authorized_keys"
)
#: Interpreters that may take values after the name of a script.
_INTERPRETERS = _names("perl ruby node nodejs deno bun php lua luajit Rscript julia scala groovy raku")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?(?:-dbg)?")
#: Python modules that run code from their arguments.
_RUN_CODE_MODULES = _names(
    "runpy timeit pdb code asyncio profile cProfile trace bdb doctest IPython pydoc pickle unittest"
)
#: Options of shells that ``-o`` may change.
OPTIONS = _names("errexit nounset xtrace verbose noglob allexport noclobber pipefail")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"\[|[\w./+:@%,-]+")
_UNARY = frozenset(["-n", "-z", "-e", "-f", "-d", "-s", "-r", "-w", "-x", "-L", "-h"])
_STRINGS = re.compile(r"(?:[^%]|%%|%[-.\d]*[sb])*")
_NUMERIC = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def shell_options(words: Sequence[str | None]) -> tuple[int | None, bool, bool]:
    """Find the program among a shell's arguments.

    Returns:
        Its index, if there is one; whether it is code rather than a file's name; whether all options before it are
        known.
    """
    code, known, index = False, True, 0
    while index < len(words) and (word := words[index] or "")[:1] in ("-", "+"):
        index += 1
        following = words[index] if index < len(words) else None
        if word in ("-", "--"):
            known &= word == "--" and (following or "")[:1] not in ("-", "+")
        elif word.startswith("--"):
            known &= word in ("--norc", "--noprofile", "--login", "--posix")
            index += word in ("--rcfile", "--init-file")
        else:
            code |= word[0] == "-" and "c" in word
            known &= re.fullmatch(r"[-+](?=.)[abefhlmuvxcC]*o?", word) is not None
            if word[-1] in "oO":
                known &= following in OPTIONS
                index += 1
    return index if index < len(words) else None, code, known


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
        """Check commands. ``fed``: their input contains values. ``last``: no command follows the script."""
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
        varies = any(map(self._may_vary, command.words))
        if command.words:
            self._run(command.words, fed, last=last)
        self._spreads |= fed or name in _PRINT_VALUES or varies
        self._moves |= name == "cd" and varies
        for operator, word in files:
            if operator != "<":
                self._write(word)
            elif name == "exec":
                _refuse("redirects the input of everything after it")
        return fed or name in _PRINT_VALUES or varies

    def _word(self, word: Word, fed: bool) -> None:
        text = literal(word) or ""
        if re.match(r"/(?:proc|dev/(?!null$|stdout$|stderr$))", text):
            _refuse(f"names {text!r}, which may contain it")
        for piece in word:
            self._script(piece.script, fed=fed, last=False)
            if not piece.quoted and self._holds(piece):
                what = f"${piece.text}" if piece.kind == "variable" else "$( )"
                _refuse(f'has {what}, which contains a value, without quotes: write "{what}"')

    def _holds(self, piece: Piece) -> bool:
        """Tell whether a part of a word is a value, or made from one."""
        if piece.kind == "command":
            return not all(self._is_constant(command) for pipeline in piece.script for command in pipeline)
        if piece.kind == "variable":
            # $0 is the word after the program, and bash keeps the last argument in $_.
            of_shell = piece.text in ("@", "*", "_") or piece.text.isdigit()
            return of_shell or piece.text in self.values or (self._moves and piece.text in ("PWD", "OLDPWD"))
        return piece.kind == "channel"

    def _is_constant(self, command: Command) -> bool:
        """Tell whether a command in a substitution has a constant output."""
        texts = [None if is_pattern(word) else literal(word) for word in command.words]
        programs = _CONSTANT_OUTPUT if self._moves else _CONSTANT_OUTPUT | {"pwd"}
        return (
            bool(texts)
            and texts[0] in programs
            and None not in texts
            and not command.redirects
            and not command.assignments
        )

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
        if _CODE_FILE.fullmatch(file):
            _refuse(f"writes into {file!r}, which programs read as code")
        if not name.startswith("/dev/"):
            self._written.add(file)
            self._writes = True

    def _assignment(self, word: Word) -> None:
        """Check an assignment before a command or in the arguments of ``env`` and ``export``."""
        name = "".join(piece.text if piece.kind == "text" else "$" for piece in word).partition("=")[0]
        if any(map(self._holds, word)):
            _refuse(f"assigns it to {name!r}", f"Set it in the role's env: env={{{name!r}: f'{{}}'}}.")
        if OF_SHELLS.fullmatch(name) or re.search("[$`]", literal(word) or ""):
            _refuse(f"sets {name!r}, which shells may read as code")

    def _run(self, words: Sequence[Word], fed: bool, *, last: bool) -> None:
        """Check a command by its name."""
        name = literal(words[0])
        if not name or (self._may_vary(words[0]) and name != "[") or not _NAME.fullmatch(name):
            _refuse("has a command whose name is not plain text, or a file that it writes: it is unknown what runs")
        program, arguments = name.rpartition("/")[2], words[1:]
        texts = [literal(word) for word in arguments]
        varies = any(map(self._may_vary, arguments))
        if program in _REFUSED_BUILTINS:
            why = "reads its arguments as code or as names, or changes how others are read"
            _refuse(f"contains {name!r}, which {why}", COMPUTE if program == "let" else "")
        elif program in _WRAPPERS:
            self._wrapper(program, list(arguments), fed, last=last)
        elif SHELL.fullmatch(program):
            self._shell(program, arguments)
        elif program in _TAKE_CONSTANTS:
            if any(piece.kind != "text" and piece.text not in tuple("!?#$") for word in arguments for piece in word):
                _refuse(f"has an argument of {name!r} that is not constant")
        elif program in ("export", "readonly"):
            for word in arguments:
                self._assignment(word)
        elif program in ("[", "test"):
            _check_test(name, arguments)
        elif program == "set":
            wrong = [text for text in texts if text not in OPTIONS and not re.fullmatch("[-+][euxvfCo]+", text or "")]
            if wrong:
                _refuse(f"gives {wrong[0] or ''!r} to {name!r}, which changes how this shell reads the program")
        elif program == ".":
            if fed or len(arguments) != 1 or varies:
                _refuse(f"gives it to {name!r}, which runs a file in this shell")
        elif program == "printf":
            form = texts[0] if texts else None
            if form is None or form.startswith("-") or not _STRINGS.fullmatch(form):
                _refuse(f"has {name!r} with anything but a constant format of %s first")
        elif program not in _TAKE_VALUES:
            self._program(name, arguments, varies=varies, fed=fed, last=last)

    def _program(self, name: str, arguments: Sequence[Word], *, varies: bool, fed: bool, last: bool) -> None:
        base = name.rpartition("/")[2]
        # Without what versions and variants of a program add to its name: perl5.36, vim.basic.
        short = re.match(r"[A-Za-z_-]*[A-Za-z]|", base)
        program = base if short is None or base in _LAUNCHERS else short[0]
        files = [(literal(word) or "").rpartition("/")[2] for word in arguments]
        kinds = (_PYTHON, _SHELL_INSIDE, _CODE_FILE)
        scripts = [index for index, file in enumerate(files) if any(kind.fullmatch(file) for kind in kinds)]
        if varies or fed:
            if _PYTHON.fullmatch(base):
                self._python(name, arguments)
            elif program in _INTERPRETERS:
                script = arguments[0] if arguments else ()
                self._script_file(name, script if re.search("[./]", literal(script) or "") else ())
            elif program in _RUN_CODE:
                _refuse(f"gives it to {name!r}, which runs its arguments or its input as code")
            elif program in _LAUNCHERS and varies:
                first = next(index for index, word in enumerate(arguments) if self._may_vary(word))
                if "torchrun" not in files[:first] and not any(script < first for script in scripts):
                    _refuse(f"gives it to {name!r}, which runs the command after its options")
            # The program may run a shell or Python that is among its arguments.
            for index, file in enumerate(files):
                if _SHELL_INSIDE.fullmatch(file) or _PYTHON.fullmatch(file):
                    self._run(arguments[index:], fed, last=last)
                    break
        is_author = "/" in name and not name.startswith(("/bin/", "/sbin/", "/usr/"))
        is_author |= bool(_PYTHON.fullmatch(base)) or program in _INTERPRETERS | {"torchrun"}
        is_author |= program in _LAUNCHERS and bool(scripts)
        if (varies or fed or self._spreads) and not (is_author or program in _HARMLESS or (last and not self._writes)):
            _refuse(
                f"runs {name!r} where it may write a value into a file that a later command runs. Make it the last "
                "command, or do it in your program"
            )
        if program == "tee":
            for word in arguments:
                self._write(word)

    def _wrapper(self, name: str, arguments: list[Word], fed: bool, *, last: bool) -> None:
        """Check ``exec``, ``env A=b``, ``timeout 10``, ``nice -n 5``, ``stdbuf -oL``, ..., and the command after it."""
        while name == "env" and arguments and _ASSIGNMENT.match("".join(each.text or "$" for each in arguments[0])):
            self._assignment(arguments.pop(0))
        pattern = {"timeout": r"[\d.]+[smhd]?", "nice": r"-n|-?\d+", "stdbuf": r"-[ioe]\w+"}.get(name, "")
        while arguments and pattern and re.fullmatch(pattern, literal(arguments[0]) or ""):
            arguments.pop(0)
        if arguments and (literal(arguments[0]) or "-").startswith("-"):
            _refuse(f"has {name!r} with options, or with a value before the command")
        if arguments:
            self._run(arguments, fed, last=last)

    def _script_file(self, name: str, word: Word) -> None:
        text = literal(word)
        if not text or text.startswith("-"):
            _refuse(f"gives it to {name!r} but not after the name of a script")
        if self._may_vary(word):
            _refuse(f"runs {text!r}, a file that it writes itself")

    def _shell(self, program: str, arguments: Sequence[Word]) -> None:
        if program not in KNOWN_SHELLS:
            _refuse(f"runs {program!r}, a shell whose programs are not understood")
        index, code, known = shell_options([literal(word) for word in arguments])
        if index is None or code or not known:
            _refuse(f"runs another {program!r} with a program, with unknown options, or without a script")
        self._script_file(program, arguments[index])

    def _python(self, name: str, arguments: Sequence[Word]) -> None:
        texts = [literal(word) or "" for word in (*arguments, ())]
        index = 0
        while index < len(arguments):
            text, following = texts[index], texts[index + 1]
            if text in ("-m", "-c"):
                if not following or (text == "-m" and following.partition(".")[0] in _RUN_CODE_MODULES):
                    break
                return
            if text not in ("-W", "-X") and not re.fullmatch("-[bBdEIOPqsSuv]+", text):
                self._script_file(name, arguments[index])
                return
            index += 2 if text in ("-W", "-X") else 1
        _refuse(f"gives it to {name!r} but not after the name of a script or a module")


def _check_test(name: str, arguments: Sequence[Word]) -> None:
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
