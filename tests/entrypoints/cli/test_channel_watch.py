"""Conditions of Python on pipeline channels are findings for the lines of the user's own file, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest
from kfp.dsl import pipeline_channel

from tests.entrypoints.cli.conftest import Call

pytestmark = pytest.mark.versions

KINDS = (pipeline_channel.PipelineChannel, pipeline_channel.ConditionOperation)
HEAD = """
import os
from kfp import dsl
from torchx.components import utils, dist
from torchx_kfp import Stages, hpo

@dsl.component(base_image="i")
def look(text: str = "t", n: float = 1) -> str:
    return text
"""
#: Each line that ends in a comment is a condition on what the comment names.
CONDITIONS = """
def cut(x):
    return x if x else "none"  # the pipeline parameter 'text'

def trial(p):
    return utils.echo(f"{p.lr}" if p.lr > 0.5 else "low", image="i")  # the item of a loop

@dsl.pipeline(name="conditions")
def p(text: str = "a", n: int = 2, debug: bool = False, xs: list = []):
    out = look().output
    look(text=text or "b")  # the pipeline parameter 'text'
    look(text=cut(text))
    found = not n  # the pipeline parameter 'n'
    found = debug == True and n > 3  # the pipeline parameter 'debug'
    found = 1 if out else 2  # the output 'Output' of 'look'
    found = 1 < n < 3  # the pipeline parameter 'n'
    found = max(n, 3)  # the pipeline parameter 'n'
    found = any([debug])  # the pipeline parameter 'debug'
    found = list(filter(None, [out]))  # the output 'Output' of 'look'
    found = bool(2 == n)  # the pipeline parameter 'n'
    found = n in (1, 2)  # the pipeline parameter 'n'
    assert n > 2  # the pipeline parameter 'n'
    if debug:  # the pipeline parameter 'debug'
        look()
    with dsl.ParallelFor([{"lr": 0.1}]) as item:
        look(n=item.lr if item.lr > 0.5 else 1)  # the item of a loop
        assert item.lr in {item.lr}
    with dsl.ParallelFor(["a"]) as item:
        look(n=1.0 if item else 2.0)  # the item of a loop
        os.chdir("/")
    with dsl.If(n > 2):
        some = look()
    with dsl.Else():
        other = look()
    hpo.search(trial, {"lr": hpo.float(0, 1)}, minimize="loss", rounds=1, trials=2, tracker_base="/tmp/base")
    chosen = dsl.OneOf(some.output, other.output) or text  # what dsl.OneOf returns
    assert n in [n, out] and {n: 1, debug: 2}[n] == 1 and n is not None
"""


def test_each_condition_is_a_finding(call: Call, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(HEAD + CONDITIONS)
    expected = [
        f"p.py, line {number} tests {line.partition('  # ')[2]} in Python"
        for number, line in enumerate((HEAD + CONDITIONS).splitlines(), 1)
        if "  # " in line
    ]
    done = call("check", str(tmp_path / "p.py"))
    found = [line.removeprefix("always true: ").partition(", but its")[0] for line in done.stdout.splitlines()]
    assert (sorted(found), done.returncode) == (sorted(expected), 0)
    assert all("dsl.If(...)" in line and "is not None" in line for line in done.stdout.splitlines())
    assert call("check", "--strict", str(tmp_path / "p.py")).returncode == 2


TRUTH = """
@dsl.pipeline(name="truth-of-parameter")
def search(doc: str = "d", query: str = "q", store: str = "s"):
    look(text=query if query else doc)
    look(text=store or "none")
"""


@pytest.mark.parametrize(
    "words", [["check"], ["compile", "-o", "p.yaml"], ["run", "--dry-run"], ["submit", "--dry-run"]]
)
def test_no_command_refuses_what_kfp_compiles(words: list[str], call: Call, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(HEAD + TRUTH)
    done = call(*words, str(tmp_path / "p.py"))
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if "always true: " in line]
    assert [line.partition(" tests")[0][-13:] for line in said] == ["p.py, line 13", "p.py, line 14"]
    assert not any("__bool__" in vars(kind) for kind in KINDS)


def test_a_component_of_torchx_is_the_line_that_calls_it(call: Call, tmp_path: Path) -> None:
    body = '    Stages().task(dist.ddp(script="t.py", image="i", debug=debug))\n'
    (tmp_path / "p.py").write_text(f"{HEAD}\n@dsl.pipeline(name='p')\ndef p(debug: bool = False):\n{body}")
    done = call("check", str(tmp_path / "p.py"))
    assert "p.py, line 13 tests the pipeline parameter 'debug' in Python" in done.stdout


def test_conditions_of_packages_are_not_the_users(call: Call, tmp_path: Path) -> None:
    """Google's package defines a pipeline with ``if parameter:`` when it is imported."""
    (packages := tmp_path / "site-packages").mkdir()
    (packages / "somebodys.py").write_text(HEAD + TRUTH)
    text = f"import sys; sys.path.append({str(packages)!r})\nfrom somebodys import look, search\nfrom kfp import dsl\n"
    (tmp_path / "p.py").write_text(f"{text}\n@dsl.pipeline(name='p')\ndef p():\n    look()\n    search()\n")
    done = call("check", str(tmp_path / "p.py"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "p: 0 findings.\n")


def test_a_file_that_cannot_be_imported_leaves_kfp_as_it_was(call: Call, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(f"{HEAD}{TRUTH}\n1 / 0\n")
    assert call("check", str(tmp_path / "p.py")).returncode == 2
    assert not any("__bool__" in vars(kind) for kind in KINDS)


SIDE_EFFECT = """
import inspect, sys
from kfp import compiler, dsl
from kfp.dsl import pipeline_channel
before = {name: dict(vars(kind)) for name, kind in inspect.getmembers(pipeline_channel, inspect.isclass)}
import kfp
from torchx_kfp import Stages, host, hpo, local
import torchx_kfp.entrypoints.cli.pipeline_files
after = {name: dict(vars(kind)) for name, kind in inspect.getmembers(pipeline_channel, inspect.isclass)}

@dsl.pipeline(name="p")
def p(text: str = "a"):
    look(text=text or "nothing")

compiler.Compiler().compile(p, sys.argv[1])
print(local.run(p, output_dir=sys.argv[2]).state)
print(before == after, kfp.Client.__name__, kfp.client.Client is kfp.Client)
"""


def test_an_import_changes_nothing_in_kfp(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(HEAD + SIDE_EFFECT)
    command = [sys.executable, "p.py", str(tmp_path / "p.yaml"), str(tmp_path / "runs")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-2:] == ["succeeded", "True Client True"], done.stderr
