"""Metrics of steps: the points that are kept, what readers see meanwhile, and what happens when a process ends."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest

from tests.facts import says
from tests.s3 import S3Server
from tests.tracking import stages
from tests.tracking.stages import environ
from torchx_kfp.errors import RefusedError, UnknownNameError
from torchx_kfp.tracking import History, Run, open_run

RUN = "p1/train/e1"


#: The names that a process may use, and the points that it keeps of one.
MAX_NAMES, MAX_POINTS = 500, 1000
_runs: list[Run] = []


def stage(base: object, run_id: str = RUN) -> Run:
    _runs.append(stages.stage(base, run_id))
    return _runs[-1]


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    """Flush all logs: bases are gone when this process ends, which would then cause warnings."""
    yield
    for run in _runs:
        run.flush()
    _runs.clear()


def values(history: History, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in history[name].points]


def start(code: str, base: object) -> subprocess.Popen[str]:
    program = f"from torchx_kfp.tracking import current_run\nrun = current_run()\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **environ(base)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def entries(base: Path) -> list[Path]:
    return list((base / ".torchx_kfp/runs/p1/train/e1").glob("*.steps"))


class TestWhatIsKept:
    def test_what_was_logged_comes_back(self, base: str) -> None:
        run = stage(base)
        before = time.time()
        run.log(2, loss=0.5, accuracy=1)
        run.log(1, {"loss": 0.75, "train/loss": True})
        history = run.history()
        assert values(history, "loss") == [(1, 0.75), (2, 0.5)]
        assert values(history, "accuracy") == [(2, 1.0)]
        assert values(history, "train/loss") == [(1, 1.0)]
        loss = history["loss"]
        assert (loss.count, loss.last.step, loss.min.value, loss.max.value) == (2, 2, 0.5, 0.75)
        assert before <= loss.last.time <= time.time()
        # Another tracker reads the same, and the history of another run differs.
        assert open_run(base, RUN).history() == history
        assert open_run(base, "p1/train/e2").history() == {}
        assert run.results() == {}

    def test_metrics_may_have_any_name(self, tmp_path: Path) -> None:
        run = stage(tmp_path)
        run.log(1, step=2, metrics=3, self=4, name=5)
        assert {name: curve.last.value for name, curve in run.history().items()} == {
            "step": 2,
            "metrics": 3,
            "self": 4,
            "name": 5,
        }

    def test_a_name_that_was_not_logged(self, tmp_path: Path) -> None:
        run = stage(tmp_path)
        with pytest.raises(KeyError, match=says("'los'", "metric", "current_run().log(step")):
            run.history()["los"]
        run.log(0, loss=0.3, accuracy=0.5)
        history = run.history()
        with pytest.raises(UnknownNameError, match=says("'los'", "'loss'")):
            history["los"]
        assert history.get("los") is None
        run.log(1, {f"m{i:02}": 1.0 for i in range(30)})
        with pytest.raises(UnknownNameError, match=r"'m00', .*, 'm17' and 12 more\."):
            run.history()["x"]

    def test_many_steps_stay_small_and_the_ends_exact(self, tmp_path: Path) -> None:
        run = stage(tmp_path)
        for step in range(300_000):
            run.log(step, loss=-1.0 if step == 277_777 else 1e6 if step == 123_457 else math.sqrt(step))
        loss = run.history()["loss"]
        assert loss.count == 300_000
        assert (loss.last.step, loss.last.value) == (299_999, math.sqrt(299_999))
        assert (loss.min.step, loss.min.value) == (277_777, -1.0)
        assert (loss.max.step, loss.max.value) == (123_457, 1e6)
        assert MAX_POINTS / 2 < len(loss.points) <= MAX_POINTS + 3
        assert {loss.last, loss.min, loss.max} <= set(loss.points)
        spread = [point.step for point in loss.points if point not in {loss.last, loss.min, loss.max}]
        assert {after - before for before, after in itertools.pairwise(spread)} == {512}, "evenly"
        assert spread[0] == 0
        (entry,) = entries(tmp_path)
        assert entry.stat().st_size < 100_000

    def test_extreme_values_of_the_first_steps_stay(self, tmp_path: Path) -> None:
        """Their points are among the evenly spread ones until these become fewer."""
        run = stage(tmp_path)
        for step in range(3 * MAX_POINTS):
            run.log(3 * MAX_POINTS - step, loss={1: -1.0, 3: 9.0}.get(step, 0.5))
        loss = run.history()["loss"]
        assert (loss.min.value, loss.max.value, loss.last.step) == (-1.0, 9.0, 3 * MAX_POINTS)

    def test_many_names_share_the_room(self, tmp_path: Path) -> None:
        run = stage(tmp_path)
        for step in range(300):
            run.log(step, {f"loss/{number}": step / 3 for number in range(MAX_NAMES)})
        assert {len(curve.points) <= 102 for curve in run.history().values()} == {True}
        (entry,) = entries(tmp_path)
        assert entry.stat().st_size < 3_000_000
        with pytest.raises(RefusedError, match=says(MAX_NAMES, "'loss/at step 7'")):
            run.log(300, {"loss/at step 7": 1.0})
        assert "loss/at step 7" not in run.history()

    def test_numbers_that_are_none(self, tmp_path: Path) -> None:
        run = stage(tmp_path)
        for step, value in enumerate([math.nan, 2.0, math.inf, 1.0, math.nan]):
            run.log(step, loss=value, none=math.nan)
        loss, none = run.history()["loss"], run.history()["none"]
        assert (loss.min.value, loss.max.value) == (1.0, math.inf)
        assert math.isnan(loss.last.value)
        assert math.isnan(none.min.value)
        assert len(loss.points) == 5

    def test_scalars_of_numpy(self, tmp_path: Path) -> None:
        numpy = pytest.importorskip("numpy")
        run = stage(tmp_path)
        run.log(numpy.int64(3), loss=numpy.float32(0.5), array=numpy.array([2]))
        run.log(numpy.array(4), loss=numpy.float64(0.25))
        assert values(run.history(), "loss") == [(3, 0.5), (4, 0.25)]

    def test_a_frame_has_a_row_for_each_step(self, tmp_path: Path) -> None:
        pytest.importorskip("pandas")
        run = stage(tmp_path)
        for step, loss in ((0, 0.5), (10, 0.25), (10, 0.3)):
            run.log(step, loss=loss)
        run.log(5, accuracy=0.9)
        frame = run.history().to_frame()
        assert list(frame.index) == [0, 5, 10]
        assert frame.index.name == "step"
        assert frame["loss"].dropna().to_dict() == {0: 0.5, 10: 0.3}
        assert frame["accuracy"].dropna().to_dict() == {5: 0.9}
        assert stage(tmp_path, "p1/train/none").history().to_frame().empty


class TestRefusals:
    @pytest.mark.parametrize("step", ["1", 1.5, None, True, 2**63, [1], {"loss": 0.5}])
    def test_a_step_is_an_int(self, step: Any, tmp_path: Path) -> None:
        for given in ([], [1], [{"loss": 1.0}]):
            with pytest.raises(RefusedError, match=says("step", "int", "first: run.log", "loss=")):
                stage(tmp_path).log(step, *given, loss=1.0)
        assert entries(tmp_path) == []

    @pytest.mark.parametrize("value", [0.5, 0, [], "loss"])
    def test_what_has_no_names(self, value: Any, tmp_path: Path) -> None:
        run = stage(tmp_path)
        for record in (functools.partial(run.log, 1), run.put, run.add_metadata):
            with pytest.raises(RefusedError, match=says(repr(value), type(value).__name__, "loss=0.3")):
                record(value, loss=1.0)
        assert (run.history(), run.results(), run.metadata()) == ({}, {}, {})

    def test_what_has_names_is_not_refused(self, tmp_path: Path) -> None:
        """The row of a database has ``keys``, but no ``items``."""
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            database.row_factory = sqlite3.Row
            row = database.execute("SELECT 0.5 AS loss").fetchone()
        run = stage(tmp_path)
        run.log(1, row)
        run.put(row)
        run.add_metadata(row)
        assert (run.history()["loss"].last.value, run.results(), run.metadata()) == (0.5, {"loss": 0.5}, {"loss": 0.5})

    @pytest.mark.parametrize("value", ["0.5", None, [1], 10**400, {}])
    def test_a_metric_is_a_number(self, value: Any, tmp_path: Path) -> None:
        run = stage(tmp_path)
        with pytest.raises(RefusedError, match=r"'loss'"):
            run.log(1, loss=value, accuracy=1)
        assert run.history() == {}


class TestWriting:
    @pytest.mark.lowest
    def test_readers_see_it_while_it_goes_on(self, tmp_path: Path) -> None:
        child = start("import time\nrun.log(1, loss=0.5)\nprint('logged', flush=True)\ntime.sleep(60)", tmp_path)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "logged\n"
            deadline = time.monotonic() + 60
            while not (found := open_run(tmp_path, RUN).history()):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert values(found, "loss") == [(1, 0.5)]
        finally:
            child.kill()
            child.communicate()

    @pytest.mark.s3
    def test_no_request_for_a_step(self, s3_base: str, s3_server: S3Server) -> None:
        run = stage(s3_base)

        def log() -> None:
            for step in range(20_000):
                run.log(step, loss=1.0)
            run.flush()

        writes = s3_server.requests(log)
        assert len(writes) < 20, "the first and the last one, and one each 5 s of a slow machine"
        assert {write.split("?")[0].rpartition("/")[0] for write in writes} == {
            f"PUT /{s3_base[5:]}/.torchx_kfp/runs/p1/train/e1"
        }

    def test_processes_that_log_at_once(self, tmp_path: Path) -> None:
        code = "for step in range(100): run.log(step, {'loss': RANK, 'loss/RANK': step})"
        children = [start(code.replace("RANK", str(rank)), tmp_path) for rank in range(3)]
        for child in children:
            assert child.communicate()[1] == ""
        history = open_run(tmp_path, RUN).history()
        assert history["loss"].count == 300
        assert [point.step for point in history["loss"].points] == [step for step in range(100) for _ in range(3)]
        assert (history["loss"].min.value, history["loss"].max.value) == (0, 2)
        assert [history[f"loss/{rank}"].count for rank in range(3)] == [100, 100, 100]
        assert len(entries(tmp_path)) == 3

    ENDS: ClassVar = {
        "": 0,
        "raise SystemExit(3)": 3,
        "raise KeyboardInterrupt": -signal.SIGINT,
        "raise ValueError": 1,
        "import atexit; atexit.register(lambda: run.log(5, loss=0.25))": 0,
        "import os; run.flush(); os._exit(4)": 4,
        "import os; run.flush(); os.kill(os.getpid(), 9)": -signal.SIGKILL,
    }

    @pytest.mark.parametrize("end", ENDS)
    def test_what_a_process_leaves_that_ends(self, end: str, tmp_path: Path) -> None:
        child = start(f"for step in range(5): run.log(step, loss=step)\n{end}", tmp_path)
        _, complaints = child.communicate(timeout=120)
        assert child.returncode == self.ENDS[end]
        assert "steps" not in complaints
        last = (5, 0.25) if "atexit" in end else (4, 4.0)
        assert values(open_run(tmp_path, RUN).history(), "loss")[-1] == last

    def test_there_are_no_threads_and_handlers(self, tmp_path: Path) -> None:
        code = """
import signal, threading
run.log(1, loss=0.5)
print(threading.active_count(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
        assert start(code, tmp_path).communicate() == ("1 True\n", "")

    def test_threads_log_at_once(self, tmp_path: Path) -> None:
        run = stage(tmp_path)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda step: run.log(step, loss=step), range(2000)))
            list(pool.map(lambda _: run.flush(), range(8)))
        assert run.history()["loss"].count == 2000

    @pytest.mark.parametrize("where", ["local", pytest.param("s3", marks=pytest.mark.s3)])
    def test_a_handler_that_interrupts_a_write(
        self, where: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        """Its second call wrote, and the write that it had interrupted replaced that by what was older."""
        base = str(tmp_path) if where == "local" else request.getfixturevalue("s3_base")
        code = """
import signal
logged = []
def log(*_):
    run.log(len(logged), late=logged.append(1) or 1)
    run.flush()
    run.flush()
signal.signal(signal.SIGALRM, log)
for step in range(30):
    run.log(step, loss=step)
    signal.setitimer(signal.ITIMER_REAL, 0.0001 + step % 10 / 2000)
    run.flush()
signal.setitimer(signal.ITIMER_REAL, 0)
run.flush()
print(len(logged), run.history()["late"].count, run.history()["loss"].count)
"""
        printed = start(code, base).communicate(timeout=120)[0].split()
        assert int(printed[0]) > 0
        assert printed == [printed[0], printed[0], "30"]

    @pytest.mark.parametrize("how", ["fork", "spawn", "os.fork"])
    @pytest.mark.parametrize("where", ["local", pytest.param("s3", marks=pytest.mark.s3)])
    def test_processes_of_a_process(self, how: str, where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        """Each process writes the metrics that it has logged itself."""
        base = str(tmp_path) if where == "local" else request.getfixturevalue("s3_base")
        if where == "s3" and how != "spawn" and not hasattr(fsspec.asyn, "reset_after_fork"):
            pytest.skip("this fsspec has no object stores in a forked process")
        code = """
import multiprocessing, os, sys, warnings
from torchx_kfp.tracking import current_run

def work():
    current_run().log(2, loss=0.25)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run = current_run()
    run.log(1, loss=0.5)
    if sys.argv[1] == "os.fork":
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
        else:
            work()
    else:
        child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
        child.start()
        child.join()
"""
        (tmp_path / "application.py").write_text(code)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "application.py"), how],
            env={**os.environ, **environ(base)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        history = open_run(base, RUN).history()
        assert values(history, "loss") == [(1, 0.5), (2, 0.25)]
        assert history["loss"].count == 2

    @pytest.mark.s3
    def test_the_last_is_stored_where_connections_are_made_anew_at_the_end(self, s3_base: str) -> None:
        """Host names are looked up in a thread of a pool, which Python does not start when it is ending."""
        options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"].replace("127.0.0.1", "localhost")}
        code = f"""
import os
os.environ["AWS_ENDPOINT_URL"] = {options["endpoint_url"]!r}
run.log(1, loss=0.5)
"""
        child = start(code, s3_base)
        assert child.communicate()[1] == ""
        assert values(open_run(s3_base, RUN).history(), "loss") == [(1, 0.5)]

    def test_a_store_that_fails_is_a_warning_and_tried_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        run = stage(tmp_path / "base")
        shutil.rmtree(tmp_path / "base")
        (tmp_path / "base").write_text("a file")
        run.log(1, loss=0.5)
        run.flush()
        run.log(2, loss=0.25)
        run.flush()
        (warning,) = caplog.messages
        assert f"The metrics of the execution '{RUN}' are not stored yet" in warning
        assert f"the tracker base '{tmp_path}/base' is not a directory" in warning
        (tmp_path / "base").unlink()
        assert values(run.history(), "loss") == [(1, 0.5), (2, 0.25)]

    def test_what_could_not_be_stored_at_the_end_is_said(self, tmp_path: Path) -> None:
        gone = f"import shutil; shutil.rmtree('{tmp_path}/base'); open('{tmp_path}/base', 'w').close()"
        child = start(f"{gone}\nrun.log(1, loss=0.5)", tmp_path / "base")
        _, complaints = child.communicate()
        assert child.returncode == 0
        assert f"The last metrics of the execution '{RUN}' are not stored under the tracker base" in complaints
