"""The files that a command runs, as far as its words show. ``test_cached_stages`` tests the effect of changing them."""

import os
from pathlib import Path

import pytest

from torchx_kfp.execution.local.code_files import CodeFiles

#: An import in each kind of block that a statement may have.
BLOCKS = """
import a; from b.inner import x
if True: import c
elif True:
    import d
else:
    import e
for _ in []:
    from f import x
else:
    import g
while False: import h
try:
    import i
except ImportError:
    import j
else:
    import k
finally:
    import l
with open(""): import m
async def function():
    async with x: import n
    async for _ in x: import o
class Class:
    def method(self):
        match self:
            case 1: import p
        return lambda: 1 if self else 2
from .q import (
    x,
)
text = "import unrelated"
"""


def names(code: CodeFiles, *words: str, python_path: str = "") -> list[str]:
    return [os.path.basename(stamp[0]) for stamp in code.of(words, python_path)]


def test_imports_in_blocks_of_every_kind(tmp_path: Path) -> None:
    modules = [f"{letter}.py" for letter in "abcdefghijklmnopq"]
    for name in [*modules, "unrelated.py"]:
        (tmp_path / name).touch()
    (tmp_path / "train.py").write_text(BLOCKS)
    assert names(CodeFiles(tmp_path), "python", "train.py") == sorted([*modules, "train.py"])


@pytest.mark.parametrize(
    "program",
    [
        "import\ta",
        "import os, \\\n a",
        "import os, \\\r\n  a",
        "import os,\\\na",
        "x = 1; import os;import a",
        "if 1:import a",
        "def f(): pass\nclass C:\n\tfrom a import x",
        "from.a import x",
        "import os;from.a import x",
        "from ... a import x",
        "from a import(x)",
        "from \\\n a import x",
        "import os.path as b, a.b as c",
        "import a.b.c",
        "import \uff41",
        "\f\timport a\r",
        "cat <<end\nimport os, a\nend",
        "cat <<end\n  from\n\n a import x\nend",
    ],
)
def test_imports_in_any_form(tmp_path: Path, program: str) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "train.py").write_text(program, newline="")
    assert names(CodeFiles(tmp_path), "python", "-c", program) == ["a.py"]
    assert names(CodeFiles(tmp_path), "python", "train.py") == ["a.py", "train.py"]


@pytest.mark.parametrize(
    "program", ["'import a'", "import os.a, b.a", "# import a", "from os import a", "important = a"]
)
def test_what_is_not_an_import(tmp_path: Path, program: str) -> None:
    (tmp_path / "a.py").touch()
    assert names(CodeFiles(tmp_path), "python", "-c", program) == []


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "package" / "folder.py"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("import b")
    (folder / "b.py").touch()
    assert names(CodeFiles(tmp_path), "python", "-m", "package") == ["a.py", "b.py"]


def test_all_modules_that_a_command_starts(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    assert names(CodeFiles(tmp_path), "bash", "-c", "python -m a && python -m b") == ["a.py", "b.py"]


def test_a_change_between_two_stages_of_a_run_is_seen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import first")
    (tmp_path / "first.py").touch()
    (tmp_path / "second.py").touch()
    code = CodeFiles(tmp_path)
    assert names(code, "python", "train.py") == ["first.py", "train.py"]
    (tmp_path / "train.py").write_text("import second  # of another size")
    assert names(code, "python", "train.py") == ["second.py", "train.py"]
    before = code.of(["python", "train.py"], "")
    os.utime(tmp_path / "second.py", (1, 1))
    assert code.of(["python", "train.py"], "") != before
    (tmp_path / "third.py").touch()
    (tmp_path / "second.py").write_text("import third")
    assert names(code, "python", "train.py") == ["second.py", "third.py", "train.py"]
