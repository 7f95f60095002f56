"""Runs a stage's application, and publishes what it has recorded as outputs of the KFP task.

The command of a stage with results or artifacts has this program before the application::

    python3 -c PROGRAM SPEC {{$}} PATH... APPLICATION...

It travels in the command, made small (``adapter/stage/carried.py``), so that an image needs python3 (3.8 or newer) and
fsspec for it, and nothing of torchx-kfp; where the image has it, it can be imported (``inline=False``). That is why
this module imports nothing of the project, is brief in what it says, and does little before the application starts.

SPEC is JSON: ``{"results": {output: [type, name]}, "artifacts": {output: [schema title, name, shown]}}``, KFP's names
of outputs, the names under which the application records them, and 1 for what KFP's UI shows. ``{{$}}`` is KFP's
ExecutorInput, which names the file of each output. Each PATH is the local file of the artifact at that place in SPEC.
The tracker base and the run id come from the environment (``protocol``). Without an application, what another stage has
recorded is published.

Results become the files of output parameters. All numbers among them become the metadata of the artifact ``metrics``,
which SPEC names first. KFP stores artifacts: a local path by its content, one that is elsewhere as a small JSON file
with its ``path`` and ``metadata``, and the path as the metadata ``location``. They are reported in the file for the
ExecutorOutput. A launcher of KFP takes no field in it that this message does not have (kubeflow/pipelines,
``backend/src/v2/component/launcher_v2.go``); its ``artifacts`` are the ExecutorInput's.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: KFP passes numbers on as doubles, in JSON, which has no NaN and no infinities. This stands for what is beyond.
LARGEST = sys.float_info.max


def run(command: Sequence[str], /) -> int:
    """Run the application as a child in a session of its own, and pass signals on to it.

    A session, because an engine that signals the whole group of this process would otherwise deliver each signal twice.
    To the child alone: its handler may need its own workers. Signals are blocked and waited for: none is lost before
    the application runs, and as the init of a container this process would not get them otherwise.

    Returns:
        The application's exit code; 128 + n where signal n has ended it.
    """
    signals = {
        signal.SIGCHLD,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    pid = os.fork()
    if not pid:
        os.setsid()
        # Python ignores these for itself, and a program would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # The shell says what cannot be started, and has the exit code for it.
        os.execvp("sh", ["sh", "-c", 'exec "$@"', "sh", *command])
    while True:
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            os.kill(pid, number)
        for child, status in iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)):
            if child == pid:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return 128 + status % 128 if status % 128 else status // 256


def end_leftovers(run_id: str, /) -> None:
    """End what the application has left running: it may hold the stage's output open for ever.

    Asked first, since the application of a shell script outlives the shell that a signal has ended; killed after 5 s.
    """
    for attempt in range(60):
        left = 0
        for pid in os.listdir("/proc"):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environ = file.read().split(b"\0")
                if f"TORCHX_JOB_ID={run_id}".encode() in environ and int(pid) != os.getpid():
                    os.kill(int(pid), 0 if attempt % 50 else 9 if attempt else 15)
                    left = 1
            except (OSError, ValueError):  # gone, another user's, or no process
                pass
        if not left:
            return
        signal.sigtimedwait((), 0.1)  # sleeps


def regular(path: str, local: bool = True, /) -> str:
    """The path, which leads to a file, a folder or nothing: to read a FIFO or a device may never end."""
    mode = stat.filemode(os.stat(path).st_mode)[0] if local and os.path.exists(path) else "-"
    if mode not in "-d":
        raise ValueError(f"{path} is a {({'p': 'FIFO', 's': 'socket'}).get(mode, 'device')}, not a file")
    return path


def write(path: str, text: str, /) -> None:
    """Write a file, and make its folder where it is missing."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(regular(path), "wb") as file:
        file.write(text.encode())


def say(*words: object) -> None:
    """A line in the stage's log."""
    print("torchx-kfp:", *words, file=sys.stderr)


def missing(what: str, name: str, recorded: Any, kind: str = "", /) -> str:
    """What is said of a stage that has not recorded what it declares, or something else under that name.

    Args:
        what: ``result`` or ``artifact``.
        name: its name.
        recorded: what the stage has recorded, by name.
        kind: the result's declared type.
    """
    import difflib

    there = repr(recorded[name]) if name in recorded else ", ".join([*recorded][:20]) or "nothing"
    hint = difflib.get_close_matches(name, () if name in recorded else recorded, 1)
    return f"declares the {what} {name!r}{kind and ' as ' + kind} and recorded {there}" + "".join(
        f". Did you mean {other!r}?" for other in hint
    )


def publish(spec: Any, outputs: Any, paths: Sequence[str], base: str, run_id: str, /) -> bool:
    """Write KFP's outputs from what the run has recorded under the tracker base.

    Returns:
        Whether something that is declared is missing, of another type, or an int that a double cannot hold.
    """
    import fsspec

    failed = False
    stage = run_id.split("/")[-2:][0]
    store, root = fsspec.core.url_to_fs(base)

    def read(path: str, **options: Any) -> Any:
        return json.loads(store.cat_file(regular(path, hasattr(store, "local_file"))), **options)

    try:
        results = read(f"{root}/{run_id}")
    except FileNotFoundError:
        results = {}
    metrics = {}
    doubles = {}
    for name, value in results.items():
        if type(value) in (int, float):
            # In this order: NaN becomes the largest number, as the loss of a training that diverged.
            doubles[name] = float(max(-LARGEST, min(LARGEST, value)))
            # Of larger ints KFP's text is that of the double: 1152921504606847000 for 2**60.
            limit = 2**53 if type(value) is int else LARGEST
            if -limit <= value <= limit:
                metrics[name] = value
            else:
                say(name, "is", value, "which KFP cannot hold: no metric, output", doubles[name])
    for output, (kind, name) in spec["results"].items():
        result = {"float": doubles, "int": metrics}.get(kind, results).get(name)
        if type(result).__name__ == kind:
            write(outputs["parameters"][output]["outputFile"], result if kind == "str" else json.dumps(result))
        else:
            failed = True
            say(stage, missing("result", name, results, kind))

    # The layout of ``tracking.entries``.
    folder = f"{root}/.torchx_kfp/artifacts/{run_id.replace('/', '%2F')}"
    entries = {}
    if len(spec["artifacts"]) > 1 and store.exists(folder):
        for file in sorted(store.ls(folder, False)):
            entry = read(file, parse_constant=str)
            entries[entry["name"]] = entry
    for (output, (_, name, shown)), target in zip(spec["artifacts"].items(), paths):  # noqa: B905 (Python 3.8)
        artifact = outputs["artifacts"][output]["artifacts"][0]
        if output == "metrics":
            entry = {"path": "", "metadata": metrics}
        elif name in entries:
            entry = entries[name]
        else:
            failed = True
            say(stage, missing("artifact", name, entries))
            continue
        path = entry["path"]
        metadata = entry["metadata"] or {}
        # KFP keeps six decimals of a number (MLMD's text of a double): 0 of 1e-7. As text it is whole.
        artifact["metadata"] = {
            key: repr(value) if type(value) is float and abs(float(f"{value:f}") - value) > abs(value) / 1000 else value
            for key, value in metadata.items()
        }
        # What KFP's UI shows goes by its content. Local files KFP has to keep itself.
        if path and (shown or "://" not in path or path.startswith(("file:", "local:"))):
            source, path = fsspec.core.url_to_fs(path)
            # One by one, or a name with brackets is a pattern.
            for file in source.find(path) or [path]:
                copy = regular(target + file[len(path) :])
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                source.get_file(regular(file, hasattr(source, "local_file")), copy)
            continue
        # What is elsewhere stays there: KFP hands on a file that names the place. Of another URI than its own a
        # launcher fails, as its producer or as that of whatever takes it.
        if path:
            artifact["metadata"]["location"] = path
            metadata = {"path": path, "metadata": metadata}
        # KFP's local cache takes an artifact without a file for one that is gone.
        write(target, json.dumps(metadata))
    write(outputs["outputFile"], json.dumps({"artifacts": outputs["artifacts"]}))
    return failed


def main(spec_text: str, executor_input: str, /, *words: str) -> None:
    """Run the application, if there is one, and publish; exits with the stage's exit code."""
    spec = json.loads(spec_text)
    run_id = os.environ["TORCHX_JOB_ID"]
    base = os.environ["TORCHX_TRACKER_BASE"]
    application = words[len(spec["artifacts"]) :]
    if not any(finder.find_spec("fsspec", None) for finder in sys.meta_path):
        sys.exit("torchx-kfp: fsspec is missing")
    if application:
        code = run(application)
        end_leftovers(run_id)
        if code:
            sys.exit(code)
    try:
        sys.exit(publish(spec, json.loads(executor_input)["outputs"], words, base, run_id))
    except Exception as error:
        sys.exit(f"torchx-kfp: cannot publish {base}/{run_id}: {error!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
