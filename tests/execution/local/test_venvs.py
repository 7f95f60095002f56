"""Packages of Python components are installed into environments on top of the running one, created once, and kept."""

import fcntl
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from kfp import compiler, dsl

from tests.execution.host.scripted import CLOSE, Reply, scripted
from torchx_kfp.local import replay


def make_wheel(folder: Path, name: str, version: str) -> Path:
    """Return a wheel with one module, which has the version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def environments(cache):
    return [path for path in cache.glob("*/*") if path.is_dir() and not path.is_symlink()]


def using(*packages, **options):
    """Return a component with packages, which tells where two of them come from."""

    def use(n: int = 0) -> str:
        import subprocess
        import sys

        import kfp
        import tabulate
        import tiny

        # A program that the function starts runs in the same environment.
        code = "import sys, tiny; print(sys.prefix)"
        prefix = subprocess.run(["python", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        return f"{tiny.version} {tabulate.version} {kfp.__version__} {prefix == sys.prefix}"

    return dsl.component(use, base_image="python:3.11", packages_to_install=list(packages), **options)


def test_packages_are_installed_once_for_all_stages_and_runs(execute, tmp_path, cache):
    # One package is not installed anywhere, and the other one hides an installed one.
    tiny, tabulate = make_wheel(tmp_path, "tiny", "1.5"), make_wheel(tmp_path, "tabulate", "99")
    use = using(f"tiny @ file://{tiny}", str(tabulate))

    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor([1, 2, 3]) as n:
            use(n=n)

    kfp_version = importlib.metadata.version("kfp")
    before = importlib.metadata.version("tabulate")
    result = execute(pipeline, parallelism=3)
    assert {stage.outputs["Output"] for stage in result.stages} == {f"1.5 99 {kfp_version} True"}
    logs = [stage.log_file.read_text() for stage in result.stages]
    assert sum("Successfully installed" in log for log in logs) == 1
    (environment,) = environments(cache)

    again = execute(pipeline)
    assert not any("Installing" in stage.log_file.read_text() for stage in again.stages)
    assert environments(cache) == [environment]
    # The running environment was not changed.
    importlib.invalidate_caches()
    assert importlib.metadata.version("tabulate") == before
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("tiny")


def test_a_replay_installs_what_is_missing(execute, tmp_path, cache):
    tiny, tabulate = make_wheel(tmp_path, "tiny", "1.5"), make_wheel(tmp_path, "tabulate", "99")
    use = using(f"tiny @ file://{tiny}", str(tabulate))

    @dsl.pipeline
    def pipeline():
        use()

    done = execute(pipeline)
    shutil.rmtree(cache)
    again = replay(done.folder, "use", say=[].append)
    assert again.stage.outputs == done["use"].outputs
    assert again.stage.log_file.read_text().count("Successfully installed") == 1
    assert len(environments(cache)) == 1


def test_a_signal_while_an_application_starts_after_pip_reaches_it(execute, tmp_path, cache, monkeypatch):
    tiny = make_wheel(tmp_path, "tiny", "1.5")

    @dsl.component(base_image="python:3.11", packages_to_install=[f"tiny @ file://{tiny}"])
    def wait(path: str):
        import os
        import time

        time.sleep(60 if os.path.exists(path) else 0)

    @dsl.pipeline
    def pipeline(path: str):
        wait(path=path)

    class Interrupted(subprocess.Popen):
        def __init__(self, words, *args, **options):
            super().__init__(words, *args, **options)
            if "--component_module_path" in words:
                os.kill(os.getpid(), signal.SIGTERM)

    done = execute(pipeline, {"path": str(tmp_path / "go")})
    (tmp_path / "go").touch()
    shutil.rmtree(cache)
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    assert replay(done.folder, "wait", say=[].append).stage.exit_code == -signal.SIGTERM


def test_a_package_that_cannot_be_installed(execute_failing, tmp_path, cache):
    use = using(f"tiny @ file://{tmp_path}/tiny-1.0-py3-none-any.whl", pip_index_urls=["https://user:secret@host"])

    @dsl.pipeline
    def pipeline():
        use()

    (stage,) = execute_failing(pipeline).stages
    assert stage.exit_code == 1
    assert stage.reason == (
        f"could not get its packages (tiny @ file://{tmp_path}/tiny-1.0-py3-none-any.whl): pip ended with exit code 1"
    )
    assert any(line.startswith("ERROR: ") and "tiny-1.0" in line for line in stage.last_lines())
    assert environments(cache) == []


def test_a_cache_that_cannot_be_written(execute_failing, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    use = using("./no/where")

    @dsl.pipeline
    def pipeline():
        use()

    (stage,) = execute_failing(pipeline).stages
    assert stage.reason.startswith(f"could not get an environment for its packages in {tmp_path}/file/torchx-kfp/")
    assert stage.reason.endswith("Set XDG_CACHE_HOME to a writable folder")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_environment_whose_maker_was_ended(execute, tmp_path, cache, monkeypatch, number):
    tiny, tabulate = make_wheel(tmp_path, "tiny", "2.0"), make_wheel(tmp_path, "tabulate", "99")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    asked, go = threading.Event(), threading.Event()

    def serve(_):
        """Send the wheel, but let the first request wait."""
        if asked.is_set():
            return Reply(tiny.read_bytes())
        asked.set()
        go.wait()
        return CLOSE

    with scripted(serve) as server:
        use = using(f"tabulate @ file://{tabulate}", f"tiny @ {server.url}/{tiny.name}")

        @dsl.pipeline
        def pipeline():
            use()

        compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
        command = [str(Path(sys.executable).parent / "torchx-kfp"), "run", "pipeline.yaml", "--quiet"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as runner:
            assert asked.wait(120)
            os.kill(runner.pid, number)
            runner.wait(120)
        go.set()
        left = environments(cache)
        if number == signal.SIGINT:
            assert left == []
            return
        assert len(left) == 1
        (stage,) = execute(str(tmp_path / "pipeline.yaml")).stages
    assert stage.outputs["Output"].startswith("2.0 99 ")
    (environment,) = environments(cache)
    assert environment not in left
    with (environment.parent / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
