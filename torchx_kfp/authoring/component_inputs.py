"""The inputs of a stage's component: their names, their types, and the arguments of a task."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Mapping

from torchx_kfp.authoring.naming import input_name
from torchx_kfp.authoring.reads import ReadSource, is_list
from torchx_kfp.authoring.references import Reference, Text
from torchx_kfp.contract.inputs import INNER, READS, RUN_ID, SUFFIXES, parameter_placeholder


class Inputs:
    """The inputs of a component, ``planned`` by name. Rendering text for KFP adds those to which the text refers.

    KFP's backend merges components whose containers have the same text, even if their inputs differ
    (kubeflow/pipelines, argocompiler). So a name in the text shows the input's type, and whether there is a loop item.
    """

    def __init__(self, parameters: Collection[Reference], taken: Iterable[str]) -> None:
        """Begin with these inputs, which keep their names; ``taken`` are names of other things."""
        self.planned = {reference.name: reference for reference in parameters}
        self._names = {reference: reference.name for reference in parameters}
        self._taken = {RUN_ID, *taken, *self.planned}

    def render(self, parts: Text) -> str:
        """Return the parts as text for KFP, in which each reference is the placeholder for its input."""
        return "".join(part if isinstance(part, str) else self._placeholder(part) for part in parts)

    def render_reads(self, reads: Mapping[str, ReadSource], *, by_alias: bool) -> list[str]:
        """Return the run ids that are read, as JSON with placeholders. Inputs get the aliases that the author gave."""
        return [self._run_ids(source, alias if by_alias else READS) for alias, source in reads.items()]

    def render_image(self, image: Text) -> str:
        """Return the text of an image.

        If an image contains a placeholder, the backend's driver replaces the whole image with the value of that input,
        and drops the text around it. So text next to a channel becomes the value of one input.
        """
        text = self.render(image)
        references = [part for part in image if isinstance(part, Reference)]
        if not references or (len(image) == 1 and references[0].type == "STRING"):
            return text
        return self.add_text("_".join(("image", *(self._names[part] for part in references))), text)

    def add_text(self, name: str, text: str) -> str:
        """Add an input for this text, under this name or a similar one, and return its placeholder."""
        return parameter_placeholder(self._add(name, Reference(text, text, name, "STRING")))

    def _add(self, wanted: str, reference: Reference) -> str:
        name = input_name(wanted, self._taken)
        self._taken.add(name)
        self.planned[name] = reference
        return name

    def _placeholder(self, reference: Reference, alias: str = "") -> str:
        if reference not in self._names:
            wanted = (
                alias or f"{INNER if reference.loop_item else ''}{reference.name}{SUFFIXES.get(reference.type, '')}"
            )
            self._names[reference] = self._add(wanted, reference)
            if reference.loop_item:
                self._placeholder(reference.loop_item)
        return parameter_placeholder(self._names[reference])

    def _run_ids(self, source: ReadSource, alias: str) -> str:
        if isinstance(source, tuple):
            return f"[{', '.join(self._run_ids(one, alias) for one in source)}]"
        text = source if isinstance(source, str) else self._placeholder(source, alias)
        return text if is_list(source) else f'"{text}"'


def describe(inputs: Mapping[str, Reference], outputs: Mapping[str, type]) -> str:
    """Return a text that differs for components with different inputs, defaults or outputs."""
    kinds = {name: getattr(kind, "schema_title", kind.__name__) for name, kind in outputs.items()}
    defaults = {
        name: [planned.type, *([] if planned.default is inspect.Parameter.empty else [planned.default])]
        for name, planned in inputs.items()
    }
    return json.dumps([defaults, kinds], sort_keys=True, default=repr)
