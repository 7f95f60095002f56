"""Stores to test trackers on: a local directory, memory, and S3 over HTTP."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from inspect import CO_VARKEYWORDS, isroutine
from pathlib import Path

import hypothesis
import pytest
from fsspec.asyn import sync

from tests.durations import Recorder, Units, in_order, unit
from tests.oldest import VERSION, oldest_python
from tests.programs import Program, imported
from tests.s3 import S3Server, running
from tests.serving import serving
from tests.skipped import missing
from torchx_kfp.tracking import entries, lineage

#: The marks of tests with a fixture.
_MARKS = {"cluster": "cluster", "docker_client": "docker"}


def pytest_configure(config: pytest.Config) -> None:
    """Let signals end the programs that tests start, even if the tests run in a background that ignores them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    # Tests must not depend on how busy the machine is.
    too_slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=too_slow)
    hypothesis.settings.load_profile("untimed")
    if config.option.record_durations:
        config.pluginmanager.register(Recorder())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what collecting creates, modules and tests, out of the garbage collector's sight: it stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for ``-n auto``: tests wait for processes, so two CPUs have work for four."""
    return max(4, len(os.sched_getaffinity(0)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests had a second try."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of ``make durations``."""
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Units | None:
    """Hand out files, and parts of some."""
    return Units(config, log) if config.option.dist == "loadfile" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests by the fixtures that they need."""
    for fixture in _MARKS.keys() & set(getattr(item, "fixturenames", ())):
        item.add_marker(_MARKS[fixture])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let several processes begin with the long units; one process runs what it is given in that order."""
    if hasattr(config, "workerinput"):
        ranks = {each: rank for rank, each in enumerate(in_order({unit(item.nodeid) for item in items}))}
        items.sort(key=lambda item: ranks[unit(item.nodeid)])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests with the oldest Python where there is none."""
    if item.get_closest_marker("oldest") and oldest_python() is None:
        pytest.skip(f"this machine has no Python {VERSION}")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[str]:
    """The socket of a process that has imported the command line."""
    with imported() as path:
        yield path


@pytest.fixture
def call(fork_server: str, tmp_path: Path) -> Program:
    """The command line as a user calls it, in the folder of the test."""
    return Program(fork_server, tmp_path)


@pytest.fixture(scope="session")
def _s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    read_models_once()
    with running(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


def read_models_once() -> None:
    """Keep the content that botocore reads from its files: each client parses 2 MB, and a test has two or three.

    Ask its own functions for what they accept in a faster way, too.
    """
    hooks = pytest.importorskip("botocore.hooks")
    asked = hooks.accepts_kwargs
    hooks.accepts_kwargs = lambda it: bool(it.__code__.co_flags & CO_VARKEYWORDS) if isroutine(it) else asked(it)
    loaders = pytest.importorskip("botocore.loaders")
    load, services = loaders.JSONFileLoader.load_file, loaders.Loader.list_available_services
    loaded = functools.cache(lambda path: load(loaders.JSONFileLoader(), path))
    listed = functools.cache(lambda kind: services(loaders.create_loader(), kind))
    loaders.JSONFileLoader.load_file = lambda _, file_path: loaded(file_path)
    loaders.Loader.list_available_services = lambda _, type_name: listed(type_name)


@pytest.fixture
def s3_server(_s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server on a free port, which fsspec's ``s3://`` reaches through the environment."""
    s3fs = pytest.importorskip("s3fs")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", _s3_process.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    # fsspec keeps file systems by their arguments, which do not include the endpoint.
    s3fs.S3FileSystem.clear_instance_cache()
    yield _s3_process
    finish_requests()
    for filesystem in list(s3fs.S3FileSystem._cache.values()):
        # s3fs allows a tenth of a second for this, and leaves connections open on a busy machine.
        if filesystem._pid == os.getpid() and filesystem._s3 is not None:
            sync(filesystem.loop, filesystem._s3creator.__aexit__, None, None, None, timeout=120)
    s3fs.S3FileSystem.clear_instance_cache()


def finish_requests() -> None:
    """Wait for the requests of a call that an error has ended: it abandons them, and they end when they are answered.

    A request that loses its connection would cause a warning in the next test.
    """
    deadline = time.monotonic() + 60
    for thread in threading.enumerate():
        if thread.name.startswith("torchx-kfp_"):  # threads of step metrics do not end
            thread.join(max(0.0, deadline - time.monotonic()))


@pytest.fixture
def s3_base(s3_server: S3Server) -> str:
    """A tracker base in a new bucket."""
    import s3fs

    bucket = f"bucket-{uuid.uuid4().hex}"
    # `mkdir` would first ask twice whether it exists.
    s3fs.S3FileSystem().call_s3("create_bucket", Bucket=bucket)
    return f"s3://{bucket}/results"


@pytest.fixture(scope="session")
def _mlflow_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server with a database, on a free port."""
    pytest.importorskip("mlflow", reason="the group `dev` has MLflow")
    folder = tmp_path_factory.mktemp("mlflow")
    with serving([sys.executable, "-m", "tests.mlflow_server", str(folder)], folder / "log") as url:
        yield url


@pytest.fixture
def mlflow_server(_mlflow_process: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an MLflow server; MLflow's variables are not set."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return _mlflow_process


@pytest.fixture(scope="session")
def torchrun() -> Path:
    """The program of PyTorch that starts the processes of a training."""
    program = Path(sys.executable).with_name("torchrun")
    if not program.exists():
        missing("torch", "needs torch, which `make test-torch` installs")
    return program


@pytest.fixture
def memory_base() -> Iterator[str]:
    """A tracker base in memory, which is emptied afterwards."""
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield "memory://results"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else str(request.getfixturevalue(f"{request.param}_base"))


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let statements that a process makes once be made in each test, since tests share the tracker base in memory."""
    monkeypatch.setattr(lineage, "_recorded", set())
    monkeypatch.setattr(entries, "_warned", set())
