"""``torchx-kfp compare`` as a user calls it."""

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.searches import LR, tell
from torchx_kfp.contract import protocol
from torchx_kfp.entrypoints.cli.display.printing import sparkline
from torchx_kfp.tracking import FsspecResultTracker, current_run
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.searches import SEARCH
from torchx_kfp.tracking.statements import add_metadata

ONE, TWO = "digits-20260101-120000", "digits-20260102-120000"


TABLE = """\
stage      name                  digits-20260101-120000   digits-20260102-120000   difference
─────────────────────────────────────────────────────────────────────────────────────────────
evaluate   accuracy                                0.75                      1.0        +0.25
evaluate   ok                                     false                     true
evaluate   uri                            s3://models/1            s3://models/2
evaluate   extra                                                               1
evaluate   config (metadata)                  {"lr": 1}                {"lr": 2}
evaluate   note (metadata)                            x                        x
prepare    rows                                    1000                     1000            0
prepare    bound                                    nan                      nan
train      loss                1.25 ... 2.25 (3, 1 nan)   1.5 ... 2.5 (3, 1 nan)
train      optimizer                           adam (3)                 adam (3)
train      seed                             0 ... 2 (3)              0 ... 2 (3)
"""


def fill(base: str | Path) -> None:
    tracker = FsspecResultTracker(base)
    for run, k in ((ONE, 1), (TWO, 2)):
        tracker[f"{run}/prepare/p"] = {"rows": 1000, "bound": math.nan}
        for number in range(3):
            loss = number + k / 4 if number else math.nan
            # Executions on a cluster have random names.
            tracker[f"{run}/train/{'abc'[(number + k) % 3]}"] = {"loss": loss, "optimizer": "adam", "seed": number}
        tracker[f"{run}/evaluate/e"] = {"accuracy": 0.5 + k / 4, "ok": k == 2, "uri": f"s3://models/{k}"}
        add_metadata(tracker.store, f"{run}/evaluate/e", {"config": {"lr": k}, "note": "x"})
    tracker[f"{TWO}/evaluate/e"] = {**tracker[f"{TWO}/evaluate/e"], "extra": 1}


@pytest.fixture(autouse=True)
def base(project: Path) -> Path:
    fill(project / "base")
    return project / "base"


def test_two_runs_side_by_side(call: Call) -> None:
    done = call("compare", "base", ONE, TWO)
    assert done.stdout == TABLE
    assert (done.returncode, done.stderr) == (0, "")


def test_only_what_has_changed(inside: Call) -> None:
    shown = inside("compare", "base", ONE, TWO, "--changed").stdout
    assert [line.split()[:2] for line in shown.splitlines()[2:]] == [
        ["evaluate", "accuracy"],
        ["evaluate", "ok"],
        ["evaluate", "uri"],
        ["evaluate", "extra"],
        ["evaluate", "config"],
        ["train", "loss"],
    ]


def test_runs_that_are_the_same(inside: Call) -> None:
    done = inside("compare", "base", f"{ONE}/prepare", f"{TWO}/prepare", "--changed")
    assert (done.returncode, done.stderr) == (0, "The runs do not differ.\n")
    assert done.stdout.splitlines()[0].split() == [
        "stage",
        "name",
        f"{ONE}/prepare",
        f"{TWO}/prepare",
        "difference",
    ]


def test_a_terminal_dims_what_is_the_same(terminal: Callable[..., str]) -> None:
    shown = terminal(200, "compare", "base", ONE, TWO).splitlines()
    dim = [re.sub(r"\x1b\[\d*m", "", line).split() for line in shown if line.startswith("\x1b[2m")]
    assert [words[1] for words in dim] == ["note", "rows", "bound", "optimizer", "seed"]
    assert "\x1b" not in "".join(terminal(200, "compare", "base", ONE, TWO, NO_COLOR="1"))


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_fits_the_terminal(width: int, terminal: Callable[..., str]) -> None:
    shown = terminal(width, "compare", "base", ONE, TWO, NO_COLOR="1").splitlines()
    assert max(map(len, shown)) <= width
    assert (f"run 1: {ONE}" in shown) == (width == 80)
    # Values are not cut, so that a difference can be seen.
    assert "…" not in "".join(shown)


def test_more_runs_than_a_terminal_has_room_for(terminal: Callable[..., str], project: Path) -> None:
    tracker = FsspecResultTracker(project / "many")
    for number in range(9):
        tracker[f"run-{number}/train/t"] = {"loss": number}
    shown = terminal(80, "compare", "many", *(f"run-{number}" for number in range(9)), NO_COLOR="1").splitlines()
    assert shown[:2] == ["run 1: run-0", "run 2: run-1"]
    assert [line.split() for line in shown[-2:]] == [
        ["train", "loss", "run", "8", "7"],
        ["train", "loss", "run", "9", "8"],
    ]
    assert max(map(len, shown)) <= 80


def test_stages_of_any_name(inside: Call) -> None:
    done = inside("compare", "base", f"{ONE}/evaluate/e", f"{TWO}/pre", "--format", "csv")
    import pandas

    table = pandas.read_csv(io.StringIO(done.stdout), dtype=object).set_index("name")
    assert list(table.columns) == ["stage", "kind", f"{ONE}/evaluate/e", f"{TWO}/prepare"]
    assert table["stage"].isna().all()
    assert table.loc["accuracy", f"{ONE}/evaluate/e"] == "0.75"
    assert table.loc["rows", f"{TWO}/prepare"] == "1000"


def test_json_and_csv(inside: Call) -> None:
    shown = json.loads(inside("compare", "base", ONE, TWO, "--format", "json").stdout)
    assert shown["runs"] == [ONE, TWO]
    rows = {(row["stage"], row["kind"], row["name"]): row for row in shown["rows"]}
    assert rows["evaluate", "result", "accuracy"]["values"] == {ONE: [0.75], TWO: [1.0]}
    assert rows["evaluate", "result", "extra"]["values"] == {ONE: [], TWO: [1]}
    assert rows["evaluate", "metadata", "config"]["values"] == {ONE: [{"lr": 1}], TWO: [{"lr": 2}]}
    assert sorted(map(str, rows["train", "result", "loss"]["values"][ONE])) == ["1.25", "2.25", "NaN"]
    assert [key for key, row in rows.items() if not row["changed"]] == [
        ("evaluate", "metadata", "note"),
        ("prepare", "result", "rows"),
        ("prepare", "result", "bound"),
        ("train", "result", "optimizer"),
        ("train", "result", "seed"),
    ]
    import pandas

    table = pandas.read_csv(
        io.StringIO(inside("compare", "base", ONE, TWO, "--format", "csv").stdout), index_col=["stage", "kind", "name"]
    )
    assert list(table.loc[("evaluate", "result", "accuracy")]) == ["0.75", "1.0"]
    assert list(table.loc[("train", "result", "seed")]) == ["0 ... 2 (3)"] * 2


def test_numbers_that_have_no_difference(inside: Call, project: Path) -> None:
    tracker = FsspecResultTracker(project / "odd")
    tracker["a/s/1"] = {"huge": 10**400, "inf": math.inf, "text": "x", "flag": True, "int": 3}
    tracker["b/s/1"] = {"huge": 0.5, "inf": math.inf, "text": 1, "flag": 1, "int": 1}
    shown = inside("compare", "odd", "a", "b").stdout.splitlines()[2:]
    whole = [line for line in shown if len(line.split()) > 2]  # the others go on with the digits of "huge"
    assert {line.split()[1]: line.split()[-1] for line in whole} == {
        "huge": "0.5",
        "inf": "inf",
        "text": "1",
        "flag": "1",
        "int": "-2",
    }


REFUSED = {
    ("base",): (2, "Missing argument 'RUN RUN'"),
    ("base", ONE): (2, "Error: Give two or more runs to compare; `torchx-kfp results` shows one.\n"),
    ("base", ONE, ONE): (2, f"Error: The run '{ONE}' is given twice. Name different runs.\n"),
    ("base", ONE, "digits-20260101"): (2, f"Error: The run '{ONE}' is given twice. Name different runs.\n"),
    ("base", ONE, "digits"): (
        2,
        f"Error: 'digits' is the beginning of 2 runs under 'base': {ONE}, {TWO}. Give a longer part of",
    ),
    ("base", ONE, "x"): (2, f"Error: Nothing is recorded for 'x' under 'base'. Runs there: {ONE}, {TWO}.\n"),
    ("base", ONE, ""): (2, "Error: Nothing is recorded for '' under 'base'."),
    ("nowhere", "a", "b"): (2, "Error: There is no directory 'nowhere'."),
    ("empty", "a", "b"): (2, "Error: There are no results under 'empty'."),
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_refused(words: tuple[str, ...], inside: Call, project: Path) -> None:
    (project / "empty").mkdir()
    done = inside("compare", *words)
    code, text = REFUSED[words]
    assert text in done.stderr
    assert (done.returncode, done.stdout) == (code, "")


def test_on_s3(call: Call, s3_base: str) -> None:
    fill(s3_base)
    assert call("compare", s3_base, ONE, TWO).stdout == TABLE


STEPS = """\
stage   name                               a                   b   difference
─────────────────────────────────────────────────────────────────────────────
loop    loss (last)        0.25 ... 1.25 (2)            ██▁ 0.25
loop    loss (min)         0.25 ... 1.25 (2)                0.25
loop    loss (max)         0.75 ... 1.75 (2)                 inf
train   scan/rate (last)            ▁█ -0.75   ▁▂▂▃▄▄▅▅▆▇▇█ 1.75         +2.5
train   scan/rate (min)                 -1.0                -1.0            0
train   scan/rate (max)                -0.75                1.75         +2.5
"""


def test_metrics_of_steps(call: Call, base: Path) -> None:
    def log(run_id: str, name: str, *values: float) -> None:
        run = current_run(protocol.encode(protocol.StageContext(str(base), run_id)))
        for step, value in enumerate(values):
            run.log(step, {name: value})
        run.flush()

    log("a/train/1", "scan/rate", -1, -0.75)
    log("b/train/1", "scan/rate", *(number / 4 - 1 for number in range(12)))
    log("a/loop/1", "loss", 0.75, 0.25)
    log("a/loop/2", "loss", 1.75, 1.25)
    log("b/loop/1", "loss", math.inf, 0.5, 0.25)
    assert call("compare", "base", "a", "b").stdout == STEPS
    rows = json.loads(call("compare", "base", "a", "b", "--format", "json").stdout)["rows"]
    assert [(row["stage"], row["kind"], row["name"]) for row in rows if not row["changed"]] == [
        ("train", "min", "scan/rate")
    ]
    assert rows[2]["values"] == {"a": [0.75, 1.75], "b": ["Infinity"]}


SEARCHES = """\
stage    name                                     a                 b   difference
──────────────────────────────────────────────────────────────────────────────────
search   best loss (search)                    0.25             0.125       -0.125
search   best lr (search)                       0.5              0.25        -0.25
search   trials (search)                          3                 4           +1
search   failed trials (search)                   1                 0           -1
sizes    best loss (search)                                 0.125 (2)
sizes    best size (search)                           1.0 ... 2.0 (2)
sizes    trials on the Pareto front (search)              1 ... 2 (2)
sizes    trials (search)                                        2 (2)
sizes    failed trials (search)                                 0 (2)
"""


def test_searches(call: Call, base: Path) -> None:
    store = FsspecResultTracker(base).store

    def state(run_id: str, name: str, *results: dict[str, float] | None, **definition: Any) -> None:
        trials = [({"lr": 2 * its["loss"] if its else 1.0}, its) for its in results]
        content = tell(name, trials, parameters={"lr": LR}, run_id=f"{run_id}/trial/{{index}}", **definition)
        SEARCH.add(store, run_id, content, "search")

    for run, losses in {"a": (0.5, None, 0.25), "b": (0.75, 0.5, 0.125, 0.25)}.items():
        first = tell("search", [], [{"lr": 2 * loss if loss else 1.0} for loss in losses])
        SEARCH.add(store, f"{run}/ask-1/1", first, "search")
        add_metadata(store, f"{run}/ask-1/1", {"trials": first["asked"]})
        FsspecResultTracker(base)[f"{run}/ask-1/1"] = {"round": 1}
        state(f"{run}/best/1", "search", *(None if loss is None else {"loss": loss} for loss in losses))
    two = {"loss": "minimize", "size": "maximize"}
    state("b/sizes/1", "sizes", {"loss": 0.5, "size": 1}, {"loss": 0.125, "size": 1}, objectives=two)
    state("b/sizes/2", "sizes", {"loss": 0.5, "size": 2}, {"loss": 0.125, "size": 1}, objectives=two)
    assert call("compare", "base", "a", "b").stdout == SEARCHES


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
