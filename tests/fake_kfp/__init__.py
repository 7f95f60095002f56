"""A KFP host for tests: KFP's API over HTTP, whose runs are really run, by ``torchx_kfp.local``.

with KfpHost(folder) as host:
    client = kfp.Client(host=host.url)

It answers as KFP 2.17 does, or with ``version="2.14"`` as 2.14; its answers are compared with those that were recorded
from a real backend. By hand: ``python -m tests.fake_kfp --port 8888``.
"""

from tests.fake_kfp.server import KfpHost

__all__ = ["KfpHost"]
