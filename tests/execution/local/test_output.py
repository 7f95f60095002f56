"""Logs: the file, and the lines on the terminal."""

import io
import os
import threading
import time

import pytest
from kfp import dsl

from tests.execution.local.components import python, shell
from torchx_kfp.errors import StageFailedError
from torchx_kfp.execution.local.log_pump import Log
from torchx_kfp.execution.runs.watch import Terminal
from torchx_kfp.local import Lines


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


def test_lines_have_the_stages_name_and_the_file_has_the_bytes(execute):
    @dsl.pipeline
    def pipeline():
        shell(script="echo out; echo err >&2; echo; printf no-end")

    stream = Stream()
    result = execute(pipeline, watch=Lines(stream))
    assert lines(stream) == ["shell | out", "shell | err", "shell | ", "shell | no-end"]
    assert stream.getvalue().splitlines()[0] == f"Run {result.run_id}: logs and outputs are in {result.folder}"
    assert result.stages[0].log_file == result.folder / "shell-0" / "log.txt"
    assert result.stages[0].log_file.read_bytes() == b"out\nerr\n\nno-end"


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


def test_garbage_long_lines_and_progress_bars(execute):
    code = r"""
import os
os.write(1, b"\xff\x00\x1b[2J bell\x07 \x1b[31mred\x1b[0m tab\t.\n")
os.write(1, b"10%\r50%\r100%\r\n")
os.write(1, b"x" * 200_000 + b"\n")
os.write(1, bytes(range(256)) * 1000)
"""

    @dsl.pipeline
    def pipeline():
        python(code=code)

    stream = Stream()
    result = execute(pipeline, watch=Lines(stream))
    shown = lines(stream)
    assert shown[0] == "python | \ufffd\ufffd\ufffd[2J bell\ufffd \x1b[31mred\x1b[0m tab\t."
    assert shown[1] == "python | 100%"
    assert "".join(line.removeprefix("python | ") for line in shown[2:6]) == "x" * 200_000
    log = result.stages[0].log_file.read_bytes()
    assert log.endswith(bytes(range(256)) * 1000)
    assert len(log) > 456_000


def test_the_last_lines_are_shown_like_the_output(execute_failing):
    code = r"""
import os, sys
os.write(1, b"\x1b]0;title\x07 \x1b[31mred\x1b[0m\n10%\r100%\r\n\n\x1b[2Jend")
sys.exit(1)
"""

    @dsl.pipeline
    def pipeline():
        python(code=code)

    result = execute_failing(pipeline)
    assert result.stages[0].last_lines() == [
        "\ufffd]0;title\ufffd \x1b[31mred\x1b[0m",
        "100%",
        "",
        "\ufffd[2Jend",
    ]
    with pytest.raises(StageFailedError) as error:
        result.raise_for_failure()
    assert "\x1b[2J" not in str(error.value)


def test_a_terminal_of_another_encoding_and_one_that_is_closed(execute):
    @dsl.pipeline
    def pipeline():
        shell(script="echo é; sleep 0.1; echo after")

    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    execute(pipeline, watch=Lines(stream))
    assert b"shell | \\xe9\n" in raw.getvalue()

    class Closed(Stream):
        def write(self, text):
            if " | " in text:
                raise BrokenPipeError
            return super().write(text)

    class Plain:
        """A stream with only those methods that a stream must have."""

        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    plain = Plain()
    execute(pipeline, watch=Lines(plain))
    assert "shell | é\nshell | after\n" in plain.text
    result = execute(pipeline, watch=Lines(Closed()))
    assert result.stages[0].log_file.read_text() == "é\nafter\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_pipe_that_does_not_block_gets_everything(encoding):
    # This is more than a pipe can hold while there is no reader.
    lines = [f"{number} {'é' * 500}" for number in range(400)]
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
        terminal = Terminal(stream)
        terminal.write_lines(lines)
        terminal.write_lines(["end"])
    reader.join()
    assert received[0].decode() == "\n".join([*lines, "end", ""]).encode(encoding, "backslashreplace").decode()


def test_a_pipe_that_is_closed_is_left_alone():
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with open(write_end, "w") as stream:
        terminal = Terminal(stream)
        closing = threading.Timer(0.2, os.close, [read_end])
        closing.start()
        terminal.write_lines(["x" * 1_000_000])
        terminal.write_lines(["y"])
        closing.join()


def test_retries_are_told(execute_failing):
    @dsl.pipeline
    def pipeline():
        shell(script="exit 5").set_retry(1, backoff_duration="0s")

    stream = Stream()
    execute_failing(pipeline, watch=Lines(stream))
    assert "shell ended with exit code 5 (attempt 1); trying again.\n" in stream.getvalue()


def test_output_is_seen_while_the_stage_runs(execute, tmp_path):
    # The stage ends after its own line has been shown.
    seen = tmp_path / "seen"
    code = f"import os, time\nprint('hello')\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.02)"

    @dsl.pipeline
    def pipeline():
        python(code=code)

    class Watching(Stream):
        def write(self, text):
            if "hello" in text:
                seen.touch()
            return super().write(text)

    execute(pipeline, watch=Lines(Watching()))


def test_the_pieces_of_a_long_line_do_not_depend_on_how_it_came(tmp_path):
    text = b"x" * 200_000 + b"\n" + b"y" * 65_536 + b"\n\n"
    shown = []
    for size in (1 << 10, 60_000, 1 << 16, 1 << 20):
        read, write = os.pipe()
        os.close(write)
        log = Log(read, tmp_path / str(size), "stage")
        pieces = [line for start in range(0, len(text), size) for line in log.feed(text[start : start + size])]
        shown.append(pieces + log.finish())
    assert [len(line) for line in shown[0]] == [65_536, 65_536, 65_536, 3_392, 65_536, 0]
    assert all(lines == shown[0] for lines in shown)
