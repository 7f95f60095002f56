"""Channels in shell programs become variables, so that a value is never part of a program."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchx.components import dist, utils

from tests.authoring.apps import compile_pipeline, load, make_app
from tests.authoring.kfp_engines import constants, container_of, containers
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.errors import ChannelError

#: TorchX's nightly has a different name for dist.ddp.
pytestmark = pytest.mark.filterwarnings("ignore:.*dist.ddp is deprecated")

HOSTILE = [
    *("a'b", 'a"b', "$(id)", "`id`", "'; id; '", "\\", "a  b", "*", "", "-n", "$HOME", "x\ny", "'\"'\"'", "#", "!"),
    *("~", "$(touch pwned)", "a[$(touch pwned)]", "'; touch pwned #", '"; touch pwned #', "`touch pwned`"),
    *("x; touch pwned", "a\ntouch pwned\n", "x=$(touch pwned)", "a[$(touch pwned)]=1", "-v a[$(touch pwned)]"),
    *("-va[$(touch pwned)]", "~", "| touch pwned", "&& touch pwned", "--", "-c touch${IFS}pwned", "{a,b}", "E"),
    *("1 -o -v a[$(touch pwned)]", "%s%n"),
]


def compiled(entrypoint: str, *args: str, env: Any = None, tracked: bool = False) -> str:
    """Compile a stage with these arguments, in which the parameter ``value`` is ``{}``, and ``flag`` is ``<>``."""

    def pipeline(value: str = "", flag: str = "") -> None:
        filled = [arg.replace("{}", f"{value}").replace("<>", f"{flag}") for arg in args]
        variables = {name: each.replace("{}", f"{value}") for name, each in (env or {}).items()}
        app = make_app("run", entrypoint=entrypoint, args=filled, env=variables)
        task_from_app(app, tracker_base="/tmp/results" if tracked else None)

    return compile_pipeline(pipeline)


def program_of(text: str) -> str:
    """Return what becomes of a program with a channel, which the variable ``TORCHX_KFP_VALUE`` then has."""
    words = containers(compiled("bash", "-c", text))["run"]["command"]
    assert words[:-1] == ["env", "TORCHX_KFP_VALUE={{$.inputs.parameters['value']}}", "bash", "-c"]
    return str(words[-1])


def run_stage(text: str, name: str = "run", /, *, shells: Path | None = None, tmp: Path, **inputs: str) -> Any:
    """Run a compiled stage with these inputs in a folder."""
    known = {"inputs": {"tracker_base": f"{tmp}/results", **inputs}, "outputs": {"run_id": f"{tmp}/run_id"}}
    return container_of(text, name, **known).run(shells, cwd=tmp)


PRINTS = [
    "printf '%s\\0' {}",
    "printf '%s\\0' '{}'",
    "printf '%s\\0' \"{}\"",
    "printf '%s\\0' '{}' >&1; # it's a comment",
    "# it's a comment\nprintf '%s\\0' {}",
    'echo "a\\"b" >/dev/null; printf "%s\\0" "{}"',
    "a=1 b=$HOME; printf '%s\\0' {}",
    "nice -n 5 printf '%s\\0' {}",
    "y=$(echo use in case); printf '%s\\0' '{}'",
    'set -eu; [ -n "{}" ] && printf \'%s\\0\' "{}" || false',
    "[ '{}' = '{}' ] && printf '%s\\0' {}",
    "exec env A=b printf '%s\\0' {}",
    "printf \\\n  '%s\\0' {} | cat",
    "false ||\ntrue &&\nprintf '%s\\0' {} 2>/dev/null",
    "printf '%s\\0' \"${UNSET:-}{}\" >out; cat out",
    "v=$(nproc); printf '%s\\0' {}",
]


@pytest.mark.parametrize("program", PRINTS)
def test_a_value_is_one_word_in_every_place(shells: Path, tmp_path: Path, program: str) -> None:
    stage = compiled("sh", "-c", program)
    # Each value takes a process, so each shell gets a third of them.
    for value in HOSTILE[PRINTS.index(program) % 3 :: 3]:
        done = run_stage(stage, shells=shells, tmp=tmp_path, value=value)
        assert (done.stdout, done.stderr) == (value.encode() + b"\0", b"")
        assert not (tmp_path / "pwned").exists()


#: Programs that people write, which must be accepted. They are not run.
ACCEPTED = [
    "python3 -c 'import sys; sys.stdout.write(sys.argv[1] + \"|\")' {}",
    "set -euo pipefail; mkdir -p {} && cd {} && python3 -u train.py --lr {} --out={}/x > log.txt 2>&1",
    "exec env LR=1 python -m app {}",
    ". venv/bin/activate && python train.py --lr {}",
    "torchrun --rdzv_endpoint ${TORCHX_RANK0_HOST:=localhost}:29500 --role '' train.py --x ''{}''",
    "bash train.sh --lr {}",
    "timeout 10m python train.py {} | tee log.txt",
    "ls {}/*.csv",
    'test -n "{}" || exit 1',
    "[ {} = a ] && echo yes || echo no",
    "nohup python x.py {} >/dev/null 2>&1 & wait $!",
    "torchrun --nproc_per_node 2 train.py --lr {}",
    "uv run train.py --lr {}",
    "conda run -n env python train.py --lr {}",
    "numactl -N 0 python train.py --lr {}",
    "export PYTHONPATH=$PWD:$PYTHONPATH; python train.py --dir $(pwd) --lr {} --j $(nproc)",
    'echo "lr: {}" > config.yaml; torchrun train.py --config config.yaml',
    "cp /src/train.py . && python train.py --lr {} > log.txt; tail -1 log.txt",
    "python prep.py {} && ./tools/pack data && aws s3 cp data.tar {}/data.tar",
    'cd {} && [ "$PWD" = /data ] || exit 1; python train.py --lang es --lr {}',
    "pip install -q scikit-learn\npython train.py \\\n  --lr {} \\\n  --name '{}-1'\n",
]


@pytest.mark.parametrize("program", ACCEPTED)
def test_what_people_write_is_accepted(program: str) -> None:
    assert (
        "TORCHX_KFP_VALUE={{$.inputs.parameters['value']}}"
        in containers(compiled("bash", "-c", program))["run"]["command"]
    )


#: Harmless programs with more than simple commands, and what the message names in place of each.
COMPOUND = [
    ("while [ -e x ]; do python train.py --lr {}; done", "'while'"),
    ("i=$((i+1)); python train.py --seed $i --lr {}", "expr"),
    ('for f in *.csv; do python prep.py "$f" {}; done', "'for'"),
    ("if [ -d {} ]; then ls {}; fi", "'if'"),
    ("case {} in a) ;; esac", "'case'"),
    ("(cd {} && ls)", "'(cd"),
    ('show() { echo "$1"; }; show {}', "'() {"),
    ("{ echo {}; }", "'{'"),
    ("! test -d {}", "'!'"),
    ("cat <<E\n{}\nE", "'<<E"),
    ("printf %s `echo {}`", "$( )"),
    ('echo "$(echo "$(echo {})")"', "inside another"),
    ("# {}\necho {}", "in a comment"),
    ("sh -c 'echo \"$1\"' sh {}", "runs another 'sh' with a program"),
    ("export lr={}; python train.py", "env={'lr': f'{value}'}"),
    ("lr={} python train.py", "env={'lr': f'{value}'}"),
    ("env lr={} python train.py", "env={'lr': f'{value}'}"),
    ("lr=$(echo {}); python train.py", "env={'lr': f'{value}'}"),
    ("python train.py > {}/log.txt", "not constant"),
    ("aws s3 cp s3://b/x {} && python train.py", "last command"),
    ("[ $x = {} ]", "not quoted"),
]


@pytest.mark.parametrize(("program", "fact"), COMPOUND)
def test_what_else_shells_have_is_refused_with_the_way_out(program: str, fact: str) -> None:
    with pytest.raises(ChannelError, match=says(fact, 'train.py --value "$1"', "args=")):
        compiled("bash", "-c", program)


ATTACKS = [
    *("x={}; (( x > 0 ))", "x={}; [[ $x -gt 0 ]]", "x={}; echo ${a[x]}", "x={}; let y=x", "x={}; declare -n r=$x"),
    *("alias go={}", "alias go=eval; go {}", 'go() { eval "$1"; }; go {}', "PS4={}; set -x; true"),
    *("BASH_ENV={} bash -c true", "export BASH_ENV={}; bash x.sh", "env -S {}", "sh <<< {}", "echo {} | sh"),
    *("echo {} | bash -s", "echo {} | cat | sh -x", "e=eval; $e {}", 'e=eval; "$e" {}', "printf -v {} x", "read {}"),
    *("test -v {}", "[ -v {} ]", "[ -v 'a[{}]' ]", "[ {} {} ]", "[ $y {} ]", "unset {}", "export {}"),
    *('export "x=1" {}', "x={}; trap 'eval $x' EXIT", "trap {} EXIT", "x={}; echo ${!x}", "x={}; echo ${x@P}"),
    *("x={}; echo $((x))", "x={}; y=x; echo $((y))", 'x={}; unset "a[$x]"', "[ {} -eq 1 ]", "sed s/a/{}/", "awk {}"),
    *("xargs sh -c {}", "find . -name {}", "ssh host {}", "make {}", "python -c {}", "python {}"),
    *("python -W ignore {}", "perl -e {}", "bash -c {}", "bash {}", "bash -o {} x", "exec {}", "{} x", "command {}"),
    *("command eval {}", "builtin eval {}", "\\eval {}", "'ev'al {}", ". {}", "source {}", "echo {} > f; . ./f"),
    *("echo {} > f; sh f", "echo {} > f; ./f", "echo {} > f; python f", "echo {} > {}; python train.py"),
    *("echo hi > {}; sh x.sh", 'x=$(echo {}); eval "$x"', "x=$(echo {}); $x", "x={}; train $x", "mapfile -C {} x"),
    *("enable -f {} x", "hash -p {} ls", "set -- {}; echo $(($1))", "select x in {}; do :; done", "time -p eval {}"),
    *("a[{}]=1", "a=({})", "a+={}", 'echo "${x:{}}"', 'x={}; echo "${y:x}"', "echo {{},b}", "cat <({})"),
    *("sh <<E\n{}\nE", "bash -s <<E\necho {}\nE", "exec <<E\n{}\nE\nsh", "exec 3<<E\n{}\nE\nsh <&3"),
    *("echo {} | xargs echo", "timeout 5 bash -c {}", "mpirun -n 2 bash -c {}", "uv run python {}"),
    *("busybox awk {}", "busybox sh -c {}", "coproc {}", "function f { eval $1; }; f {}", "f() { $1; }; f {}"),
    *("f() { echo $(($1)); }; f {}", "x={} bash -c '((x))'", "export x={}; bash -c 'echo $((x))'"),
    *("export x={}; sh -c '. ./f; echo $((x))'", "sh -c 'y=$1; python $y' sh {}"),
    *("x={}; trap 'y=$x' USR1; python $y", "x={}; y=$((x+0))", "(( {} ))", "i={}; for ((i=0;i<3;i++)); do :; done"),
    *("until (( {} )); do :; done", "$'eval' {}", '$"eval" {}', "`echo eval` {}", "echo `{}`", 'echo "$(eval {})"'),
    *("eval\\\n {}", "ev\\\nal {}", "if [ 1 = 1 ]\\\nthen eval {}; fi", "IFS={}; x=a", "PATH={}; x"),
    *("LD_PRELOAD={} true", "umask {}", "ulimit -n {}", "exit {}", "shift {}", "kill {}", "wait {}", "getopts {} x"),
    *("printf {}", "printf '%d' {}", "tar xf a.tar {}", "git clone {}", "env FOO={} sh", "env -i sh -c {}"),
    *("su -c {}", "python -m timeit {}", "echo {} | python", "echo {} | python -", "python <<E\n{}\nE"),
    *("nice -n 5 sh -c {}", "stdbuf -oL sh -c {}", "./x*y {}", "~/e {}", "case {} in $((x))) ;; esac"),
    *("x={}; case $x in a) ;; esac", "[[ {} =~ a ]]", "[[ -v {} ]]", "[[ a < b ]] && echo {}"),
    *("read x <<E; echo $((x))\n{}\nE", "echo {} | read x; echo $((x))", "cat <<'E'\n{}\nE", "zsh -c {}"),
    *("echo {} | zsh", "echo {} | tee f; sh f", "echo {} |& sh", "sh < {}", "echo {} &> f; . f", "typeset -i x={}"),
    *("integer x={}", "nameref x={}", "readonly -a x={}", "local -n x={}", "let {}", ": ${x:={}}", ": $[ {} ]"),
    *(": $(( $(echo {}) ))", 'x={}; : "${y:=$x}" ; : $((y))', "y=$(cat f); echo $((y)) {}"),
    # Values reach code through files that the program copies.
    *("echo {} > f; cp f g; sh g", "echo {} > f; mv f g; . ./g", "echo {} > f; ln -s f g; ./g"),
    *("echo {} | dd of=g; sh g", "echo {} | env tee f; sh f", "echo {} | busybox tee f; sh f"),
    *("echo {} | sort -o g; sh g", "curl -o f {}; . ./f", "echo {} > f; ionice -c3 sh f"),
    *("echo {} > f; ionice -c3 python3 f", "echo {} > f; cat f | xargs env", "echo {} > f; xargs -a f env"),
    *("echo {} > f; awk -f f", "echo {} > f; make -f f", "echo {} > Makefile; make", "echo {} > f.py; python -m f"),
    *("echo {} > f.py; python -c 'import f'", "echo {} > json.py; python train.py", "cp {} f.py; python -m f"),
    *("echo {} > echo; ./echo hi", "echo {} > python3; ./python3 train.py", "echo {} > sh; ./sh x"),
    *("sleep 1 && sh f & echo {} > f", "sh f | echo {} > f", "exec > f; echo {}; sh f", "echo {} | sort -og; sh g"),
    # A word that is not quoted becomes several operands.
    *("mkdir -p {} && cd {} && [ $PWD = /data ]", "mkdir -p {} && cd {} && [ $(pwd) = /data ]"),
    *("mkdir -p {} && [ -d * ]", "echo {} > f; [ $(cat < f) = a ]", "echo {} > f; x=$(cat < f); [ $x = a ]"),
    "echo {} > f; PATH=$(cat < f); ls",
    # Programs write what they read.
    *("echo {} | uniq - f; sh f", "shuf -e {} -o f; sh f", "echo {} > f; gzip f; zcat f.gz > g; sh g"),
    *("mkdir -p {}; du -a > f; sh f", "mkdir -p {}; tar cf f .; sh f", "mkdir -p {}; taskset 1 tar cf f .; sh f"),
    *(". /proc/self/environ; : {}", "tr '\\0' '\\n' < /proc/self/environ > f; sh f; : {}", "env > f; sh f; : {}"),
    *("env | sort -o f; sh f; : {}", "cp /proc/self/environ f; sh f; : {}", "echo {} | . /dev/stdin"),
    *("echo {} >&1x; sh 1x", "echo {} > build.yaml; ninja -f build.yaml", "find . -fprint f & mkdir -p {}; sh f"),
    # Options and expansions change what shells read.
    *("set -k; bash x.sh BASH_ENV={}", 'set -a; : "${BASH_ENV:=log.txt}"; echo {} > log.txt; bash x.sh'),
    "[ -v 'a[LR]' ]; echo {}",
    # Programs with other names run code, too.
    *("mpirun -n 2 {}", "ipython -c {}", "python3.13t -c {}", "python3-dbg -c {}", "perl5.36.0 -e {}"),
    *("php8.2 -r {}", "tclsh8.6 {}", "original-awk {}", "vim.basic {}", "python -m pydoc {}", "deno eval {}"),
    *("bun exec {}", "pip install {}", "busybox uevent {}", "/lib64/ld-linux-x86-64.so.2 {}"),
    # Values reach code through variables that shells set themselves, names of files, and the environment.
    *(': {}; awk "$_"', ": {}; find . $_", 'echo {}; awk "$0"', "mkdir -p {} && cd {} && find $PWD -name x"),
    *("mkdir -p {} && cd {} && find $(pwd) -name x", "mkdir -p {}; for f in *; do find $f; done"),
    *('touch {}; for f in *; do awk "$f"; done', "mkdir -p {}; find $(ls)", "mkdir -p {}; ls | xargs find"),
    *("env x={} sh -c 'find . $x'", "timeout 5 env x={} sh -c 'awk \"$x\"'", "export x={}; printenv x | xargs env"),
    *("export x={}; env | xargs env", "export x={}; find . $(printenv x)"),
    "export x={}; sh -c 'echo \"$x\"' | xargs env",
    # A number is no longer one where it is expanded.
    *("x={}; i=1; z=${i:+x}; : $((z))", "x={}; i=1; z=${i/1/x}; : $((z))", "x={}; i=1; [[ ${i:+x} -eq 1 ]]"),
    # Shells read these differently than they look.
    *("time ! eval {}", "time coproc eval {}", "(case\r in\n eval|{})\n:;; esac)"),
    "(case\v in\n eval|{})\n:;; esac)",
    # These commands run another command.
    *("ionice -c3 {}", "taskset 1 {}", "setarch x86_64 {}", "uv run {}", "tini -- {}", "python -m runpy {}"),
    # Values reach code through files in the programs of other shells and of traps.
    *("trap 'sh g' EXIT; echo {} > g", "echo {} > g; sh -c 'sh g'", "echo {} > g; sh -c '. ./g'"),
    *("sh -c 'echo \"$1\" > g' sh {}; sh g", "sh -c 'echo \"$1\" > g' sh {}; awk -f g"),
    *("touch {}; y=$(echo *); find $y", "touch {}; find $(echo *)", "touch {}; echo * | xargs env"),
]


@pytest.mark.parametrize("program", ATTACKS)
def test_a_value_is_never_where_it_might_be_code(program: str) -> None:
    with pytest.raises(
        ChannelError,
        match=says("args[1]", "'value'", 'train.py --value "$1"', "args=", '"-c"'),
    ):
        compiled("bash", "-c", program)


@pytest.mark.parametrize(
    "command",
    [
        *("sh|-c|show {}", "/bin/bash|-c|show {}", "bash|-euxo|pipefail|-c|show {}|bash|y", "bash|-lc|show {}"),
        *("bash|--norc|-c|show {}", "sh|-c|--|show {}", "busybox|sh|-c|show {}", "env|A=b|bash|-c|show {}"),
        *("/usr/bin/env|bash|-c|show {}", "timeout|10|/bin/sh|-ec|show {}", "toybox|sh|-c|show {}"),
        "nice|-n|5|env|A=/bin/sh|bash|-c|show {}",
    ],
)
def test_programs_of_shells_are_found(command: str) -> None:
    assert 'show "${TORCHX_KFP_VALUE}"' in containers(compiled(*command.split("|")))["run"]["command"]


@pytest.mark.parametrize("command", ["sh|-e|script.sh|show {}", "busybox|echo|-c|show {}"])
def test_other_arguments_are_no_programs(command: str) -> None:
    words = containers(compiled(*command.split("|")))["run"]["command"]
    assert "show {{$.inputs.parameters['value']}}" in words


#: Pieces of programs, in any order.
TOKENS = st.sampled_from(
    [
        *("{}", '"{}"', "'{}'", "x={};", "$x", '"$x"', '"${x}"', "eval ", "show ", "show {} a{}b ", "echo ", ";"),
        *("\n", "|", "&&", "(", ")", "$(", "((", "))", "[[ ", " ]]", "[ ", " ]", " -eq 1", " = a", "-n ", "<<E\n"),
        *("\nE\n", "<<<", "case {} in a) ", ";; esac", "for x in ", "; do ", "; done", "if ", "; then ", "; fi"),
        *("{ ", "; }", "f() { ", "f {};", "`", "\\", "#", "'", '"', "sh ", "sh -c ", "bash -c '", "trap ", "' EXIT"),
        *("set -x;", "PS4=", "%s ", "printf ", "printf -v ", "read x", "unset ", "export ", "alias ", "$((", "${x"),
        *("}", "a[", "]", "env ", "exec ", ">f", "<f", ". ./f", "x ", "let ", "declare ", '"$1"', '"$@"'),
        *("test -v ", "y=x;", "$((y))", "! ", "cat ", "&", "cat <<E\n{}\nE\n", "2>&1", "command ", "1", "i=0;"),
        *("i=$((i+1))", "~", "*", "\\\n", "$'", '$"', "=", "{a,"),
    ]
)
#: Commands that are safe by themselves, but perhaps not one after another.
STATEMENTS = st.sampled_from(
    [
        *("x={}", 'y="$x"', "y=$x", "y=x", "y=1", "y=$((y+1))", "export x", "export y={}", "read x", "unset x"),
        *("set -a", 'f() { show "$1"; }', 'f() { y="$1"; }', "f {}", 'f "$x"', 'y="$(f {})"', "y=$(f)"),
        *("y=$(echo {})", "y=$(cat f)", '[ "$x" = {} ]', "[ $y = {} ]", "[ -n {} ]", "[ $y -eq 1 ]", "test {}"),
        *("echo $((y))", "echo $((x))", "$y a", "sh -c 'show \"$x\"'", "sh -c 'echo $((x))'"),
        *("bash -c 'echo $((y))'", 'sh -c \'y="$1"; show "$y"\' sh {}', "trap 'show \"$x\"' EXIT"),
        *("trap 'echo $((x))' EXIT", "cat <<E\n{}$x\nE", "echo {} | cat", "echo {} >f", "cat f", "echo {} | read y"),
        *('echo {} | while read -r y; do show "$y"; done', 'case "$x" in {}) show 1;; *) show 2;; esac'),
        *('for y in {} 1; do show "$y"; done', "for y in 1 2; do show $((y)); done", "printf %s {}", "set -x"),
        *("PS4=y", "echo {} >g", "cp f g", "show {} | tee g", "sh g", "sh -c 'show \"$1\"' sh {}"),
        *("sh -c 'echo \"$1\" >g' sh {}", 'show "$(cat f)"', "show $(cat g)", "exec >g", "A=b show {}", "ls | cat"),
        *("cd {} && show x", "env sh -c 'show {}'", "mv g f", "timeout 5 show {}", "busybox echo {}"),
        *("printf '%s\\n' {} | sort -og", "cat <g", "sh <f", "nice sh f", ". ./f", "sh f", "./f", "show $y"),
        *("exec 2>&1", "cd {}", "(x={}; f)", "sh", "y=1 show {}", 'show "$((y)){}"'),
    ]
)
PROGRAMS = st.one_of(
    st.lists(TOKENS, min_size=2, max_size=9).map("".join),
    st.lists(
        st.tuples(STATEMENTS, st.sampled_from([";", "\n", " && ", " | ", " || ", " & "])), min_size=2, max_size=6
    ).map(lambda parts: "".join(part for pair in parts for part in pair).rstrip("&| ;\n")),
)


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(program=PROGRAMS.filter(lambda program: "{}" in program), value=st.sampled_from(HOSTILE))
def test_whatever_is_accepted_runs_no_value(tmp_path_factory: pytest.TempPathFactory, program: str, value: str) -> None:
    with contextlib.suppress(ChannelError):
        run_in_every_shell(program_of(program), value, tmp_path_factory.mktemp("run"))


def run_in_every_shell(text: str, value: str, folder: Path) -> None:
    """Run a program in each installed shell, and check that the value's commands did not create files in the folder."""
    (folder / "show").write_text("#!/bin/sh\n")
    (folder / "show").chmod(0o755)
    commands = [["sh"], ["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"]]
    for command in (command for command in commands if shutil.which(command[0])):
        work = folder / "-".join(command)
        work.mkdir()
        subprocess.run(
            [*command, "-c", text, "sh", value],
            env={"PATH": f"{folder}:{os.environ['PATH']}", "TORCHX_KFP_VALUE": value, "HOME": str(work)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=work,
            timeout=20,
            check=False,
        )
        assert not (work / "pwned").exists(), (command, text)


@pytest.mark.parametrize(
    ("shell", "program"),
    [
        ("bash", 'x="$V"; (( x > 0 ))'),
        ("bash", 'x="$V"; [[ $x -gt 0 ]]'),
        ("bash", '[ -v "$V" ]'),
        ("bash", "PS4=$V; set -x; true"),
        ("bash", 'printf "$V" | sh'),
        ("mksh", '[ "$V" -eq 1 ]'),
        ("zsh", 'printf %d "$V"'),
        ("zsh", "[[ $V -eq 1 ]]"),
    ],
)
def test_what_is_refused_would_run_the_value(shell: str, program: str, tmp_path: Path) -> None:
    """Quotes do not help in these places: each of the programs runs the value as code."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for value in ("a[$(touch pwned)]", "$(touch pwned)", "touch pwned", "PATH[`touch pwned`0]"):
        environ = {"PATH": os.environ["PATH"], "V": value}
        subprocess.run([shell, "-c", program], env=environ, cwd=tmp_path, capture_output=True, check=False)
    assert (tmp_path / "pwned").exists()


def test_no_builtin_is_taken_for_a_program() -> None:
    """A program is accepted with any value, and so would be a builtin of a new version."""
    names = subprocess.run(["bash", "-c", "compgen -b"], capture_output=True, text=True, check=True).stdout.split()
    if shutil.which("busybox"):
        texts = [
            subprocess.run(["busybox", *words], capture_output=True, text=True, check=True).stdout
            for words in (["sh", "-c", "help"], ["--list"])
        ]
        names += {*texts[0].partition("\n-")[2].partition("\n")[2].split()} - {*texts[1].split()}
    assert len(names) > 50
    accepted = set()
    for name in {*names}:
        with contextlib.suppress(ChannelError):
            compiled("sh", "-c", f"{name} x {{}}")
            accepted.add(name)
    # These take values as data, or run a program.
    assert accepted <= {*["[", "test", "true", "false", ":", "echo", "cd", "printf", "exec"]}


def refusal(entrypoint: str, *args: str, env: Any = None) -> str:
    """Return the error for these arguments."""
    with pytest.raises(ChannelError) as caught:
        compiled(entrypoint, *args, env=env)
    return str(caught.value)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("mksh|-c|echo {}", "for 'mksh', but only programs of sh, dash, ash, bash"),
        ("/bin/zsh|-c|echo {}", "for 'zsh'"),
        ("rbash|-c|echo {}", "for 'rbash'"),
        ("fish|-c|echo {}", "for 'fish'"),
        ("bash-5.2|-c|echo {}", "for 'bash-5.2'"),
        ("bash|-i|-c|echo {}", "options of 'bash'"),
        ("bash|-O|extglob|-c|echo {}", "options of 'bash'"),
        ("bash|--rcfile|x|-c|echo {}", "options of 'bash'"),
        ("bash|<>|-c|echo {}", "it is unknown how the shell is started"),
        ("env|-i|sh|-c|echo {}", "it is unknown how the shell is started"),
        ("env|-S|sh -c 'echo {}'", "it is unknown how the shell is started"),
        ("env|-Ssh -c 'echo {}'", "it is unknown how the shell is started"),
        ("env|-vS|echo {}", "it is unknown how the shell is started"),
        ("env|--split-string=echo {}", "it is unknown how the shell is started"),
        ("kubectl|exec|pod|--|sh|-c|echo {}", "it is unknown how the shell is started"),
        ("xargs|sh|-ec|echo {}", "it is unknown how the shell is started"),
        ("su|user|-c|echo {}", "it is unknown how the shell is started"),
        ("watch|ls {}", "it is unknown how the shell is started"),
        ("fish|--command|echo {}", "it is unknown how the shell is started"),
        ("bash|-cecho {}", "it is unknown how the shell is started"),
        ("bash|--rcfile=x{}|-i", "it is unknown how the shell is started"),
        ("bash|x{}", "it is unknown how the shell is started"),
        ("sudo|/bin/bash|-c|echo {}", "it is unknown how the shell is started"),
        ("env|python3|train.py|--shell|sh|-c|echo {}", "it is unknown how the shell is started"),
        ("timeout|<>|sh|-c|echo {}", "it is unknown how the shell is started"),
        ("env|A=<>|sh|-c|find . $A {}", "it is unknown how the shell is started"),
        ("bash|-c|(( {} > 0 ))", r"contains (( ))"),
        ("sh|-c|x={}; [[ $x -gt 0 ]]", r"contains [[ ]], which only bash has"),
    ],
)
def test_shells_that_are_not_understood(command: str, why: str) -> None:
    message = refusal(*command.split("|"))
    assert why in message
    assert "of role 'trainer'" in message
    assert """args=["-c", 'python train.py --""" in message


def test_a_variable_of_the_role_that_holds_a_channel_is_a_value() -> None:
    assert 'write "$n"' in refusal("sh", "-c", "echo $n {}", env={"n": "{}"})
    assert "assigns it to 'x'" in refusal("sh", "-c", "x=$n; echo {}", env={"n": "{}"})


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        *(
            (command, 'Compute whole numbers with expr, to which a value is data: "$(expr {value} + 1)". Or pass it')
            for command in ("sh|echo $(({} + 1))", "sh|n={}; echo $((n + 1))", "bash|let n={}+1", "bash|(( n = {} ))")
        ),
        *(
            (command, 'expr {value} ">" 3 >/dev/null && train. Or pass it')
            for command in ("bash|[[ {} -gt 3 ]]", "sh|[ {} -gt 3 ]", "sh|test {} -le 1 && x")
        ),
        ("sh|LR={}; train", "env={'LR': f'{value}'}. Or pass it"),
        ("sh|eval {}", '"sh", f"{value}"]'),
    ],
)
def test_the_message_says_what_to_write(command: str, instead: str) -> None:
    shell, _, program = command.partition("|")
    message = refusal(shell, "-c", program)
    assert instead in message
    assert """args=["-c", 'python train.py --""" in message


def test_what_the_message_shows_is_safe(tmp_path: Path) -> None:
    arithmetic = compiled("sh", "-c", 'expr {} ">" 3 >/dev/null && echo large; echo "$(expr {} + 1)"')
    argument = compiled("sh", "-c", "printf '%s|' --lr \"$1\"", "sh", "{}")
    assert run_stage(arithmetic, tmp=tmp_path, value="41").stdout == b"large\n42\n"
    for value in HOSTILE:
        run_stage(arithmetic, tmp=tmp_path, value=value)
        assert run_stage(argument, tmp=tmp_path, value=value).stdout.decode() == f"--lr|{value}|"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("value", ["it's", "'; echo INJECTED; '", "$(echo INJECTED)", "a  b"])
@pytest.mark.parametrize("tracked", [True, False])
def test_torchxs_sh_and_ddp_quote_their_arguments(tmp_path: Path, value: str, tracked: bool) -> None:
    def pipeline(text: str = "", tracker_base: str = "") -> None:
        base = tracker_base if tracked else None
        # Arguments may be called like builtins.
        task_from_app(utils.sh("printf", "%s|", "eval", f"{text}", f"--x={text}", "$HOME $$"), tracker_base=base)
        task_from_app(dist.ddp("eval", "--x", f"{text}", script="train.py", j="1x1", image="i"), tracker_base=base)

    stage = compile_pipeline(pipeline)
    done = run_stage(stage, "sh", tmp=tmp_path, text=value)
    assert (done.stdout.decode(), done.stderr) == (f"eval|{value}|--x={value}|$HOME $$|", b"")
    text = "\n".join([*containers(stage)["train"]["command"], constants(stage)["train"].get("stage", "")])
    words = "torchrun .*train.py eval --x ''\"\\${TORCHX_KFP_TEXT}\"''$"
    assert re.search(words, text.replace(r"\0040", " "), re.MULTILINE)
    assert "TORCHX_KFP_TEXT={{$.inputs.parameters['text']}}\n" in text


@pytest.mark.parametrize("j", ["1x1", "2", "2x4", "1:4x2"])
@pytest.mark.parametrize("options", [{"script": "train.py"}, {"m": "app.train"}, {"m": "a", "rdzv_backend": "static"}])
def test_ddp_gets_the_words_that_its_value_would_give(j: str, options: dict[str, str], tmp_path: Path) -> None:
    def program(value: str) -> str:
        text = dist.ddp("--x", value, "a b", j=j, **options).roles[0].args[1]
        text = text.replace("$${${rank0_env}", "${TORCHX_RANK0_HOST")
        return text.replace("${app_id}", "run").replace("${replica_id}", "0")

    (tmp_path / "torchrun").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    (tmp_path / "torchrun").chmod(0o755)
    text = program_of(program("{}"))
    for value in HOSTILE[::6]:
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TORCHX_KFP_VALUE": value}
        done = subprocess.run(["bash", "-c", text], env=environ, cwd=tmp_path, capture_output=True, check=True)
        words = shlex.split(program(value).replace("${TORCHX_RANK0_HOST:=localhost}", "localhost"))
        assert done.stdout.decode().split("\0") == [*words[1:], ""]


@pytest.mark.parametrize(
    ("program", "env", "value", "output"),
    [
        ("{}", {}, "echo a; echo b", rb"a\nb\n"),  # a channel that is the whole program is the program
        ('echo "$(echo {}) $$" {{x}}', {"A": "b"}, "it's", rb"it's \d+ \{\{x\}\}\n"),
        ('echo "$TORCHX_KFP_VALUE" {}', {"TORCHX_KFP_VALUE": "mine"}, "it's", rb"mine it's\n"),
    ],
)
def test_what_stands_beside_a_channel_in_a_program(
    tmp_path: Path, program: str, env: dict[str, str], value: str, output: bytes
) -> None:
    done = run_stage(compiled("sh", "-c", program, env=env), tmp=tmp_path, value=value)
    assert re.fullmatch(output, done.stdout), done.stdout


def test_two_channels_are_two_variables_with_their_types() -> None:
    def pipeline(lr: float = 0.1, n: int = 1) -> None:
        task_from_app(make_app("run", entrypoint="sh", args=["-c", f"echo {lr} {n} {lr}"]))

    text = compile_pipeline(pipeline)
    command = containers(text)["run"]["command"]
    assert command[-1] == 'echo "${TORCHX_KFP_LR}" "${TORCHX_KFP_N}" "${TORCHX_KFP_LR}"'
    declared = load(text)[0]["components"]["comp-run"]["inputDefinitions"]["parameters"]
    assert {name: kind["parameterType"] for name, kind in declared.items()} == {
        "lr_float": "NUMBER_DOUBLE",
        "n_int": "NUMBER_INTEGER",
    }
