"""Stages that fail, and the effect on later stages, loops and branches; and retries."""

from kfp import dsl

from tests.cases import case
from tests.cases.parts import component, double, echo, fail, shell, total


@case(state="failed", stages={"fail": "failed", "echo": "not run", "echo-2": "not run", "double": {"Output": 2}})
def one_branch_of_two():
    first = echo(text=fail(message="no").output)
    echo(text=first.output)
    double(x=1)


@component
def fail_on(x: int, bad: int) -> int:
    if x == bad:
        raise ValueError(f"no {x}")
    return x


@case(
    state="failed",
    stages={"fail-on[0]": {"Output": 0}, "fail-on[1]": "failed", "fail-on[2]": {"Output": 2}, "total": "not run"},
    reasons={"total": ("was not run: fail-on[1] failed",)},
)
def one_iteration():
    with dsl.ParallelFor([0, 1, 2]) as x:
        made = fail_on(x=x, bad=1)
    total(numbers=dsl.Collected(made.output))


@case(
    state="failed",
    stages={"fail": "failed", "double": {"Output": 2}, "double-2": {"Output": 4}, "double-3": {"Output": 8}},
)
def later_stages_of_another_branch():
    fail(message="no")
    first = double(x=1)
    second = double(x=first.output)
    double(x=second.output)


@case(
    state="failed",
    stages={
        "fail-on[0]": "failed",
        "double[0]": "not run",
        "double-2[0]": "not run",
        "double-2[1]": {"Output": 4},
        "double-2[2]": {"Output": 8},
    },
)
def later_stages_of_other_iterations():
    with dsl.ParallelFor([0, 1, 2]) as x:
        first = double(x=fail_on(x=x, bad=0).output)
        double(x=first.output)


@case(state="failed", stages={"fail": "failed", "echo": "not run", "echo-2": {"Output": "other"}})
def in_a_branch(x: int = 1):
    with dsl.If(x == 1):
        echo(text=fail(message="no").output)
    echo(text="other")


@case(state="failed", stages={"shell": "failed"})
def output_that_is_missing():
    shell(script="exit 0")


@component
def wrong_type() -> int:
    return "text"


@case(state="failed", stages={"wrong-type": "failed"})
def output_of_another_type():
    wrong_type()


@component
def fail_once(path: str) -> str:
    import os

    if not os.path.exists(path):
        open(path, "w").close()
        raise RuntimeError("the first time")
    return "the second time"


RETRIED = "a retry policy is followed here, whatever the cluster's controller is set to; the check warns"


@case(expected=RETRIED, outputs={"Output": "the second time"})
def retries() -> str:
    return fail_once(path="was_here").set_retry(num_retries=2, backoff_duration="0s").output


@dsl.pipeline
def inner() -> str:
    return echo(text=fail_once(path="was_there").output).output


@case(state="failed", stages={"inner/fail-once": "failed"})
def retries_of_a_pipeline() -> str:
    return inner().set_retry(num_retries=1, backoff_duration="0s").output


@case(
    state="failed",
    stages={"shell": "failed", "shell-2": {"out": "x"}},
    reasons={"shell": ("was ended by signal 9 (SIGKILL)",)},
)
def signals():
    shell(script="kill -9 $$")
    shell(script='printf x > "$0"')
