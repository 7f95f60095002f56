"""``torchx-kfp compare``: colors, curves, and the code of runs. Its tables are in ``tests/transcripts``."""

# Annotations are not postponed: kfp reads them as types.

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.entrypoints.cli.conftest import Call
from tests.programs import Program
from tests.transcripts.given import compared
from torchx_kfp import Stages
from torchx_kfp.entrypoints.cli.commands.compare import show_values
from torchx_kfp.local import Watch, run
from torchx_kfp.tracking import FsspecResultTracker


def test_a_terminal_dims_what_is_the_same(call: Program, project: Path) -> None:
    compared(project / "base")
    shown = call.terminal(200, "compare", "--tracker-base", "base", "one", "two").read().splitlines()
    dim = [re.sub(r"\x1b\[\d*m", "", line).split() for line in shown if line.startswith("\x1b[2m")]
    assert [words[1] for words in dim] == ["rows", "bound", "optimizer", "seed", "note"]
    plain = call.terminal(200, "compare", "--tracker-base", "base", "one", "two", NO_COLOR="1").read()
    assert "\x1b" not in plain


@dsl.pipeline(name="coded")
def coded(tracker_base: str, workspace: str = ""):
    app = AppDef("a", [Role("r", image="i", entrypoint="true")])
    Stages(tracker_base=tracker_base, workspace=workspace).task(app)


@pytest.fixture
def codes(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run with code: the content of files by name, or the target of a link after an arrow; return the run's name."""
    monkeypatch.chdir(project)

    def record(**files: str | bytes) -> str:
        folder = project / f"code-{len(list(project.iterdir()))}"
        folder.mkdir()
        for name, content in files.items():
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            elif content.startswith("->"):
                (folder / name).symlink_to(content[2:])
            else:
                (folder / name).write_text(content)
                (folder / name).chmod(0o755 if content.startswith("#!") else 0o644)
        sent = {"workspace": folder} if files else {}
        run_id = run(coded, {"tracker_base": "base"}, watch=Watch(), cache=False, **sent).run_id
        FsspecResultTracker("base")[f"{run_id}/a/1"] = {"x": 1}
        return run_id

    return record


def test_the_code_of_runs(codes: Callable[..., str], project: Path, call: Call) -> None:
    same: dict[str, str | bytes] = {"same": "x\n", "script": "#!a\n"}
    one_has = {**same, "app": "one\ntwo\nthree\n", "model": b"\0\1", "gone": "a\n", "link": "->app"}
    two_has = {**same, "app": "one\n2\nthree", "model": b"\0\2", "new": "b\n", "link": "->same", "x": "x\n"}
    none, one, two = codes(), codes(**one_has), codes(**two_has)
    assert "code:" not in call("compare", "--tracker-base", "base", none, codes()).stdout
    assert call("compare", "--tracker-base", "base", one, none).stdout.endswith(
        f"code: only {one} has code that travelled with it\n"
    )
    words = ["compare", "--tracker-base", "base", one, two]
    *rows, code = call(*words).stdout.splitlines()
    assert code == "code: 6 files differ: app, gone, link, model, new and 1 more"
    assert not [row for row in rows if "workspace" in row], "the URLs of archives tell nobody anything"
    found = json.loads(call(*words, "--json").stdout)["code"]
    files = {"app": "changed", "gone": "removed", "link": "changed", "model": "changed", "new": "added", "x": "added"}
    assert found == {two: {"files": files, "problem": ""}}
    # The same code, and code that was removed.
    again = codes(**one_has)
    assert "code:" not in call("compare", "--tracker-base", "base", one, again).stdout
    assert re.search(rf"code: 6 files.* \({one} and {two}\)", call(*words, again).stdout)
    for archive in (project / "base/.torchx_kfp/workspaces").iterdir():
        archive.unlink()
    gone = call(*words)
    assert (gone.returncode, "not there any more" in gone.stdout) == (0, True), gone


def test_numbers_that_no_float_holds_have_a_range() -> None:
    assert show_values([10**400, math.nan, 1]) == f"1 ... {10**400} (3, 1 nan)"
