"""The information that a caller of ``run`` gets while a run goes on: events, lines, and messages."""

import io
import os
import signal

import pytest
from kfp import dsl

from tests.execution.local.components import python, scripts, shell, write
from tests.watching import Heard
from torchx_kfp.errors import StageFailedError
from torchx_kfp.local import (
    Lines,
    RunEnding,
    RunFinished,
    StageFinished,
    State,
    attach,
    run,
)


def test_a_listener_for_lines_that_raises_does_not_hold_up_the_stages(tmp_path):
    calls = []

    pipeline = scripts(f"echo a; echo b; sleep 0.1; echo c; touch {tmp_path}/done")

    def hear(stage, line):
        calls.append(line)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(pipeline, output_dir=tmp_path / "runs", watch=Heard(on_line=hear))
    assert calls == ["a"]
    assert (tmp_path / "done").exists()
    assert [path.read_text() for path in tmp_path.glob("runs/*/*/log.txt")] == ["a\nb\nc\n"]
    assert attach(output_dir=tmp_path / "runs").read().run.state is State.SUCCEEDED


def test_the_end_by_a_signal_is_told_while_stages_have_their_grace(tmp_path):
    @dsl.pipeline
    def pipeline():
        python(
            code="import signal, sys, time\n"
            "def end(*_): print('ending', flush=True); sys.exit()\n"
            "signal.signal(signal.SIGTERM, end)\n"
            "print('ready', flush=True)\n"
            "time.sleep(60)"
        )

    events = []
    stream = io.StringIO()

    def hear(stage, line):
        if line == "ready":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(
            pipeline,
            output_dir=tmp_path,
            watch=Heard(on_event=events.append, on_line=hear, stream=stream),
            grace=20,
        )
    _, ended, _ = events[-3:]
    assert [type(event) for event in events[-3:]] == [RunEnding, StageFinished, RunFinished]
    assert (ended.result.state, ended.result.reason) == ("canceled", "was ended with the run")
    shown = stream.getvalue().splitlines()[1:]
    assert shown[:3] == [
        "python | ready",
        "SIGINT: the running stages have 20 s to stop; another signal kills them.",
        "python | ending",
    ]


def test_a_listener_that_raises_again_and_again(tmp_path):
    """The caller gets its first exception, and no process is left."""

    @dsl.pipeline
    def pipeline():
        python(code="import time; time.sleep(3000)")
        shell(script="sleep 0.3")

    def hear(event):
        if isinstance(event, StageFinished):
            raise LookupError(event.result.name)

    with pytest.raises(LookupError, match=r"^'?shell'?$"):
        run(pipeline, output_dir=tmp_path, watch=Heard(on_event=hear))


def test_verbose_lines_have_inputs_and_outputs(execute):
    @dsl.pipeline
    def pipeline(text: str):
        write(x=text)
        shell(script="exit 0")

    def told(verbose):
        stream = io.StringIO()
        execute(pipeline, {"text": "a\nb"}, watch=Lines(stream, verbose=verbose), parallelism=1)
        return [line.rpartition(" (")[0] or line for line in stream.getvalue().splitlines()[1:]]

    assert told(False) == ["shell succeeded", "write succeeded"]
    assert told(True) == [
        "shell starts.",
        "shell   input script = 'exit 0'",
        "shell succeeded",
        "write starts.",
        r"write   input x = 'a\nb'",
        "write succeeded",
        r"write   output out = 'a\nb'",
    ]


def test_a_line_without_an_end_is_heard_as_it_grows(execute, tmp_path):
    seen = tmp_path / "seen"
    code = (
        "import os, time; os.write(1, b'a' * 2000 + b' 10%\\r 50%\\r')\n"
        f"while not os.path.exists({str(seen)!r}): time.sleep(0.02)"
    )

    @dsl.pipeline
    def pipeline():
        python(code=code)

    heard, lines = [], []

    def hear(stage, line):
        heard.append((stage, line))
        seen.touch()

    execute(pipeline, watch=Heard(on_unfinished=hear, on_line=lambda *line: lines.append(line)))
    # It is a line only when it has an end; until then, it does not contain text that was overwritten.
    assert heard == [("python", " 50%"), ("python", "")]
    assert lines == [("python", " 50%")]


def test_many_failures_are_not_all_quoted(execute_failing):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(list(range(30))) as item:
            shell(script=f"echo last of {item}; exit 1")
        last = shell(script="exit 0")
        last.after(first := shell(script="exit 2"))
        del first

    with pytest.raises(StageFailedError) as error:
        execute_failing(pipeline).raise_for_failure()
    lines = str(error.value).splitlines()
    assert sum("Its last lines" in line for line in lines) <= 5
    assert lines[-2].startswith("Also failed: shell[")
    assert " and 6 more. Their logs are in " in lines[-2]
    assert lines[-1] == "Not run because of that: shell-2."


def test_iterations_that_fail_alike_are_quoted_once(execute_failing):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(list(range(8))) as item:
            shell(script=f"echo {item}; [ {item} = 6 ] || echo boom; exit 1")

    result = execute_failing(pipeline)
    with pytest.raises(StageFailedError) as error:
        result.raise_for_failure()
    _, *lines = str(error.value).splitlines()
    others = ", ".join(f"shell[{index}]" for index in (1, 2, 3, 4, 5, 7))
    assert lines == [
        "shell[0] ended with exit code 1.",
        f"  Its last lines, from {result['shell[0]'].log_file}:",
        *("    0", "    boom"),
        f"  Likewise: {others}.",
        "shell[6] ended with exit code 1.",
        f"  Its last lines, from {result['shell[6]'].log_file}:",
        "    6",
    ]
