"""Stand for the cluster of a page's commands: a KFP host whose runs really run, and its S3 store."""

from __future__ import annotations

import contextlib
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.fake_kfp import KfpHost
from tests.s3 import running

#: The address on pages that a port forward to KFP's UI has.
HOST = "http://localhost:8080"
BUCKET = "mlpipeline"
_SECRET = {"accesskey": "minio", "secretkey": "minio123"}


@dataclass(frozen=True)
class Around:
    """The surroundings of a page's commands: variables, and the real addresses and run ids of those on the page."""

    environ: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)

    def really(self, text: str) -> str:
        """Return the text with real addresses."""
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        return text

    def shown(self, text: str) -> str:
        """Return the text with the addresses on the page."""
        for shown, real in self.addresses.items():
            text = text.replace(real, shown)
        return text


NOTHING = Around()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Around]:
    """Start both; stages run in the folder, as if it was the image's."""
    with contextlib.ExitStack() as stack:
        own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
        store = stack.enter_context(running(own / "store.log"))
        urllib.request.urlopen(urllib.request.Request(f"{store.url}/{BUCKET}", method="PUT"), timeout=120).close()
        host = stack.enter_context(
            KfpHost(
                own / "runs",
                directory=folder,
                secrets={"mlpipeline-minio-artifact": _SECRET},
                store=store.url,
            )
        )
        yield Around(
            {
                "TORCHX_KFP_HOST": host.url,
                "AWS_ENDPOINT_URL": store.url,
                "AWS_ACCESS_KEY_ID": _SECRET["accesskey"],
                "AWS_SECRET_ACCESS_KEY": _SECRET["secretkey"],
            },
            {HOST: host.url},
        )
