"""A tracker base in which results cannot be recorded ends a run before its first stage."""

import os
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.facts import says
from tests.proxy import Proxy
from tests.s3 import S3Server
from torchx_kfp import task_from_app
from torchx_kfp.errors import MissingCredentialsError, TrackerBaseError, TrackerError
from torchx_kfp.local import Watch, run


def task(name: str, base: Any, program: str = "true") -> Any:
    return task_from_app(AppDef(name, roles=[Role("role", image="x", entrypoint=program)]), tracker_base=base)


@dsl.pipeline(name="one")
def one(tracker_base: str):
    task("train", tracker_base)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def attempt(base: str, pipeline: Any = one, **arguments: str) -> Any:
    return run(pipeline, {"tracker_base": base, **arguments}, output_dir="runs", watch=Watch())


def with_base(kind: str) -> Any:
    """Return a pipeline whose base that takes no files is ``file/x``, of this kind."""

    @dsl.pipeline
    def inner(place: str, other: str = "file/x" if kind == "default" else "base"):
        with dsl.ParallelFor(["file/x" if kind == "item" else "base"]) as item:
            task("a", item)
            task("b", f"{other}/below")
        task("c", place)

    @dsl.pipeline
    def outer(tracker_base: str, flag: str = "no"):
        task("d", tracker_base)
        with dsl.If(flag == "yes"):
            task("e", "file/x" if kind == "constant" else f"{tracker_base}/f")
        inner(place="file/x" if kind == "nested" else tracker_base)

    return outer


@pytest.mark.parametrize(
    ("base", "kind", "named"),
    [
        ("/proc/x", "given", "/proc/x"),  # it does not accept directories
        ("file", "given", "file"),
        ("file/below", "given", "file/below"),
        ("base", "constant", "file/x"),
        ("base", "default", "file/x/below"),
        ("base", "nested", "file/x"),
    ],
)
def test_a_base_that_takes_no_files_ends_the_run_before_it_begins(base: str, kind: str, named: str) -> None:
    Path("file").touch()
    with pytest.raises(TrackerError, match=says(f"tracker base '{named}", "Cannot write", "/.torchx_kfp/probe")):
        attempt(base, with_base(kind))
    assert not os.path.exists("runs")


@pytest.mark.parametrize("base", ["", "s3:/x"])
def test_a_base_that_is_none_ends_the_run_before_it_begins(base: str) -> None:
    with pytest.raises(TrackerBaseError, match=says(f"tracker base {base!r}", "s3://")):
        attempt(base)
    assert not os.path.exists("runs")


def test_a_base_that_is_an_item_of_a_loop_is_not_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert attempt("base", with_base("item")).state == "succeeded", "it has recorded nothing"


def test_nothing_is_left_of_the_look(tmp_path: Path) -> None:
    assert attempt("base").state == "succeeded"
    assert [path for path in (tmp_path / "base").rglob("*") if path.is_file()] == []


@pytest.mark.s3
class TestS3:
    @pytest.mark.parametrize("method", ["PUT", "GET"])
    def test_credentials_that_lack_a_right(
        self, method: str, s3_server: S3Server, s3_base: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Proxy(s3_server.url) as proxy:
            proxy.refused = {method: 403}
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            with pytest.raises(TrackerError, match=says("permission", "s3://", "credentials", "torchx_kfp", "Check")):
                attempt(s3_base)
        assert not os.path.exists("runs")

    def test_who_may_not_remove_can_run(
        self, s3_server: S3Server, s3_base: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Proxy(s3_server.url) as proxy:
            proxy.refused = {"DELETE": 403, "POST": 403}
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            assert attempt(s3_base).state == "succeeded"

    def test_no_credentials(self, s3_base: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        import s3fs

        given = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        for name in given:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(MissingCredentialsError, match=says(f"'{s3_base}'", "AWS_ACCESS_KEY_ID", "~/.aws/")):
            attempt(s3_base)
        assert not os.path.exists("runs"), "no run was begun"

        @dsl.pipeline
        def with_variables(tracker_base: str):
            app = AppDef("train", roles=[Role("role", image="x", entrypoint="true", env=given)])
            task_from_app(app, tracker_base=tracker_base)

        @dsl.pipeline
        def with_secret(tracker_base: str):
            app = AppDef("train", roles=[Role("role", image="x", entrypoint="true")])
            keys = {name.lower(): name for name in given}
            task_from_app(app, tracker_base=tracker_base, secrets={"s3": keys})

        for pipeline in (with_variables, with_secret):
            assert run(pipeline, {"tracker_base": s3_base}, output_dir="runs", watch=Watch()).state == "succeeded"

    def test_the_look_takes_three_requests(self, s3_server: S3Server, s3_base: str) -> None:
        made = s3_server.requests(lambda: attempt(s3_base))
        probes = [request.partition(" ")[0] for request in made if "probe" in request]
        assert probes == ["PUT", "GET", "DELETE"], made
