"""The findings of a check about KFP's backend: what differs there, what arrives there, and the way out."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035, UP045

from typing import List, Optional

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kfp import dsl, kubernetes

from tests.execution.local.components import shell, text_of, write
from tests.watching import Heard
from torchx_kfp.contract.inputs import find_rewritten
from torchx_kfp.execution.local.preflight import check_pipeline, defaults_of
from torchx_kfp.execution.model.checks import find_change, of_arguments
from torchx_kfp.execution.model.findings import Finding, Kind, merge
from torchx_kfp.local import load_pipeline, run


@dsl.container_component
def with_args(text: str, out: dsl.OutputPath(str), number: int = 3):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'printf x > "$0"', out], args=[text, f"{number}"])


@dsl.container_component
def concat(text: str):
    return dsl.ContainerSpec(image="busybox", command=["echo"], args=[dsl.ConcatPlaceholder(["--text=", text])])


@dsl.container_component
def metadata_of(data: dsl.Input[dsl.Dataset]):
    return dsl.ContainerSpec(image="busybox", command=["echo", data.metadata["k"]])


@dsl.container_component
def make(data: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(image="busybox", command=["touch", data.path])


@dsl.container_component
def optional(data: Optional[dsl.Input[dsl.Dataset]] = None):
    return dsl.ContainerSpec(image="busybox", command=["true"])


@dsl.pipeline
def inner(text: str) -> str:
    return write(x=text).outputs["out"]


@dsl.pipeline
def inner_list(items: list):
    write(x="a")


@dsl.pipeline
def choose(side: str) -> str:
    with dsl.If(side == "a"):
        one = write(x="1")
    with dsl.Else():
        two = write(x="2")
    return dsl.OneOf(one.outputs["out"], two.outputs["out"])


def nested_text(lr: float = 0.1):
    inner(text=f"one-{lr}")


def nested_list(lr: float = 0.1):
    inner_list(items=["a", f"{lr}", lr])


def item_with_a_channel(lr: str = "a"):
    with dsl.ParallelFor(["a", f"{lr}"]) as item:
        write(x=item)


def collected_from_branches():
    with dsl.ParallelFor(["a", "b"]) as side:
        chosen = choose(side=side)
    text_of(List[str], "text-of-list")(x=dsl.Collected(chosen.output))


def collected_from_an_if():
    with dsl.ParallelFor(["a", "b"]) as side, dsl.If(side == "a"):
        made = write(x=side)
    text_of(List[str], "text-of-list")(x=dsl.Collected(made.outputs["out"]))


def field_of_an_item(items: list):
    with dsl.ParallelFor(items) as item, dsl.ParallelFor(item.words) as word:
        write(x=word)


def concatenated():
    concat(text="a")


def default_that_is_not_passed():
    with_args(text="a")


def small_limit():
    write(x="a").set_memory_limit("32M")


def retried():
    write(x="a").set_retry(2)


def optional_artifact():
    optional(data=make().outputs["data"])


def two_that_ignore_a_failure():
    failing = write(x="a")
    write(x="b").after(failing).ignore_upstream_failure()
    write(x="c").after(failing).ignore_upstream_failure()


def after_one_that_ignores():
    first = write(x="a")
    ignoring = write(x="b").after(first).ignore_upstream_failure()
    write(x="c").after(ignoring)


def metadata_in_a_command():
    metadata_of(data=make().outputs["data"])


def fact_inside_of_text():
    write(x=f"{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}!")


def pipelines_root():
    write(x=dsl.PIPELINE_ROOT_PLACEHOLDER)


def dollars():
    shell(script="echo $$")


def variable_of_the_container():
    shell(script="echo $(NAME)").set_env_variable("NAME", "value")


def variable_of_each_container():
    shell(script="echo $(KFP_POD_NAME)")


def dollar_before_an_accent():
    write(x="$é")


def argo():
    shell(script="echo {{workflow.name}}")


def variable():
    shell(script=":").set_env_variable("NAME", "a$$b")


def large_character():
    write(x="\U0001f600")


@pytest.mark.parametrize(
    ("function", "kind", "place", "words"),
    [
        (nested_text, Kind.FAILS, "task 'inner'", "contains 'lr', which arrives as {{$.inputs.parameters"),
        (nested_list, Kind.FAILS, "task 'inner-list'", "contains 'lr', which arrives as {{$.inputs.parameters"),
        (item_with_a_channel, Kind.FAILS, "task 'for-loop-2'", "contains the channel 'lr' as text"),
        (collected_from_branches, Kind.FAILS, "task 'text-of-list'", "take different branches"),
        (collected_from_an_if, Kind.MAY_FAIL, "task 'text-of-list'", "if an iteration has skipped the branch"),
        (field_of_an_item, Kind.FAILS, "task 'for-loop-1/for-loop-2'", 'loops over parseJson(string_value)["words"]'),
        (concatenated, Kind.FAILS, "task 'concat'", "dsl.ConcatPlaceholder"),
        (default_that_is_not_passed, Kind.MAY_FAIL, "task 'with-args'", "is not given the input 'number'"),
        (small_limit, Kind.MAY_FAIL, "task 'write'", "may use 32 MB of memory"),
        (retried, Kind.CHANGED, "task 'write'", "templateDefaults.retryStrategy"),
        (optional_artifact, Kind.MAY_FAIL, "task 'optional'", "for the optional input 'data'"),
        (two_that_ignore_a_failure, Kind.CHANGED, "task 'write-2'", "KFP runs only 'write-3'"),
        (after_one_that_ignores, Kind.MAY_FAIL, "task 'write-3'", "waits for 'write-2', which ignores a failure"),
        (metadata_in_a_command, Kind.CHANGED, "task 'metadata-of'", "{{$.inputs.artifacts['data'].metadata['k']}}"),
        (fact_inside_of_text, Kind.CHANGED, "task 'write'", "{{$.pipeline_job_name}} inside the text of its input 'x'"),
        (pipelines_root, Kind.CHANGED, "task 'write'", "{{$.pipeline_root}}"),
        (dollars, Kind.CHANGED, "task 'shell'", "'echo $$' in its input 'script', which arrives as 'echo $':"),
        (variable_of_each_container, Kind.CHANGED, "task 'shell'", "arrives as 'echo <KFP_POD_NAME>'"),
        (dollar_before_an_accent, Kind.CHANGED, "task 'write'", "arrives as '$Ã\ufffd'"),
        (argo, Kind.CHANGED, "task 'shell'", "arrives as 'echo <workflow.name>'"),
        (variable, Kind.CHANGED, "task 'shell'", "'a$$b' in its variable NAME, which arrives as 'a$b'"),
        (large_character, Kind.MAY_FAIL, "task 'write'", "(U+1F600) in its input 'x'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_the_backend_does_otherwise(function, kind, place, words):
    found = check_pipeline(load_pipeline(dsl.pipeline(function)))
    assert [(finding.kind, finding.place) for finding in found] == [(kind, place)], found
    assert words in found[0].text


def clean(lr: float, words: List[str]):
    first = write(x=f"one-{lr}")
    with dsl.ParallelFor(words) as word:
        made = inner(text=word)
    text_of(List[str], "text-of-list")(x=dsl.Collected(made.output)).after(first)
    shell(script="echo $(date) $HOME ${HOME} $").set_memory_limit("128M")


def test_nothing_is_found_where_nothing_is_wrong():
    assert check_pipeline(load_pipeline(dsl.pipeline(clean))) == []


def test_variables_that_the_container_has():
    """This includes those of a secret; text with other names stays unchanged."""

    @dsl.container_component
    def echo():
        return dsl.ContainerSpec(image="busybox", command=["echo", "$(TOKEN)"], args=["$(NAME) $(OTHER)"])

    @dsl.pipeline
    def pipeline():
        kubernetes.use_secret_as_env(echo().set_env_variable("NAME", "value"), "keys", {"token": "TOKEN"})

    found = check_pipeline(load_pipeline(pipeline))
    assert [finding.kind for finding in found] == [Kind.CHANGED, Kind.CHANGED]
    assert "'$(TOKEN)' in its command, which arrives as '<TOKEN>'" in found[0].text
    assert "'$(NAME) $(OTHER)' in its command, which arrives as 'value $(OTHER)'" in found[1].text


def test_long_text_around_a_change_is_cut_visibly():
    assert find_change("echo $$ costs $(HOME)") == ("echo $$ costs $(HOM…", "echo $ costs $(HOM…")
    assert find_change("It is known that $$5 is the price") == (
        "… known that $$5 is the pri…",
        "… known that $5 is the pri…",
    )


def test_arguments():
    arguments = {"note": "a$$b", "items": [{"k": "$(KUBERNETES_SERVICE_HOST)"}], "lr": 0.1, "face": "\U0001f600"}
    found = list(of_arguments(arguments))
    assert [(finding.kind, finding.place) for finding in found] == [
        (Kind.CHANGED, "the argument 'note'"),
        (Kind.CHANGED, "the argument 'items'"),
        (Kind.MAY_FAIL, "the argument 'face'"),
    ]
    assert "'a$$b', which arrives as 'a$b'" in found[0].text
    assert "<KUBERNETES_SERVICE_HOST>" in found[1].text


def test_defaults_are_arguments():
    def pipeline(note: str = "a$$b", given: str = ""):
        write(x=note)

    assert defaults_of(load_pipeline(dsl.pipeline(pipeline))) == {"note": "a$$b", "given": ""}


def test_the_same_of_several_places_is_said_once():
    findings = [Finding(Kind.CHANGED, f"task '{name}'", "is odd") for name in "abcdef"]
    (merged,) = merge([*findings, *findings])
    assert str(merged) == "task 'a' (and 'b', 'c', 'd' and 2 more) is odd."


def test_a_run_says_what_differs(tmp_path):
    @dsl.pipeline
    def pipeline(text: str):
        write(x=text).set_retry(1)

    events = []
    run(pipeline, {"text": "a$$b"}, output_dir=tmp_path, watch=Heard(on_event=events.append))
    retried, argument = events[0].differs
    assert retried.startswith("task 'write' is retried here")
    assert argument.startswith("the argument 'text' contains 'a$$b', which arrives as 'a$b'")


@given(st.text(alphabet=st.sampled_from("$(){}= aé\u4e2d"), max_size=12))
@example("{{=1}}")
@example("$(")
def test_text_that_the_adapter_leaves_alone_arrives_as_it_is(text):
    if find_rewritten(text) is None:
        assert find_change(text) is None
