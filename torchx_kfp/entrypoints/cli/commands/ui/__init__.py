"""``torchx-kfp ui``: serve a local page of runs."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import tempfile
import webbrowser
from pathlib import Path

import click

from torchx_kfp.common.extras import require
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.errors import ArgumentError, explain

_ADDRESS = "127.0.0.1"


@click.command("ui")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="The local port; 0 for any free one.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser. Without a display, none is opened.")
@finds_runs(recorded=True)
def ui_command(port: int, no_browser: bool, lookup: Lookup) -> None:
    """Show runs in a browser: a list with filters, comparisons, and the report of each run.

    The page has the runs of `torchx-kfp runs`, and those with records under the tracker base of --tracker-base, of the
    settings, or of the newest local run. It changes nothing. Its conditions are those of `torchx-kfp results --where`;
    any of several values of a name may meet a condition.

    The page is only reachable from this machine, with the printed address: keep that secret. Ctrl-C ends it.
    """
    require("ui", "torchx-kfp ui")
    import waitress

    from torchx_kfp.entrypoints.cli.commands.ui.application import Application

    token = secrets.token_urlsafe(24)
    application = Application(lookup, token)
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # waiting requests need no message
    try:
        server = waitress.create_server(
            application, host=_ADDRESS, port=port, threads=4, ident="torchx-kfp", max_request_body_size=1
        )
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {explain(error)}"
        raise ArgumentError(f"The port {port} {why}. Choose another one: --port 0 finds a free one.") from None
    address = f"http://{_ADDRESS}:{server.effective_port}/{token}/"
    print_text(address)
    print_message("Serving the page of runs until Ctrl-C.")
    with contextlib.ExitStack() as files:
        if not no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            # Other users can read the command line of a browser, so it gets a file that redirects to the address.
            file = files.enter_context(tempfile.NamedTemporaryFile("w", prefix="torchx-kfp-", suffix=".html"))
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
            file.flush()
            webbrowser.open(Path(file.name).as_uri())
        server.run()  # until Ctrl-C
    raise click.exceptions.Exit(130)
