"""``torchx-kfp results`` as a user calls it: exact tables, filters, formats, terminals."""

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import S3Server
from tests.entrypoints.cli.conftest import Call
from torchx_kfp.tracking import FsspecResultTracker

Terminal = Callable[..., str]

RESULTS = {
    "a-1/prepare/p": {"rows": 1000, "source": "s3://datasets/digits/of/a/long/name/that/goes/on/and/on"},
    "a-1/train/t0": {"accuracy": 0.5, "epochs": 3, "l2norm/mean": 1.25, "done": True, "note": "two words"},
    "a-1/train/t1": {"accuracy": math.nan, "epochs": 10},
    "a-2/train/t0": {"accuracy": 0.93, "epochs": 2, "l2norm/mean": 0.5, "done": False},
    "a-2/train/t1": {"accuracy": "diverged"},
    "b-1/train/t0": {"accuracy": math.inf, "big": 10**30},
    "local_cwd://torchx/app-1": {"loss": 0.25},
}


def fill(base: str | Path) -> FsspecResultTracker:
    tracker = FsspecResultTracker(base)
    for key, results in RESULTS.items():
        tracker[key] = results
    return tracker


@pytest.fixture(autouse=True)
def base(project: Path) -> Path:
    fill(project / "base")
    return project / "base"


def test_runs_are_listed(call: Call) -> None:
    done = call("results", "base")
    # A folder keeps only one of the two slashes of an app handle.
    assert done.stdout == (
        "run                       with results   stages\n"
        "──────────────────────────────────────────────────────\n"
        "a-1                                  3   prepare train\n"
        "a-2                                  2   train\n"
        "b-1                                  1   train\n"
        "local_cwd:/torchx/app-1              1\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_has_a_column_for_each_result(call: Call) -> None:
    done = call("results", "base", "a-2")
    assert done.stdout == (
        "Run a-2\n"
        "stage/execution   accuracy   epochs   l2norm/mean   done\n"
        "─────────────────────────────────────────────────────────\n"
        "train/t0          0.93            2           0.5   false\n"
        "train/t1          diverged\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_of_several_runs_the_whole_run_id_is_shown(call: Call) -> None:
    assert call("results", "base", "--stage", "train", "--where", "epochs < 5", "--sort", "epochs").stdout == (
        "run id         accuracy   epochs   l2norm/mean   done    note\n"
        "────────────────────────────────────────────────────────────────────\n"
        "a-2/train/t0       0.93        2           0.5   false\n"
        "a-1/train/t0        0.5        3          1.25   true    'two words'\n"
    )


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("words", [(), ("a-1",), ("a-2",), ("--stage", "train")], ids=" ".join)
def test_tables_fit_the_terminal(terminal: Terminal, words: tuple[str, ...], width: int) -> None:
    shown = terminal(width, "results", "base", *words, NO_COLOR="1")
    assert "\x1b" not in shown
    assert 0 < max(map(len, shown.splitlines())) <= width
    assert ("stage/execution" in shown) == (words in [("a-1",), ("a-2",)])


def test_a_terminal_cuts_long_texts(terminal: Terminal) -> None:
    shown = terminal(80, "results", "base", "a-1/prepare").splitlines()
    assert shown[0] == "Run a-1"
    assert shown[1].startswith("\x1b[1mstage/execution\x1b[0m"), "headings are bold"
    assert shown[2:] == [
        "────────────────────────────────────────────────────────────────────────────────",
        "prepare/p         1000   s3://datasets/digits/of/a/long/name/that/goes/on/and/on",
    ]
    assert terminal(60, "results", "base", "a-1/prepare", NO_COLOR="1") == (
        "Run a-1\n"
        "stage/execution   rows   source\n"
        "────────────────────────────────────────────────────────────\n"
        "prepare/p         1000   s3://datasets/digits/of/a/long/nam…\n"
    )


def test_a_pipe_folds_long_cells(call: Call, project: Path) -> None:
    url = "s3://bucket/" + "folder/" * 40
    FsspecResultTracker(project / "long")["a-1/train/t"] = {"model": url, "loss": 0.5}
    shown = call("results", "long", "a-1").stdout
    assert max(map(len, shown.splitlines())) < 140
    assert url in re.sub(r"\s", "", shown.replace("0.5", ""))
    assert url in call("results", "long", "a-1", "--format", "csv").stdout


def test_results_that_do_not_fit_are_shown_beside_each_other(terminal: Terminal) -> None:
    assert terminal(60, "results", "base", "a-1", NO_COLOR="1") == (
        "Run a-1\n"
        "stage/execution   results\n"
        "──────────────────────────────────────────────────────────\n"
        "prepare/p         rows=1000\n"
        "                  source=s3://datasets/digits/of/a/long/\n"
        "                  name/that/goes/on/and/on\n"
        "train/t0          accuracy=0.5  epochs=3  l2norm/mean=1.25\n"
        "                  done=true  note='two words'\n"
        "train/t1          accuracy=nan  epochs=10\n"
    )


def test_run_ids_are_whole(terminal: Terminal, call: Call, project: Path) -> None:
    run = "digits-20260101-120000-123456"
    tracker = FsspecResultTracker(project / "base")
    tracker[f"{run}/train/t-0"] = {"model": f"s3://bucket/models/{run}/train/t-0/model.joblib", "n": 1}
    tracker[f"{run}/select/s-0"] = {"best": f"{run}/train/t-0"}
    # The run is shown above the table, not in each row.
    heading, *rows = terminal(80, "results", "base", run, NO_COLOR="1").splitlines()
    assert heading == f"Run {run}"
    assert [row.split() for row in rows[2:]] == [
        ["select/s-0", "…/train/t-0"],
        ["train/t-0", "s3://bucket/models/…/train/t-0/model.joblib", "1"],
    ]
    # If there is no room next to a run id, results are shown below it.
    tracker[f"{run[:-1]}7/train/t-0"] = {"n": 1}
    assert terminal(50, "results", "base", "--stage", "train", "--where", "n == 1", NO_COLOR="1") == (
        f"{run}/train/t-0\n    model=s3://bucket/models/\n    {run}/train/t-0/\n    model.joblib  n=1\n"
        f"{run[:-1]}7/train/t-0\n    n=1\n"
    )
    # A pipe gets everything.
    assert call("results", "base", run).stdout.count(run) == 3


def test_stdout_without_such_characters(call: Call) -> None:
    shown = call("results", "base", "a-1", PYTHONIOENCODING="ascii").stdout
    assert set(shown.splitlines()[2]) == {"-", "+"}
    assert shown.isascii()


ORDER = ["a-1/prepare/p", "a-1/train/t0", "a-1/train/t1", "a-2/train/t0", "a-2/train/t1", "b-1/train/t0"]
#: The run ids that are shown, in order, by the words after the tracker base.
SHOWN = {
    ("a-1",): ORDER[:3],
    ("a-1/",): ORDER[:3],
    ("a-1/train",): ORDER[1:3],
    ("a-1/tr",): ORDER[1:3],
    ("a-1/train/t1",): ORDER[2:3],
    ("b",): ORDER[5:],
    ("b/t/t",): ORDER[5:],
    ("--stage", "prepare"): ORDER[:1],
    ("a-1", "--stage", "prepare", "--stage", "train"): ORDER[:3],
    ("--stage", "train", "--sort", "accuracy"): [ORDER[1], ORDER[3], ORDER[5], ORDER[2], ORDER[4]],
    ("--stage", "train", "--sort", "-accuracy"): [ORDER[5], ORDER[3], ORDER[1], ORDER[2], ORDER[4]],
    ("a-1", "--sort", "-epochs"): [ORDER[2], ORDER[1], ORDER[0]],
    ("a-1", "--sort", "-execution"): [ORDER[2], ORDER[1], ORDER[0]],
    ("--where", "accuracy > 0"): [ORDER[1], ORDER[3], ORDER[5]],
    ("--where", "accuracy > 0.5"): [ORDER[3], ORDER[5]],
    ("--where", "epochs > 2.5"): [ORDER[1], ORDER[2]],
    ("--where", "epochs * 0.5 > 1"): [ORDER[1], ORDER[2]],
    ("--where", "-accuracy / 2 + 1 - 0.75 == 0"): [ORDER[1]],
    ("--where", "done == true"): [ORDER[1]],
    ("--where", "done == 1"): [],
    ("--where", "!done"): [ORDER[3]],
    ("--where", "accuracy == 'diverged' || epochs == 10"): [ORDER[2], ORDER[4]],
    ("--where", 'results["l2norm/mean"] > 1'): [ORDER[1]],
    ("--where", "results.epochs >= 3.0"): [ORDER[1], ORDER[2]],
    ("--where", "has(results.loss)"): ["local_cwd:/torchx/app-1"],
    ("--where", "has(results.unknown)"): [],
    ("--where", 'results.exists(name, name == "big")'): [ORDER[5]],
    ("--where", "big > 1e29"): [ORDER[5]],
    ("--where", 'run == "a-2" && stage == "train" && execution == "t0"'): [ORDER[3]],
    ("--where", 'run_id.endsWith("t1") && epochs > 0'): [ORDER[2]],
    ("--where", "epochs > 2", "--where", "epochs < 5"): [ORDER[1]],
    ("--where", "epochs > 2", "--where", "epochs < 2"): [],
}


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_what_is_shown(words: tuple[str, ...], inside: Call) -> None:
    for form in ("json", "csv"):
        done = inside("results", "base", *words, "--format", form)
        assert done.returncode == 0, done.stderr
        rows = list(csv.reader(io.StringIO(done.stdout)))[1:]
        assert (list(json.loads(done.stdout)) if form == "json" else [row[0] for row in rows]) == SHOWN[words]
        assert ("matches" in done.stderr) == (not SHOWN[words])


def test_nothing_left_over_is_no_failure(call: Call) -> None:
    done = call("results", "base", "--where", "epochs > 100")
    assert (done.returncode, done.stdout) == (0, "run id\n──────\n")
    assert done.stderr.endswith("None of 7 run ids matches.\n")


def test_rows_for_which_an_expression_has_no_value_are_told(call: Call) -> None:
    done = call("results", "base", "--where", "accuracy > 0.9")
    assert "train/t0" in done.stdout
    assert "train/t1" not in done.stdout
    assert done.stderr == (
        "--where 'accuracy > 0.9' cannot be evaluated for 1 run: no operation for text and a number.\n"
    )


def test_json_and_csv_have_all(call: Call) -> None:
    import pandas

    shown = json.loads(call("results", "base", "a-1", "--format", "json").stdout)
    assert shown["a-1/train/t0"] == RESULTS["a-1/train/t0"]
    assert shown["a-1/train/t1"] == {"accuracy": "NaN", "epochs": 10}
    done = call("results", "base", "--format", "csv", "--stage", "train")
    table = pandas.read_csv(io.StringIO(done.stdout), index_col="run_id", dtype={"accuracy": object})
    names = ["accuracy", "epochs", "l2norm/mean", "done", "note", "big"]
    assert list(table.columns) == ["run", "stage", "execution", *names]
    assert list(table.loc["a-1/train/t0", ["run", "stage", "execution", "done", "note"]]) == [
        "a-1",
        "train",
        "t0",
        True,
        "two words",
    ]
    assert "\na-1/train/t1,a-1,train,t1,NaN,10," in done.stdout
    numbers = pandas.read_csv(io.StringIO(call("results", "base", "a-1", "--format", "csv").stdout), index_col=0)
    assert math.isnan(numbers.loc["a-1/train/t1", "accuracy"])
    infinite = pandas.read_csv(io.StringIO(call("results", "base", "b-1", "--format", "csv").stdout), index_col=0)
    assert infinite.loc["b-1/train/t0", "accuracy"] == math.inf


def test_results_with_the_names_of_columns(call: Call, project: Path) -> None:
    FsspecResultTracker(project / "names")["a/b/c"] = {"run": 7, "results": 1, "stage/execution": 2}
    assert call("results", "names", "a", "--format", "csv").stdout == (
        "run_id,stage,execution,run,results,stage/execution\na/b/c,b,c,7,1,2\n"
    )
    assert call("results", "names", "--where", "run == 7 && results.results == 1").stdout.splitlines()[0] == "Run a"


#: Exit codes and messages, by the words after `results`.
REFUSED = {
    ("base", "c"): (
        2,
        "Error: Nothing is recorded for 'c' under 'base'. Runs there: a-1, a-2, b-1, local_cwd:/",
    ),
    ("base", "a"): (2, "Error: 'a' is the beginning of 2 runs under 'base': a-1, a-2. Give a longer part of it.\n"),
    ("base", "a-1/nope"): (
        2,
        "Nothing is recorded for 'a-1/nope' under 'base'. Run ids there: a-1/prepare/p, a-1/train/t0, a-1/t",
    ),
    ("base", "b-2"): (2, "Nothing is recorded for 'b-2' under 'base'. Did you mean 'b-1'? Runs there: a-1, "),
    ("base", "laest"): (2, "Nothing is recorded for 'laest' under 'base'. Did you mean 'latest'? Runs there: a-1, "),
    ("base", "b/trian"): (
        2,
        "recorded for 'b/trian' under 'base'. Did you mean 'b-1/train'? Run ids there: b-1/train/t0.\n",
    ),
    ("base", "a-1/t1"): (
        2,
        "Nothing is recorded for 'a-1/t1' under 'base'. Did you mean 'a-1/train/t1'? Run ids there",
    ),
    ("base", "a-1/train/t00"): (
        2,
        "'a-1/train/t00' under 'base'. Did you mean 'a-1/train/t0'? Run ids there: a-1/train/t0, a-1/train/t1.\n",
    ),
    ("base", ""): (2, "Error: Nothing is recorded for '' under 'base'."),
    ("file",): (2, "Error: 'file' is not a directory. A tracker base is a directory, or a URL such as s3://buc"),
    ("empty",): (1, "Error: There are no results under 'empty'. Is it the tracker base that the pipeline ran with?\n"),
    ("nope://x",): (2, "Error: The tracker base 'nope://x' cannot be used: Protocol not known: nope."),
    ("base", "--json"): (2, "No such option"),
    ("base", "--stage", "trian"): (2, "Error: --stage 'trian' has no results here. Did you mean 'train'? Stages: prep"),
    ("base", "--sort", "acuracy"): (
        2,
        "Error: --sort 'acuracy' names 'acuracy', which no run here has recorded. Did you mean 'accuracy'? "
        "The recorded results are: accuracy, big, done, epochs, l2norm/mean, loss, note, rows, source.\n",
    ),
    ("base", "--sort", "-zzz"): (
        2,
        "Error: --sort '-zzz' names 'zzz', which no run here has recorded. The recorded re",
    ),
    ("base", "--where", "acuracy > 1"): (
        2,
        "Error: --where 'acuracy > 1' names 'acuracy', which no run here has recorded. Did you mean 'accuracy'? The re",
    ),
    ("base", "--where", "l2norm/mean > 1"): (2, 'note, rows, source. Write results["l2norm/mean"].\n'),
    ("base", "--where", 'results["l2norm"] > 1'): (
        2,
        "names 'l2norm', which no run here has recorded. Did you mean 'l2norm/mean'? The rec",
    ),
    ("base", "--where", "results.nope > 1"): (2, "names 'nope', which no run here has recorded."),
    ("base", "--where", "accuracy >"): (
        2,
        "Error: --where 'accuracy >' is not a valid expression: syntax error at column 10, at or after '>'.\n",
    ),
    ("base", "--where", "epochs = 3"): (2, "is not an expression: at column 8, write == for =.\n"),
    ("base", "--where", "done and epochs > 3"): (2, "is not an expression: at column 6, write && for and.\n"),
    ("base", "--where", " "): (2, "Error: --where ' ' is empty; write, for example, 'accuracy > 0.9'.\n"),
    ("base", "--where", "epochs"): (
        2,
        "--where 'epochs' is not true or false but 3; compare it, such as epochs > 0.\n",
    ),
    ("base", "--where", "f(epochs)"): (2, "--where 'f(epochs)' cannot be evaluated: there is no function 'f'.\n"),
    ("base", "--where", "'a' > 2"): (2, "cannot be evaluated: no operation for text and a whole number.\n"),
    ("base", "--where", "1 / 0 > 1"): (2, "cannot be evaluated: modulus or divide by zero.\n"),
    ("base", "--format", "yaml"): (2, "'yaml' is not one of 'table', 'json', 'csv'."),
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_refused(words: tuple[str, ...], inside: Call, project: Path) -> None:
    (project / "file").write_text("")
    (project / "empty").mkdir()
    code, text = REFUSED[words]
    done = inside("results", *words)
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("base/a-1", "There are no run ids of stages here. If 'a-1' is a pipeline run, the tracker base is base.\n"),
        ("above", "There are no run ids of stages here. Did you mean the tracker base above/base?\n"),
    ],
)
def test_a_base_in_the_folder_beside(folder: str, message: str, call: Call, project: Path) -> None:
    FsspecResultTracker(project / "above/base")["a-1/train/t"] = {"loss": 1}
    done = call("results", folder)
    assert (done.returncode, done.stderr) == (0, message)


def test_many_files_that_are_no_results(call: Call, base: Path) -> None:
    for number in range(8):
        (base / f"a-2/train/x{number}").write_text("")
    done = call("results", "base", "a-2")
    assert done.returncode == 0
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["Left out"] * 5 + ["Also left out"]
    assert done.stderr.splitlines()[0].startswith(
        f"Left out: {base}/a-2/train/x0 is empty. A result is one JSON object"
    )
    assert done.stderr.splitlines()[5] == "Also left out: 3 more files without results."


def test_names_do_not_move_the_cursor(call: Call, base: Path) -> None:
    (base / "a-2/train/t0").write_text('{"\\u001b[31mred": "\\u001b[0m", "x\\ny": 1}')
    shown = call("results", "base", "a-2/train/t0").stdout
    assert shown.splitlines()[1:] == [
        r"stage/execution   \x1b[31mred   x\ny",
        "────────────────────────────────────",
        r"train/t0          '\x1b[0m'        1",
    ]


def test_on_s3(call: Call, s3_base: str, s3_server: S3Server) -> None:
    fill(s3_base)
    listed = call("results", s3_base).stdout.splitlines()
    assert [line.split()[0] for line in listed[2:]] == ["a-1", "a-2", "b-1", "local_cwd://torchx/app-1"]
    assert json.loads(call("results", s3_base, "--where", "loss < 1", "--format", "json").stdout) == {
        "local_cwd://torchx/app-1": {"loss": 0.25}
    }
    # There is one listing, and one request for each result.
    requests = s3_server.requests(lambda: call("results", s3_base, "a-1"))
    assert len(requests) <= 3 + 2
    done = call("results", f"{s3_base}-missing/x".replace("bucket-", "no-bucket-"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "does not exist. Create it, or name another one. The tracker does not create buckets.\n" in done.stderr


def test_a_store_that_does_not_answer(call: Call) -> None:
    pytest.importorskip("s3fs")
    done = call(
        "results",
        "s3://bucket/x",
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
    )
    assert (done.returncode, done.stdout) == (1, "")
    *warnings, error = done.stderr.splitlines()
    assert warnings
    assert all(line.startswith("Cannot list s3://bucket/x now, trying again in ") for line in warnings)
    assert error.startswith("Error: Cannot list s3://bucket/x (EndpointConnectionError: ")


def test_thousands_of_runs(call: Call, project: Path) -> None:
    for number in range(3000):
        folder = project / f"many/run-{number:04}/train"
        folder.mkdir(parents=True)
        (folder / "t").write_text(json.dumps({"accuracy": number / 3000, "epochs": number % 10}))
    shown = call("results", "many", "--where", "accuracy >= 0.5 && epochs < 5", "--sort", "-accuracy").stdout
    assert len(shown.splitlines()) == 2 + 750
    assert shown.splitlines()[2].split() == ["run-2994/train/t", "0.998", "4"]
    ambiguous = call("results", "many", "run-1").stderr
    assert ambiguous.startswith(
        "Error: 'run-1' is the beginning of 1,000 runs under 'many': run-1000, run-1001, run-1002"
    )
    assert ambiguous.endswith("run-1004 and 995 more. Give a longer part of it.\n")
    unknown = call("results", "many", "run-29999").stderr
    assert unknown.startswith("Error: Nothing is recorded for 'run-29999' under 'many'. Did you mean 'run-1299'? Runs ")
    assert unknown.endswith(" and 2,995 more.\n")


RUN = "0b5a1f3c-5a1f-4b62-ae0c-601f7270d2b4"


@pytest.mark.parametrize(
    ("earlier", "last"), [("pod_0b5a1f3c", "pod_99999999"), ("pod_0b5a1f3c", "pod_0b5a1f3c_2"), ("pod-0", "pod-0_2")]
)
def test_earlier_attempts_are_left_out(call: Call, base: Path, earlier: str, last: str) -> None:
    """KFP gives the pods of a retried run their old names, and a stage may start its application again in a pod."""
    tracker = FsspecResultTracker(base)
    for place, (execution, results) in enumerate([(earlier, {"stale": 1}), (last, {"w": 2.5})]):
        tracker[f"{RUN}/train/{execution}"] = results
        os.utime(base / RUN / "train" / execution, (1000 + place, 1000 + place))
    tracker[f"{RUN}/train/other_0b5a1f3c"] = {"w": 3}
    done = call("results", "base", RUN, "--format", "json")
    assert json.loads(done.stdout) == {f"{RUN}/train/{last}": {"w": 2.5}, f"{RUN}/train/other_0b5a1f3c": {"w": 3}}
    assert f"{RUN}/train/{earlier}" in done.stderr
    named = call("results", "base", f"{RUN}/train/{earlier}", "--format", "json")
    assert json.loads(named.stdout) == {f"{RUN}/train/{earlier}": {"stale": 1}}
    (base / RUN / "train" / "other_0b5a1f3c").unlink()
    assert json.loads(call("show", "base", f"{RUN}/train", "--format", "json").stdout)["results"] == {"w": 2.5}


def test_a_password_in_a_tracker_base_is_not_shown(inside: Call) -> None:
    shown = inside("results", "no-such-store://me:SECRET@host/results")
    assert shown.returncode != 0
    assert "SECRET" not in shown.stderr
    assert "no-such-store://...@host/results" in shown.stderr
