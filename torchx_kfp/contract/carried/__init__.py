"""Programs that commands of stages carry: images need only python3 (3.8 or newer) and, for most, fsspec.

- ``publisher`` runs the application of a stage with outputs, and then publishes them;
- ``launcher`` runs the replicas of a distributed stage: ``replica_processes`` on this machine, or ``cluster_stage`` on
  the cluster, with ``cluster_api``; both use ``replica_roles``;
- ``workspace`` unpacks code: archives of workspaces begin with its text.

The modules import only each other, the standard library and, where needed, fsspec. ``make goldens``
(``dev/carry.py``) joins the modules of each program, minifies them, and writes the texts to ``programs``. An image
that has torchx-kfp can import them instead (``inline=False``).
"""
