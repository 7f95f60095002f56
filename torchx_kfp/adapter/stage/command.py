"""The words of an application as text for KFP, of which ``contract.command`` makes the command of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchx_kfp.adapter.stage.reads import FanIn, Source
from torchx_kfp.adapter.stage.stage_input import Prefix
from torchx_kfp.adapter.values.channels import check_parts
from torchx_kfp.adapter.values.escapes import check_word
from torchx_kfp.adapter.values.references import Parts, Reference
from torchx_kfp.contract.command import Word
from torchx_kfp.contract.escapes import escape, find_rewritten
from torchx_kfp.contract.inputs import parameter_placeholder
from torchx_kfp.errors import AppDefError


def render(parts: Parts, inputs: Mapping[Reference, str]) -> str:
    """Return the parts as text for KFP, in which each reference is the placeholder for its input."""
    return "".join(part if isinstance(part, str) else parameter_placeholder(inputs[part]) for part in parts)


def run_id_text(source: Source, inputs: Mapping[Reference, str]) -> str:
    """Return the run id of a stage that is read alone."""
    assert not isinstance(source, FanIn)
    return source if isinstance(source, str) else parameter_placeholder(inputs[source])


def application_words(
    entrypoint: Parts, args: Sequence[Parts], env: Mapping[str, Parts], where: str, *, first: bool
) -> tuple[tuple[Parts, ...], tuple[Parts, ...]]:
    """Return the words of ``env`` that set the application's variables, and the application's command line.

    Args:
        entrypoint: the program.
        args: its arguments.
        env: its variables.
        where: their place, for errors.
        first: whether these words begin the command. Older backends do not fill placeholders into the first one.

    Raises:
        AppDefError: ``env`` would take the entrypoint for a variable.
        ChannelError: an engine would change a variable.
    """
    assignments = [check_parts(_join((f"{name}=", *parts)), f"env[{name!r}] of {where}") for name, parts in env.items()]
    prefix: tuple[Parts, ...] = (("env",),) if env or (first and not _is_constant(entrypoint)) else ()
    if prefix and any(isinstance(part, str) and "=" in part for part in entrypoint):
        raise AppDefError(
            f"The entrypoint of {where} contains '=' ({_show(entrypoint)}), so the `env` before it takes it for a "
            "variable. Call it through a shell or a link without '='."
        )
    return (*prefix, *assignments), (entrypoint, *args)


def encode(words: Iterable[Parts], inputs: Mapping[Reference, str]) -> list[Word]:
    """Return the words as text for KFP, escaped if an engine would change them."""
    encoded = []
    for parts in words:
        text = render(parts, inputs)
        escaped = _is_constant(parts) and find_rewritten(text) is not None
        text = check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,")
        encoded.append(Word(text, "v" if isinstance(parts[0], Prefix) else "b" if escaped else "s"))
    return encoded


def _is_constant(parts: Parts) -> bool:
    return len(parts) == 1 and isinstance(parts[0], str)


def _join(parts: Parts) -> Parts:
    """Join neighboring constants."""
    joined: list[str | Reference] = []
    for part in parts:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


def _show(parts: Parts) -> str:
    return repr("".join(part if isinstance(part, str) else f"<{part.name}>" for part in parts))
