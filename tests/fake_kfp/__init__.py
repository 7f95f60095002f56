"""A KFP host for tests: KFP's API over HTTP, whose runs are really run, by ``torchx_kfp.local``.

It answers as KFP 2.17 does: ``test_host_server`` compares its answers with those of a real backend.
What our client does not read is not made: ``run_details`` of v2beta1, and most of the workflow in v1beta1, such as the
links between nodes.
"""

from tests.fake_kfp.server import KfpHost

__all__ = ["KfpHost"]
