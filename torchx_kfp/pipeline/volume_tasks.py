"""Tasks of kfp-kubernetes that make or delete a volume claim: KFP does that by itself, without a container."""

from __future__ import annotations

from torchx_kfp.pipeline.spec import Component

# Their images, which do not exist.
_MAKES_VOLUME, _DELETES_VOLUME = "argostub/createpvc", "argostub/deletepvc"


def volume_task(component: Component) -> str | None:
    """Return what a task does to a volume claim instead of running: ``makes``, ``deletes``, or None."""
    image = component.container.image if component.container is not None else ""
    if image.startswith(_MAKES_VOLUME):
        return "makes"
    return "deletes" if image.startswith(_DELETES_VOLUME) else None
