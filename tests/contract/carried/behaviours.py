"""What a distributed stage does, whatever runs its replicas: processes on this machine, or an engine of a cluster.

`test_launcher_here` and `tests.kubernetes.test_contract` run all rows of ``BEHAVIOURS``.
"""

# No annotations from __future__: KFP reads the annotations of pipeline functions.

import dataclasses
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx.specs import AppDef, RetryPolicy, Role

from tests.authoring.apps import HOSTILE, PLAIN, compile_pipeline, load
from tests.authoring.kfp_engines import Container, container_of
from tests.facts import keep
from torchx_kfp import engines, task_from_app

#: Only one pipeline can be defined at a time.
_COMPILES = threading.Lock()


class CompiledStage:
    """A compiled pipeline of one stage; functions make its options that are channels, from the parameter ``n``."""

    def __init__(self, app: AppDef, base: Path, *, tracked: bool = True, **options: Any) -> None:
        def pipeline(tracker_base: str, n: int) -> None:
            given = {name: option(n) if callable(option) else option for name, option in options.items()}
            task_from_app(app, tracker_base=tracker_base if tracked else None, **given)

        with _COMPILES:
            self._compiled = compile_pipeline(pipeline)
        self._base = base
        spec, self._platform = load(self._compiled)
        (self.component,) = [name.removeprefix("comp-") for name in spec["components"]]
        declared = spec["components"][f"comp-{self.component}"].get("outputDefinitions", {})
        self._outputs = list(declared.get("parameters", {}))

    @property
    def fields(self) -> dict[str, str]:
        """The variables of the stage's pod, with the fields that they have."""
        found = self._platform[f"exec-{self.component}"]["fieldPathAsEnv"]
        return {each["name"]: each["fieldPath"] for each in found}

    def container(self, folder: Path, inputs: Mapping[str, Any] | None = None) -> Container:
        """Return the stage's container, which writes its outputs to the folder."""
        (folder / "out").mkdir(parents=True, exist_ok=True)
        return container_of(
            self._compiled,
            self.component,
            inputs={"tracker_base": str(self._base), **(inputs or {})},
            outputs={output: str(folder / "out" / output) for output in self._outputs},
            artifacts={"metrics": str(folder / "artifacts" / "metrics")},
        )


def outputs(folder: Path) -> dict[str, str]:
    """Return the output parameters that a stage has written."""
    return {path.name: path.read_text() for path in (folder / "out").iterdir() if path.suffix != ".json"}


TRAIN = """
import os
from torchx_kfp.tracking import current_run
index = os.environ["TORCHX_REPLICA_ID"]
print("replica", index, "of", os.environ["TORCHX_NUM_REPLICAS"], "rank 0 is", os.environ["TORCHX_RANK0_HOST"])
if index == "0":
    current_run().put(loss=0.25)
"""
#: Replica 1 fails, and the other one waits for it forever.
FAIL = """
import os, sys, time
from torchx_kfp.tracking import current_run
if os.environ["TORCHX_REPLICA_ID"] == "1":
    current_run().put(loss=99)
    print("about to fail")
    sys.exit(7)
time.sleep(1000)
"""
MEET = """
import os, socket, sys, time
folder, index = sys.argv[1], os.environ["TORCHX_REPLICA_ID"]
if index == "0":
    with socket.create_server(("", 0)) as server:
        with open(f"{folder}/part", "w") as file:
            file.write(str(server.getsockname()[1]))
        os.rename(f"{folder}/part", f"{folder}/port")
        connection, _ = server.accept()
        print("met", connection.recv(100).decode())
        connection.close()
while index != "0":
    try:
        with open(f"{folder}/port") as file:
            port = int(file.read())
        with socket.create_connection((os.environ["TORCHX_RANK0_HOST"], port)) as connection:
            connection.sendall(b"replica 1")
        break
    except OSError:
        time.sleep(0.05)
"""
#: Each replica fails once.
TRIES = """
import os, sys, time
index = os.environ["TORCHX_REPLICA_ID"]
me = sys.argv[1] + "/tried-" + index
print("tries")
if not os.path.exists(me):
    open(me, "w").close()
    while not all(os.path.exists(sys.argv[1] + "/tried-" + other) for other in "01"):
        time.sleep(0.05)
    time.sleep({seconds}[int(index)])
    sys.exit(3)
"""
#: The second attempt succeeds, and nobody sees what the first one has recorded.
AGAIN = """
import os, sys
from torchx_kfp.tracking import current_run
again = os.environ["TORCHX_JOB_ID"].endswith("_2")
if os.environ["TORCHX_REPLICA_ID"] == "0":
    current_run().put({"loss": 0.5} if again else {"stale": 1})
sys.exit(0 if again else 3)
"""
SERVE = """
import os, sys, time
print("serves", os.environ["TORCHX_RANK0_HOST"].partition(".")[0])
open(sys.argv[1] + "/serves", "w").close()
while True:
    time.sleep(1)
"""
WORDS = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['WORDS'], os.environ['ME']]))"
NAMES = "import os; print(sorted(name for name in os.environ if name.startswith('TORCHX_')))"
TEXTS = [*HOSTILE, *PLAIN]
#: The words that Kubeflow Trainer can pass on: without characters that YAML does not have.
OF_YAML = [re.sub("[\x7f-\x9f\ufffe\uffff]", "", text) for text in TEXTS]
LOSS = {"results": {"loss": float}}


def python(program: str, *, replicas: int = 2, **fields: Any) -> AppDef:
    """Return an AppDef whose replicas run a Python program."""
    arguments = [*map(keep, ["-u", "-c", program, *fields.pop("arguments", ())])]
    fields["env"] = {name: keep(value) for name, value in fields.get("env", {}).items()}
    role = Role("trainer", image="any", entrypoint="python", args=arguments, num_replicas=replicas, **fields)
    return AppDef("train", roles=[role])


def _served(folder: Path) -> AppDef:
    # The server goes with the trainers: the launcher needs the time to read what it has printed.
    waits = f"import time\nwhile not os.path.exists({str(folder / 'serves')!r}): time.sleep(0.05)\ntime.sleep(3)"
    (trainer,) = python(f"{TRAIN}\n{waits}").roles
    serves = ["-uc", SERVE, str(folder)]
    return AppDef("train", roles=[trainer, Role("server", image="any", entrypoint="python", args=serves)])


def _every(words: Sequence[str], **engine: Any) -> "Behaviour":
    """Return the behaviour that each of the words arrives as an argument, and all in a variable."""
    env = {"WORDS": "\n".join(words), "ME": "I am ${replica_id}, $(HOME)"}

    def arrives(index: int) -> str:
        return json.dumps([[*words, f"x{index}y$$(HOME)"], env["WORDS"], f"I am {index}, $(HOME)"])

    return Behaviour(
        lambda _: python(WORDS, arguments=[*words, "x${replica_id}y$$(HOME)"], env=env),
        lines={f"trainer/{index} | {arrives(index)}": 1 for index in range(2)},
        engines=engine,
    )


@dataclass(frozen=True)
class Behaviour:
    """A stage, and what comes of it.

    Attributes:
        app: makes the application, which shares a folder with the test.
        code: the exit code; several if backends differ.
        lines: lines of the log, and how often they are there. ``{rank0}`` is the host of replica 0, and ``{server}``
            that which other roles see.
        outputs: the stage's outputs, but for the execution id.
        records: what the tracker has of the run, if it has to be that.
        ending: how the execution id ends.
        engines: the engines that can run it, with their options.
        options: further options of ``task_from_app``.
    """

    app: Callable[[Path], AppDef]
    code: Sequence[int] = (0,)
    lines: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    records: Mapping[str, Any] | None = None
    ending: str = ""
    engines: Mapping[str, Any] = field(default_factory=lambda: {"job": {}, "jobset": {}, "trainjob": {}})
    options: Mapping[str, Any] = field(default_factory=dict)

    def options_with(self, engine: str) -> dict[str, Any]:
        """Return the options of ``task_from_app`` with an engine."""
        kind: Any = engines.ENGINES[engine]
        return {**self.options, "engine": kind(**self.engines[engine])}

    def check(self, code: int, log: str, found: Mapping[str, str], **hosts: str) -> None:
        """Assert that a stage has ended like this."""
        assert code in self.code, log
        lines = log.splitlines()
        for line, count in self.lines.items():
            for name, host in hosts.items():
                line = line.replace(f"{{{name}}}", host)
            assert lines.count(line) == count, log
        assert {name: value for name, value in found.items() if name != "run_id"} == self.outputs
        assert found.get("run_id", "").endswith(self.ending)


ONE: Mapping[str, Any] = {"job": {}}
#: With a runtime that knows nothing of torch.
TWO: Mapping[str, Any] = {**ONE, "trainjob": {"runtime": "plain"}}
BEHAVIOURS: Mapping[str, Behaviour] = {
    "replicas know their rank, and publish results": Behaviour(
        lambda _: python(TRAIN),
        lines={"trainer/0 | replica 0 of 2 rank 0 is localhost": 1, "trainer/1 | replica 1 of 2 rank 0 is {rank0}": 1},
        outputs={"loss": "0.25"},
        records={"loss": 0.25},
        options=LOSS,
    ),
    "replicas meet by name": Behaviour(
        lambda folder: python(MEET, arguments=[str(folder)]), lines={"trainer/0 | met replica 1": 1}
    ),
    "the replica that fails first gives the exit code": Behaviour(
        lambda _: python(FAIL),
        code=[7],
        # It is shown again where people look: at the end.
        lines={"trainer/1 | about to fail": 1, "  trainer/1 | about to fail": 1},
        options=LOSS,
    ),
    "every word arrives byte for byte": _every(TEXTS, job={}, jobset={}),
    "every word of a TrainJob arrives byte for byte": _every(OF_YAML, trainjob={}),
    "a stage that is not tracked has no variables of a run": Behaviour(
        lambda _: python(NAMES),
        lines={"trainer/1 | ['TORCHX_NUM_REPLICAS', 'TORCHX_RANK0_HOST', 'TORCHX_REPLICA_ID']": 1},
        engines=ONE,
        options={"tracked": False},
    ),
    "the number of replicas is known when it runs": Behaviour(
        lambda _: python("import os; print('n =', os.environ['TORCHX_NUM_REPLICAS'])", replicas=4),
        lines={"trainer/0 | n = 3": 1, "trainer/1 | n = 3": 1, "trainer/2 | n = 3": 1, "trainer/3 | n = 3": 0},
        engines=TWO,
        options={"replicas": 3},
    ),
    "a program that does not exist": Behaviour(
        lambda _: AppDef("train", [Role("trainer", image="any", entrypoint="no-such-program", num_replicas=2)]),
        # Of the shell of replica 0, or of the container of replica 1.
        code=[127, 128],
        engines=TWO,
    ),
    "a role that never ends goes with those that decide": Behaviour(
        _served,
        lines={"server/0 | serves {server}": 1},
        outputs={"loss": "0.25"},
        engines={"jobset": {"succeeds_with": ["trainer"]}},
        options=LOSS,
    ),
    "all replicas start again": Behaviour(
        lambda folder: python(TRIES.format(seconds=[1000, 2]), arguments=[str(folder)], max_retries=1),
        lines={"trainer/0 | tries": 2, "trainer/1 | tries": 2},
        engines={"jobset": {}, "trainjob": {}},
    ),
    "replicas that fail are started again": Behaviour(
        lambda folder: python(
            TRIES.format(seconds=[0, 0]),
            arguments=[str(folder)],
            max_retries=2,
            retry_policy=RetryPolicy.REPLICA,
        ),
        lines={"trainer/0 | tries": 2, "trainer/1 | tries": 2},
        engines=ONE,
    ),
    "an object that fails is made again, with an execution id of its own": Behaviour(
        lambda _: python(AGAIN, max_retries=1),
        lines={"torchx-kfp: attempt 2 of 2: the application ended with exit code 3": 1},
        outputs={"loss": "0.5"},
        records={"loss": 0.5},
        ending="_2",
        options=LOSS,
    ),
}
ROWS = [(name, engine) for name, row in BEHAVIOURS.items() for engine in row.engines]


def run_here(stage: CompiledStage, folder: Path, program: tuple[str, str] | None = None) -> tuple[int, str]:
    """Run the stage's command on this machine; return its exit code and its log.

    Args:
        stage: the stage.
        folder: where its outputs go.
        program: a word of the command, and the one that takes its place.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    container = dataclasses.replace(stage.container(folder), environ={"PATH": path, "PYTHONUTF8": "1"})
    if program:
        command = [program[1] if word == program[0] else word for word in container.command]
        container = dataclasses.replace(container, command=command)
    done = container.run()
    return done.returncode, (done.stdout + done.stderr).decode()
