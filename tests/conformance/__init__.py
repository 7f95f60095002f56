"""What proves a KFP host: pipelines that run there and on this machine, and are compared.

Against the host of the tests, or the one that the variables of ``place`` name: ``make test-kfp HOST=...``.
"""
