"""Run a host until Ctrl-C, which prints its URL first."""

from __future__ import annotations

import argparse
import contextlib
import signal
import tempfile
import threading

from tests.fake_kfp.server import KfpHost


def main() -> None:
    """Parse the arguments and run the host."""
    parser = argparse.ArgumentParser("python -m tests.fake_kfp", description=__doc__)
    parser.add_argument("--port", type=int, default=8888)
    parser.add_argument("--folder", help="keep the runs here; by default, they are removed at the end")
    parser.add_argument("--token", help="refuse requests without this token")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or stack.enter_context(tempfile.TemporaryDirectory())
        host = stack.enter_context(KfpHost(folder, port=given.port))
        host.token = given.token
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        print(host.url, flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
