"""The records of a run reach the further trackers of its stage, and never depend on them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.tracking.stages import environ
from tests.tracking.trackers import RECORDER, calls, install, run_application
from torchx_kfp.tracking import FsspecResultTracker

RUN = "run/train/1"
PARENTS = {"prepare": "run/prepare/1", "trials": ("run/t/1", "run/t/2"), "again": "run/prepare/1", "none": ()}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    install(folder, "recorder")
    return folder


def stage(tmp_path: Path, *names: str, config: str | None = None) -> dict[str, str]:
    given = config or str(tmp_path / "calls")
    return environ(tmp_path / "base", RUN, PARENTS, dict.fromkeys(names, given))


@pytest.mark.versions
def test_everything_that_is_recorded(tmp_path: Path, packages: Path) -> None:
    code = """
from torchx_kfp.tracking import current_run
run = current_run()
run.put(accuracy=0.5, loss=float("nan"), best=float("inf"), done=True, model="s3://x")
current_run().put({"l2norm/mean": 1, "run_id": "a", "self": "b"})
run.put()
run.add_artifact("model", "model.bin", size=7)
run.add_artifact("remote", "s3://x/y")
run.add_metadata({"git/commit": "4f2a91c"}, config={"lr": [0.1]})
"""
    run_application(code, stage(tmp_path, "recorder"), packages)
    made, *sources, first, second, artifact, remote, metadata = calls(tmp_path / "calls")
    assert metadata == ["metadata", RUN, {"git/commit": "4f2a91c", "config": {"lr": [0.1]}}]
    assert made == ["create", str(tmp_path / "calls")]
    assert [source[1:] for source in sources] == [[RUN, run, None] for run in ("run/prepare/1", "run/t/1", "run/t/2")]
    assert math.isnan(first[2].pop("loss"))
    assert first == ["metadata", RUN, {"accuracy": 0.5, "best": math.inf, "done": True, "model": "s3://x"}]
    # These are names of add_metadata's own parameters.
    assert second == ["metadata", RUN, {"l2norm/mean": 1, "run_id_": "a", "self_": "b"}]
    assert artifact == ["artifact", RUN, "model", str(packages / "model.bin"), {"size": 7}]
    assert remote == ["artifact", RUN, "remote", "s3://x/y", None]
    results = FsspecResultTracker(tmp_path / "base")[RUN]
    assert set(results) == {"accuracy", "loss", "best", "done", "model", "l2norm/mean", "run_id", "self"}


def test_parameters_and_steps_reach_trackers_that_take_them(tmp_path: Path) -> None:
    text = RECORDER.replace(
        "    def add_artifact",
        """
    def add_parameters(self, run_id, parameters):
        self.write("parameters", run_id, parameters)
    def log_steps(self, run_id, points):
        self.write("steps", run_id, {name: [list(point[:2]) for point in found] for name, found in points.items()})
    def add_artifact""",
        1,
    )
    install(tmp_path / "packages", "taker", text)
    install(tmp_path / "packages", "recorder")
    code = """
from torchx_kfp.tracking import current_run
run = current_run()
run.add_metadata({"self": 1, "lr": 0.1})
run.put(accuracy=0.5)
for step in range(10_000):
    run.log(step, loss=step / 2)
run.flush()
run.log(10_000, loss=1)
"""
    run_application(code, stage(tmp_path, "taker"), tmp_path / "packages")
    parameters, results, *steps = [call for call in calls(tmp_path / "calls") if call[0] not in ("create", "source")]
    assert parameters == ["parameters", RUN, {"self": 1, "lr": 0.1}]
    assert results == ["metadata", RUN, {"accuracy": 0.5}]
    points = [point for call in steps for point in call[2]["loss"]]
    assert points == sorted(points), "each once, and in order"
    assert points[0] == [0, 0]
    assert points[-2:] == [[9_999, 4_999.5], [10_000, 1]]
    assert all(value == step / 2 for step, value in points[:-1])
    # A tracker that does not accept any does not get them.
    (tmp_path / "calls").unlink()
    done = run_application(code, stage(tmp_path, "recorder"), tmp_path / "packages")
    assert done.stderr == ""
    assert {call[0] for call in calls(tmp_path / "calls")} == {"create", "source", "metadata"}


def test_the_first_process_loads_its_mirrors_at_once(tmp_path: Path, packages: Path) -> None:
    code = """
import sys
from torchx_kfp.tracking import current_run
run = current_run()
print("torchx" in sys.modules, "recorder" in sys.modules)
run.add_metadata(a=1)
"""
    assert run_application(code, stage(tmp_path), packages).stdout == "False False\n"
    other = stage(tmp_path, "recorder") | {"TORCHX_REPLICA_ID": "1"}
    assert run_application(code, other, packages).stdout == "False False\n"
    assert not (tmp_path / "calls").exists()
    assert run_application(code, stage(tmp_path, "recorder"), packages).stdout == "True True\n"


@pytest.mark.versions
def test_torchx_finds_the_same_trackers(tmp_path: Path, packages: Path) -> None:
    """``AppRun`` is TorchX's own access to them, besides the results."""
    code = """
from torchx.tracker import AppRun
from torchx_kfp.tracking import current_run
AppRun.run_from_env().add_metadata(epochs=3)
current_run().put(accuracy=0.5)
print([type(backend).__name__ for backend in AppRun.run_from_env().backends])
"""
    done = run_application(code, stage(tmp_path, "recorder", "recorder:create"), packages)
    assert done.stdout == "['StageTracker', 'Recorder', 'Recorder']\n"
    recorded = [call[2] for call in calls(tmp_path / "calls") if call[0] == "metadata"]
    assert recorded == [{"epochs": 3}] * 2 + [{"accuracy": 0.5}] * 2


FAILS = """
import time
import recorder

class Failing(recorder.Recorder):
    def add_metadata(self, run_id, **kwargs):
        time.sleep(kwargs.get("seconds", 0))
        if "error" in kwargs:
            raise {"a": OSError, "b": RuntimeError}[kwargs["error"]]("it is down")
        super().add_metadata(run_id, **kwargs)
    def add_source(self, *args):
        raise NotImplementedError

def create(config):
    return Failing(config)
"""


def test_a_tracker_that_fails_is_a_warning_once_for_each_kind_of_error(tmp_path: Path, packages: Path) -> None:
    install(packages, "failing", FAILS)
    code = """
import time
from torchx_kfp.tracking import current_run
current_run().put(first=1)
for error in "aaba":
    started = time.monotonic()
    current_run().put(error=error)
    time.sleep(10 * (time.monotonic() - started))
current_run().put(last=1)
"""
    done = run_application(code, stage(tmp_path, "failing", "recorder"), packages)
    warnings = done.stderr.splitlines()
    assert len(warnings) == 2, done.stderr
    assert warnings[0] == (
        "The tracker 'failing' failed, and lacks records of the run 'run/train/1'; the results under the tracker base "
        "are complete. Further errors of this kind are not shown. OSError: it is down"
    )
    assert warnings[1].endswith("RuntimeError: it is down")
    assert FsspecResultTracker(tmp_path / "base")[RUN] == {"first": 1, "error": "a", "last": 1}
    # The other tracker got everything, and the failing one got what it accepted.
    recorded = [call[2] for call in calls(tmp_path / "calls") if call[0] == "metadata"]
    assert recorded == [{"first": 1}] * 2 + [{"error": error} for error in "aaba"] + [{"last": 1}] * 2


def test_a_tracker_that_takes_long_to_fail_is_left_alone_for_a_while(tmp_path: Path, packages: Path) -> None:
    install(packages, "failing", FAILS)
    code = """
import time
from torchx_kfp.tracking import current_run
run = current_run()
started = time.monotonic()
run.put(error="a", seconds=0.3)
took = time.monotonic() - started
run.put(early=1)
time.sleep(10 * took)
run.put(late=1)
"""
    run_application(code, stage(tmp_path, "failing"), packages)
    assert [call[2] for call in calls(tmp_path / "calls") if call[0] == "metadata"] == [{"late": 1}]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("broken:create", "create = None", "TorchX finds no entry point 'torchx.tracker' and no 'module:function'"),
        ("broken:create", "def create(config): raise ConnectionError(config)", "ConnectionError: somewhere"),
        ("broken:create", "import no_such_module", "TorchX finds no"),
        ("broken", "import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("wandb", "", "TorchX finds no"),
        ("no_such_module:create", "", "TorchX finds no"),
        (":create", "", ""),
        ("torchx", "", "'module' object is not callable"),
        ("mlflow", "import sys; sys.modules['mlflow'] = None", 'pip install "torchx-kfp[mlflow]"'),
        ("recorder", "import sys; sys.modules['torchx'] = None", "No module named"),
    ],
)
def test_a_tracker_that_cannot_be_loaded_is_an_error_at_once(
    tmp_path: Path, packages: Path, name: str, text: str, why: str
) -> None:
    install(packages, "broken", text)
    code = "from torchx_kfp.tracking import current_run; current_run()"
    if "sys.modules" in text:  # as if it were not installed
        code = f"{text}; {code}"
    done = run_application(code, stage(tmp_path, name, config="somewhere"), packages, check=False)
    assert done.returncode == 1
    *_, message = done.stderr.splitlines()
    assert message.startswith(f"torchx_kfp.errors.TrackerError: The stage's tracker {name!r} cannot be loaded here (")
    assert why in message
    assert message.endswith("which includes TorchX, or leave the tracker out (trackers= of the stage).")
