"""A value is never part of code: channels in shell programs become variables, and are refused in other code."""

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchx.components import dist, utils
from torchx.specs import macros

from tests.authoring.apps import compile_pipeline, load, make_app
from tests.authoring.kfp_engines import containers, tracked_container
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.contract.inputs import unescape
from torchx_kfp.errors import AppDefError

#: TorchX's nightly has a different name for dist.ddp.
pytestmark = pytest.mark.filterwarnings("ignore:.*dist.ddp is deprecated")

HOSTILE = [
    *("a'b", 'a"b', "$(id)", "`id`", "'; id; '", "\\", "a  b", "*", "", "-n", "$HOME", "x\ny", "'\"'\"'", "#", "!"),
    *("~", "$(touch pwned)", "a[$(touch pwned)]", "'; touch pwned #", '"; touch pwned #', "`touch pwned`"),
    *("x; touch pwned", "a\ntouch pwned\n", "x=$(touch pwned)", "a[$(touch pwned)]=1", "-va[$(touch pwned)]"),
    *("| touch pwned", "&& touch pwned", "--", "-c touch${IFS}pwned", "{a,b}", "%s%n", "touch pwned"),
]


def rows(text: str) -> list[str]:
    """Return the rows of a text, several of which may be in one line."""
    return [row for line in text.strip().splitlines() for row in line.split("  ;;  ")]


def compiled(entrypoint: str, *args: str, env: Any = None, tracked: bool = False) -> str:
    """Compile a stage with these arguments, in which the parameter ``value`` is ``{}``, and ``flag`` is ``<>``."""

    def pipeline(value: str = "", flag: str = "") -> None:
        filled = [arg.replace("{}", f"{value}").replace("<>", f"{flag}") for arg in args]
        app = make_app("run", entrypoint=entrypoint, args=filled, env=env or {})
        task_from_app(app, tracker_base="/tmp/results" if tracked else None)

    return compile_pipeline(pipeline)


def program_of(text: str) -> str:
    """Return what becomes of a program with a channel, which the variable ``TORCHX_KFP_VALUE`` then has."""
    words = containers(compiled("bash", "-c", text))["run"]["command"]
    assert words[-4:-1] == ["TORCHX_KFP_VALUE={{$.inputs.parameters['value']}}", "bash", "-c"]
    return unescape(words[-1]) if words[0] == "sh" else str(words[-1])


def run_stage(text: str, name: str = "run", /, *, tmp: Path, **inputs: str) -> Any:
    """Run a compiled stage with these inputs in a folder."""
    return tracked_container(text, name, tmp, **inputs).run(cwd=tmp)


#: The shells of this machine, of which ``sh`` may be another name for ``dash``.
SHELLS = [
    shell
    for shell in (["sh"], ["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(shell[0]) and not (shell == ["dash"] and Path("/bin/sh").samefile(shutil.which("dash") or ""))
]


def run_program(shell: list[str], text: str, value: str, folder: Path) -> "subprocess.CompletedProcess[bytes]":
    """Run a program whose channel has this value."""
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "TORCHX_KFP_VALUE": value, "HOME": str(folder)}
    return subprocess.run(
        [*shell, "-c", text], env=environ, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program ``show``, which prints its arguments."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "show").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    (folder / "show").chmod(0o755)
    return folder


TEXT = st.text("{}'\"$ `\\~=a\nü*", max_size=6) | st.sampled_from(
    ["{}", "{}{}", "--x={}", "-{}", "${x:-{}}", "$(x {})"]
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(words=st.lists(TEXT, min_size=1, max_size=4), value=st.sampled_from(HOSTILE))
def test_each_shell_reads_the_words_that_were_joined(shown: Path, words: list[str], value: str) -> None:
    """``utils.sh`` and ``dist.ddp`` quote their words, and a value is a part of its word, whatever it contains."""
    program = shlex.join(["show", *words, "{}"])
    expanded = program_of(program)
    for shell in SHELLS:
        done = run_program(shell, expanded, value, shown)
        assert done.stdout.decode().split("\0")[:-1] == [word.replace("{}", value) for word in [*words, "{}"]]
    assert not (shown / "pwned").exists()


def test_no_builtin_evaluates_a_value(tmp_path: Path) -> None:
    """Values are arguments of any command whose name is not that of a builtin that evaluates them."""
    names = subprocess.run(["bash", "-c", "compgen -bk"], capture_output=True, text=True, check=True).stdout.split()
    if shutil.which("busybox"):
        listed, programs = (
            subprocess.run(["busybox", *words], capture_output=True, text=True, check=True).stdout
            for words in (["sh", "-c", "help"], ["--list"])
        )
        names += {*listed.partition("\n-")[2].partition("\n")[2].split()} - {*programs.split()}
    accepted = set()
    for name in {*names}:
        for words in ([name, "{}"], [name, "x", "{}"], [name, "-v", "{}"], [name, "{}", "{}"]):
            try:
                program = program_of(shlex.join(words))
            except AppDefError:
                continue
            accepted.add(name)
            for shell in SHELLS:
                for value in ("a[$(touch pwned)]", "touch pwned", "-v", "x=$(touch pwned)"):
                    run_program(shell, program, value, tmp_path)
                    assert not (tmp_path / "pwned").exists(), (shell, program, value)
    assert {"echo", "cd", "printf"} <= accepted
    assert not accepted & {"eval", ".", "source", "exec", "[", "test", "time", "coproc"}


#: What is refused with a value inside, for its shape: only one command whose words are quoted has none of these.
REFUSED = [
    *rows(r"""
echo {}  ;;  echo "{}"  ;;  echo '{}' | cat  ;;  x='{}'; show $x  ;;  show $(echo '{}')  ;;  echo '{}' > f
a && b '{}'  ;;  echo '{}'&  ;;  (echo '{}')  ;;  { echo '{}'; }  ;;  if true; then echo '{}'; fi
x=1 show '{}'  ;;  x='{}' show  ;;  '{}' x  ;;  'show' '{}'  ;;  ~/show '{}'  ;;  ! show '{}'  ;;  show $'{}'
show $"{}"  ;;  show a'{}'  ;;  show '{}'b  ;;  show '{}' $x  ;;  show '{}' # x  ;;  # '{}'  ;;  eval '{}'
. '{}'  ;;  source '{}'  ;;  exec '{}'  ;;  command eval '{}'  ;;  time eval '{}'  ;;  trap '{}' EXIT
test -v '{}'  ;;  '[' -v '{}' ']'  ;;  printf '{}'  ;;  printf -v '{}' x  ;;  unset '{}'  ;;  read '{}'
alias 'a={}'  ;;  python -c 'print({})'  ;;  sh -c 'echo {}'  ;;  bash -ec 'x {}'  ;;  env -S 'x {}'
ssh host 'echo {}'  ;;  timeout 9 sh -c 'echo {}'  ;;  perl -ne 'print {}'  ;;  show ${x:={}}
show ${x:-y} '{}'  ;;  show '{}' *
"""),
    "echo '{}'\ntouch x",
    " echo '{}'",
    "echo '{}' ",
    "echo  '{}'",
    "show \\'{}\\'",
]


@pytest.mark.parametrize("program", REFUSED)
def test_a_value_is_never_where_it_might_be_code(program: str) -> None:
    facts = says("args[1] of role 'trainer'", "'value'", """args=["-c", 'python train.py --value "$1"', "sh", """)
    with pytest.raises(AppDefError, match=facts):
        compiled("bash", "-c", program)


@pytest.mark.parametrize(
    "command",
    rows(
        r"""
sh|-c|show '{}'  ;;  /bin/bash|-c|show '{}'  ;;  bash|-euxo|pipefail|-c|show '{}'|bash|y{}
bash|-lc|show '{}'  ;;  bash|--norc|-c|show '{}'  ;;  dash|-e|-u|-c|show '{}'|sh|-c|x{}  ;;  ash|-c|show '{}'
"""
    ),
)
def test_programs_of_shells_are_found(command: str) -> None:
    assert "show ''\"${TORCHX_KFP_VALUE}\"''" in containers(compiled(*command.split("|")))["run"]["command"]


@pytest.mark.parametrize(
    "command",
    rows(
        r"""
sh|-e|script.sh|show '{}'  ;;  busybox|echo|-c|show '{}'  ;;  python|train.py|-c|conf-{}.yaml
python|-m|x|-e|a{}  ;;  bash|-c|show "$1"|sh|a{}|-c|b{}  ;;  python|-c|print()|-c|a{}  ;;  node|app.js|-e|a{}
python|-W|x|y.py|-c|a{}  ;;  python|-u|train.py|a{}  ;;  sh|x{}  ;;  perl|-e|print|a{}
node|--require|x|app.js|a{}  ;;  sh|-c|{}  ;;  python|-c|{}  ;;  python|-cprint()|a{}
env|A=b|python|x.py|a{}  ;;  ssh-add|a{}  ;;  train|--shell=bash|-c|a{}
"""
    ),
)
def test_other_arguments_are_no_code(command: str) -> None:
    words = containers(compiled(*command.split("|")))["run"]["command"]
    assert words[-1] == command.split("|")[-1].replace("{}", "{{$.inputs.parameters['value']}}")


@pytest.mark.parametrize(
    "command",
    rows(
        r"""
mksh|-c|echo '{}'  ;;  /bin/zsh|-c|echo '{}'  ;;  rbash|-c|echo '{}'  ;;  fish|--command|echo {}
bash-5.2|-c|echo '{}'  ;;  bash|-i|-c|echo '{}'  ;;  bash|-O|extglob|-c|echo '{}'
bash|--rcfile|x|-c|echo '{}'  ;;  bash|<>|-c|echo '{}'  ;;  sh|-c|-e|echo '{}'  ;;  sh|-c|--|echo '{}'
sh|-c|<>|echo '{}'  ;;  bash|-co|pipefail|echo '{}'  ;;  bash|-cecho {}  ;;  env|-i|sh|-c|echo '{}'
env|A=b|sh|-c|echo '{}'  ;;  timeout|10|bash|-c|echo '{}'  ;;  busybox|sh|-c|echo '{}'
env|-S|sh -c 'echo {}'  ;;  env|-Ssh -c 'echo {}'  ;;  env|-vS|echo {}  ;;  env|--split-string=echo {}
kubectl|exec|pod|--|sh|-c|echo '{}'  ;;  xargs|sh|-ec|echo '{}'  ;;  sudo|/bin/bash|-c|echo '{}'
su|user|-c|echo {}  ;;  watch|ls {}  ;;  ssh|host|echo {}  ;;  env|python3|train.py|--shell|sh|-c|echo '{}'
sh|x.sh|sh|-c|a{}  ;;  timeout|10|python|run.py|bash|-c|echo '{}'  ;;  timeout|<>|sh|-c|echo '{}'
python|-c|print({})  ;;  python3.11|-Bc|print({})  ;;  /usr/bin/python3|-W|ignore|-c|{}+1  ;;  pypy3|-cprint({})
perl|-e|print {}  ;;  perl|-MX|-lane|{};  ;;  perl5.36|-e|1;|-e|print {}  ;;  ruby|-e|puts {}  ;;  node|-e|f({})
node|--eval|f({})  ;;  node|--eval=f({})  ;;  nodejs|-p|{}+1  ;;  deno|eval|f({})  ;;  php8.2|-r|f({});
lua|-e|f({})  ;;  julia|-E|{}+1  ;;  Rscript|-e|{}+1  ;;  uv|run|python|-c|print({})
torchrun|-m|x|python|-c|print({})
"""
    ),
)
def test_other_code_takes_no_value(command: str) -> None:
    with pytest.raises(AppDefError, match=says("is code with the pipeline channel 'value' inside", "args=")):
        compiled(*command.split("|"))


def test_the_message_says_what_to_write() -> None:
    with pytest.raises(AppDefError, match=says("""args=["-c", 'python train.py --value "$1"', "sh", f"{value}"]""")):
        compiled("sh", "-c", "echo {}")


@pytest.mark.parametrize("value", HOSTILE)
def test_what_the_message_shows_is_safe(tmp_path: Path, value: str) -> None:
    done = run_stage(compiled("sh", "-c", "printf '%s|' --lr \"$1\"", "sh", "{}"), tmp=tmp_path, value=value)
    assert done.stdout.decode() == f"--lr|{value}|"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("value", ["it's", "'; echo INJECTED; '", "$(echo INJECTED)", "a  b"])
@pytest.mark.parametrize("tracked", [True, False])
def test_torchxs_sh_quotes_its_arguments(tmp_path: Path, value: str, tracked: bool) -> None:
    def pipeline(text: str = "", tracker_base: str = "") -> None:
        base = tracker_base if tracked else None
        # Arguments may be called like builtins.
        task_from_app(utils.sh("printf", "%s|", "eval", f"{text}", f"--x={text}", "$HOME $$$$"), tracker_base=base)

    stage = compile_pipeline(pipeline)
    done = run_stage(stage, "sh", tmp=tmp_path, text=value)
    assert (done.stdout.decode(), done.stderr) == (f"eval|{value}|--x={value}|$HOME $$|", b"")


@pytest.mark.parametrize("j", ["1x1", "2", "2x4", "1:4x2"])
@pytest.mark.parametrize("options", [{"script": "train.py"}, {"m": "app.train"}, {"m": "a", "rdzv_backend": "static"}])
def test_ddp_gets_the_words_that_its_value_would_give(j: str, options: dict[str, str], tmp_path: Path) -> None:
    def program(value: str) -> str:
        text = dist.ddp("--x", value, "a b", "it's", "", "x\ny", "ü", j=j, **options).roles[0].args[1]
        values = macros.Values("", app_id="run", replica_id="0", rank0_env="TORCHX_RANK0_HOST")
        return values.substitute(text)

    (tmp_path / "torchrun").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    (tmp_path / "torchrun").chmod(0o755)
    text = program_of(program("{}"))
    for value in HOSTILE[::6]:
        done = run_program(["bash"], text, value, tmp_path)
        words = shlex.split(program(value).replace("${TORCHX_RANK0_HOST:=localhost}", "localhost"))
        assert done.stdout.decode().split("\0") == [*words[1:], ""]


@pytest.mark.parametrize(
    ("program", "env", "value", "output"),
    [
        ("{}", {}, "echo a; echo b", "a\nb\n"),  # a channel that is the whole program is the program
        ("echo '$A $$' '{{x}}' '{}'", {"A": "b"}, "it's", "$A $$ {{x}} it's\n"),
        (
            "printenv TORCHX_KFP_VALUE '{}'",
            {"TORCHX_KFP_VALUE": "mine"},
            "TORCHX_KFP_VALUE_2",
            "mine\nTORCHX_KFP_VALUE_2\n",
        ),
    ],
)
def test_what_stands_beside_a_channel_in_a_program(
    tmp_path: Path, program: str, env: dict[str, str], value: str, output: str
) -> None:
    assert run_stage(compiled("sh", "-c", program, env=env), tmp=tmp_path, value=value).stdout.decode() == output


def test_two_channels_are_two_variables_with_their_types() -> None:
    def pipeline(lr: float = 0.1, n: int = 1) -> None:
        task_from_app(utils.sh("echo", f"{lr}", f"{n}", f"{lr}"))

    text = compile_pipeline(pipeline)
    command = containers(text)["sh"]["command"]
    assert shlex.split(command[-1]) == ["echo", "${TORCHX_KFP_LR}", "${TORCHX_KFP_N}", "${TORCHX_KFP_LR}"]
    declared = load(text)[0]["components"]["comp-sh"]["inputDefinitions"]["parameters"]
    assert {name: kind["parameterType"] for name, kind in declared.items()} == {
        "lr_float": "NUMBER_DOUBLE",
        "n_int": "NUMBER_INTEGER",
    }


@pytest.mark.parametrize("words", [["bash", *["-o"] * 500], ["perl", *["-e"] * 500]], ids=["bash", "perl"])
def test_many_options_take_no_time(words: list[str]) -> None:
    def pipeline(value: str) -> None:
        task_from_app(make_app(entrypoint=words[0], args=[*words[1:], f"{value}"]))

    began = time.process_time()
    compile_pipeline(pipeline)
    assert time.process_time() - began < 2
