"""Distributed stages on this machine: each replica is a process, whatever engine the pipeline names."""

import re
import signal
import textwrap
import threading

import pytest
from kfp import compiler, dsl, kubernetes
from torchx.specs import AppDef, BindMount, Resource, Role

from tests.execution.host.calling import wait_until
from tests.execution.local.test_failures import alive
from tests.execution.local.test_signals import HANGS, all_end, read_pids
from tests.execution.local.test_signals import start as start
from tests.facts import keep, says
from tests.watching import Heard
from torchx_kfp import engines, task_from_app
from torchx_kfp.errors import PipelineError
from torchx_kfp.execution.local.preflight import check_supported
from torchx_kfp.local import StageReplicas, Watch, load_pipeline, run


def role(name, replicas, *command, **fields):
    entrypoint, *args = map(keep, command)
    fields.setdefault("image", "image:1")
    return Role(name, entrypoint=entrypoint, args=args, num_replicas=replicas, **fields)


def shell(replicas, script, name="trainer", **fields):
    return AppDef("app", roles=[role(name, replicas, "sh", "-c", script, **fields)])


def python(replicas, code, name="trainer"):
    return AppDef("app", roles=[role(name, replicas, "python", "-c", textwrap.dedent(code))])


def lines(stage):
    return stage.log_file.read_text().splitlines()


@pytest.mark.versions
def test_the_number_of_replicas_is_an_upstream_result(execute, tmp_path):
    plan = """
    from torchx_kfp.tracking import current_run
    current_run().put(n=3)
    """
    train = """
    import os
    from torchx_kfp.tracking import current_run
    run = current_run()
    if os.environ["TORCHX_REPLICA_ID"] == "0":
        run.put(loss=0.25, n=run.parent.results()["n"])
    print("of", os.environ["TORCHX_NUM_REPLICAS"])
    """

    @dsl.pipeline
    def pipeline(base: str):
        planned = task_from_app(python(1, plan), name="plan", tracker_base=base, results={"n": int})
        task_from_app(
            python(5, train),
            name="train",
            tracker_base=base,
            reads=planned,
            results={"loss": float},
            engine="job",
            replicas=planned.outputs["n"],
        )

    events = []
    result = execute(pipeline, {"base": str(tmp_path / "results")}, watch=Heard(on_event=events.append), cache=True)
    assert sorted(lines(result["train"])) == [
        "torchx-kfp: 3 of 3 replicas run",
        *(f"trainer/{index} | of 3" for index in range(3)),
    ]
    assert result["train"].outputs["loss"] == 0.25
    assert result["train"].results == {"loss": 0.25, "n": 3}
    counts = [event for event in events if isinstance(event, StageReplicas)]
    assert (counts[0].name, counts[0].running, counts[0].total) == ("train", 3, 3)
    assert [stage.replicas for stage in result.stages] == [None, 3]
    again = execute(pipeline, {"base": str(tmp_path / "results")}, cache=True)
    assert [(stage.state, stage.replicas) for stage in again.stages] == [("cached", None), ("cached", 3)]


@dsl.pipeline
def counted(n: int, other: int = 9):
    task_from_app(shell(3, "true", min_replicas=2), name="train", engine="job", replicas=n)
    with dsl.If(other < 3):
        task_from_app(shell(3, "true"), name="perhaps", engine="job", replicas=other)


@pytest.mark.parametrize(("n", "is_found"), [(1, True), (2, False), (3, False), (4, True)])
def test_a_check_knows_how_many_replicas_a_stage_may_have(call, tmp_path, n, is_found):
    compiler.Compiler().compile(counted, str(tmp_path / "counted.yaml"))
    done = call("check", "counted.yaml", "-p", f"n={n}")
    assert ("may fail" in done.stdout, "perhaps" in done.stdout) == (is_found, False)
    if is_found:
        assert re.search(says("'train'", f"{n} replicas", "'trainer'", "2 to 3", "'n'"), done.stdout)


def test_a_failure_quotes_the_replica_that_failed_first(execute_failing):
    script = "[ $TORCHX_REPLICA_ID = 2 ] || sleep 300; echo oh; exit 3"

    @dsl.pipeline
    def pipeline():
        task_from_app(shell(4, script), name="fails", engine="job")
        task_from_app(AppDef("app", roles=[role("trainer", 2, "no-such-program")]), name="program", engine="job")
        task_from_app(AppDef("app", roles=[role("trainer", 2, "python", "no-such.py")]), name="script", engine="job")

    result = execute_failing(pipeline)
    stage = result["fails"]
    assert (stage.exit_code, stage.reason, stage.attempts) == (3, "ended with exit code 3", 1)
    assert stage.last_lines()[-2:] == [
        "torchx-kfp: trainer/2 failed first, with exit code 3; its last lines:",
        "  trainer/2 | oh",
    ]
    assert (result["program"].exit_code, "lacks the command 'no-such-program'" in result["program"].reason) == (
        127,
        True,
    )
    assert "/no-such.py'; --directory" in result["script"].reason


def test_secrets_reach_replicas_and_their_code_is_part_of_the_cache_key(execute, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOKEN", raising=False)
    code = tmp_path / "train.py"
    roles = [role(name, 2, "python", "-u", "train.py") for name in ("first", "second_role")]

    @dsl.pipeline
    def pipeline():
        options = {"secrets": {"s3": {"key": "TOKEN"}}, "tracker_base": "results", "engine": "jobset"}
        task_from_app(AppDef("app", roles=roles), name="train", replicas={"second_role": 1}, **options)

    for version in ("1", "2"):
        code.write_text(f"import os; print({version}, os.environ['TOKEN'])")
        for state in ("succeeded", "cached"):
            (stage,) = execute(pipeline, secrets={"s3": {"key": "secret"}}, cache=True).stages
            assert stage.state == state
            printed = sorted(line for line in lines(stage) if "|" in line)
            assert printed == [f"{name} | {version} secret" for name in ("first/0", "first/1", "second-role/0")]


def family(folder):
    """Return a script: it notes its process, a child's, and that of one in another session, and ignores SIGTERM."""
    note = f">> {folder}/pids"
    other = f"setsid sh -c 'echo $$ {note}; exec sleep 302'"
    return f"trap '' TERM; echo $$ {note}; sleep 301 & echo $! {note}; {other} & wait"


@pytest.mark.parametrize("tracked", [False, True])
def test_nothing_survives_the_time_limit_or_the_launcher(execute_failing, pass_time, tmp_path, tracked):
    """Without the launcher, the runner finds the replicas, or the program that publishes results does."""
    options = {"tracker_base": str(tmp_path / "results"), "results": {}} if tracked else {}
    other = tmp_path / "other"
    other.mkdir()
    waits = f"until [ -e {other}/pids ] && [ $(wc -l <{other}/pids) = 3 ]; do sleep 0.05; done"
    killing = f"[ $TORCHX_REPLICA_ID = 1 ] && {{ {waits}; kill -9 $PPID; }}; {family(other)}"

    @dsl.pipeline
    def pipeline():
        kubernetes.set_timeout(task_from_app(shell(2, family(tmp_path)), name="late", engine="job", **options), 1000)
        task_from_app(shell(2, killing), name="killed", engine="job", **options)

    def pass_limit():
        wait_until(lambda: len(read_pids(tmp_path)) == 6)
        pass_time(1000)

    waiting = threading.Thread(target=pass_limit)
    waiting.start()
    result = execute_failing(pipeline, grace=0.5, parallelism=2)
    waiting.join()
    assert "time limit" in result["late"].reason
    assert result["killed"].exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    late, killed = read_pids(tmp_path), read_pids(other)
    assert (len(late), len(killed) >= 3) == (6, True)
    all_end([*late, *killed])


@pytest.mark.parametrize("way", ["SIGINT", "cancel", "killed runner"])
def test_nothing_survives_the_end_of_the_run(start, call, tmp_path, way):
    @dsl.pipeline
    def pipeline():
        task_from_app(shell(3, family(tmp_path)), name="train", engine="job")

    runner = start(pipeline, 9, grace=1.0)
    pids = read_pids(tmp_path)
    if way == "killed runner":
        runner.kill()
        runner.wait()
        # As other stages, they go on until somebody asks.
        assert all(map(alive, pids))
    if way == "SIGINT":
        runner.send_signal(signal.SIGINT)
    else:
        assert call("cancel", "latest", "--output-dir", "runs").returncode == 0
    runner.communicate(timeout=HANGS)
    all_end(pids)


def test_variables_of_a_pod_do_not_reach_stages(execute, monkeypatch):
    """A run may be started in a pod of KFP, such as a notebook's or a stage's."""
    for name in ("KFP_ARGO_NODE", "KFP_SERVICE_ACCOUNT", "TORCHX_RANK0_HOST", "TORCHX_REPLICA_ID"):
        monkeypatch.setenv(name, "theirs")

    @dsl.pipeline
    def pipeline():
        task_from_app(shell(1, "env"), name="one")
        task_from_app(shell(1, "env"), name="many", engine="job")

    result = execute(pipeline)
    one, many = (result[name].log_file.read_text() for name in ("one", "many"))
    assert "theirs" not in one + many
    assert "trainer/0 | TORCHX_RANK0_HOST=localhost\n" in many


def test_settings_of_replicas_that_are_not_applied(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    resource = Resource(cpu=2, gpu=1, memMB=1000, capabilities={"node.kubernetes.io/instance-type": "big"})
    data = BindMount("/data", "/mnt/data", read_only=True)
    told = []

    @dsl.pipeline
    def pipeline():
        app = shell(1, "true", resource=resource, mounts=[data], env={"PLAIN": "1"})
        task_from_app(app, engine=engines.Job(priority_class="high", logs="first", queue="gpus"))

    @dsl.pipeline
    def another():
        task_from_app(shell(1, "true"), engine=engines.JobSet(ttl=1000, queue="gpus"))

    @dsl.pipeline
    def plain():
        task_from_app(shell(1, "true"), engine="job")

    for each in (pipeline, another, plain):
        run(each, watch=Heard(on_event=lambda event: told.append(getattr(event, "not_applied", None))), cache=False)
    assert list(filter(None, told)) == [
        (
            "cpu and memory limits",
            "limits of GPUs (CUDA_VISIBLE_DEVICES is '')",
            "node selectors",
            "priority classes",
            "the engine's logs",
            "the engine's queue",
            "the mounts of replicas (/mnt/data)",
        ),
        ("the engine's queue", "the engine's ttl"),
    ]


@pytest.mark.parametrize("one", ["one:1", "{image}"])
def test_one_container_cannot_have_several_images(one):
    @dsl.pipeline
    def pipeline(image: str = "i:1"):
        first = one.format(image=image)
        roles = [role(name, 2, "true", image=first) for name in "ab"]
        task_from_app(AppDef("app", roles=roles), name="same", engine="jobset", tracker_base="/tmp/results")
        roles = [*roles, role("c", 2, "true", image="two:1")]
        task_from_app(AppDef("app", roles=roles), name="different", engine="jobset")
        launched = {name: shell(2, "true", image=own) for name, own in (("its-own", first), ("shared", "p:3"))}
        for name, app in launched.items():
            task_from_app(app, name=name, engine=engines.Job(launcher_image="p:3"))

    check_supported(load_pipeline(pipeline))
    with pytest.raises(PipelineError) as caught:
        run(pipeline, docker=True, watch=Watch())
    first, roles, launcher = str(caught.value).splitlines()
    assert "'pipeline' cannot run locally" in first
    assert re.search(says("'different'", "'a'", f"'{one}'", "'c'", "'two:1'", "--docker"), roles)
    assert re.search(says("'its-own'", "launcher", "'p:3'", f"'{one}'"), launcher)
