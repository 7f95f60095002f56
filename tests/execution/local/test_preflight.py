"""The findings of a check about KFP's backend: what differs there, what arrives there, and the way out."""

# The oldest supported kfp knows only typing's names of generic types. KFP takes the text of defaults.
# ruff: noqa: B006, UP006, UP035, UP045

import re
from typing import Any, List, Optional

import pytest
from kfp import compiler, dsl, kubernetes

from tests.execution.local.components import text_of, write
from tests.watching import Heard
from torchx_kfp.execution.local.preflight import check_pipeline
from torchx_kfp.local import load_pipeline, run


@dsl.container_component
def with_args(text: str, out: dsl.OutputPath(str), number: int = 3):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'printf x > "$0"', out], args=[text, f"{number}"])


@dsl.container_component
def echo():
    return dsl.ContainerSpec(image="busybox", command=["echo", "$(TOKEN)"], args=["$(NAME) $(OTHER)"])


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


#: The name of a stage -> its text.
TEXTS = {
    "fact-inside-of-text": f"{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}!",
    "pipelines-root": dsl.PIPELINE_ROOT_PLACEHOLDER,
    "dollars": "echo $$",
    "variable-of-each-container": "echo $(KFP_POD_NAME)",
    "accent": "$é",
    "argo": "echo {{workflow.name}}",
    "large-character": "\U0001f600",
    "delete": "a\x7fb",
    "long-text": "It is known that $$5 is the price",
    "clean": "echo $(date) $HOME ${HOME} $(NAME) $",
}


def texts(name: str) -> Any:
    """Return a component that takes a list."""
    return text_of(List[str], name)


def everything(
    note: str,
    items: list,
    face: str,
    key: str,
    lr: float = 0.1,
    name: str = "a",
    default: str = "$$",
    words: List[str] = ["a"],
):
    for stage, text in TEXTS.items():
        text_of(str, stage)(x=text)
    inner(text=f"one-{lr}")
    inner_list(items=["a", f"{lr}", lr])
    with dsl.ParallelFor(["a", f"{name}"]) as item:
        write(x=item)
    with dsl.ParallelFor(["a", "b"]) as side:
        chosen = choose(side=side)
    texts("collected-from-branches")(x=dsl.Collected(chosen.output))
    with dsl.ParallelFor(["a", "b"]) as side, dsl.If(side == "a"):
        made = write(x=side)
    texts("collected-from-an-if")(x=dsl.Collected(made.outputs["out"]))
    with dsl.ParallelFor(items) as item, dsl.ParallelFor(item.words) as word:
        write(x=word)
    concat(text="a")
    with_args(text="a")
    text_of(str, "small-limit")(x="a").set_memory_limit("32M")
    for _ in range(6):
        text_of(str, "retried")(x="a").set_retry(2)
    data = make().outputs["data"]
    optional(data=data)
    metadata_of(data=data)
    # Only one of two that ignore the same failure runs on KFP, and nothing can wait for one.
    failing = write(x="a")
    for _ in range(2):
        text_of(str, "ignores")(x="b").after(failing).ignore_upstream_failure()
    ignoring = text_of(str, "ignores-it")(x="b").after(write(x="a")).ignore_upstream_failure()
    text_of(str, "after-it")(x="c").after(ignoring)
    text_of(str, "variable")(x="").set_env_variable("NAME", "a$$b")
    # A container's variables include those of a secret; text with other names stays.
    kubernetes.use_secret_as_env(echo().set_env_variable("NAME", "value"), "keys", {"token": "TOKEN"})
    first = text_of(float, "enough")(x=lr).set_memory_limit("128M")
    with dsl.ParallelFor(words) as word:
        passed = inner(text=word)
    texts("passed")(x=dsl.Collected(passed.output)).after(first)


#: The place of a finding -> its kind, and a part of its text.
FINDINGS = {
    "task 'inner'": ("fails", "contains 'lr', which arrives as {{$.inputs.parameters"),
    "task 'inner-list'": ("fails", "contains 'lr', which arrives as {{$.inputs.parameters"),
    "task 'for-loop'": ("fails", "contains the channel 'name' as text"),
    "task 'collected-from-branches'": ("fails", "take different branches"),
    "task 'collected-from-an-if'": ("may fail", "if an iteration skipped the branch"),
    "task 'for-loop/for-loop'": ("fails", 'loops over parseJson(string_value)["words"]'),
    "task 'concat'": ("fails", "dsl.ConcatPlaceholder"),
    "task 'with-args'": ("may fail", "is not given the input 'number'"),
    "task 'small-limit'": ("may fail", "may use 32 MB of memory"),
    "task 'retried' (and 'retried-2', 'retried-3', 'retried-4' and 2 more)": (
        "differs",
        "templateDefaults.retryStrategy",
    ),
    "task 'ignores'": ("differs", "KFP runs only 'ignores-2'"),
    "task 'after-it'": ("may fail", "waits for 'ignores-it', which ignores a failure"),
    "task 'metadata-of'": ("differs", "{{$.inputs.artifacts['data'].metadata['k']}}"),
    "task 'fact-inside-of-text'": ("differs", "{{$.pipeline_job_name}} inside the text of its input 'x'"),
    "task 'pipelines-root'": ("differs", "{{$.pipeline_root}}"),
    "task 'dollars'": ("differs", "'echo $$' in its input 'x', which arrives as 'echo $':"),
    "task 'echo'": ("differs", "'$(TOKEN)' in its command, which arrives as '<TOKEN>'"),
    "task 'echo' ": (
        "differs",
        "'$(NAME) $(OTHER)' in its command, which arrives as 'value",
    ),
    "task 'variable-of-each-container'": ("differs", "arrives as 'echo <KFP_POD_NAME>'"),
    "task 'accent'": ("differs", "arrives as '$Ã\ufffd'"),
    "task 'argo'": ("differs", "arrives as 'echo <workflow.name>'"),
    "task 'variable'": ("differs", "'a$$b' in its variable NAME, which arrives as 'a$b'"),
    "task 'echo' (and 'variable')": ("differs", "sets 'NAME' on the task, which KFP's cache ignores"),
    "task 'large-character'": ("may fail", "(U+1F600) in its input 'x'"),
    "task 'delete'": ("fails", "(U+007F) in its input 'x'"),
    "task 'long-text'": ("differs", "'… known that $$5 is the pri…' in its input"),
    "the argument 'note'": ("differs", "'a$$b', which arrives as 'a$b'"),
    "the argument 'items'": ("differs", "<KUBERNETES_SERVICE_HOST>"),
    "the argument 'face'": ("may fail", "(U+1F600)"),
    "the argument 'key'": ("fails", "(U+007F)"),
    "the argument 'default'": ("differs", "'$$', which arrives as '$'"),
}


def test_a_check_finds_what_the_backend_does_otherwise_and_nothing_else(call, tmp_path):
    compiler.Compiler().compile(dsl.pipeline(everything, name="all"), str(tmp_path / "all.yaml"))
    arguments = (
        "note=a$$b",
        'items=[{"words": ["$(KUBERNETES_SERVICE_HOST)"]}]',
        "lr=0.1",
        "face=\U0001f600",
        "key=\x7f",
    )
    done = call("check", "all.yaml", *(word for argument in arguments for word in ("-p", argument)))
    assert done.returncode == 2
    # KFP counts groups by process.
    lines = re.sub(r"for-loop-\d+", "for-loop", done.stdout).splitlines()
    for place, (kind, words) in FINDINGS.items():
        found = [
            line
            for line in lines
            if re.match(rf"{kind} on KFP(, works locally)?: {re.escape(place.strip())} ", line) and words in line
        ]
        assert len(found) == 1, (place, done.stdout)
        lines.remove(found[0])
    assert lines == [], "nothing is found where nothing is wrong"


def test_a_run_says_what_differs(tmp_path):
    @dsl.pipeline
    def pipeline(text: str):
        write(x=text).set_retry(1)

    events = []
    run(pipeline, {"text": "a$$b"}, output_dir=tmp_path, watch=Heard(on_event=events.append))
    retried, argument = events[0].differs
    assert retried.startswith("task 'write' is retried locally")
    assert argument.startswith("the argument 'text' contains 'a$$b', which arrives as 'a$b'")


def test_a_key_for_the_cache_is_found(tmp_path):
    @dsl.pipeline
    def pipeline():
        try:
            write(x="a").set_caching_options(True, cache_key="v1")
            write(x="b").set_caching_options(False)
        except TypeError:
            pytest.skip("this kfp has no keys for caching")

    events = []
    run(pipeline, output_dir=tmp_path, watch=Heard(on_event=events.append))
    assert events[0].differs == (
        "task 'write' is cached locally by its cache_key 'v1', which backends up to KFP 2.17 ignore: they compare its "
        "command and inputs. Leave it out, or change an input of the task with it.",
    )


@dsl.pipeline
def recording(tracker_base: str):
    with dsl.ParallelFor(["a"]):
        inner(text=tracker_base)


@dsl.pipeline
def not_recording(tracker_base: str):
    inner(text="a")


@pytest.mark.parametrize(("pipeline", "found"), [(recording, 0), (not_recording, 1)])
def test_a_tracker_base_that_no_stage_uses_is_found(pipeline, found):
    said = (
        "the pipeline has the parameter 'tracker_base', which no stage uses, so no results are recorded there. "
        "Give it to the stages: Stages(tracker_base=tracker_base)."
    )
    findings = check_pipeline(load_pipeline(pipeline), {})
    assert [(each.kind.value, str(each)) for each in findings] == [("records nothing", said)] * found
