"""Programs that the commands of stages carry, so that images need only python3 (3.8 or newer) and, mostly, fsspec.

- ``publisher`` starts a stage with results or artifacts, and publishes them when its application has ended;
- ``launcher`` runs the replicas of a distributed stage: ``replica_processes`` on this machine, or ``cluster_stage`` on
  the cluster, with ``cluster_api``; both use ``replica_roles``;
- ``workspace`` unpacks code: archives of workspaces begin with its text.

The modules import each other and the standard library, and fsspec where they need it, nothing else. ``make goldens``
(``dev/carry.py``) joins the modules of each program, minifies them, and writes the texts to ``programs``. An image
that has torchx-kfp can import them instead (``inline=False``).
"""
