"""The kubelet's expansion of variables in a container's command and arguments, byte for byte.

After ``k8s.io/kubernetes/third_party/forked/golang/expansion``: ``$(NAME)`` becomes the variable's value, or stays
where there is no such variable; ``$$`` becomes ``$``. The scan goes over bytes, and takes the byte behind any other
``$`` for a character: before a character that is not ASCII, its first byte becomes the character of that number (seen
on a cluster: ``$é`` arrives as ``$Ã`` and a stray byte).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: The characters after a ``$`` with which the kubelet changes it.
REWRITTEN_AFTER_DOLLAR = r"[$(\x80-\U0010ffff]"

_REWRITTEN = re.compile(rb"\$(?:\$|\(([^)]*)\)|([\x80-\xff]))")


def expand(text: str, environ: Mapping[str, str]) -> bytes:
    """Return a word of a command as the container gets it.

    Args:
        text: the word in the pod's specification.
        environ: the container's variables.
    """

    def replace(found: re.Match[bytes]) -> bytes:
        name, byte = found.groups()
        if byte is not None:
            return b"$" + chr(byte[0]).encode()
        if name is None:
            return b"$"
        value = environ.get(name.decode())
        return found.group() if value is None else value.encode()

    return _REWRITTEN.sub(replace, text.encode())
