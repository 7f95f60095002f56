"""Text of any kind reaches the replicas byte for byte, on a cluster and on one machine; names fit Kubernetes."""

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torchx.specs import macros

from tests.authoring.apps import HOSTILE, PLAIN
from tests.authoring.engines.apps import app, distributed, role
from tests.authoring.engines.filled import launched
from tests.authoring.kfp_engines import kubelet
from tests.facts import says
from torchx_kfp import engines
from torchx_kfp.errors import AppDefError

pytestmark = pytest.mark.versions

ID = "${replica_id}"
PIECES = st.sampled_from([*HOSTILE, *PLAIN, ID, "1000000000", "1", "0" * 9]) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20
)
TEXTS = st.lists(PIECES, min_size=1, max_size=5).map("".join).filter(lambda text: "{{channel" not in text)
VALUES: Any = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80)


def expanded(text: str, index: int) -> str:
    """Return what TorchX's schedulers hand to a replica."""
    values = macros.Values("", app_id="train", replica_id=str(index), rank0_env="TORCHX_RANK0_HOST")
    return values.substitute(text)


def processes(manifest: dict[str, Any], index: int) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the variables of a replica as the kubelet makes them."""
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    environ: dict[str, str] = {}
    for entry in container["env"]:
        known = str(index) if "valueFrom" in entry else kubelet(entry["value"], environ)
        environ[entry["name"]] = known
    return [kubelet(word, environ) for word in container["command"]], environ


@pytest.mark.parametrize("tracked", [pytest.param(False, marks=pytest.mark.usual), True])
@settings(max_examples=40)
@given(st.lists(TEXTS, max_size=8), st.lists(TEXTS, min_size=2, max_size=2))
@example([*HOSTILE, *PLAIN, *(f"{text}{ID}{text}" for text in HOSTILE if not text.endswith("$"))], ["$(HOME)", ID])
def test_arguments_and_variables_on_a_cluster(tracked: bool, args: list[str], values: list[str]) -> None:
    env = {"FIRST": values[0], "b.c": values[1]}
    found = launched(app(role(args=args, env=env)), engines.Job(), tracked=tracked)
    # The launcher inherits constant variables, and hands them on.
    inherited = {} if ID in values[0] else {"FIRST": expanded(values[0], 2)}
    command, environ = processes(found.manifest(environ=inherited), 2)
    assert command[:2] == ["sh", "-c"]
    odd = f"b.c={expanded(values[1], 2)}"
    assert command[4:] == ["env", odd, "python3", *(expanded(text, 2) for text in args)]
    assert environ["FIRST"] == expanded(values[0], 2)


@settings(max_examples=20)
@given(st.dictionaries(VALUES, VALUES, min_size=1, max_size=9))
@example({"a\U000e0001b": "$$ $(HOME) {{workflow.name}} \x7f {{=1}}"})
@pytest.mark.usual
def test_the_specification_arrives_as_it_was_written(texts: dict[str, str]) -> None:
    """It has text of users in overlays."""
    annotations = {f"k{key}": text for key, text in texts.items()}
    made = app(role(metadata={"kubernetes": {"metadata": {"annotations": annotations}, "spec": texts}}))
    engine = engines.Job()
    arrived = launched(made, engine).spec
    assert arrived == distributed(made, engine).spec
    template = arrived["roles"][0]["pod"]
    arrives = {key: expanded(text, 0) for key, text in annotations.items()}
    assert template["metadata"]["annotations"].items() >= arrives.items()


def test_macros_of_an_overlay() -> None:
    overlay = {
        "metadata": {"annotations": {"app": "${app_id}", "cost": "$$5", "rank0": "${rank0_env}"}},
        "spec": {"tolerations": [{"key": "${app_id}"}], "volumes": [{"name": "x", "args": ["$app_id", "${img_root}"]}]},
    }
    (template,) = distributed(app(role(metadata={"kubernetes": overlay}))).pods()
    annotations = template["metadata"]["annotations"]
    assert [annotations[key] for key in ("app", "cost", "rank0")] == ["train", "$5", "TORCHX_RANK0_HOST"]
    assert template["spec"]["tolerations"] == [{"key": "train"}]
    assert template["spec"]["volumes"][-1]["args"] == ["train", ""]
    index = {"metadata": {"annotations": {"index": "r${replica_id}"}}}
    (template,) = distributed(app(role(num_replicas=1, metadata={"kubernetes": index}))).pods()
    assert template["metadata"]["annotations"]["index"] == "r0"
    with pytest.raises(AppDefError, match=says("${replica_id}", "'trainer'", "3 replicas", "field of the pod")):
        distributed(app(role(metadata={"kubernetes": index})))


# Names

LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?", re.ASCII)
#: The number of digits that the index of a replica may have.
INDEX = 10**6 - 1


@settings(max_examples=50)
@given(st.sampled_from(list(engines.ENGINES)), VALUES.filter(len), VALUES.filter(len))
@example("jobset", "x" * 80, "y" * 80)
@example("jobset", "1-" * 40, "-" * 40)
@pytest.mark.usual
def test_names_of_objects_fit_with_every_suffix(engine: str, stage: str, name: str) -> None:
    found = launched(app(role(name), name=stage), engines.ENGINES[engine]())
    made = found.stage()
    (pod,) = found.spec["roles"]
    role_name = pod["name"]
    # What the controllers append: an index, and five characters that make the pod's name unique.
    names = {
        "job": [f"{made.name}-{INDEX}-abcde"],
        "jobset": [f"{made.name}-{role_name}-0-{INDEX}-abcde"],
        "trainjob": [f"{made.name}-node-0-{INDEX}-abcde"],
    }[engine]
    host, _, domain = (found.spec["host"] % {"name": made.name}).partition(".")
    for label in (made.name, role_name, host, domain, *names):
        assert LABEL.fullmatch(label), label
        assert len(label) <= 63, label


# Shell programs

#: Programs with the index of a replica, in places where a channel would be rejected: its value might be code.
PROGRAMS = [
    "echo $(( ${replica_id} + 1 ))",
    "eval 'echo ${replica_id}'",
    "echo '${replica_id};}}'",
    "x${replica_id}=5; echo $x1",
    "awk 'BEGIN { print ${replica_id} }'",
    'trap "echo ${replica_id}" EXIT',
    "echo '${replica_id}' \"${replica_id}\" ${replica_id}",
    'eval "echo $ME"',
    "cat <<'EOF'\n${replica_id}\nEOF",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_index_of_a_replica_is_text_of_a_shell_program(program: str) -> None:
    found = launched(app(role(entrypoint="sh", args=["-c", program], env={"ME": f"i{ID}"})), engines.Job())
    command, environ = processes(found.manifest(), 1)
    assert command[4:] == ["sh", "-c", expanded(program, 1)]
    assert environ["ME"] == "i1"
    assert set(environ) == {"ME", "TORCHX_REPLICA_ID", "TORCHX_NUM_REPLICAS", "TORCHX_RANK0_HOST"}


@pytest.mark.parametrize("name", ["1000000000", "000000000"])
def test_digits_from_the_apps_name_stay(name: str) -> None:
    """A number represents the index where programs of shells are read."""
    made = app(role(args=["1${app_id}", "${app_id}${replica_id}1${app_id}0"]), name=name)
    found = launched(made, engines.Job())
    command, _ = processes(found.manifest(), 3)
    assert command[5:] == [f"1{name}", f"{name}31{name}0"]


def unescaped(word: str) -> str:
    return re.sub(r"\\0(\d{3})", lambda found: chr(int(found[1], 8)), word)


def test_a_channel_beside_the_index_stays_a_channel() -> None:
    found = distributed(lambda lr, *_: app(role(entrypoint="sh", args=["-c", f"echo '{lr}' ${{replica_id}} +"])))
    (described,) = found.spec["roles"]
    assert "TORCHX_KFP_LR" in dict(described["env"])
    before, _, after = described["command"][2]
    assert '"${TORCHX_KFP_LR}"' in unescaped(found.words[before])
    assert found.words[after] == " +"
    with pytest.raises(AppDefError, match=says("'trainer'", "'lr'", "code")):
        distributed(lambda lr, *_: app(role(entrypoint="sh", args=["-c", f"eval echo '{lr}' ${{replica_id}}"])))
