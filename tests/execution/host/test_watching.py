"""A run on a host in progress, as a user sees it: pictures, Ctrl-C, lost connections, logs that grow."""

from __future__ import annotations

import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.execution.host import answers_of_kfp
from tests.execution.host.calling import wait_until
from tests.execution.host.commands import rows
from tests.execution.host.pipelines import small
from tests.execution.host.scripted import Reply, Request, scripted
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault
from tests.fake_kfp.made import MadeRun
from tests.programs import Program
from tests.s3 import S3Server


@pytest.fixture
def program(call: Program) -> Program:
    return call


def polls(kfp_host: KfpHost, run: MadeRun) -> int:
    return kfp_host.count(f"/apis/v2beta1/runs/{run.record.run_id}$")


# Pictures


def test_the_report_of_a_pipeline_with_a_long_name(kfp_host: KfpHost, program: Program) -> None:
    run = kfp_host.make_run(1, name="x" * 400)
    run.finish()
    done = program("report", run.record.run_id, "--host", kfp_host.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"x-{run.record.run_id}.html")
    assert (program.folder / done.stdout.strip()).is_file()


# Ctrl-C


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, ("watch", "--json")),
        (signal.SIGINT, ("watch",)),
        (signal.SIGTERM, ("submit", "--watch")),
        (signal.SIGINT, ("submit", "--watch", "--json")),
    ],
)
def test_a_signal_without_a_terminal(
    kfp_host: KfpHost, program: Program, number: signal.Signals, words: tuple[str, ...]
) -> None:
    if words[0] == "watch":
        kfp_host.make_run(2).advance(started=1)
        words = (*words, "latest")
    else:
        small_yaml(program.folder)
        words = (*words, "small.yaml", "-p", "code=import time; time.sleep(60)")
    with program.start(*words, "--host", kfp_host.url) as process:
        wait_until(lambda: kfp_host.count(r"v2beta1/runs/[0-9a-f-]+$") > 2)
        process.send_signal(number)
        out, said = process.communicate()
    assert process.returncode == 128 + number
    [run_id] = kfp_host.runs
    assert re.search(says(f"The run {run_id} continues.", f"watch {run_id} --host", f"cancel {run_id} --host"), said)
    assert "Traceback" not in said
    assert "SIGINT" not in said, "the run has not ended"
    if "--json" in words:
        assert json.loads(out.splitlines()[0])["run_id"] == run_id
    elif words[0] == "submit":
        assert out.splitlines()[0] == run_id


def small_yaml(folder: Path) -> None:
    from kfp import compiler

    compiler.Compiler().compile(small, str(folder / "small.yaml"))


def test_ctrl_c_in_the_watch_of_a_run_on_this_machine(program: Program) -> None:
    small_yaml(program.folder)
    code = "code=import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"
    with program.start("run", "small.yaml", "-p", code, "--no-cache", "--output-dir", "runs") as process:
        wait_until(lambda: list(program.folder.glob("runs/*/events.jsonl")))
        # Wide enough for the path of any temporary folder.
        terminal = program.terminal(1000, "watch", "latest", "--output-dir", "runs")
        terminal.wait_for("● work")
        terminal.send(b"\x03")
        assert terminal.end() == 130
        watch = terminal.shown.splitlines()[-2]
        again = program.terminal(1000, *watch.partition("torchx-kfp ")[2].split())
        again.wait_for("● work")
        (program.folder / "go").touch()
        assert again.end() == 0
        assert process.wait() == 0
        process.communicate()
    assert [row[:2] for row in rows(again.shown)] == [["work", "succeeded"]]


# Trouble


def test_the_name_of_a_run_may_have_a_slash(kfp_host: KfpHost, program: Program) -> None:
    kfp_host.make_run(1, name="team").advance(started=1)
    run = kfp_host.make_run(1, name="team-a/fit")
    run.advance(started=1)
    shown = program("show", "team-a/fit", "--json", "--host", kfp_host.url)
    assert json.loads(shown.stdout)["run"] == run.record.run_id, shown.stderr


def test_a_run_that_is_deleted_while_it_is_watched(kfp_host: KfpHost, program: Program) -> None:
    run = kfp_host.make_run(2)
    run.advance(started=1)
    with program.start("watch", "latest", "--host", kfp_host.url) as process:
        wait_until(lambda: polls(kfp_host, run) > 2)
        kfp_host.delete(run.record.run_id)
        out, said = process.communicate()
    assert (process.returncode, out) == (1, "")
    last = said.splitlines()[-1]
    assert re.search(says("Error: ", run.record.run_id, "deleted", kfp_host.url), last)


def test_a_run_that_was_submitted_is_named_even_if_it_cannot_be_watched(kfp_host: KfpHost, program: Program) -> None:
    small_yaml(program.folder)
    kfp_host.add(Fault(status=403, times=9, path=r"v2beta1/runs/[0-9a-f-]+$"))
    done = program("submit", "small.yaml", "-p", "code=1", "--watch", "--json", "--host", kfp_host.url)
    assert (done.returncode, done.stdout) == (1, "")
    [run_id] = kfp_host.runs
    facts = says("Forbidden", f"The run {run_id} may still be running", f"watch {run_id} --host {kfp_host.url}")
    assert re.search(facts, done.stderr)


def test_a_run_that_fails_without_a_stage(kfp_host: KfpHost, program: Program) -> None:
    run = kfp_host.make_run(1)
    run.finish(failed=True)
    done = program("watch", "latest", "--host", kfp_host.url)
    assert done.returncode == 1
    assert re.search(says(f"Error: The run {run.record.run_id} failed: KFP does not report why."), done.stderr)


# Logs


def test_logs_are_followed_until_the_stage_ends(kfp_host: KfpHost, program: Program) -> None:
    code = (
        "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({go!r}): time.sleep(0.05)\nprint('over')"
    )
    go = str(program.folder / "go")
    small_yaml(program.folder)
    words = ("submit", "small.yaml", "--no-cache", "-q", "--host", kfp_host.url)
    run_id = program(*words, "-p", f"code={code.format(go=go)}").stdout.strip()
    # The stage has not begun yet.
    with program.start("logs", f"{run_id}/work", "--follow", "--host", kfp_host.url) as process:
        assert process.stdout.readline() == "begun\n"
        # The connection may break in between.
        fault = kfp_host.add(Fault(cut=0.0, times=4, path="v2beta1"))
        wait_until(lambda: fault.times == 0)
        Path(go).touch()
        out, said = process.communicate()
    assert (process.returncode, out) == (0, "over\n")
    assert len(said.splitlines()) == 2, "the host does not answer, and answers again"
    done = program("logs", run_id, "--host", kfp_host.url)
    assert done.stdout == "work | begun\nwork | over\n"
    assert done.stderr == ""


def test_a_host_that_may_not_read_the_logs_of_pods(kfp_host: KfpHost, program: Program) -> None:
    kfp_host.hide_pods()
    go = program.folder / "go"
    small_yaml(program.folder)
    words = ("submit", "small.yaml", "--no-cache", "-q", "--host", kfp_host.url)
    code = f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    run_id = program(*words, "-p", f"code={code}").stdout.strip()
    facts = says("work: ", "when the pod ends", "does not return logs of running pods", "kubectl logs")
    with program.start("logs", run_id, "--follow", "--host", kfp_host.url) as process:
        wait_until(lambda: re.match(facts, process.stderr))
        done = program("logs", f"{run_id}/work", "--host", kfp_host.url)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(facts + ".*\n", done.stderr)
        go.touch()
        out, said = process.communicate()
        assert (out, said.count("\n")) == ("work | begun\n", 1)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_files_of_logs(kfp_host: KfpHost, program: Program, number: int) -> None:
    run = kfp_host.make_run(2)
    run.advance(started=2, ended=1)
    temporary = program.folder / "temporary"
    temporary.mkdir()
    words = ("logs", "latest", "--follow", "--host", kfp_host.url)
    with program.start(*words, TMPDIR=str(temporary)) as process:
        wait_until(lambda: list(temporary.glob("*/*.log")))
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert not list(temporary.iterdir())


def test_logs_do_not_wait_for_results(program: Program) -> None:
    """The tracker base of the recorded runs is on a volume of the cluster."""
    with scripted(lambda request: answer(request, "succeeded")) as server:
        run_id = answers_of_kfp.last("succeeded")["run_id"]
        done = program("logs", f"{run_id}/first", "--host", server.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "printed\n", "")


def answer(request: Request, name: str, **more: Any) -> Reply:
    """Answer as at the end of a recorded run."""
    run = {**answers_of_kfp.last(name), **more}
    if request.path.endswith("/log"):
        return Reply("printed\n")
    if "v1beta1" in request.path:
        return Reply(answers_of_kfp.manifest(name))
    return Reply({"runs": [run]} if request.path.partition("?")[0].endswith("/runs") else run)


def test_an_artifact_of_a_component_of_kfp_is_copied_from_its_store(program: Program, s3_server: S3Server) -> None:
    del s3_server  # it is in the environment
    store = fsspec.filesystem("s3")
    store.mkdir("results")  # of other stages of the run
    with scripted(lambda request: answer(request, "imported")) as server:
        run_id = answers_of_kfp.last("imported")["run_id"]
        found = program("get", run_id, "--list", "--json", "--host", server.url)
        assert found.returncode == 0, found.stderr
        [listed] = json.loads(found.stdout)
        assert (listed["stage"], listed["name"], listed["type"]) == ("use-2", "out", "system.Dataset")
        bucket, key = listed["path"].removeprefix("minio://").split("/", 1)
        lost = program("get", f"{run_id}/use-2/out", "--host", server.url)
        assert (lost.returncode, "Traceback" in lost.stderr) == (2, False)
        assert f"use-2/out cannot be copied from minio://{bucket}/" in lost.stderr
        store.mkdir(bucket)
        store.pipe(f"{bucket}/{key}", b"rows")
        done = program("get", f"{run_id}/use-2/out", "copies", "--host", server.url)
        assert done.returncode == 0, done.stderr
        assert Path(program.folder, done.stdout.strip()).read_bytes() == b"rows"
        shown = json.loads(program("show", f"{run_id}/use-2", "--json", "--host", server.url).stdout)
        assert shown["artifacts"]["out"]["path"] == listed["path"]


def of_no_program(request: Request) -> Reply:
    """Answer as at the end of a run whose image lacks the program of its stage."""
    if request.path.endswith("/log"):
        return Reply(answers_of_kfp.answer("no-program-log-376464928"))
    return answer(request, "no-program")


def test_what_kfps_launcher_says_of_an_application_that_never_began(program: Program) -> None:
    why = 'plain failed in KFP\'s launcher: exec: "trainer": executable file not found in $PATH'
    with scripted(of_no_program) as server:
        watched = program("watch", "latest", "--host", server.url)
        logs = program("logs", answers_of_kfp.last("no-program")["run_id"], "--host", server.url)
        everything = program("logs", "latest/plain", "--all", "--host", server.url)
    assert watched.returncode == 1
    assert why in watched.stderr
    assert (logs.returncode, logs.stdout) == (0, "")
    assert logs.stderr == f"The stages have printed nothing.\n{why}.\n"
    assert "F1123 05:45:49.746398      14 main.go:59] failed to execute component" in everything.stdout


def test_stages_that_cannot_start_are_said(program: Program) -> None:
    with scripted(lambda request: answer(request, "stuck")) as server:
        polled = itertools.count()
        server.script = lambda request: answer(
            request, "stuck", **({"state": "FAILED"} if "v2beta1/runs/" in request.path and next(polled) > 1 else {})
        )
        watched = program("watch", "latest", "--json", "--host", server.url)
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [event["name"] for event in events if event["event"] == "stage_pending"] == ["no-image", "too-large"]
    assert watched.stderr.count("cannot start: ErrImagePull: failed to pull and unpack") == 1


def test_what_a_stage_waits_for_is_shown_with_kubernetes_own_word(program: Program) -> None:
    with scripted(lambda request: answer(request, "stuck")) as server:
        shown = program("show", "latest", "--host", server.url)
        logs = program("logs", "latest/no-image", "--host", server.url)
    assert shown.returncode == 0, shown.stderr
    assert "(ErrImagePull: failed to pull" in shown.stdout
    assert "(Unschedulable: " in shown.stdout
    assert logs.returncode == 2
    assert re.search(says("has no log: it cannot start: ErrImagePull: "), logs.stderr), logs.stderr


# Cancel


def test_the_newest_run_of_a_host_is_not_canceled_by_mistake(kfp_host: KfpHost, program: Program) -> None:
    """Where there are no local runs, ``latest`` may be another user's."""
    run = kfp_host.make_run(1)
    done = program("cancel", "latest", TORCHX_KFP_HOST=kfp_host.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says("another user's", f"torchx-kfp cancel {run.record.run_id}"), done.stderr)
    assert kfp_host.count(":terminate") == 0
    canceled = program("cancel", run.record.display_name, TORCHX_KFP_HOST=kfp_host.url)
    assert (canceled.returncode, canceled.stderr.endswith(f"The run {run.record.run_id} is canceled.\n")) == (0, True)
    assert kfp_host.count(":terminate") == 1
