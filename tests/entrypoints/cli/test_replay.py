"""`replay` of stages of runs on this machine: each kind of stage, once recorded, runs again as it was."""

# Annotations are not postponed: kfp reads them as types.

import hashlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kfp import compiler, dsl, kubernetes
from torchx.specs import AppDef, Role

from tests.documents import documents
from tests.entrypoints.cli.conftest import Call
from tests.facts import says
from tests.programs import PROGRAM, Program
from torchx_kfp import Stages
from torchx_kfp.errors import ArgumentError
from torchx_kfp.local import Watch, replay, run
from torchx_kfp.tracking import FsspecResultTracker

#: The application of the tracked stages. Today's code decides about its end.
APP = """\
import os, sys
from torchx_kfp.tracking import current_run
import code_of_today as today
stage = current_run()
before = {alias: parent.results()["loss"] for alias, parent in stage.parents.items()}
print("ran", sys.argv[1:], os.environ.get("COLOR"), before, flush=True)
stage.put(loss=today.LOSS, many=len(before))
today.end()
"""
BROKEN = "import sys\nLOSS = 0.29\ndef end(): sys.exit(7)\n"
CODED = "import os; print('coded then', os.getcwd(), flush=True)"
BOTH = "from torchx_kfp.tracking import current_run; print('ran'); current_run().put(loss=0.29)"
MENDED = "LOSS = 0.31\ndef end(): pass\n"


def app(name: str, *args: str, **role: object) -> AppDef:
    return AppDef(name, [Role("trainer", image="app:1", entrypoint="python3", args=["app.py", *args], **role)])


@dsl.component(base_image="python:3.11")
def make(text: str, data: dsl.Output[dsl.Dataset]) -> int:
    with open(data.path, "w") as file:
        file.write(text)
    return len(text)


@dsl.component(base_image="python:3.11")
def take(data: dsl.Input[dsl.Dataset], times: int) -> str:
    with open(data.path) as file:
        return file.read() * times


@dsl.component(base_image="python:3.11")
def share(path: str) -> str:
    with open(f"{path}/shared", "a+") as file:
        file.write("x")
        file.seek(0)
        return file.read()


@dsl.container_component
def plain(word: str, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec("app:1", ["sh", "-c", 'echo "says $0 $TOKEN"; printf %s "$0" >"$1"', word, out])


@dsl.pipeline(name="kinds", pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
def kinds(tracker_base: str, workspace: str = "", word: str = "$HOME {{x}}", names: list = ["a", "b"]):  # noqa: B006 (KFP reads it)
    stages = Stages(tracker_base=tracker_base)
    first = stages.task(app("first", f"{word}", env={"COLOR": f"{word}"}, max_retries=1), may_fail=True)
    with dsl.ParallelFor(names) as name:
        stages.task(app("train", f"{name}"), reads={"before": first}, results={"loss": float}, may_fail=True)
    with_code = Stages(tracker_base=tracker_base, workspace=workspace)
    module = Role("trainer", image="app:1", entrypoint="python3", args=["-m", "coded"])
    with_code.task(AppDef("coded", [module]))
    with_code.task(AppDef("many", [replace(module, num_replicas=2)]), engine="job")
    made = make(text=word)
    share(path=dsl.WORKSPACE_PATH_PLACEHOLDER)
    take(data=made.outputs["data"], times=2)
    with_secret = plain(word=word)
    kubernetes.use_secret_as_env(with_secret, "keys", {"token": "TOKEN"})
    kubernetes.mount_pvc(with_secret, "claim", "/no/such/place")
    with_secret.set_memory_limit("1G")
    replicas = Role("trainer", image="app:1", entrypoint="python3", args=["-c", BOTH], num_replicas=2)
    stages.task(AppDef("both", [replicas]), engine="job")


class Here:
    """The folder of a user with a run of ``kinds``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base = folder, folder / "results"
        (folder / "app.py").write_text(APP)
        (folder / "code_of_today.py").write_text(BROKEN)
        compiler.Compiler().compile(kinds, str(folder / "kinds.yaml"))
        given = {
            "secrets": {"keys": {"token": "secret-1"}},
            "directory": folder,
            "output_dir": folder / "local_outputs",
        }
        code = folder / "code"
        code.mkdir()
        (code / "coded.py").write_text(CODED)
        arguments = {"tracker_base": str(self.base)}
        done = run(folder / "kinds.yaml", arguments, watch=Watch(), workspace=code, **given)
        (code / "coded.py").unlink()  # only the stored workspace has it
        assert str(done.state) == "succeeded", done
        self.run, self.result = done.folder, done
        self.before = self.digest()

    def digest(self) -> Mapping[str, str]:
        """Return the content of all files that the run has left, but for those of replays."""
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and "replay" not in str(path)]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if "__pyc" not in str(path)}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Here:
    return Here(tmp_path_factory.mktemp("here"))


@pytest.fixture
def call(here: Here, fork_server: str) -> Iterator[Program]:
    """The command line; afterwards, nothing of the run has changed."""
    yield Program(fork_server, here.folder)
    assert here.digest() == here.before


def replay_id(done: subprocess.CompletedProcess[str]) -> str:
    found = re.search(r"replayed as (\S+):", done.stderr)
    assert found, done.stderr
    return found[1]


def recorded(here: Here, name: str) -> list[str]:
    """Return the stages that have recorded results under this name of a run."""
    return [*filter(lambda key: key.startswith(f"{name}/"), FsspecResultTracker(here.base).keys())]


def metadata(call: Call, here: Here, run_id: str) -> object:
    return json.loads(call("show", "--tracker-base", str(here.base), run_id, "--json").stdout)["metadata"]


def test_a_tracked_stage_runs_as_it_was_and_records_for_itself(call, here, tmp_path):
    """With its arguments byte for byte, its variables, and one attempt; its results are shown beside the original's."""
    done = call("replay", "latest/first")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "ran ['$HOME {{x}}'] $HOME {{x}} {}\n"
    assert "loss 0.29 (as before)" in done.stderr
    assert "exit_code 7 (as before)" in done.stderr
    assert "It is not retried." in done.stderr
    name = replay_id(done)
    [run_id] = recorded(here, name)
    original = here.result["first"].execution_id
    assert run_id != original
    assert run_id.startswith(f"{name}/first/")
    assert metadata(call, here, run_id) == {"replays": original}
    own = here.folder / "local_outputs" / "replays" / name
    assert json.loads((own / "run.json").read_text())["options"] == {"replays": f"{here.run.name}/first"}

    # Today's code, in the folder in which somebody mends it.
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "code_of_today.py").write_text(MENDED)
    done = call("replay", "latest/train[1]", "--workspace", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran ['b'] None {'before': 0.29}\n"
    assert re.search(says(str(tmp_path), "loss 0.31 (was 0.29)", "many 1 (as before)"), done.stderr), done.stderr
    [run_id] = recorded(here, replay_id(done))
    assert metadata(call, here, run_id) == {"replays": here.result["train[1]"].execution_id}

    # Replays do not count among the results of all runs, nor as the latest run, unless they are named.
    listed = call("results", "--tracker-base", str(here.base))
    assert (name in listed.stdout, name in listed.stderr, here.run.name in listed.stdout) == (False, True, True)
    tracker = FsspecResultTracker(here.base)
    assert not [key for key in tracker.to_frame().index if key.startswith("replay_")]
    assert list(tracker.to_frame(run_id).index) == [run_id]
    assert (
        f"Run {here.run.name}\n"
        in call("results", "--tracker-base", str(here.base), "latest", "--output-dir", "none").stdout
    )
    tracker.put("replay_buffer/seed0", x=1)  # no replay
    assert "replay_buffer/seed0" in tracker.to_frame().index
    assert f"Run {name}\n" in call("results", "--tracker-base", str(here.base), name).stdout


@pytest.mark.parametrize("stage", ["coded", "many"])
def test_the_code_is_that_of_the_run_or_that_of_today(call, tmp_path, stage):
    done = call("replay", f"latest/{stage}")
    assert done.returncode == 0, done.stderr
    assert "coded then" in done.stdout
    (tmp_path / "coded.py").write_text(CODED.replace("then", "today"))
    done = call("replay", f"latest/{stage}", "--workspace", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"coded today {tmp_path}" in done.stdout


def test_stages_of_kfp_take_their_artifacts_and_write_outputs_of_their_own(call, here):
    done = call("replay", f"{here.run}/take")
    assert done.returncode == 0, done.stderr
    assert f"Output {'$HOME {{x}}' * 2!r} (as before)" in done.stderr
    assert call("replay", "latest/make").returncode == 0
    # From Python, with the same result.
    result = replay(here.run, "plain", secrets={"keys": {"token": "secret-2"}}, say=[].append)
    assert result.exit_code == 0
    assert result.stage.outputs == {"out": "$HOME {{x}}"} == result.original.outputs
    assert result.replayed == f"{here.run.name}/plain"
    assert "secret-2" not in str(result.folder / "run.json")


def test_what_is_not_as_it_was_is_said_before_the_start(call):
    """What a process on this machine did not have then is not missing now."""
    done = call("replay", "latest/plain")
    assert done.stdout == "says $HOME {{x}} \n"
    head, secret, _ = done.stderr.splitlines()[:3]
    assert head.endswith("Differences from the original:")
    assert secret.startswith("- Not applied locally: the secret 'keys' (set TOKEN, or give --secret keys=FILE")
    assert "app:1" not in done.stderr
    assert "What is not" not in call("replay", "latest/make").stderr
    done = call("replay", "latest/plain", "--env", "TOKEN=t")
    assert done.stdout == "says $HOME {{x}} t\n"
    assert "the secret" not in done.stderr


def test_a_variable_is_removed(here, call, capfd):
    replay(here.run, "first", env={"COLOR": None}, say=[].append)
    assert capfd.readouterr().out == "ran ['$HOME {{x}}'] None {}\n"


def test_replicas_run_together(call):
    done = call("replay", "latest/both")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"(?m)^(trainer/\d) \| ran$", done.stdout)) == ["trainer/0", "trainer/1"]
    assert "loss 0.29 (as before)" in done.stderr


def test_wrong_words_name_the_way_out(call, here, tmp_path, monkeypatch):
    monkeypatch.chdir(here.folder)
    for words, facts in (
        (["latest"], ("No stage", "failed", f"{here.run.name}/first")),
        (["latest/train"], ("train[0], train[1]",)),
        (["latest/frist"], ("'frist'", "Did you mean 'first'?")),
        (["latest/first", "--workspace", "nowhere"], ("nowhere", "not a folder")),
        (["latest/first", "--mount", "/tmp"], ("--docker",)),
        (["latest/first", "--env", "NO_SUCH"], ("NO_SUCH", "--env NAME=VALUE")),
        (["latest/plain", "--secret", f"kyes={_secret(tmp_path)}"], ("kyes",)),
        (["nothing/first"], ("nothing",)),
        (["latest/share"], ("KFP's workspace", "--fresh share")),
    ):
        done = call("replay", *words)
        assert done.returncode == 2, (words, done.stderr)
        assert re.search(says(*facts), done.stderr), done.stderr
    with pytest.raises(ArgumentError, match="nowhere"):
        replay(here.folder / "nowhere", "first")


def test_names_and_texts_of_a_pipeline_are_data(tmp_path, fork_server):
    @dsl.pipeline(name="odd")
    def odd():
        plain(word="a")

    folder = run(odd, output_dir=tmp_path / "local_outputs", watch=Watch()).folder
    harm = "\ntouch harm\n"
    spec, *others = documents((folder / "pipeline.yaml").read_text())
    container = spec["deploymentSpec"]["executors"]["exec-plain"]["container"]
    container |= {"image": f"x{harm}", "command": ["env"], "args": []}
    container["env"] = [{"name": f"A;{harm}", "value": "1"}, {"name": "B.C", "value": "$(touch harm)"}]
    (folder / "pipeline.yaml").write_text(yaml.safe_dump_all([spec, *others]))
    ran = Program(fork_server, tmp_path)("replay", "latest/plain")
    assert "\nB.C=$(touch harm)\n" in ran.stdout, ran.stderr
    assert not list(tmp_path.rglob("harm"))


def _secret(folder: Path) -> Path:
    path = folder / "keys.env"
    path.write_text("token=secret-3\n")
    return path


DEBUGGED = """\
import signal, sys
print("\\033[31mred\\033[0m" if sys.stdout.isatty() else "no terminal")
answer = input("name? ")
breakpoint()
signal.signal(signal.SIGINT, signal.default_int_handler)  # pdb has its own
try:
    print("waits", flush=True)
    while True:
        sys.stdin.read(1)
except KeyboardInterrupt:
    print("interrupted", answer)
    sys.exit(3)
"""


#: The program, which is slow to notice that a process has begun.
SLOW = """
import subprocess, sys, time
from torchx_kfp.__main__ import main
from torchx_kfp.execution.local.executors import executor

class Slow(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        time.sleep(1)

executor.subprocess.Popen = Slow
main()
"""


@pytest.mark.parametrize("program", [[PROGRAM], [sys.executable, "-c", SLOW]], ids=["running", "starting"])
def test_without_a_terminal_ctrl_c_reaches_all_processes_of_the_stage(tmp_path: Path, program: list[str | Path]):
    @dsl.container_component
    def waits(folder: str):
        code = (
            "import os, sys, time; os.path.exists(sys.argv[1] + '/go') and (print('ready', flush=True), time.sleep(99))"
        )
        return dsl.ContainerSpec("app:1", ["sh", "-c", 'python3 -c "$1" "$0" || exit 9'], [folder, code])

    @dsl.pipeline(name="waiting")
    def waiting(folder: str):
        waits(folder=folder)

    assert (
        run(waiting, {"folder": str(tmp_path)}, output_dir=tmp_path / "local_outputs", watch=Watch()).state
        == "succeeded"
    )
    (tmp_path / "go").touch()
    words = [*program, "replay", "latest/waits"]
    replaying = subprocess.Popen(
        words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert replaying.stdout.readline() == b"ready\n"
    replaying.send_signal(signal.SIGINT)
    _, shown = replaying.communicate(timeout=120)
    assert b"KeyboardInterrupt" in shown


def test_a_replay_is_attached_to_the_terminal(call: Program, tmp_path: Path):
    """Colours, prompts, the debugger and Ctrl-C work, and the exit code is the application's."""
    (tmp_path / "app.py").write_text(DEBUGGED)
    terminal = call.terminal(100, "replay", "latest/first", "--workspace", str(tmp_path))
    terminal.wait_for("red", "name?")
    assert b"\033[31mred" in terminal.written
    terminal.send(b"Ada\n")
    terminal.wait_for("(Pdb)")
    terminal.send(b"p answer * 2\n")
    terminal.wait_for("'AdaAda'")
    terminal.send(b"c\n")
    terminal.wait_for("waits")
    terminal.send(b"\x03")
    terminal.wait_for("interrupted Ada")
    assert terminal.end() == 3


def test_a_shell_has_everything_set_up(call: Program, here: Here):
    environ = {"SHELL": "/bin/sh", "PS1": "ready> "}
    terminal = call.terminal(100, "replay", "latest/train[0]", "--shell", **environ)
    terminal.wait_for("sh $TORCHX_KFP_REPLAY", "ready>")
    terminal.send(b'echo "id=$TORCHX_JOB_ID" "$PWD"; sh "$TORCHX_KFP_REPLAY"; echo code $?\n')
    terminal.wait_for("ran ['a']", "code 7", "id=replay_kinds")
    terminal.send(b"exit 5\n")
    assert terminal.end() == 5
    scripts = here.folder.glob("local_outputs/replays/*/*/made/command.sh")
    assert {script.stat().st_mode & 0o777 for script in scripts} == {0o755}


def test_text_that_looks_like_a_placeholder_stays(tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline(word: str):
        plain(word=f"<{word}>")

    done = run(pipeline, {"word": "{{$}}"}, output_dir=tmp_path, watch=Watch(), cache=False)
    again = replay(done.folder, say=lambda _: None, stage="plain").stage
    assert again.outputs == done["plain"].outputs == {"out": "<{{$}}>"}
