"""``torchx-kfp compare``: colors, S3, curves, and the code of runs. Its tables are in ``tests/transcripts``."""

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.transcripts.given import compared
from torchx_kfp.entrypoints.cli.display.printing import sparkline
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.recorder import Recorder

ONE, TWO = "one", "two"


@pytest.fixture(autouse=True)
def base(project: Path) -> Path:
    compared(project / "base")
    return project / "base"


def test_a_terminal_dims_what_is_the_same(terminal: Callable[..., str]) -> None:
    shown = terminal(200, "compare", "base", ONE, TWO).splitlines()
    dim = [re.sub(r"\x1b\[\d*m", "", line).split() for line in shown if line.startswith("\x1b[2m")]
    assert [words[1] for words in dim] == ["note", "rows", "bound", "optimizer", "seed"]
    assert "\x1b" not in "".join(terminal(200, "compare", "base", ONE, TWO, NO_COLOR="1"))


def test_on_s3(call: Call, s3_base: str) -> None:
    compared(s3_base)
    shown = call("compare", s3_base, ONE, TWO).stdout
    assert len(shown.splitlines()) == 13
    assert "evaluate   accuracy" in shown


def test_curves_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sparkline([1, 2, 3]) == "▁▅█"
    assert sparkline([5, 5]) == "▄▄"
    assert sparkline([1]) == sparkline([]) == ""
    assert sparkline([0, math.nan, math.inf, -math.inf, 1]) == "▁ █▁█"
    assert sparkline([-1.7e308, 1.7e308]) == "▁█"
    assert sparkline([math.nan, math.nan]) == ""
    assert sparkline(range(100)) == "▁▂▂▃▄▄▅▅▆▇▇█"
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert sparkline([1, 2, 3]) == ""


@pytest.fixture
def codes(base: Path, project: Path) -> Callable[..., None]:
    """Record a run's code: the content of files by name, or the target of a link after an arrow."""
    recorder = Recorder.open(str(base))

    def record(run: str, **files: str | bytes) -> None:
        folder = project / f"code-{run}"
        folder.mkdir()
        for name, content in files.items():
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            elif content.startswith("->"):
                (folder / name).symlink_to(content[2:])
            else:
                (folder / name).write_text(content)
                (folder / name).chmod(0o755 if content.startswith("#!") else 0o644)
        packed = recorder.pack_workspace(folder)
        packed.upload()
        recorder.add_start(run, [packed.code], {})

    return record


def test_the_code_of_runs(codes: Callable[..., None], base: Path, inside: Call, terminal: Callable[..., str]) -> None:
    same = {"same": "x\n", "script": "#!a\n"}
    words = ["compare", "base", ONE, TWO]
    assert "code" not in inside(*words).stdout
    codes(ONE, **same, app="one\ntwo\nthree\n", model=b"\0\1", gone="a\n", link="->app", huge="x\n" * 20_000)
    assert inside(*words).stdout.endswith(f"code: only {ONE} has code that travelled with it\n")
    codes(TWO, **same, app="one\n2\x1b]0;title\nthree", model=b"\0\2", new="b\n", link="->same", huge="y\n" * 20_000)
    assert inside(*words).stdout.splitlines()[-1] == "code: 6 files differ: app, gone, huge, link, model and 1 more"
    found = json.loads(inside(*words, "--format", "json").stdout)["code"]
    files = {"app": "changed", "gone": "removed", "huge": "changed", "link": "changed", "model": "changed"}
    assert found == {TWO: {"files": {**files, "new": "added"}, "problem": ""}}
    lines = inside(*words, "--code").stdout.splitlines()
    assert lines[:9] == [
        *(f"--- {ONE}/app", f"+++ {TWO}/app", "@@ -1,3 +1,3 @@", " one", "-two", "-three", "+2�]0;title", "+three"),
        "\\ No newline at end of file",
    ]
    assert lines[9:12] == [f"--- {ONE}/gone", "+++ /dev/null", "@@ -1 +0,0 @@"]
    assert f"Files {ONE}/huge and {TWO}/huge differ; they have more than 10,000 lines" in lines
    assert f"Binary files {ONE}/model and {TWO}/model differ" in lines
    assert lines[-4:] == ["--- /dev/null", f"+++ {TWO}/new", "@@ -0,0 +1 @@", "+b"]
    colored = terminal(100, *words, "--code")
    assert "\x1b[31m-two" in colored
    assert "\x1b[32m+b" in colored
    assert inside(*words, "--code", "--format", "json").returncode == 2

    # The same code, and code that was removed.
    codes("same-again", **same, app="one\ntwo\nthree\n", model=b"\0\1", gone="a\n", link="->app", huge="x\n" * 20_000)
    FsspecResultTracker(base)["same-again/train/1"] = {"x": 1}
    again = ["compare", "base", ONE, "same-again"]
    assert "code" not in inside(*again).stdout
    assert inside(*again, "--code").stderr == f"The code of {ONE} and same-again does not differ.\n"
    three = inside(*words, "same-again").stdout
    assert re.search(rf"code: 6 files.* \({ONE} and {TWO}\)", three)
    for archive in (base / ".torchx_kfp/workspaces").iterdir():
        archive.unlink()
    gone = inside(*words, "--code")
    assert (gone.returncode, "not there any more" in gone.stderr) == (0, True), gone.stderr


def test_large_differences_are_bounded(codes: Callable[..., None], inside: Call) -> None:
    codes(ONE, **{f"file-{number:02}": "x\n" for number in range(30)})
    codes(TWO, **{f"file-{number:02}": "".join(f"{line}\n" for line in range(800)) for number in range(30)})
    lines = inside("compare", "base", ONE, TWO, "--code").stdout.splitlines()
    assert len(lines) < 5_100
    assert lines[500] == "... and 304 more lines of file-00"
    assert lines[-1].startswith("... and ")
    assert lines[-1].endswith("more files; `torchx-kfp code RUN` brings back all.")
