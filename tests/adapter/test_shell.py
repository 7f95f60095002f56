"""Channels in shell programs: variables, so that no value is ever part of a program."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torchx.components import dist, utils

from tests.adapter.apps import compile_pipeline, load, make_app
from tests.adapter.engines import Container, containers
from torchx_kfp import task_from_app
from torchx_kfp.adapter import shell
from torchx_kfp.adapter.references import Reference
from torchx_kfp.adapter.shell import find_program, lift_channels
from torchx_kfp.errors import ChannelError

#: TorchX's nightly has another name for it.
pytestmark = pytest.mark.filterwarnings("ignore:.*dist.ddp is deprecated")

VALUE = Reference("value", None, "value", "STRING")
HOSTILE = ["a'b", 'a"b', "$(id)", "`id`", "'; id; '", "\\", "a  b", "*", "", "-n", "$HOME", "x\ny", "'\"'\"'", "#", "!"]


def lifted(program: str, where: str = "args[1]") -> tuple[str, dict[str, Reference]]:
    """``{}`` is where the channel stands."""
    parts: list[str | Reference] = []
    for index, piece in enumerate(program.split("{}")):
        parts += [*([VALUE] if index else []), *([piece] if piece else [])]
    return lift_channels(tuple(parts), where)


@pytest.mark.parametrize(
    "program",
    [
        "printf '%s\\0' {}",
        "printf '%s\\0' '{}'",
        "printf '%s\\0' \"{}\"",
        "printf '%s\\0' '{}' >&1; # it's a comment",
        "# it's a comment\nprintf '%s\\0' {}",
        'echo "a\\"b" >/dev/null; printf "%s\\0" "{}"',
        "(printf '%s\\0' '{}')",
        "case x in x) printf '%s\\0' {};; esac",
        "a=$((1 + 2)); printf '%s\\0' {}",
        "v={}; printf '%s\\0' \"$v\"",
        "v=\"$(printf '%s.' '{}')\"; printf '%s\\0' \"${v%.}\"",
        "for w in '{}'; do printf '%s\\0' \"$w\"; done",
        "if [ '{}' = '{}' ]; then printf '%s\\0' {}; fi",
    ],
)
@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_is_one_word_in_every_place(shells: Path, program: str, value: str) -> None:
    text, variables = lifted(program)
    assert list(variables) == ["TORCHX_KFP_VALUE"]
    done = subprocess.run(
        [shells / "sh", "-c", text],
        env={"PATH": "/usr/bin:/bin", "TORCHX_KFP_VALUE": value},
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (value.encode() + b"\0", b"")


def test_bashs_own_quotes() -> None:
    text, _ = lifted("printf '%s' $'a\\'{}'")
    for value in HOSTILE:
        done = subprocess.run(
            ["bash", "-c", text], env={"TORCHX_KFP_VALUE": value}, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"a'{value}"


@settings(max_examples=300, deadline=None)
@given(
    before=st.text("'\"\\$()`# \nab;|&<", max_size=6),
    after=st.text("'\"\\$()`# \nab;|&<", max_size=6),
)
@example(before="echo '", after="'")
def test_no_value_is_ever_a_part_of_the_program(before: str, after: str) -> None:
    refusal = None
    try:
        text, variables = lifted(f"{before}{{}}{after}")
    except ChannelError as error:
        refusal = str(error)
    else:
        assert variables == {"TORCHX_KFP_VALUE": VALUE}
        assert text in {
            before + expansion.format("TORCHX_KFP_VALUE") + after for expansion in shell._EXPANSIONS.values()
        }
    assert refusal is None or re.search(
        "where its value could not be quoted|how its quotes pair cannot be told", refusal
    )


@pytest.mark.parametrize(
    ("program", "place"),
    [
        ("echo `echo {}`", "in backquotes"),
        ('echo "`echo {}`"', "in backquotes"),
        ("echo `echo '{}'`", "in backquotes"),
        ("echo $(({} + 1))", "in arithmetic"),
        ("echo $(( (1 + 2) * {} ))", "in arithmetic"),
        ("if (( {} > 1 )); then echo yes; fi", "in arithmetic"),
        ("echo $[ {} ]", "in arithmetic"),
        ("[[ {} -eq 1 ]]", r"in \[\[ \]\]"),
        ("[[ '{}' == a ]]", r"in \[\[ \]\]"),
        ("echo ${{a[{}]}}", r"in \$\{{\.\.\.\}}"),
        ('echo "${{x:-{}}}"', r"in \$\{{\.\.\.\}}"),
        ("cat <<END\n{}\nEND", "in a here-document"),
        ("cat <<'END'\nit's {}\nEND", "in a here-document"),
        ('echo "costs ${}"', r"behind '\$'"),
        ("echo \\{}", r"behind '\\\\'"),
        ('echo "C:\\{}"', r"behind '\\\\'"),
        ("eval echo {}", "in 'eval'"),
        ("eval \"echo '{}'\"", "in 'eval'"),
        ("true; trap 'echo {}' EXIT", "in 'trap'"),
        ("let y={}", "in 'let'"),
        ("read {}", "in 'read'"),
        ("printf -v {} x", "in 'printf -v'"),
        ("sh -c 'echo {}'", "in 'sh -c'"),
        ("true && timeout 5 /bin/bash -eu -c {}", "in 'bash -eu -c'"),
        ("python3 -c 'print(\"{}\")'", "in 'python3 -c'"),
        ("bash -euo pipefail -c 'echo {}'", "in 'bash -euo pipefail -c'"),
        ("bash -c -- 'echo {}'", "in 'bash -c'"),
        ("python3 -W ignore -c'print({})'", "in 'python3 -W ignore -c'"),
        ('eval "$(echo {})"', "in 'eval'"),
        ("true; \\eval {}", "in 'eval'"),
        ("a[{}]=1", r"in 'a\['"),
        ("source <(echo {})", "in 'source'"),
        ("sh -c 'echo '{}", "in 'sh -c'"),
    ],
)
def test_places_without_quotes_are_refused(program: str, place: str) -> None:
    program, place = (text.replace("{{", "{").replace("}}", "}") if "{{" in text else text for text in (program, place))
    with pytest.raises(
        ChannelError,
        match=rf"^args\[1\] has the pipeline channel 'value' {place} of a shell program, where its value could not be "
        r"quoted\. Put it into a variable first, VALUE=\.\.\., and use that there; or pass it as an argument of its",
    ):
        lifted(program)


@pytest.mark.parametrize(
    "program",
    [
        "trap 'rm -f x' EXIT; printf '%s|' {}",
        "echo $((1<<2)) >/dev/null; printf '%s|' {}",
        "echo $(( (1 + 2) * 3 )) $[ 2 ] >/dev/null; printf '%s|' {}",
        "x=a; echo \"${x/ #/_}\" >/dev/null; printf '%s|' '{}'",
        "printf '%s|' \"$(case a in a) printf '%s' '{}';; esac)\"",
        "case b in a) ;; b) x=$(echo y); printf '%s|' {};; esac",
        "python3 -c 'import sys; sys.stdout.write(sys.argv[1] + \"|\")' {}",
        'sh -c \'printf "%s|" "$1"\' sh {}',
        "set -e\ncat >/dev/null <<'EOF'\nit's $x\nEOF\nprintf '%s|' {}",
        "y=$(echo use in case); printf '%s|' '{}'",
        "show() { printf '%s|' \"$2\"; }; show eval {}",
        "echo please read it >/dev/null; printf '%s|' {}",
        "[[ a == a ]] && printf '%s|' {}",
        "while read -r line; do :; done </dev/null; printf '%s|' {}",
        "python3 --version >/dev/null; printf '%s|' '{}' # -c",
        "echo 'C:\\' >/dev/null; printf '%s|' \"a\\\\\" >/dev/null; printf '%s|' {}",
    ],
)
def test_what_looks_alike_is_fine(program: str) -> None:
    parts: list[str | Reference] = []
    before, after = program.rsplit("{}", 1)
    text, _ = lift_channels((before, VALUE, *([after] if after else parts)), "args[1]")
    for value in ("it's $(id)", "a[$(id)]"):
        done = subprocess.run(
            ["bash", "-c", text],
            env={"PATH": "/usr/bin:/bin", "TORCHX_KFP_VALUE": value},
            capture_output=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == (value.encode() + b"|", b"")


@pytest.mark.parametrize(
    ("entrypoint", "args", "index"),
    [
        ("sh", ["-c", "x"], 1),
        ("/bin/bash", ["-c", "x"], 1),
        ("bash", ["-euxo", "pipefail", "-c", "x", "bash", "y"], 3),
        ("bash", ["-lc", "x"], 1),
        ("bash", ["--norc", "-c", "x"], 2),
        ("sh", ["-c", "--", "x"], 2),
        ("busybox", ["sh", "-c", "x"], 2),
        ("sh", ["script.sh", "-c", "x"], None),
        ("sh", ["-e", "script.sh"], None),
        ("sh", [], None),
        ("python", ["-c", "x"], None),
        ("busybox", ["echo", "-c", "x"], None),
        ("busybox", [], None),
        ("env", ["A=b", "bash", "-c", "x"], 3),
        ("/usr/bin/env", ["bash", "-c", "x"], 2),
        ("timeout", ["10", "/bin/sh", "-ec", "x"], 3),
        ("tini", ["--", "bash", "--rcfile", "f", "-c", "x"], 5),
        ("toybox", ["sh", "-c", "x"], 2),
        ("env", ["-i", "sh", "-c", "x"], None),
        ("kubectl", ["exec", "pod", "--", "sh", "-c", "x"], None),
        ("python3", ["train.py", "--shell", "sh", "-c", "x"], None),
    ],
)
def test_which_argument_is_a_program(entrypoint: str, args: list[str], index: int | None) -> None:
    assert find_program((entrypoint,), [(arg,) for arg in args]) == index


def test_a_program_whose_quotes_do_not_pair_is_refused() -> None:
    for program in ("echo ${A:-'}'}; echo '@'", "echo @ 'x", "echo @ $(id"):
        before, after = program.split("@")
        with pytest.raises(ChannelError, match=r"how its quotes pair cannot be told|could not be quoted"):
            lift_channels((before, VALUE, after), "args[1]")


@pytest.mark.filterwarnings("ignore:.*dist.ddp is deprecated")
def test_arguments_that_are_called_like_builtins(tmp_path: Path) -> None:
    def pipeline(ckpt: str = "") -> None:
        task_from_app(utils.sh("echo", "eval", "--mode", "read", "--ckpt", f"{ckpt}"))
        task_from_app(dist.ddp("eval", "--ckpt", f"{ckpt}", script="main.py", j="1x1"))

    compiled = compile_pipeline(pipeline)
    assert run_stage(tmp_path, compiled, "sh", ckpt="it's").stdout == b"eval --mode read --ckpt it's\n"


def test_a_channel_before_the_shell_hides_no_program(tmp_path: Path) -> None:
    def pipeline(seconds: int = 5, text: str = "") -> None:
        args = [f"{seconds}", "sh", "-c", f"echo {text}"]
        task_from_app(make_app("run", entrypoint="timeout", args=args))

    compiled = compile_pipeline(pipeline)
    done = run_stage(tmp_path, compiled, "run", seconds_int="5", text="$(echo INJECTED); echo INJECTED")
    assert done.stdout == b"$(echo INJECTED); echo INJECTED\n"


def run_stage(tmp: Path, compiled: str, name: str, **inputs: str) -> Any:
    return Container(
        containers(compiled)[name]["command"],
        inputs={"tracker_base": str(tmp / "results"), **inputs},
        outputs={"run_id": str(tmp / "run_id")},
    ).run()


@pytest.mark.parametrize("value", ["it's", "'; echo INJECTED; '", "$(echo INJECTED)", "a  b"])
@pytest.mark.parametrize("tracked", [True, False])
def test_torchxs_sh_and_ddp_quote_their_arguments(tmp_path: Path, value: str, tracked: bool) -> None:
    def pipeline(text: str = "", tracker_base: str = "") -> None:
        base = tracker_base if tracked else None
        task_from_app(utils.sh("printf", "%s|", f"{text}", f"--x={text}", "$HOME $$"), tracker_base=base)
        task_from_app(dist.ddp("--x", f"{text}", script="train.py", j="1x1", image="i"), tracker_base=base)

    compiled = compile_pipeline(pipeline)
    done = run_stage(tmp_path, compiled, "sh", text=value)
    assert (done.stdout.decode(), done.stderr) == (f"{value}|--x={value}|$HOME $$|", b"")
    command = containers(compiled)["train"]["command"]
    program = next(word for word in command if "torchrun" in word)
    assert program.endswith("train.py --x ''\"${TORCHX_KFP_TEXT}\"''")
    assert "TORCHX_KFP_TEXT={{$.inputs.parameters['text']}}" in command


def test_a_channel_that_is_the_whole_program_is_the_program(tmp_path: Path) -> None:
    def pipeline(program: str = "") -> None:
        task_from_app(make_app("run", entrypoint="sh", args=["-c", f"{program}"]))

    compiled = compile_pipeline(pipeline)
    assert run_stage(tmp_path, compiled, "run", program="echo a; echo b").stdout == b"a\nb\n"


def test_text_that_engines_change_may_stand_beside_a_channel_in_a_program(tmp_path: Path) -> None:
    def pipeline(text: str = "", number: int = 1) -> None:
        program = f'echo "$(echo {text}) $$" {{{{x}}}} {number}'
        task_from_app(make_app("run", entrypoint="sh", args=["-c", program], env={"A": "b"}))

    compiled = compile_pipeline(pipeline)
    done = run_stage(tmp_path, compiled, "run", text="it's", number_int="5")
    assert re.fullmatch(rb"it's \d+ \{\{x\}\} 5\n", done.stdout), done.stdout


def test_two_channels_of_one_name_are_two_variables() -> None:
    other = Reference("other", None, "value", "NUMBER_INTEGER")
    text, variables = lift_channels(("echo ", VALUE, " ", other, " ", VALUE), "args[1]")
    assert variables == {"TORCHX_KFP_VALUE": VALUE, "TORCHX_KFP_VALUE_2": other}
    assert text == 'echo "${TORCHX_KFP_VALUE}" "${TORCHX_KFP_VALUE_2}" "${TORCHX_KFP_VALUE}"'


def test_a_variable_of_the_role_is_kept(tmp_path: Path) -> None:
    def pipeline(x: str = "") -> None:
        role_env = {"TORCHX_KFP_X": "mine"}
        task_from_app(make_app("run", entrypoint="sh", args=["-c", f'echo "$TORCHX_KFP_X" {x}'], env=role_env))

    assert run_stage(tmp_path, compile_pipeline(pipeline), "run", x="it's").stdout == b"mine it's\n"


def test_inputs_keep_their_types() -> None:
    def pipeline(lr: float = 0.1) -> None:
        task_from_app(make_app("run", entrypoint="sh", args=["-c", f"echo {lr}"]))

    spec, _ = load(compile_pipeline(pipeline))
    assert spec["components"]["comp-run"]["inputDefinitions"]["parameters"] == {
        "lr_float": {"parameterType": "NUMBER_DOUBLE"}
    }
