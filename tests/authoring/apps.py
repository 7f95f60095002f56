"""AppDefs, arguments and pipelines for tests."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from tests.documents import documents
from tests.facts import keep
from torchx_kfp import task_from_app

#: Words that KFP, Argo or the kubelet would change.
HOSTILE = [
    "$$",
    "$$$$",
    "a$$b",
    "$(HOME)",
    "$$(HOME)",
    "$(UNSET)",
    "{{workflow.name}}",
    "{{=1+1}}",
    "{{unknown}}",
    "{{$.inputs.parameters['a']}}",
    "{{",
    "{{{{ }}}}",
    '{"Concat": ["a"]}',
    '{"IfPresent": {}}',
    "\x7f",
    "a\U000e0001b",
    "$é",
    "a $漢 $$ü$(HOME)",
    "{{workflow.name}}\n\n",
    "\\{{=1}}\\n\\0101\\c",
    "é{{=1}}漢字🙂",
]
#: Words that a careless shell script would change.
PLAIN = [
    *("", " ", "-", "--", "-n", "-e", "'", '"', "`id`", "$HOME", "$", "${HOME}", "\\", "\\n", "a\nb", "\n", "a=b"),
    *("*", "~", "!", "é漢字🙂"),
]


def make_app(name: str = "train", *, role: str = "trainer", **fields: Any) -> AppDef:
    """Return an AppDef with one role, which has these fields. Its arguments and variables arrive as they are here."""
    fields = {"image": "busybox", "entrypoint": "echo", **fields}
    if isinstance(fields.get("args"), list):
        fields["args"] = [*map(keep, fields["args"])]
    if isinstance(fields.get("env"), dict):
        fields["env"] = {name: keep(value) for name, value in fields["env"].items()}
    return AppDef(name, roles=[Role(role, **fields)])


def compile_pipeline(function: Callable[..., Any], name: str = "pipeline") -> str:
    """Return the YAML of the pipeline, or of one that consists of this function."""
    pipeline = function if hasattr(function, "pipeline_spec") else dsl.pipeline(name=name)(function)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(pipeline, str(path))
        return path.read_text(encoding="utf-8")


def compile_stage(app: AppDef | None = None, *, tracked: bool = True, **options: Any) -> str:
    """Return the YAML of a pipeline with one stage, which has these options and, if it is tracked, a tracker base."""

    def pipeline(tracker_base: str = "/tmp/results") -> None:
        task_from_app(app or make_app(), tracker_base=tracker_base if tracked else None, **options)

    return compile_pipeline(pipeline)


def load(compiled: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pipeline spec and the platform's executors."""
    spec, platforms = [*documents(compiled), {}][:2]
    platform = platforms.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {}).get("executors", {})
    return spec, platform


def unresolved_inputs(spec: dict[str, Any]) -> list[str]:
    """Return references in the compiled pipeline to inputs that no component declares or no task gets."""
    problems = []
    components = {"root": spec["root"], **spec.get("components", {})}
    for name, component in components.items():
        declared = set(component.get("inputDefinitions", {}).get("parameters", {}))
        for task_name, task in component.get("dag", {}).get("tasks", {}).items():
            given = task.get("inputs", {}).get("parameters", {})
            for key, value in given.items():
                source = value.get("componentInputParameter")
                if source and source not in declared:
                    problems.append(f"{name}/{task_name}: {key} takes {source}, which {name} does not have")
            called = components[task["componentRef"]["name"]]
            iterator = task.get("parameterIterator", {}).get("itemInput")
            missing = set(called.get("inputDefinitions", {}).get("parameters", {})) - set(given) - {iterator}
            problems += [f"{name}/{task_name}: {key} is not passed" for key in sorted(missing)]
    return problems


@dsl.container_component
def produce(
    text: dsl.OutputPath(str),
    number: dsl.OutputPath(int),
    ratio: dsl.OutputPath(float),
    truth: dsl.OutputPath(bool),
    items: dsl.OutputPath(list),
    mapping: dsl.OutputPath(dict),
):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", "true", text, number, ratio, truth, items, mapping])


@dsl.container_component
def make_artifact(data: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(image="busybox", command=["true", data.path])


def use(*args: Any, **fields: Any) -> dsl.PipelineTask:
    return task_from_app(make_app("use", args=list(args), **fields))
