"""Facts about builtins and programs: which may take values as arguments, and which run their arguments as code."""

from __future__ import annotations

import re
from collections.abc import Sequence


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Shells whose grammar was examined. Programs for other shells are rejected.
KNOWN_SHELLS = ("sh", "dash", "ash", "bash")
#: Matches names of shells, with versions.
SHELL = re.compile(
    r"(?:sh|dash|ash|bash|rbash|hush|msh|sash|[mlop]?ksh|pdksh|oksh|loksh|posh|yash|zsh|fish|t?csh|rc|es|osh|ysh|oil|nu"
    r"|elvish|xonsh|pwsh|powershell)(?:[-.]?\d[\w.+]*)?(?:[-.]static)?"
)

#: Shells that other programs may start; other names of shells are words, too.
SHELL_INSIDE = re.compile(r"(?:sh|dash|ash|bash|rbash|[mpl]?ksh|zsh|fish|t?csh|pwsh)(?:[-.]?\d[\w.+]*)?")
#: Builtins that may take values.
TAKE_VALUES = _names(": true false echo cd")
#: Builtins that may take numbers and constant words.
TAKE_CONSTANTS = _names("pwd exit return shift break continue wait kill umask ulimit times")
#: Commands that run the command after them.
WRAPPERS = _names("exec env timeout nohup nice stdbuf setsid busybox toybox")
#: Builtins, including other shells', that read arguments as code, names or arithmetic, or change how others are read.
REFUSED_BUILTINS = _names(
    """
    eval source trap read unset local command time alias unalias let declare typeset getopts builtin caller compgen
    complete compopt bind enable hash help history fc fg bg jobs disown dirs pushd popd chdir logout mapfile readarray
    shopt suspend type nameref integer float print whence autoload emulate zmodload noglob functions global rename
    """
)
#: Builtins that have their own rules, and words that begin compound commands.
RULED = _names(". export readonly set printf test [ [[")
KNOWN_BUILTINS = TAKE_VALUES | TAKE_CONSTANTS | WRAPPERS | REFUSED_BUILTINS | RULED
#: Programs that run code from their arguments or their input.
RUN_CODE = _names(
    """
    awk gawk mawk nawk original-awk sed gsed ed ex vi vim nvim emacs xargs parallel pee sem find make gmake cmake ninja
    ssh scp sftp rsync autossh mosh su sudo doas runuser setpriv chroot unshare nsenter script watch flock expect
    tclsh wish gdb lldb bc dc m4 at batch crontab psql mysql mariadb sqlite3 docker podman nerdctl kubectl oc tar bsdtar
    git patch strace ltrace tmux screen socat nc ncat netcat telnet jshell ghci ocaml osascript ipython R octave gnuplot
    sox pydoc pip envdir ld-linux-x uevent tcpsvd
    """
)
#: Programs that run the command after their options. Values are accepted only after the name of an author's script.
LAUNCHERS = _names(
    """
    ionice taskset chrt prlimit numactl setarch linux32 linux64 i386 x86_64 uname26 unbuffer valgrind catchsegv
    hyperfine perf firejail fakeroot proot bwrap cgexec systemd-run start-stop-daemon dbus-run-session xvfb-run rlwrap
    chronic ifne entr run-parts gosu su-exec pkexec sg chpst setuidgid tini dumb-init catatonit uv uvx npx bunx pipx npm
    mpirun mpiexec srun salloc sbatch accelerate deepspeed horovodrun ray nsys ncu ssh-agent choom capsh systemd-cat
    pnpm yarn poetry conda mamba micromamba pixi hatch pdm rye pipenv
    """
)
#: Programs that only read files, or change no contents. ``tee`` writes files that are known.
HARMLESS = _names(
    """
    mkdir rmdir rm touch sleep expr date hostname uname nproc id whoami ls cat head tail wc grep df free seq basename
    dirname nvidia-smi pip tee
    """
)
#: Programs whose output is constant if their arguments are.
CONSTANT_OUTPUT = _names("echo expr nproc date hostname uname whoami id")
#: Programs that print variables of the environment, or the names of files.
PRINT_VALUES = _names("env printenv pwd set ps ls dir vdir find realpath readlink")
#: Matches names of files that programs run as code.
CODE_FILE = re.compile(
    r".*\.(?:py|pth|pyc|ipynb|sh|bash|pl|pm|rb|js|mjs|cjs|lua|[Rr]|jl|mk|awk|sed|sql|so)"
    r"|(?:GNU)?[Mm]akefile|Dockerfile|Containerfile|\.\w*(?:rc|profile|login|logout|env)|config|authorized_keys"
)
#: Interpreters that may take values after the name of a script.
INTERPRETERS = _names("perl ruby node nodejs deno bun php lua luajit Rscript julia scala groovy raku")
PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?(?:-dbg)?")
#: Python modules that run code from their arguments.
RUN_CODE_MODULES = _names(
    "runpy timeit pdb code asyncio profile cProfile trace bdb doctest IPython pydoc pickle unittest"
)
#: Matches variables that shells evaluate as code, or that change the behavior of shells.
OF_SHELLS = re.compile(r"PS\d|BASH\w*|ENV|IFS|PATH|LD_\w+|CDPATH|SHELLOPTS|PROMPT_COMMAND|histchars|auto_resume")
#: Options of shells that ``-o`` may change.
OPTIONS = _names("errexit nounset xtrace verbose noglob allexport noclobber pipefail")


def shell_options(words: Sequence[str | None]) -> tuple[int | None, bool]:
    """Return the index of a shell's program among its arguments, and whether it is code rather than a file's name.

    Return None if there is no program, or if an option before it is unknown.
    """
    code, index = False, 0
    while index < len(words):
        word = words[index]
        if word in ("--norc", "--noprofile", "--login", "--posix"):
            index += 1
        elif word == "--":
            return (index + 1 if index + 1 < len(words) else None), code
        elif word is not None and word[:1] in ("-", "+") and word not in ("-", "+"):
            found = re.fullmatch(r"[-+][abefhlmuvxcC]*(o?)", word)
            if not found or (found[1] and (index + 1 == len(words) or words[index + 1] not in OPTIONS)):
                return None, False
            code |= word[0] == "-" and "c" in word
            index += 2 if found[1] else 1
        else:
            return (None if word == "-" else index), code
    return None, code
