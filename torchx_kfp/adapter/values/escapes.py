"""Checks of text that becomes a word of a command."""

from __future__ import annotations

from torchx_kfp.contract.escapes import find_rewritten
from torchx_kfp.errors import AppDefError, ChannelError

#: The bytes that Linux accepts in one argument (MAX_ARG_STRLEN is 128 KiB with the final NUL).
LONGEST_WORD = 128 * 1024 - 1


def check_word(text: str, where: str) -> str:
    """Return the text if a process can receive it.

    Raises:
        AppDefError: it contains NUL or lone surrogates, or is longer than Linux accepts.
    """
    if "\0" in text:
        raise AppDefError(f"{where} contains a NUL character, which an argument cannot: {text!r}. Remove it.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise AppDefError(
            f"{where} is not valid Unicode (a lone surrogate): {text!r}. Decode bytes as UTF-8 before they "
            "go into an AppDef, or pass them base64-encoded."
        ) from None
    if size > LONGEST_WORD:
        raise AppDefError(
            f"{where} is {size} bytes long; Linux accepts at most {LONGEST_WORD} bytes in one argument. "
            "Put the text into a file in the image or on the tracker's storage, and pass its path."
        )
    return text


def check_beside_channel(text: str, where: str, *, before: bool) -> str:
    """Return the text if it may be in one string with a pipeline channel, where escapes are impossible.

    Args:
        text: constant text.
        where: the string's place in the AppDef, for errors.
        before: whether a channel follows. After another brace, KFP's placeholder would look like one of Argo's.

    Raises:
        ChannelError: an engine would change the text.
    """
    found = find_rewritten(text + "{" if before else text)
    if found:
        raise ChannelError(
            f"{where} contains {found!r} in one string with a pipeline channel: {text!r}. Argo or the kubelet would "
            "change it, and text next to a channel cannot be escaped. Split it: pass the text and the channel as two "
            "arguments or variables, and let the application join them."
        )
    return text
