"""``torchx-kfp secret``: print the Kubernetes secret that stages get by the setting ``storage_secret``."""

from __future__ import annotations

import base64
import os

import click

from torchx_kfp.common.text import joined
from torchx_kfp.entrypoints.cli.display.printing import print_text
from torchx_kfp.entrypoints.cli.flags import refuse_empty


@click.command("secret")
@click.option(
    "--namespace",
    metavar="NAME",
    callback=refuse_empty,
    show_default="that of the settings, or kubeflow",
    help="The namespace of the runs.",
)
def secret_command(namespace: str | None) -> None:
    """Print the Secret of the setting storage_secret, with the values of this machine's variables.

    Tracked stages of submitted runs get the credentials of their tracker base from it. It is created once in each
    namespace; one that KFP brings needs nothing.

    \b
    export TORCHX_KFP_STORAGE_SECRET='storage id=AWS_ACCESS_KEY_ID key=AWS_SECRET_ACCESS_KEY'
    torchx-kfp secret | kubectl apply -f -

    The output holds the credentials: base64 hides nothing.
    """
    import yaml

    from torchx_kfp.execution.host.settings import read_settings, variable
    from torchx_kfp.execution.host.storage import EXAMPLE_OF_A_SECRET, storage_of

    settings = read_settings()
    storage = storage_of(settings)
    if not storage.keys:
        raise click.UsageError(
            f"No secret is named. Give its name and keys: {variable('storage_secret')}='{EXAMPLE_OF_A_SECRET}', or "
            "storage_secret in the settings file."
        )
    if missing := [name for name in storage.keys if not os.environ.get(name)]:
        raise click.UsageError(f"Set {joined(missing)}, whose values the secret {storage.secret!r} shall have.")
    data = {key: base64.b64encode(os.fsencode(os.environ[name])).decode() for name, key in storage.keys.items()}
    metadata = {"name": storage.secret, "namespace": namespace or settings.namespace or "kubeflow"}
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    print_text(yaml.safe_dump({**head, "type": "Opaque", "data": data}, sort_keys=False))
