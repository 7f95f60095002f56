"""Run a stage's application, then publish its results and artifacts as outputs of the KFP task.

In the command of a stage with results or artifacts, this program comes before the application::

    python3 -c PROGRAM SPEC {{$}} PATH... APPLICATION...

The command carries it, so its messages are short; it does little before the application starts.

SPEC is JSON: ``{"results": {output: [type, name]}, "artifacts": {output: [name, shown]}}``. ``output`` is KFP's name
of the output, ``name`` the recorded name, and ``shown`` 1 if KFP's UI shows the artifact. If SPEC has ``"may_fail":
[exit code, ...]``, the stage succeeds with any other exit code of the application, and records it as the result
``exit_code``, unless it was asked to stop. ``{{$}}`` is KFP's ExecutorInput, which names the file of each output. The
PATHs are the local files of the artifacts: ``metrics``, and those of SPEC in its order. The execution id and the
tracker base come from the environment (``protocol``). Without APPLICATION, the program publishes the records of another
stage.

Results become the files of output parameters. Lists and dicts are read from the metadata, because results are numbers
and short text. All numbers among the results also become the metadata of the artifact ``metrics``. An artifact with a
local path is copied for KFP to store. For a URL, KFP stores a small JSON file with its ``path`` and ``metadata``, and
the URL becomes the metadata ``location``. The metadata is written to the file for the ExecutorOutput. KFP's launcher
rejects unknown fields there (kubeflow/pipelines, ``backend/src/v2/component/launcher_v2.go``), so its ``artifacts`` are
those of the ExecutorInput, with metadata added.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from torchx_kfp.contract.carried.storage import RUNS, open_storage, read_field, read_json, write_whole

#: The number that replaces NaN and infinity, which KFP's JSON does not have.
LARGEST = sys.float_info.max
#: The largest integer up to which doubles, which KFP passes, represent all integers.
EXACT = 2**53
#: The largest list or dict, in bytes of JSON. One argument of 128 KiB must hold all inputs of a task.
LONGEST = 65536
#: The attributes of KFP's loop variables, which hide fields of an item with these names.
ATTRIBUTES = (
    "name",
    "task_name",
    "task",
    "pipeline",
    "value",
    "pattern",
    "full_name",
    "channel_type",
    "items_or_pipeline_channel",
    "is_with_items_loop_argument",
    "from_pipeline_channel",
    "from_raw_items",
)


def say(*words: object) -> None:
    """Write a line to the stage's log, if it is still open."""
    try:  # noqa: SIM105 (shorter than contextlib)
        os.write(2, f"torchx-kfp: {' '.join(map(str, words))}\n".encode(errors="replace"))
    except OSError:
        pass


def write_text(path: str, text: str, /) -> None:
    """Write a local file, and create its folder if it is missing."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text.encode())


def run(command: Sequence[str], /) -> tuple[int, bool]:
    """Run the application as a child in its own session, and pass signals on to it.

    With its own session, the child does not get signals twice if an engine signals the whole process group. Signals go
    only to the child, whose handler may still need its workers. They are blocked and waited for, so that none is lost
    before the application runs, and because the init process of a container does not get other signals.

    Returns:
        The application's exit code (128 + n for signal n), and whether this process was asked to stop.
    """
    signals = {getattr(signal, f"SIG{name}") for name in ("CHLD", "HUP", "INT", "QUIT", "TERM", "USR1", "USR2")}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    pid = os.fork()
    if not pid:
        os.setsid()
        # The application would inherit that Python ignores these signals.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # If the application cannot be started, the shell reports it and sets the exit code.
        os.execvp("sh", ["sh", "-c", 'exec "$@"', "sh", *command])
    stopped = False
    while True:
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            stopped |= number not in (signal.SIGUSR1, signal.SIGUSR2)
            os.kill(pid, number)
        for child, status in iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)):
            if child == pid:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return 128 + status % 128 if status % 128 else status // 256, stopped


def end_leftovers(run_id: str, /) -> None:
    """End processes that the application left running, which could keep the stage's output open forever.

    The execution ids of further attempts in this pod continue with ``_``. Processes get SIGTERM, because an application
    can outlive the shell that started it. After 5 s, they are killed.
    """
    for attempt in range(60):
        left = 0
        for pid in os.listdir("/proc"):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environ = b"\0" + file.read()
                mark = f"\0TORCHX_JOB_ID={run_id}".encode()
                if (mark + b"\0" in environ or mark + b"_" in environ) and int(pid) != os.getpid():
                    os.kill(int(pid), 0 if attempt % 50 else 9 if attempt else 15)
                    left = 1
            except (OSError, ValueError):  # ended, of another user, or not a process
                pass
        if not left:
            return
        signal.sigtimedwait((), 0.1)  # sleeps


def missing(what: str, name: str, recorded: Any, kind: str = "", /) -> str:
    """Return the message for a declared result or artifact that is missing or of another type than ``kind``."""
    there = repr(recorded[name])[:500] if name in recorded else ", ".join([*recorded][:20]) or "nothing"
    return f"declares the {what} {name!r}{kind and ' as ' + kind} but recorded {there}"


def as_kfp_stores(name: str, value: Any, /) -> Any:
    """Return a result in a form that KFP can pass on, with finite numbers.

    Raises:
        ValueError: it contains an int that a double cannot represent.
    """

    def whole(text: str) -> int:
        if abs(int(text)) > EXACT:
            raise ValueError(f"has {text} in {name}, which KFP would round: record it as text")
        return int(text)

    # NaN, the loss of a training that diverged, becomes the largest number.
    finite = {"-Infinity": -LARGEST}
    return json.loads(json.dumps(value), parse_int=whole, parse_constant=lambda text: finite.get(text, LARGEST))


def output_text(kind: str, name: str, recorded: Any, /) -> Any:
    """Return the content of the file of an output parameter.

    ``recorded`` has the results by name; for a list or dict, also the metadata.

    Raises:
        ValueError: the result is missing, has another type, or cannot be passed on by KFP. The message continues a
            sentence that begins with the stage's name.
    """
    value = recorded.get(name)
    if kind == "float" and type(value) is int:
        value = float(max(-LARGEST, min(LARGEST, value)))
    if type(value).__name__ != kind:
        raise ValueError(missing("result", name, recorded, kind))
    if kind == "str":
        return value
    if kind == "list":
        for item in value:
            for field in ATTRIBUTES if type(item) is dict else ():
                if field in item:
                    raise ValueError(f"has the field {field!r} in {name}, which KFP's loop items have, too: rename it")
    text = json.dumps(as_kfp_stores(name, value), ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > LONGEST:
        raise ValueError(f"has {len(text.encode())} bytes in {name}, more than {LONGEST}: make it an artifact")
    return text


def publish(spec: Any, outputs: Any, paths: Sequence[str], base: str, run_id: str, code: int | None, /) -> bool:
    """Write the ``outputs`` of KFP's ExecutorInput from the run's records below the tracker base.

    ``code`` is the application's exit code, which a stage that may fail records as a result. For ``spec`` and
    ``paths``, see the module.

    Returns:
        True if a declared output is missing, has another type, or is an int that a double cannot represent.
    """
    failed = False
    stage = run_id.split("/")[-2:][0]
    store, root = open_storage(base)
    if os.path.isdir(root):
        os.umask(~os.stat(root).st_mode & 0o777)  # new folders get the permissions of the base
    path, folder = f"{root}/{run_id}", f"{root}/{RUNS}/{run_id}"
    try:
        results = read_json(store, path)
    except FileNotFoundError:
        results = {}
    if "may_fail" in spec:
        results["exit_code"] = code
        write_whole(store, path, json.dumps(results, indent=2).encode())
    metrics = metrics_of(results)
    recorded = results
    if any(kind in ("list", "dict") for kind, _ in spec["results"].values()):
        recorded = {**read_field(store, folder, "metadata"), **results}
    for output, (kind, name) in spec["results"].items():
        try:
            text = output_text(kind, name, recorded)
        except ValueError as error:
            failed = True
            say(stage, error)
        else:
            write_text(outputs["parameters"][output]["outputFile"], text)
            if kind in ("list", "dict") and repr(LARGEST) in text:
                say(name, "has a number which KFP cannot store: the output has", LARGEST)

    artifacts = outputs["artifacts"]
    publish_artifact(artifacts["metrics"], metrics, paths[0])
    entries = read_field(store, folder, "artifacts", parse_constant=str) if spec["artifacts"] else {}
    only = os.path.realpath(root) + "/" if code is None else ""
    for (output, (name, shown)), target in zip(spec["artifacts"].items(), paths[1:]):  # noqa: B905 (Python 3.8)
        if name in entries:
            entry = entries[name]
            publish_artifact(artifacts[output], entry["metadata"], target, entry["path"], shown, only)
        else:
            failed = True
            say(stage, missing("artifact", name, entries))
    write_text(outputs["outputFile"], json.dumps({"artifacts": artifacts}))
    return failed


def metrics_of(results: Any, /) -> dict[str, float]:
    """Return the numbers among the results that KFP can store, and report the others."""
    metrics = {}
    for name, value in results.items():
        if type(value) in (int, float):
            # KFP writes larger ints as doubles: 1152921504606847000 for 2**60.
            limit = EXACT if type(value) is int else LARGEST
            if -limit <= value <= limit:
                metrics[name] = value
            else:
                double = output_text("float", name, results)
                say(name, "is", f"{value}, which KFP cannot store: no metric; the output is", double)
    return metrics


def publish_artifact(
    output: Any, metadata: Any, target: str, path: str = "", shown: bool = False, only: str = "", /
) -> None:
    """Write an artifact's metadata, and its content or a file that names its location.

    Args:
        output: the artifact in KFP's ExecutorInput, which gets the metadata.
        metadata: the recorded metadata.
        target: the local file of the artifact, which KFP stores.
        path: the recorded path or URL; empty if there is only metadata.
        shown: whether KFP's UI shows it.
        only: the prefix of local paths: the tracker base if another stage registered the artifact, whose other files
            are in its pod.

    Raises:
        ValueError: a local file is elsewhere.
    """
    # KFP keeps six decimals of a number (MLMD's text of a double), so 1e-7 becomes 0. Text stays exact.
    described = output["artifacts"][0]["metadata"] = {
        key: repr(value) if type(value) is float and abs(float(f"{value:f}") - value) > abs(value) / 1000 else value
        for key, value in metadata.items()
    }
    # KFP must store content that its UI shows, and local files, which would be lost.
    is_local = "://" not in path or path.startswith(("file:", "local:"))
    if path and (shown or is_local):
        import fsspec

        # A local path may have "::" in it.
        source, path = open_storage(path) if "://" in path else (fsspec.filesystem("file"), path)
        # Files are copied one by one, because fsspec reads names with brackets as patterns.
        for file in source.find(path) or [path]:
            if is_local and not os.path.realpath(file).startswith(only):
                raise ValueError(f"{file} is on another stage's disk: register it there with store=True")
            copy = target + file[len(path) :]
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            source.get_file(file, copy)
        return
    # For a URL, KFP passes on a file that names the location. With a URI outside the pipeline root, KFP's launcher
    # would fail, here or in the task that consumes the artifact.
    if path:
        described["location"] = path
        metadata = {"path": path, "metadata": metadata}
    # kfp.local's cache treats an artifact without a file as missing.
    write_text(target, json.dumps(metadata))


def main(spec_text: str, executor_input: str, /, *words: str) -> None:
    """Run the application, if there is one, publish its records, and exit with the stage's exit code."""
    spec = {"artifacts": {}, **json.loads(spec_text)}
    outputs = json.loads(executor_input)["outputs"]
    application = words[len(spec["artifacts"]) + 1 :]
    run_id = os.environ["TORCHX_JOB_ID"]
    base = os.environ["TORCHX_TRACKER_BASE"]
    if not any(finder.find_spec("fsspec", None) for finder in sys.meta_path):
        say("fsspec is missing")
        sys.exit(125)
    code = None
    if application:
        code, stopped = run(application)
        end_leftovers(run_id)
        if code and (stopped or code in spec.get("may_fail", range(256))):
            sys.exit(code)
        if code:
            say("exit code", f"{code}, but the stage may fail")
    try:
        # The application may have been started again, or a launcher may have continued the run of an earlier attempt.
        run_id = open(outputs["parameters"]["run_id"]["outputFile"]).read()  # noqa: SIM115 (shorter)
        sys.exit(publish(spec, outputs, words, base, run_id, code))
    except Exception as error:
        sys.exit(f"torchx-kfp: cannot publish {base}/{run_id}: {error!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
