"""Further trackers of a stage: in its command, and in its environment when the command runs."""

from pathlib import Path
from typing import Any

import pytest
from kfp import components
from torchx.components import utils

from tests.authoring.apps import HOSTILE, compile_pipeline, load, make_app, unresolved_inputs
from tests.authoring.kfp_engines import Container, container_of, containers
from tests.facts import says
from torchx_kfp import component_from_app, component_from_function, component_spec_from_app, task_from_app
from torchx_kfp.contract import protocol
from torchx_kfp.errors import AppDefError, ChannelError

pytestmark = pytest.mark.versions

BASE = "/tmp/results"


def environment(container: Container) -> dict[str, str]:
    """Return the environment of a stage whose application is ``env -0``."""
    done = container.run()
    assert done.returncode == 0, done.stderr
    return dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)


def stage(tmp_path: Path, trackers: Any, **fields: Any) -> Container:
    """Return a tracked stage with these trackers and only constants."""

    def pipeline(tracker_base: str = BASE) -> None:
        app = make_app(entrypoint="env", args=["-0"], **fields)
        task_from_app(app, tracker_base=tracker_base, trackers=trackers)

    known = {"inputs": {"tracker_base": BASE}, "outputs": {"run_id": str(tmp_path / "run_id")}}
    return container_of(compile_pipeline(pipeline), "train", **known)


@pytest.mark.parametrize(
    "trackers",
    [
        {},
        {"mlflow": None},
        {"mlflow": ""},
        {"mlflow": "http://mlflow:5000"},
        {"mlflow": "http://mlflow:5000", "my.module:create": None, "third": "a,b c=d"},
        {f"t{index}": text for index, text in enumerate(HOSTILE)},
    ],
)
def test_the_stage_decodes_what_was_given(tmp_path: Path, trackers: dict[str, str | None]) -> None:
    environ = environment(stage(tmp_path, trackers, env={"A": "$$"}))
    context = protocol.decode(environ)
    assert context.trackers == {name: config or None for name, config in trackers.items()}
    assert list(context.trackers) == list(trackers)
    set_by_it = {name: value for name, value in environ.items() if name.startswith("TORCHX_")}
    assert set_by_it == protocol.encode(context)
    assert environ["A"] == "$$"


def test_channels(tmp_path: Path) -> None:
    def pipeline(host: str, port: int, tracker_base: str = BASE) -> None:
        app = make_app(entrypoint="env", args=["-0"])
        task_from_app(app, tracker_base=tracker_base, trackers={"a": f"http://{host}:{port}/x", "b": host, "c": port})

    compiled = compile_pipeline(pipeline)
    assert unresolved_inputs(load(compiled)[0]) == []
    inputs = {"tracker_base": BASE, "host": "$(HOME) 'x'", "port_int": "5"}
    container = container_of(compiled, "train", inputs=inputs, outputs={"run_id": str(tmp_path / "run_id")})
    trackers = protocol.decode(environment(container)).trackers
    assert trackers == {"a": "http://$(HOME) 'x':5/x", "b": "$(HOME) 'x'", "c": "5"}


def test_a_stage_without_trackers_has_the_same_command() -> None:
    plain, empty = (component_spec_from_app(make_app(), tracked=True, trackers=trackers) for trackers in (None, {}))
    assert plain == empty
    assert "TORCHX_TRACKER_MLFLOW" not in plain


def test_components(tmp_path: Path) -> None:
    trackers = {"mlflow": "http://mlflow:5000"}
    train = component_from_app(make_app(), tracked=True, trackers=trackers)
    echo = component_from_function(utils.echo, num_replicas=1, tracked=True, trackers=trackers)
    loaded = components.load_component_from_text(
        component_spec_from_app(make_app("load"), tracked=True, trackers=trackers)
    )

    def pipeline(tracker_base: str) -> None:
        train(tracker_base=tracker_base)
        echo(tracker_base=tracker_base)
        loaded(tracker_base=tracker_base)

    commands = [container["command"] for container in containers(compile_pipeline(pipeline)).values()]
    assert len(commands) == 3
    for command in commands:
        variables = command[command.index("env", 1) :]
        assert variables[1:3] == [
            "TORCHX_TRACKERS=torchx_kfp,mlflow",
            "TORCHX_TRACKER_MLFLOW_CONFIG=http://mlflow:5000",
        ]


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        ("mlflow", says("trackers={'mlflow'", "Give")),
        (["mlflow"], r"^trackers is \['mlflow'\]\. Give"),
        ({"": None}, says("''", "torchx.tracker", "'module:function'", "trackers=", "'mlflow'", "Name")),
        ({1: None}, r"^trackers has the name 1\. Name an entry point"),
        ({"a\0": None}, says("'a\\x00'", "NUL", "Remove")),
        ({"a,b": None}, says("'a,b'", "Give")),
        ({"torchx_kfp": None}, says("'torchx_kfp'", "Remove")),
        ({"Torchx_Kfp": None}, says("'Torchx_Kfp'", "Remove")),
        (
            {"a": None, "A": "x"},
            says("'a'", "'A'", "variable", "TORCHX_TRACKER_A_CONFIG", "Use"),
        ),
        ({"a": 5}, says("trackers['a']", "(int)", "'5'", "string")),
        ({"a": "x\0"}, r"^trackers\['a'\] contains a NUL character"),
        (
            {"my-tracker": "x"},
            says("'my-tracker'", "torchx.tracker", "ASCII", "'TORCHX_TRACKER_MY-TRACKER_CONFIG'"),
        ),
        (
            {"module:f": "x"},
            says("torchx.tracker", "ASCII", "'_'", "'module:f'"),
        ),
        ({"größe": "x"}, says("ASCII", "'_'", "None", "torchx.tracker", "'größe'", "'TORCHX_TRACKER_GRÖSSE_CONFIG'")),
    ],
)
def test_what_is_refused(trackers: Any, message: str) -> None:
    with pytest.raises(AppDefError, match=message):
        component_from_app(make_app(), tracked=True, trackers=trackers)


def test_a_misspelled_tracker_is_suspicious() -> None:
    with pytest.warns(UserWarning, match=says("'mlfow'", "torchx.tracker", "'mlflow'")) as caught:
        component_from_app(make_app(), tracked=True, trackers={"mlfow": "http://mlflow:5000"})
    assert [warning.filename for warning in caught] == [__file__]
    # The image may have a tracker that is not installed here.
    component_from_app(make_app(), tracked=True, trackers={"neptune": None, "mlflow_x:create": None})


def test_channels_are_refused_where_they_have_no_value() -> None:
    def name(uri: str) -> None:
        task_from_app(make_app(), tracker_base="/tmp", trackers={f"{uri}": None})

    def component(uri: str) -> None:
        component_from_app(make_app(), tracked=True, trackers={"mlflow": f"{uri}"})

    def escaped(uri: str) -> None:
        task_from_app(make_app(), tracker_base="/tmp", trackers={"mlflow": f"$${uri}"})

    with pytest.raises(
        AppDefError, match=says("'{{channel", "torchx.tracker", "'module:function'", "trackers=", "Name")
    ):
        compile_pipeline(name)
    with pytest.raises(ChannelError, match=says("'uri'", "channel", "task_from_app")):
        compile_pipeline(component)
    with pytest.raises(ChannelError, match=says("trackers['mlflow']", "'$$'", "channel", "Split")):
        compile_pipeline(escaped)


def test_a_stage_that_is_not_tracked() -> None:
    def task() -> None:
        task_from_app(make_app(), trackers={"mlflow": None})

    message = r"^trackers names 'mlflow' for a stage that is not tracked\. Give it a tracker base: Stages"
    with pytest.raises(AppDefError, match=message):
        compile_pipeline(task)
    with pytest.raises(AppDefError, match=message):
        component_from_app(make_app(), trackers={"mlflow": None})


@pytest.mark.parametrize("config", [None, "http://mlflow:5000"])
def test_a_role_that_sets_the_configuration_itself(config: str | None) -> None:
    app = make_app(env={"TORCHX_TRACKER_MLFLOW_CONFIG": "x"})
    with pytest.raises(
        AppDefError, match=says("TORCHX_TRACKER_MLFLOW_CONFIG", "'x'", "tracked", "stage", "tracker_base", "'trainer'")
    ):
        component_from_app(app, tracked=True, trackers={"mlflow": config})
    component_from_app(app, tracked=True)


def test_a_configuration_may_be_a_secret() -> None:
    secrets = {"mlflow": {"uri": "TORCHX_TRACKER_MLFLOW_CONFIG"}}
    component_from_app(make_app(), tracked=True, trackers={"mlflow": None}, secrets=secrets)
    with pytest.raises(
        AppDefError, match=says("'TORCHX_TRACKER_MLFLOW_CONFIG'", "tracked", "stage", "'mlflow'", "'uri'", "Use")
    ):
        component_from_app(make_app(), tracked=True, trackers={"mlflow": "x"}, secrets=secrets)
