"""The files that a command names. ``test_stage_code`` and ``test_stale_code`` test the effect of changing them."""

import re
from pathlib import Path

import pytest

from torchx_kfp.execution.pipeline.used_files import Code, CodeFile, UsedFiles

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


def used(folder: Path, *words: str) -> Code:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return UsedFiles({name: CodeFile(name, str(path), "") for name, path in files.items()}, ".").of([words], [])


def names(folder: Path, *words: str) -> list[str]:
    code = used(folder, *words)
    return ["all"] if code.whole else [*code.files]


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


@pytest.mark.parametrize("program", ["important = b", "load(b)  # taken from a", "yield from b"])
def test_what_is_not_an_import(tmp_path: Path, program: str) -> None:
    (tmp_path / "b.py").touch()
    (tmp_path / "train.py").write_text(program)
    assert names(tmp_path, "python", "train.py") == ["train.py"]


def test_all_of_a_package_but_not_what_else_is_in_its_folder(tmp_path: Path) -> None:
    files = ("__init__.py", "a.py", "inner/__init__.py", "inner/b.py", "../data/c.csv", "../data-1/d.py")
    for name in files:
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).touch()
    assert names(tmp_path, "python", "-m", "package") == [f"package/{name}" for name in sorted(files[:4])]


def test_a_namespace_package_may_have_other_files(tmp_path: Path) -> None:
    for name in ("app/main.py", "app/models/README.md", "app/models/v1/net.py", "other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "app" / "main.py").write_text("from app.models.v1 import net")
    assert names(tmp_path, "python", "-m", "app.main") == [
        "app/main.py",
        "app/models/README.md",
        "app/models/v1/net.py",
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sh", "run.sh"], "sh is not followed"),
        (["bash", "-c", "python -m a && python -m b"], "is not followed"),
        (["sh", "-c", "cd src; python a.py"], "is not followed"),
        (["make", "a.py"], "make is not followed"),
        (["python", "-c", "print(1)"], "the command names none of them"),
        (["python", "."], "the command names ."),
        (["./a.py"], "a.py is not followed"),
        (["python", "-m", "elsewhere", "a.py"], "the command starts the module elsewhere, which is not one of them"),
        (["python", "b.py"], "c.py has the word glob"),
        ([], "the command of the image is not followed"),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_what_cannot_be_followed_may_use_everything(tmp_path: Path, words: list[str], why: str) -> None:
    for name, text in {"a.py": "", "b.py": "import c", "c.py": "import glob"}.items():
        (tmp_path / name).write_text(text)
    assert names(tmp_path, *words) == ["all"]
    assert re.fullmatch(rf"all 3 files of \. \(.*{re.escape(why)}\)", str(used(tmp_path, *words)))


def test_what_was_counted_in_words(tmp_path: Path) -> None:
    assert str(used(tmp_path, "make")) == "all 0 files of . (make is not followed)"
    for number in range(9):
        (tmp_path / "package" / f"m{number}.py").parent.mkdir(exist_ok=True)
        (tmp_path / "package" / f"m{number}.py").touch()
    (tmp_path / "train.py").touch()
    assert str(used(tmp_path, "python", "train.py")) == "train.py"
    (tmp_path / "train.py").write_text("import package")
    assert str(used(tmp_path, "python", "train.py")) == "train.py, package/ (9 files)"
    assert str(used(tmp_path, "make")) == "all 10 files of . (make is not followed)"
    assert str(Code({f"/src/lib/{name}.py": "" for name in "abcdefghi"})) == "/src/lib (9 files)"


def test_this_package_names_no_files_of_its_users(tmp_path: Path) -> None:
    (tmp_path / "torchx_kfp").mkdir()
    (tmp_path / "torchx_kfp" / "tracking.py").write_text("import subprocess, data")
    (tmp_path / "data.py").touch()
    (tmp_path / "train.py").write_text("from torchx_kfp.tracking import current_run")
    assert names(tmp_path, "python", "train.py") == ["torchx_kfp/tracking.py", "train.py"]
