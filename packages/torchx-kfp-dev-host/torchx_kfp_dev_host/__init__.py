"""A KFP host on this machine, for trying torchx-kfp without a cluster: KFP's API over HTTP, whose runs are local runs.

It answers as KFP 2.17 does: the tests of torchx-kfp compare its answers with those of a real backend. Parts that our
client does not read are not made: ``run_details`` of v2beta1, and most of the workflow in v1beta1.
"""

from torchx_kfp_dev_host.host import DevHost

__all__ = ["DevHost"]
