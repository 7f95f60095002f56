"""Commands of stages: decoding returns what was encoded, for all shapes of stages, and for all recorded pipelines."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.authoring.kfp_engines import kubelet
from torchx_kfp.contract.command import Outputs, decode_command, encode_command, launcher_words
from torchx_kfp.contract.inputs import (
    RUN_ID,
    escape,
    find_rewritten,
    output_placeholder,
    parameter_placeholder,
    stage_value,
)
from torchx_kfp.contract.scripts import retry_words, workspace_words
from torchx_kfp.contract.specification import REPLICA, LauncherSpec, RoleSpec
from torchx_kfp.execution.model.texts import expand

TESTS = Path(__file__).parents[1]
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["$(A)", "$$", "{{x}}", "a|b", "a b", "\\0101", "é$é", '"', "\n", "", "A=b", '{"Concat": ['],
)
NAMES = st.sampled_from(["A", "LR", "AWS_ENDPOINT_URL", "PATH", "PYTHONPATH", "LD_PRELOAD"])
RUN_IDS = st.sampled_from(["run/a/1", "run/b/pod_0a1b2c3d", "run/c[0]/pod_0a1b2c3d_2"])
OUTPUTS = Outputs(
    {"accuracy": ("float", "accuracy"), "top_5": ("list", "top-5")},
    {"model": ("model", False), "report_1": ("report/1", True)},
)
#: The index of a replica in the texts of ``SPECIFICATION``, whose words are those of the application.
INDEX = object()


def specification(application: list[str]) -> LauncherSpec[Any]:
    return LauncherSpec(
        **dict.fromkeys(("stage", "engine", "needs", "api", "plural", "succeeded", "host", "config"), "text"),
        **{key: [] for key in ("companions", "claims", "success")},
        object={"metadata": {"name": {"@": "name"}}, "spec": {}},
        roles=[
            RoleSpec(
                name="a",
                pod={"spec": {"containers": [{"name": "a", "image": "$(image)"}]}},
                image=("$(image)",),
                most=3,
                fewest=2,
                ports=[1],
                inherited=["B"],
                env={"C": (application[0], INDEX)},
                command=[(word,) for word in application],
            ),
            RoleSpec(
                name="b",
                ports=[],
                inherited=[],
                pod={"spec": {"containers": [{"name": "b", "image": {"@": "1.image"}}]}},
                image=("x:", *application[:1]),
                count=(application[-1],),
            ),
        ],
        retries=2,
    )


PROGRAMS = ["none", "retries", "launcher"]


def encoded(draw: Any, name: str, text: str, values: list[str], *, lifts: bool) -> tuple[str, str]:
    """Return the word ``name`` + ``text`` in one of the forms that it may have, and the letter of that in a mask."""
    if lifts and re.fullmatch(r"[\w=.]+", text, re.ASCII) and draw(st.booleans()):
        values.append(text)
        return name, "v"
    text = name + text
    return (escape(text), "b") if find_rewritten(text) else (text, "s")


@st.composite
def stages(draw: Any) -> tuple[list[str], dict[str, Any]]:
    """Return a command, as its process gets it, and what it says."""
    form = draw(st.sampled_from(["untracked", "tracked", "published"]))
    program = draw(st.sampled_from(PROGRAMS))
    variables = draw(st.dictionaries(NAMES, TEXT, max_size=3))
    application = [draw(st.sampled_from(["python3", "sh", "app", "$(app)"])), *draw(st.lists(TEXT, max_size=4))]
    found = draw(st.dictionaries(TEXT.filter(bool), RUN_IDS | st.lists(RUN_IDS, max_size=2), max_size=3))
    may_fail = draw(st.none() | st.sampled_from([(), (125,)]))
    values: list[str] = []
    lifts = form != "untracked"
    own = [encoded(draw, f"{name}=", value, values, lifts=lifts) for name, value in variables.items()]
    launched = specification(application) if program == "launcher" else None
    data, texts = launched.encode(INDEX) if launched else ({}, [])
    application = ["".join(parts) for parts in texts] or application
    words = [encoded(draw, "", text, values, lifts=lifts and at > 0) for at, text in enumerate(application)]
    start: tuple[str, ...] = ()
    if program == "retries":
        start = retry_words(3, output_placeholder(RUN_ID) if lifts else None)
    if program == "launcher":
        start = launcher_words("program", data)
    workspace = draw(st.none() | st.sampled_from(["", "s3://b/.torchx_kfp/workspaces/0a.tar"]))
    if workspace is not None and program != "launcher":
        start = (*workspace_words(parameter_placeholder("workspace")), *start)
    outputs = Outputs(OUTPUTS.results, draw(st.sampled_from([{}, OUTPUTS.artifacts])), may_fail)
    publisher = outputs.words("program") if form == "published" else ()
    whole = [*([("env", "s"), *own] if own else []), *((word, "s") for word in (*publisher, *start)), *words]
    inputs: dict[str, Any] = {"base": "s3://bucket/$(a)", "workspace": workspace or ""}
    parents = []
    for at, run_ids in enumerate(found.values()):
        placeholder = parameter_placeholder(f"reads_{at}")
        if draw(st.booleans()):
            parents.append(json.dumps(run_ids))
        else:
            inputs[f"reads_{at}"] = run_ids
            parents.append(f'"{placeholder}"' if isinstance(run_ids, str) else placeholder)
    inputs["stage"] = stage_value("train", found, values)
    name, base = "0a1b2c3d", "{{$.inputs.parameters['base']}}"
    tracked = form != "untracked"
    command = encode_command(
        name,
        [word for word, _ in whole],
        "".join(letter for _, letter in whole).rstrip("s"),
        tracker_base=base if tracked else "",
        has_outputs=form == "published",
        values=parameter_placeholder("stage"),
        parents=parents,
    )
    expected = {
        "is_own": any(word.startswith("torchx-kfp-1-") for word in command),
        "stage": "train" if tracked else "",
        "tracker_base": inputs["base"] if tracked else None,
        "reads": {alias: ids if isinstance(ids, str) else tuple(ids) for alias, ids in found.items()}
        if tracked
        else {},
        "variables": variables,
        "application": (*(start if program == "launcher" else ()), *application),
        "workspace": None if program == "launcher" else workspace,
        "retries": 3 if program == "retries" else 0,
        "outputs": outputs if form == "published" else None,
    }
    return list(command), {**expected, "inputs": inputs, "specification": launched}


def plain(parts: Any) -> str:
    """Return a text as it is in a decoded command."""
    return "".join(REPLICA if part is INDEX else part for part in parts)


def filled(command: list[str], inputs: dict[str, Any]) -> list[str]:
    """Return the command with its inputs, as KFP fills them in."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in inputs.items()}

    def fill(word: str) -> str:
        if word == "{{$}}":
            return json.dumps({"inputs": {"parameterValues": inputs}})
        return re.sub(r"\{\{\$\.inputs\.parameters\['(\w+)'\]\}\}", lambda match: texts[match[1]], word)

    return [fill(word) for word in command]


@settings(max_examples=200, deadline=None)
@given(stages())
def test_a_command_says_what_it_was_made_from(stage: tuple[list[str], dict[str, Any]]) -> None:
    command, expected = stage
    inputs, specification = expected.pop("inputs"), expected.pop("specification")
    decoded = decode_command(filled(command, inputs))
    application = list(expected.pop("application"))
    if specification is not None:
        roles = [
            replace(
                role,
                image=plain(role.image),
                env={name: plain(text) for name, text in role.env.items()},
                command=[*map(plain, role.command)],
                count=None if role.count is None else plain(role.count),
            )
            for role in specification.roles
        ]
        assert decoded.specification == replace(specification, roles=roles)
        assert decoded.replica_roles == roles
        assert "{{$}}" in application
        application[application.index("{{$}}")] = decoded.application[4]
    assert list(decoded.application) == application
    assert {name: getattr(decoded, name) for name in expected} == expected
    # The command as it was compiled says all that does not need an input.
    known = {name: expected[name] for name in ("is_own", "retries", "outputs")}
    assert {name: getattr(decode_command(command), name) for name in known} == known


@given(TEXT)
def test_escaped_text_has_nothing_left_to_rewrite(value: str) -> None:
    escaped = escape(value)
    assert find_rewritten(escaped) is None
    decoded = re.sub(rb"\\0(\d{3})", lambda found: bytes([int(found[1], 8)]), escaped.encode())
    assert decoded == value.encode()


@given(st.lists(st.sampled_from("$(){}=\\0bx\n %'é漢"), max_size=8).map("".join) | TEXT)
@example("$é")
@example("$(é")
@example("$(HOME$)$(x)$")
def test_the_kubelet_of_the_package_and_that_of_the_tests_agree(word: str) -> None:
    environ = {"HOME": "/root", "": "nothing", "$": "$(HOME)", "x": "é"}
    assert expand(word, environ) == os.fsencode(kubelet(word, environ))
    assert expand("$é $$", {}) == b"$\xc3\x83\xa9 $", "as it was seen"


def test_a_command_that_was_cut_is_a_foreign_one() -> None:
    """A host, or a pipeline of somebody else, may have one."""
    tracked = encode_command("0123abcd", ["$(A)"], "b", tracker_base="base", values="stage", parents=['"reads"'])
    for command in (tracked, encode_command("0123abcd", ["$(A)"], "b")):
        for length in range(len(command)):
            assert decode_command(command[:length]).words == command[:length]
    assert not decode_command(command[:4]).is_own


@pytest.mark.parametrize(
    "change",
    [
        {"object": 5},
        {"object": {"metadata": {"labels": None}, "spec": {}}},
        {"roles": [5]},
        {"roles": [{"name": "a", "pod": {"spec": None}, "most": 1, "env": [], "command": []}]},
        {
            "roles": [
                {"name": "a", "pod": {"spec": {"containers": [{"image": "x"}]}}, "most": [], "env": [], "command": []}
            ]
        },
        {
            "roles": [
                {"name": "a", "pod": {"spec": {"containers": [{"image": "x"}]}}, "most": 1, "env": [], "command": [[9]]}
            ]
        },
    ],
)
def test_a_malformed_specification_is_that_of_another_program(change: dict[str, Any]) -> None:
    data, words = specification(["app"]).encode(INDEX)
    command = [*launcher_words("program", data), *("".join(parts) for parts in words)]
    assert decode_command(command).specification is not None
    assert decode_command([*command[:3], json.dumps({**data, **change}), *command[4:]]).specification is None


def test_a_later_version_is_a_foreign_command() -> None:
    made = encode_command("0123abcd", ["$(A)"], "b")
    assert decode_command(made).is_own
    command = tuple(word.replace("torchx-kfp-1-", "torchx-kfp-2-") for word in made)
    assert not decode_command(command).is_own
    assert decode_command(command).words == command


@pytest.mark.parametrize(
    "file", sorted((TESTS / "authoring/engines/goldens").glob("*.yaml")), ids=lambda file: file.stem
)
def test_specifications_of_all_engines(file: Path) -> None:
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    specification = LauncherSpec.decode(data["spec"], data["words"])
    assert {**vars(specification), "roles": data["spec"]["roles"]}.items() >= data["spec"].items()
    for role, recorded in zip(specification.roles, data["spec"]["roles"], strict=True):
        names = [*role.inherited, *role.env]
        assert (role.name, names, role.pod) == (
            recorded["name"],
            [name for name, _ in recorded["env"]],
            recorded["pod"],
        )
