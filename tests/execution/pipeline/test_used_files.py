"""The code on this machine that a command names. ``test_cached_stages`` tests the effect of changing it."""

import os
from pathlib import Path

import pytest

from torchx_kfp.execution.pipeline.used_files import code_here

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
text = "unrelated"
"""


def names(folder: Path, *words: str) -> list[str]:
    return [os.path.basename(stamp[0]) for stamp in code_here(words, str(folder), "")]


def test_imports_in_blocks_of_every_kind(tmp_path: Path) -> None:
    modules = [f"{letter}.py" for letter in "abcdefghijklmnopq"]
    for name in [*modules, "unrelated.py"]:
        (tmp_path / name).touch()
    (tmp_path / "train.py").write_text(BLOCKS)
    assert names(tmp_path, "python", "train.py") == sorted([*modules, "train.py"])


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
    ],
)
def test_imports_in_any_form(tmp_path: Path, program: str) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "train.py").write_text(program, newline="")
    assert names(tmp_path, "python", "-c", program) == ["a.py"]
    assert names(tmp_path, "python", "train.py") == ["a.py", "train.py"]


@pytest.mark.parametrize("program", ["important = a", "load(a)  # taken from a", "yield from a"])
def test_what_is_not_an_import(tmp_path: Path, program: str) -> None:
    (tmp_path / "a.py").touch()
    assert names(tmp_path, "python", "-c", program) == []


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "package" / "folder.py").mkdir(parents=True)
    (tmp_path / "package" / "a.py").write_text("import folder")
    assert names(tmp_path, "python", "-m", "package", "package/folder.py") == ["a.py"]


def test_all_of_a_package_but_not_what_else_is_in_its_folder(tmp_path: Path) -> None:
    files = ("__init__.py", "a.py", "inner/__init__.py", "inner/b.py", "data/c.csv", "data-1/d.py", "__pycache__/e.py")
    for name in files:
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).touch()
    assert names(tmp_path, "python", "-m", "package") == ["__init__.py", "a.py", "__init__.py", "b.py"]


def test_a_namespace_package_may_have_other_files(tmp_path: Path) -> None:
    for name in ("app/main.py", "app/models/README.md", "app/models/v1/net.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "app" / "main.py").write_text("from app.models.v1 import net")
    assert names(tmp_path, "python", "-m", "app.main") == ["main.py", "net.py"]


def test_an_executable_that_a_script_calls(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo 1\n./tool --quiet\n")
    (tmp_path / "tool").touch()
    assert names(tmp_path, "sh", "run.sh") == ["run.sh"]
    (tmp_path / "tool").chmod(0o755)
    assert sorted(names(tmp_path, "sh", "run.sh")) == ["run.sh", "tool"]


def test_all_modules_that_a_command_starts(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    assert names(tmp_path, "bash", "-c", "python -m a && python -m b") == ["a.py", "b.py"]


def test_a_change_between_two_stages_of_a_run_is_seen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import first")
    (tmp_path / "first.py").touch()
    (tmp_path / "second.py").touch()
    assert names(tmp_path, "python", "train.py") == ["first.py", "train.py"]
    (tmp_path / "train.py").write_text("import second  # of another size")
    assert names(tmp_path, "python", "train.py") == ["second.py", "train.py"]
    before = code_here(["python", "train.py"], str(tmp_path), "")
    os.utime(tmp_path / "second.py", (1, 1))
    assert code_here(["python", "train.py"], str(tmp_path), "") != before
    (tmp_path / "third.py").touch()
    (tmp_path / "second.py").write_text("import third")
    assert names(tmp_path, "python", "train.py") == ["second.py", "third.py", "train.py"]
