"""Many results at once when something goes wrong: interrupts, forks, pickles, and a result that cannot be read."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from tests.facts import says
from tests.proxy import Proxy
from tests.s3 import S3Server
from torchx_kfp.contract import protocol
from torchx_kfp.errors import KeyRefusedError
from torchx_kfp.tracking import FanIn, FsspecResultTracker, Run, current_run
from torchx_kfp.tracking.store import Concurrency, each

COUNT = 300
KEYS = [f"p1/train/{number:03}" for number in range(COUNT)]


def fan_in(base: object, keys: list[str] = KEYS) -> FanIn:
    context = protocol.StageContext(str(base), "p1/use/1", {"trials": tuple(keys)})
    found = current_run(protocol.encode(context)).parents["trials"]
    assert isinstance(found, FanIn)
    return found


@pytest.fixture
def trials(tmp_path: Path) -> FanIn:
    for number, key in enumerate(KEYS):
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"number": {number}}}')
    return fan_in(tmp_path)


def test_a_fan_in_in_any_order_and_more_than_once(trials: FanIn, tmp_path: Path) -> None:
    runs = list(trials)
    assert [run.results()["number"] for run in reversed(runs)] == list(reversed(range(COUNT)))
    (tmp_path / KEYS[5]).write_text('{"number": "new"}')
    assert runs[5].results() == {"number": "new"}, "what was taken is read anew"
    assert [run.results()["number"] for run in fan_in(tmp_path, [KEYS[1], KEYS[1], KEYS[0]])] == [1, 1, 0]


def test_one_that_cannot_be_read_is_an_error_of_its_own(trials: FanIn, tmp_path: Path) -> None:
    (tmp_path / KEYS[10]).unlink()
    (tmp_path / KEYS[10] / "below").mkdir(parents=True)
    read = 0
    for number, run in enumerate(trials):
        if number == 10:
            with pytest.raises(KeyRefusedError, match=says(f"'{KEYS[10]}'", "folder")):
                run.results()
        else:
            assert run.results() == {"number": number}
            read += 1
    assert read == COUNT - 1
    tracker = FsspecResultTracker(tmp_path)
    found = tracker.store.each(tracker.get, KEYS)
    assert [next(found)["number"] for _ in range(10)] == list(range(10)), "those before it are there"
    with pytest.raises(KeyRefusedError):
        next(found)


def test_a_forked_process_reads_runs_of_its_parent(trials: FanIn) -> None:
    runs = list(trials)
    assert runs[0].results() == {"number": 0}
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(30)
            code = 0 if runs[-1].results() == {"number": COUNT - 1} else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_pickles(trials: FanIn) -> None:
    copy = pickle.loads(pickle.dumps(trials))
    assert type(copy) is FanIn
    assert copy == trials
    assert [run.results()["number"] for run in copy] == list(range(COUNT))
    run: Run = next(iter(trials))
    run.results()
    assert pickle.loads(pickle.dumps(run)).results() == {"number": 0}


def test_a_row_for_each_run(trials: FanIn, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table = fan_in(tmp_path, [KEYS[1], KEYS[1], KEYS[0]]).to_frame()
    assert table["number"].to_list() == [1, 1, 0]


def test_each_gives_what_was_done_before_the_error() -> None:
    def divide(number: int) -> float:
        return 1 / (5 - number)

    for concurrency in (Concurrency(), Concurrency(4), Concurrency(2, 3)):
        found = each(divide, range(20), concurrency)
        assert [next(found) for _ in range(5)] == [1 / 5, 1 / 4, 1 / 3, 1 / 2, 1]
        with pytest.raises(ZeroDivisionError):
            next(found)
    assert list(each(str, range(1000), Concurrency(8, 16))) == list(map(str, range(1000)))
    assert list(each(str, [], Concurrency(8))) == []


def test_each_works_a_little_ahead_only() -> None:
    done: list[int] = []
    found = each(lambda number: done.append(number), range(10_000), Concurrency(4))
    next(found)
    time.sleep(0.2)
    assert len(done) < 100
    found.close()


@pytest.mark.s3
class TestS3:
    @pytest.fixture
    def proxy(self, s3_server: S3Server, s3_base: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
        import s3fs

        with Proxy(s3_server.url) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            s3fs.S3FileSystem.clear_instance_cache()
            yield proxy

    def test_a_put_that_was_interrupted_does_not_come_later(self, proxy: Proxy, s3_base: str) -> None:
        code = """
import signal, sys, threading, time
from torchx_kfp.tracking import FsspecResultTracker
tracker = FsspecResultTracker(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT)).start()
try:
    tracker.put("run", x="old")
except KeyboardInterrupt:
    tracker.put("run", x="new")
    print(tracker["run"]["x"], flush=True)
time.sleep(3)
print(tracker["run"]["x"], flush=True)
"""
        with subprocess.Popen(
            [sys.executable, "-c", code, s3_base], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            proxy.faults.append(2.5)
            assert process.communicate("\n")[0] == "new\nnew\n"
        assert process.returncode == 0

    def test_ctrl_c_while_the_store_is_away(self, s3_base: str) -> None:
        code = """
import sys
from torchx_kfp.tracking import FsspecResultTracker
tracker = FsspecResultTracker(sys.argv[1])
print("ready", flush=True)
tracker.get_many([f"run/{number}" for number in range(200)])
"""
        process = subprocess.Popen(
            [sys.executable, "-c", code, s3_base],
            env={**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        assert "KeyboardInterrupt" in errors
        assert 0 < errors.count("trying again") < 30, "not one for each of two hundred keys"

    @pytest.mark.lowest
    def test_asking_of_a_run_is_a_listing_and_a_request_for_each_entry(self, s3_server: S3Server, s3_base: str) -> None:
        context = protocol.StageContext(s3_base, "p1/train/1")
        run = current_run(protocol.encode(context))
        run.add_metadata(a=1)
        run.add_metadata(b=1)
        asks: tuple[Callable[[], object], ...] = (run.metadata, run.artifacts, run.sources)
        counts = [len(s3_server.requests(ask)) for ask in asks]
        assert counts == [3, 1, 2] or (fsspec.__version__ < "2025" and max(counts) <= 3)

    @pytest.mark.lowest
    def test_what_the_user_has_configured_for_s3_is_for_s3a_too(
        self, s3_base: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 77}})
        for base in (s3_base, s3_base.replace("s3://", "s3a://")):
            tracker = FsspecResultTracker(base)
            tracker.put("run", x=1)
            config = tracker.store._fs.config_kwargs
            assert (config["read_timeout"], config["max_pool_connections"]) == (77, 64)
