"""The texts of a stage as text for KFP: with placeholders for parameters, escaped, or moved into ``STAGE``."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from torchx_kfp.authoring.naming import input_name, is_shell_variable
from torchx_kfp.authoring.reads import ReadSource, is_list
from torchx_kfp.authoring.references import Reference, Text, check_word, is_constant
from torchx_kfp.contract.inputs import INNER, READS, RUN_ID, SUFFIXES, escape, find_rewritten, parameter_placeholder
from torchx_kfp.errors import AppDefError

#: The most bytes of all values. Beyond that, a second container is smaller than a second copy of the text.
_MOST = 1024
#: A value that moves: a number, a name, a path. Other text stays, and so do options, which many stages share.
_VALUE = re.compile(r"(?!--?[A-Za-z][\w-]*\Z)[\w@%+=:,./-]{1,256}", re.ASCII)


class Renderer:
    """Makes text for KFP, and plans the ``parameters`` of the component to which the text refers, by name.

    KFP's backend merges components whose containers have the same text, even if their parameters
    differ (kubeflow/pipelines, argocompiler). So a name in the text shows its type, and whether there is a loop item.
    """

    def __init__(self, parameters: Collection[Reference], taken: Iterable[str]) -> None:
        """Begin with these parameters, which keep their names; ``taken`` are names of other things."""
        self.parameters = {reference.name: reference for reference in parameters}
        self._names = {reference: reference.name for reference in parameters}
        self._taken = {RUN_ID, *taken, *self.parameters}

    def render(self, parts: Text) -> str:
        """Return the parts as text for KFP, in which each reference is the placeholder for its parameter."""
        return "".join(part if isinstance(part, str) else self._placeholder(part) for part in parts)

    def render_reads(self, reads: Mapping[str, ReadSource], *, by_alias: bool) -> list[str]:
        """Return the run ids that are read, as JSON with placeholders. Names are the aliases that the author gave."""
        return [self._run_ids(source, alias if by_alias else READS) for alias, source in reads.items()]

    def render_run_id(self, source: Reference | str, name: str) -> str:
        """Return one run id; if it is not constant, its parameter gets this name or a similar one."""
        return source if isinstance(source, str) else self._placeholder(source, name)

    def render_image(self, image: Text) -> str:
        """Return the text of an image.

        If an image contains a placeholder, the backend's driver replaces the whole image with the value of that
        parameter, in which it fills in no placeholders. So text around a channel reaches no pod.

        Raises:
        """
        references = [part for part in image if isinstance(part, Reference)]
        if references and (len(image) > 1 or references[0].type != "STRING"):
            names = " and ".join(repr(self._names.get(part, part.name)) for part in references)
            raise AppDefError(
                f"The image has {names} inside text, or is not of the type str, and KFP takes one value of the type "
                "str as an image. Pass the whole image: a parameter such as image: str, or a result of a stage. In "
                "component_from_function, give such parameters as constants: component_from_function(app, tag='1')."
            )
        return self.render(image)

    def render_words(
        self, variables: Sequence[Text], starter: Sequence[str], command: Sequence[Text], *, move: bool
    ) -> tuple[list[str], str, list[str]]:
        """Return words as text for KFP, their mask, and the values that move from the container into ``STAGE``.

        KFP's backend stores a container once for all stages with the same text. The mask has a letter for each word:
        ``s``, ``b`` if it is escaped, ``v`` if its value moves (``contract.command``).

        Args:
            variables: ``env`` and ``NAME=value``.
            starter: the words of programs between these and the application, as text for KFP.
            command: the application and its arguments.
            move: whether values may move, except those that the stages of a pipeline share.
        """
        words = [*variables, *command]
        moved = dict(_moved(words, len(variables))) if move else {}
        if sum(len(value) for _, value in moved.values()) > _MOST:
            moved = {}
        coded = [(moved[index][0], "v") if index in moved else self._whole(parts) for index, parts in enumerate(words)]
        coded[len(variables) : len(variables)] = [(word, "s") for word in starter]
        mask = "".join(kind for _, kind in coded).rstrip("s")
        return [text for text, _ in coded], mask, [value for _, value in moved.values()]

    def _whole(self, parts: Text) -> tuple[str, str]:
        """Return a word that stays, escaped if an engine would change it, and its letter."""
        text = self.render(parts)
        escaped = is_constant(parts) and find_rewritten(text) is not None
        text = check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,")
        return text, "b" if escaped else "s"

    def add_text(self, name: str, text: str) -> str:
        """Add a parameter for this text, under this name or a similar one, and return its placeholder."""
        return parameter_placeholder(self._add(name, Reference(text, text, name, "STRING")))

    def _add(self, wanted: str, reference: Reference) -> str:
        name = input_name(wanted, self._taken)
        self._taken.add(name)
        self.parameters[name] = reference
        return name

    def _placeholder(self, reference: Reference, name: str = "") -> str:
        if reference not in self._names:
            wanted = name or f"{INNER if reference.loop_item else ''}{reference.name}{SUFFIXES.get(reference.type, '')}"
            self._names[reference] = self._add(wanted, reference)
            if reference.loop_item:
                self._placeholder(reference.loop_item)
        return parameter_placeholder(self._names[reference])

    def _run_ids(self, source: ReadSource, alias: str) -> str:
        if isinstance(source, tuple):
            return f"[{', '.join(self._run_ids(one, alias) for one in source)}]"
        text = self.render_run_id(source, alias)
        return text if is_list(source) else f'"{text}"'


def _moved(words: Sequence[Text], variables: int) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the indices of words whose values move: what stays of them, and the values."""
    for index, word in enumerate(words):
        if index == variables or not is_constant(word):
            continue
        text, start = str(word[0]), 0
        if index < variables:
            name = text.partition("=")[0]
            start = len(name) + 1
            # The pipeline sets variables that begin so, the same for its stages.
            if not is_shell_variable(name) or name.startswith("TORCHX_"):
                continue
        if _VALUE.fullmatch(text, start):
            yield index, (text[:start], text[start:])


def digest(parameters: Mapping[str, Reference], outputs: Mapping[str, type]) -> str:
    """Return a short text that differs for components with different parameters, defaults or outputs."""
    kinds = {name: getattr(kind, "schema_title", kind.__name__) for name, kind in outputs.items()}
    defaults = {
        name: [planned.type, *([] if planned.default is inspect.Parameter.empty else [planned.default])]
        for name, planned in parameters.items()
    }
    described = json.dumps([defaults, kinds], sort_keys=True, default=repr)
    return hashlib.sha256(described.encode()).hexdigest()[:8]
