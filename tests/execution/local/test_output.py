"""Logs: the file, and the lines on the terminal."""

import io
import os
import threading
import time

import pytest
from kfp import dsl

from tests.execution.local.components import python, scripts, shell
from tests.watching import Heard
from torchx_kfp.errors import StageFailedError
from torchx_kfp.local import Lines, Watch


class Stream(io.StringIO):
    """A text stream that records how it is written to."""

    def __init__(self):
        super().__init__()
        self.threads = set()

    def write(self, text):
        self.threads.add(threading.current_thread().name)
        assert text.endswith("\n")
        return super().write(text)


def lines(stream):
    return [line for line in stream.getvalue().splitlines() if " | " in line]


def test_lines_have_the_stages_name_and_the_file_has_the_bytes(execute_failing):
    stream = Stream()

    @dsl.pipeline
    def pipeline():
        shell(script="echo out; echo err >&2; echo; printf no-end; exit 5").set_retry(1, backoff_duration="0s")

    result = execute_failing(pipeline, watch=Lines(stream))
    assert lines(stream) == ["shell | out", "shell | err", "shell | ", "shell | no-end"] * 2
    assert stream.getvalue().splitlines()[0] == f"Run {result.run_id}: logs and outputs are in {result.folder}"
    assert "shell ended with exit code 5 (attempt 1); trying again.\n" in stream.getvalue()
    assert result.stages[0].log_file == result.folder / "shell_2" / "log.txt"
    for attempt in ("shell_1", "shell_2"):
        assert (result.folder / attempt / "log.txt").read_bytes() == b"out\nerr\n\nno-end"


def test_lines_of_parallel_stages_never_mix(execute):
    code = """
import os, sys
for i in range(200):
    for part in (b"begin ", b"middle " * 20, b"end\\n"):
        os.write(1, part)
"""

    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor([0, 1, 2, 3]):
            python(code=code)

    stream = Stream()
    execute(pipeline, watch=Lines(stream))
    assert len(lines(stream)) == 800
    assert {line.split(" | ")[1] for line in lines(stream)} == {"begin " + "middle " * 20 + "end"}
    assert {line.split(" | ")[0] for line in lines(stream)} == {f"python[{index}]" for index in range(4)}


def test_garbage_long_lines_and_progress_bars(execute_failing):
    code = r"""
import os, sys
os.write(1, b"\xff\x00\x1b[2J bell\x07 \x1b[31mred\x1b[0m tab\t.\n")
os.write(1, b"10%\r50%\r100%\r\n")
os.write(1, b"x" * 200_000 + b"\n")
os.write(1, bytes(range(256)) * 1000)
os.write(1, b"\n\x1b]0;title\x07 \x1b[31mred\x1b[0m\n10%\r100%\r\n\n\x1b[2Jend")
sys.exit(1)
"""

    @dsl.pipeline
    def pipeline():
        python(code=code)

    stream = Stream()
    result = execute_failing(pipeline, watch=Lines(stream))
    shown = lines(stream)
    assert shown[0] == "python | \ufffd\ufffd\ufffd[2J bell\ufffd \x1b[31mred\x1b[0m tab\t."
    assert shown[1] == "python | 100%"
    assert "".join(line.removeprefix("python | ") for line in shown[2:6]) == "x" * 200_000
    log = result.stages[0].log_file.read_bytes()
    assert bytes(range(256)) * 1000 in log
    assert len(log) > 456_000
    # The last lines are shown like the output.
    last = ["\ufffd]0;title\ufffd \x1b[31mred\x1b[0m", "100%", "", "\ufffd[2Jend"]
    assert result.stages[0].last_lines(4) == last
    with pytest.raises(StageFailedError) as error:
        result.raise_for_failure()
    assert "\x1b[2J" not in str(error.value)


def test_a_terminal_of_another_encoding_and_one_that_is_closed(execute):
    pipeline = scripts("echo é; sleep 0.1; echo after")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    execute(pipeline, watch=Lines(stream))
    assert b"shell | \\xe9\n" in raw.getvalue()

    class Closed(Stream):
        def write(self, text):
            if " | " in text:
                raise BrokenPipeError
            return super().write(text)

    result = execute(pipeline, watch=Lines(Closed()))
    assert result.stages[0].log_file.read_text() == "é\nafter\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_pipe_that_does_not_block_gets_everything(encoding):
    # This is more than a pipe can hold while there is no reader.
    sent = [f"{number} {'é' * 500}" for number in range(400)]
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    received = []

    def read():
        time.sleep(0.2)
        with open(read_end, "rb") as file:
            received.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    with open(write_end, "w", encoding=encoding) as stream:
        watch = Lines(stream)
        watch.on_lines("s", sent)
        watch.on_lines("s", ["end"])
    reader.join()
    expected = "".join(f"s | {line}\n" for line in [*sent, "end"])
    assert received[0] == expected.encode(encoding, "backslashreplace")


def test_a_pipe_that_is_closed_is_left_alone():
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with open(write_end, "w") as stream:
        watch = Lines(stream)
        closing = threading.Timer(0.2, os.close, [read_end])
        closing.start()
        watch.on_lines("s", ["x" * 1_000_000])
        watch.on_lines("s", ["y"])
        closing.join()


def test_the_pieces_of_a_long_line_do_not_depend_on_how_it_came(execute):
    code = r"""
import os
text = b"x" * 200_000 + b"\n" + b"y" * 65_536 + b"\n\n"
for start in range(0, len(text), %d):
    os.write(1, text[start : start + %d])
"""

    @dsl.pipeline
    def pipeline():
        for size in (1 << 10, 60_000, 1 << 16, 1 << 20):
            python(code=code % (size, size))

    heard = {}
    execute(pipeline, watch=Heard(on_line=lambda stage, line: heard.setdefault(stage, []).append(len(line))))
    assert list(heard.values()) == [[65_536, 65_536, 65_536, 3_392, 65_536, 0]] * 4


class Slow(Watch):
    """Takes longer for lines than a log waits for what others have written."""

    def on_lines(self, stage, lines):
        time.sleep(3)


def test_a_slow_terminal_leaves_the_log_whole(execute):
    @dsl.pipeline
    def pipeline():
        shell(script="echo begin; sleep 0.3; echo end")

    result = execute(pipeline, watch=Slow())
    assert result.stages[0].log_file.read_text() == "begin\nend\n"
