"""``torchx-kfp results``: filters, S3, many runs, attempts. Its tables and errors are in ``tests/transcripts``."""

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.conftest import S3Server
from tests.entrypoints.cli.conftest import Call
from tests.programs import results_in
from tests.tracking.stages import stage
from tests.transcripts.given import RESULTS, record
from torchx_kfp import task_from_app
from torchx_kfp.local import Watch, run
from torchx_kfp.tracking import FsspecResultTracker


@pytest.fixture(autouse=True)
def base(project: Path) -> Path:
    record(project / "base", RESULTS)
    return project / "base"


ORDER = ["a-1/prepare/p", "a-1/train/t0", "a-1/train/t1", "a-2/train/t0", "a-2/train/t1", "b-1/train/t0"]
#: The run ids that are shown, in order, by the words after the tracker base.
SHOWN = {
    ("a-1",): ORDER[:3],
    ("a-1/",): ORDER[:3],
    ("a-1/train",): ORDER[1:3],
    ("a-1/train/t1",): ORDER[2:3],
    ("b",): ORDER[5:],
    ("b/train/t0",): ORDER[5:],
    ("--stage", "prepare"): ORDER[:1],
    ("a-1", "--stage", "prepare", "--stage", "train"): ORDER[:3],
    ("--stage", "train", "--sort", "accuracy"): [ORDER[1], ORDER[3], ORDER[5], ORDER[2], ORDER[4]],
    ("--stage", "train", "--sort", "-accuracy"): [ORDER[5], ORDER[3], ORDER[1], ORDER[2], ORDER[4]],
    ("a-1", "--sort", "-epochs"): [ORDER[2], ORDER[1], ORDER[0]],
    ("a-1", "--sort", "-execution"): [ORDER[2], ORDER[1], ORDER[0]],
    ("--where", "accuracy > 0"): [ORDER[1], ORDER[3], ORDER[5]],
    ("--where", "accuracy > 0.5"): [ORDER[3], ORDER[5]],
    ("--where", "epochs > 2.5"): [ORDER[1], ORDER[2]],
    ("--where", "epochs >= 3.0"): [ORDER[1], ORDER[2]],
    ("--where", "epochs<=3"): [ORDER[1], ORDER[3]],
    ("--where", "epochs != 3"): [ORDER[2], ORDER[3]],
    ("--where", "done == true"): [ORDER[1]],
    ("--where", "done == False"): [ORDER[3]],
    ("--where", "done == 1"): [],
    ("--where", "done != 1"): [ORDER[1], ORDER[3]],
    ("--where", "accuracy == diverged"): [ORDER[4]],
    ("--where", "accuracy != 0.5"): [ORDER[2], ORDER[3], ORDER[4], ORDER[5]],
    ("--where", "accuracy == nan"): [ORDER[2]],
    ("--where", "accuracy != NaN"): [ORDER[1], ORDER[3], ORDER[4], ORDER[5]],
    ("--where", "note == 'two words'"): [ORDER[1]],
    ("--where", 'note == "two words"'): [ORDER[1]],
    ("--where", "l2norm/mean > 1"): [ORDER[1]],
    ("--where", "big > 1e29"): [ORDER[5]],
    ("--where", "big == 1000000000000000000000000000000"): [ORDER[5]],
    ("--where", "run == a-2", "--where", "stage == train", "--where", "execution == t0"): [ORDER[3]],
    ("--where", "execution_id == a-2/train/t0"): [ORDER[3]],
    ("--where", "epochs > 2", "--where", "epochs < 5"): [ORDER[1]],
    ("--where", "epochs > 2", "--where", "epochs < 2"): [],
}


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_what_is_shown(words: tuple[str, ...], call: Call) -> None:
    for form in ("json", "csv"):
        done = call("results", "--tracker-base", "base", *words, f"--{form}")
        assert done.returncode == 0, done.stderr
        rows = list(csv.reader(io.StringIO(done.stdout)))[1:]
        assert (list(results_in(done.stdout)) if form == "json" else [row[0] for row in rows]) == SHOWN[words]
        assert ("matches" in done.stderr) == (not SHOWN[words])


def test_a_stage_is_meant_by_the_name_that_it_has_recorded_first(call: Call, project: Path) -> None:
    record(project / "twins", {"r/make-data/1": {"n": 1}, "r/make_data/1": {"n": 2}})
    for name in ("make-data", "make_data"):
        stage(project / "twins", f"r/{name}/1").add_artifact("model", __file__, store=True)
        for words in (["--stage", name], [f"r/{name}"]):
            done = call("results", "--tracker-base", "twins", *words, "--json")
            assert list(results_in(done.stdout)) == [f"r/{name}/1"]
        assert f"r/{name}/1:" in call("get", "--tracker-base", "twins", f"r/{name}/model", "copies").stderr


def test_a_stage_of_a_run_that_is_not_here_may_be_written_as_its_task(call: Call, project: Path) -> None:
    record(project / "other", {"s/make_data/1": {"n": 3}})
    stage(project / "other", "s/make_data/1").add_artifact("model", __file__, store=True)
    for word in ("s/make-data", "s/make-data/1"):
        assert list(results_in(call("results", "--tracker-base", "other", word, "--json").stdout)) == ["s/make_data/1"]
        got = call("get", "--tracker-base", "other", f"{word}/model", "copies").stdout
        assert (project / got.strip()).exists()


WRITE = 'file=$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID; mkdir -p "${file%/*}"; printf "{\\"x\\": %s}" "$1" > "$file"'


@dsl.pipeline(name="looped")
def looped(tracker_base: str):
    with dsl.ParallelFor([*range(11)]) as item:
        role = Role("role", image="x", entrypoint="sh", args=["-c", WRITE, "sh", f"{item}"])
        task_from_app(AppDef("fit", [role]), tracker_base=tracker_base)


def test_stages_of_a_run_are_in_the_order_of_their_indices(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    run(looped, {"tracker_base": "looped"}, watch=Watch()).raise_for_failure()
    found = results_in(call("results", "latest", "--json").stdout)
    assert [results["x"] for results in found.values()] == [*range(11)]
    shown = call("results", "latest").stdout
    assert re.findall(r"^(fit\S*)", shown, re.MULTILINE) == [f"fit[{index}]" for index in range(11)]


def test_on_s3(call: Call, s3_base: str, s3_server: S3Server) -> None:
    record(s3_base, RESULTS)
    listed = call("results", "--tracker-base", s3_base).stdout.splitlines()
    assert [line.split()[0] for line in listed[2:]] == ["a-1", "a-2", "b-1", "local_cwd://torchx/app-1"]
    assert results_in(call("results", "--tracker-base", s3_base, "--where", "loss < 1", "--json").stdout) == {
        "local_cwd://torchx/app-1": {"loss": 0.25}
    }
    # There are listings of results and of records, and one request for each result.
    requests = s3_server.requests(lambda: call("results", "--tracker-base", s3_base, "a-1"))
    assert len(requests) <= 3 + 6
    # Listings of what may be called so, of all names, of when each run was last written, and of the attempts of one.
    requests = s3_server.requests(lambda: call("results", "--tracker-base", s3_base, "latest", "--json"))
    assert sum("list-type" in request for request in requests) == 5
    done = call("results", "--tracker-base", f"{s3_base}-missing/x".replace("bucket-", "no-bucket-"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "does not exist. Create it, or name another one. The tracker does not create buckets.\n" in done.stderr


def test_thousands_of_runs(call: Call, project: Path) -> None:
    for number in range(3000):
        folder = project / f"many/run-{number:04}/train"
        folder.mkdir(parents=True)
        (folder / "t").write_text(json.dumps({"accuracy": number / 3000, "epochs": number % 10}))
    shown = call(
        "results",
        "--tracker-base",
        "many",
        "--where",
        "accuracy >= 0.5",
        "--where",
        "epochs < 5",
        "--sort",
        "-accuracy",
    ).stdout
    assert len(shown.splitlines()) == 2 + 750
    assert shown.splitlines()[2].split() == ["run-2994/train/t", "0.998", "4"]
    ambiguous = call("results", "--tracker-base", "many", "run-1").stderr
    assert ambiguous.startswith(
        "Error: 'run-1' is the beginning of 1,000 runs under 'many': run-1000, run-1001, run-1002"
    )
    assert ambiguous.endswith("run-1004 and 995 more. Give more of it.\n")
    unknown = call("results", "--tracker-base", "many", "run-29999").stderr
    assert unknown.startswith("Error: Nothing is recorded for 'run-29999' under 'many'. Did you mean 'run-1299'? Runs ")
    assert unknown.endswith(" and 2,995 more.\n")


RUN = "0b5a1f3c-5a1f-4b62-ae0c-601f7270d2b4"


@pytest.mark.parametrize(
    ("earlier", "last"),
    [("pod_0b5a1f3c", "pod_99999999"), ("pod_0b5a1f3c", "pod_0b5a1f3c_2"), ("pod-0", "pod-0_2"), ("fit_1", "fit_2")],
)
def test_earlier_attempts_are_left_out(call: Call, base: Path, earlier: str, last: str) -> None:
    """KFP gives the pods of a retried run their old names, and a stage may start its application again in a pod."""
    tracker = FsspecResultTracker(base)
    for place, (execution, results) in enumerate([(earlier, {"stale": 1}), (last, {"w": 2.5})]):
        tracker[f"{RUN}/train/{execution}"] = results
        os.utime(base / RUN / "train" / execution, (1000 + place, 1000 + place))
    tracker[f"{RUN}/train/other_0b5a1f3c"] = {"w": 3}
    done = call("results", "--tracker-base", "base", RUN, "--json")
    assert results_in(done.stdout) == {f"{RUN}/train/{last}": {"w": 2.5}, f"{RUN}/train/other_0b5a1f3c": {"w": 3}}
    assert f"{RUN}/train/{earlier}" in done.stderr
    named = call("results", "--tracker-base", "base", f"{RUN}/train/{earlier}", "--json")
    assert results_in(named.stdout) == {f"{RUN}/train/{earlier}": {"stale": 1}}
    for words in (["show", "--lineage"], ["compare", "a-1"], ["results", "--stage", "train"]):
        done = call(*words, "--tracker-base", "base", *([] if "--stage" in words else [RUN]))
        assert (done.returncode, "stale" in done.stdout) == (0, False), done
    (base / RUN / "train" / "other_0b5a1f3c").unlink()
    assert json.loads(call("show", "--tracker-base", "base", f"{RUN}/train", "--json").stdout)["results"] == {"w": 2.5}
