"""The programs that commands carry: what they are made of, what they need, and how large they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.facts import says
from tools import carry
from torchx_kfp.common import files
from torchx_kfp.contract.carried import launcher, publisher, shared
from torchx_kfp.contract.carried.programs import ASK, LAUNCHER, PUBLISHER, RESULTS_PUBLISHER, SOURCES, WORKSPACE
from torchx_kfp.contract.scripts import workspace_words

#: Names of methods, functions, modules and arguments of the standard library that Python 3.8 lacks.
NEWER = re.compile(
    "removeprefix|removesuffix|bit_count|add_note|(Base)?ExceptionGroup|aiter|anext|pairwise|batched|strict|randbytes|"
    "lcm|nextafter|cbrt|exp2|sumprod|waitstatus_to_exitcode|pidfd_open|pidfd_send_signal|eventfd|process_cpu_count|"
    "orig_argv|stdlib_module_names|file_digest|usedforsecurity|aclosing|graphlib|zoneinfo|tomllib|is_relative_to|"
    "with_stem|hardlink_to|with_segments|full_match|process_group|umask|pipesize|extra_groups|text_encoding|send_fds|"
    "recv_fds|cancel_futures|to_thread|TaskGroup|NoneType|UnionType|get_annotations|UTC|StrEnum|NOFLAG"
)


def test_what_commands_carry_is_made_of_the_modules() -> None:
    assert carry.digests() == SOURCES, "a module has changed: run `make goldens`"
    # A workflow of Argo takes 1 MiB.
    for program, most in ((PUBLISHER, 4_380), (RESULTS_PUBLISHER, 3_330), (LAUNCHER, 12_100), (ASK, 3_530)):
        assert len(program) <= most
        assert "{{" not in program
        assert not re.search(r"[$&<>\\]", program), "engines would rewrite it"
    words = workspace_words("")
    assert len(words[2]) <= 560
    assert not re.search(r"\$[$(]|{{|\\", words[2]), "engines would rewrite it"


@pytest.mark.parametrize(
    "text",
    [*map(carry.text_of, [PUBLISHER, RESULTS_PUBLISHER, LAUNCHER, ASK]), WORKSPACE],
    ids=["publisher", "results", "launcher", "ask", "workspace"],
)
def test_what_commands_carry_needs_only_python_38(text: str) -> None:
    tree = ast.parse(text, feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [getattr(node, field, None) or "" for field in ("attr", "arg", "id", "name", "module")]
        assert not [name for name in names if isinstance(name, str) and NEWER.fullmatch(name)], ast.unparse(node)


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(carry, "FOLDER", tmp_path)
    return tmp_path


def test_a_program_has_the_modules_that_it_imports_in_their_order(folder: Path) -> None:
    write(
        folder,
        first='"A text."\nimport os\nimport urllib.error\nfrom re import match, sub\nONE = 1\ndef f(): return ONE, os',
        second="from torchx_kfp.contract.carried.first import ONE\nimport urllib.error\nTWO = ONE + 1, urllib.error",
        program=(
            "from __future__ import annotations\nimport os\nfrom torchx_kfp.contract.carried.second import TWO\n"
            "from torchx_kfp.contract.carried.first import ONE, f\n"
            "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import abc\n"
            "def main(): print(f(), ONE, TWO)\nmain()\n"
        ),
    )
    assert carry.join("program").splitlines() == [
        *("from __future__ import annotations", "import os", "import urllib.error", "ONE = 1", ""),
        *("def f():", "    return (ONE, os)", "TWO = (ONE + 1, urllib.error)", ""),
        *("def main():", "    print(f(), ONE, TWO)", "main()"),
    ]


def test_a_program_leaves_out_what_it_does_not_use(folder: Path) -> None:
    write(
        folder,
        shared="import os\nimport sys\nA = 1\nB = A\nclass C:\n    x: int\n    def __init__(self): self.y = A\n"
        "    def used(self): return 1\n    def unused(self): return self.used()\ndef g(): return os, B",
        program="from torchx_kfp.contract.carried.shared import C\nprint(C().used())",
    )
    text = carry.join("program")
    assert "def used" in text
    assert "__init__" in text
    assert "A = 1" in text
    assert not re.search(r"unused|def g|B = A|import os|import sys", text)


def test_a_smaller_program_leaves_out_what_the_whole_one_does(folder: Path) -> None:
    write(
        folder,
        program="import os\nWHOLE = True\ndef f(x):\n  if WHOLE: return os\n  elif x: return 1\n"
        "  if WHOLE and x and f: return 2\n  return 3\nf(0)",
    )
    whole, small = (carry.join("program", is_whole=is_whole).splitlines()[1:] for is_whole in (True, False))
    assert [line.strip() for line in whole] == [
        *("import os", "", "def f(x):", "return os", "if x and f:", "return 2", "return 3", "f(0)")
    ]
    assert [line.strip() for line in small] == ["def f(x):", "if x:", "return 1", "return 3", "f(0)"]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("def say(): ...", ["'say'", "program.py"]),
        ("from os import write as say", ["'say'", "program.py"]),
        ("open = 1", ["'open'", "Python"]),
        ("say = 1", ["'say'", "program.py"]),
    ],
)
def test_a_name_that_means_two_things(folder: Path, text: str, facts: list[str]) -> None:
    write(
        folder,
        shared="def say(): return 1",
        program=f"from torchx_kfp.contract.carried.shared import say\n{text}\nprint(say())",
    )
    with pytest.raises(ValueError, match=says(*facts)):
        carry.join("program")


def test_programs_and_the_package_keep_their_files_in_one_folder() -> None:
    """Carried modules import nothing of the package, so both have its name."""
    assert shared.PRIVATE == files.PRIVATE


def test_pipelines_of_version_010_find_the_programs() -> None:
    """Their commands import them from an image that has torchx-kfp."""
    import torchx_kfp

    assert (torchx_kfp.launcher, torchx_kfp.publisher) == (launcher, publisher)
