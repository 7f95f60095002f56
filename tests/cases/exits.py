"""Exit handlers, final status, and stages that run however the stages before them ended."""

from kfp import dsl

from tests.cases import case
from tests.cases.parts import component
from tests.cases.quick import echo, fail


@component
def say(text: str = "no text") -> str:
    return text


@component
def say_status(status: dsl.PipelineTaskFinalStatus, text: str = "") -> str:
    message = status.error_message or ""
    return f"{text} {status.state} {status.pipeline_task_name} {bool(message)}".strip()


@case(
    state="failed",
    stages={"echo": {"out": "exit"}, "fail": "failed", "echo-2": "not run"},
)
def after_failure():
    with dsl.ExitHandler(echo(text="exit")):
        echo(text=fail(message="body").output)


@case(stages={"say-status": {"Output": "x COMPLETE exit-handler-1 False"}})
def status_of_success():
    with dsl.ExitHandler(say_status(text="x")):
        echo(text="body")


@case(state="failed", stages={"say-status": {"Output": "FAILED exit-handler-1 False"}})
def status_of_failure():
    with dsl.ExitHandler(say_status()):
        fail(message="body")


@case(
    state="failed",
    stages={
        "echo": {"out": "exit 1"},
        "fail": "failed",
        "echo-2": {"out": "exit 2"},
        "echo-3": {"out": "body 2"},
    },
)
def two_handlers():
    first, second = echo(text="exit 1"), echo(text="exit 2")
    with dsl.ExitHandler(first):
        fail(message="body 1")
    with dsl.ExitHandler(second):
        echo(text="body 2")


@case(stages={"fail": "failed", "echo": {"out": "body"}})
def handler_that_fails():
    with dsl.ExitHandler(fail(message="exit")):
        echo(text="body")


@dsl.pipeline
def clean_up(text: str):
    echo(text=text)
    echo(text="cleaned")


@case(
    state="failed",
    arguments={"text": "bye"},
    stages={
        "clean-up/echo": {"out": "bye"},
        "clean-up/echo-2": {"out": "cleaned"},
        "fail": "failed",
    },
)
def pipeline_as_exit_task(text: str):
    with dsl.ExitHandler(clean_up(text=text)):
        fail(message="body")


@dsl.pipeline
def with_handler(message: str):
    with dsl.ExitHandler(echo(text="inner exit")):
        fail(message=message)


@case(
    state="failed",
    stages={"with-handler/echo": {"out": "inner exit"}, "echo": "not run"},
)
def handler_in_a_pipeline():
    inner = with_handler(message="inside")
    echo(text="after").after(inner)


@case(state="failed", stages={"fail": "failed", "say": {"Output": ""}, "echo": "skipped"})
def ignored_failure_with_an_input():
    failed = fail(message="upstream")
    say(text=failed.output).ignore_upstream_failure()
    echo(text="default").after(failed).ignore_upstream_failure()


@case(stages={"echo": {"out": "a"}, "say": {"Output": "a"}})
def ignored_failure_that_did_not_happen():
    say(text=echo(text="a").output).ignore_upstream_failure()


@case(
    state="failed",
    stages={"fail": "failed", "say-status": {"Output": "x FAILED fail False"}},
)
def status_of_a_stage():
    failed = fail(message="upstream")
    say_status(text="x").after(failed).ignore_upstream_failure()


@case(since=(2, 17), stages={"echo": {"out": "exit"}, "echo-3": {"out": "after"}})
def after_a_handler():
    with dsl.ExitHandler(echo(text="exit")) as handler:
        echo(text="body")
    echo(text="after").after(handler)
