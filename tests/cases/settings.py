"""Kubernetes settings, workspaces and a pipeline's own settings: applied, ignored, or rejected by name."""

from kfp import dsl, kubernetes

from tests.cases import case
from tests.cases.parts import component, shell, write


@case(outputs={"Output": "set"})
def fields_of_the_pod() -> str:
    made = shell(script='test -n "$POD" && printf set > "$0"')
    kubernetes.use_field_path_as_env(made, env_name="POD", field_path="metadata.name")
    return made.outputs["out"]


@component
def put(folder: str, name: str, text: str) -> str:
    import os

    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    return path


@component
def get(path: str) -> str:
    with open(path) as file:
        return file.read()


WORKSPACE = dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi"))


@case(
    missing="storage for volume claims",
    since=(2, 15),
    config=WORKSPACE,
    outputs={"Output": "shared"},
)
def workspace() -> str:
    path = put(folder=dsl.WORKSPACE_PATH_PLACEHOLDER, name="a.txt", text="shared")
    return get(path=path.output).output


@dsl.container_component
def in_workspace(folder: str, out: dsl.OutputPath(str)):
    script = 'printf kept > "$0/file" && cat "$0/file" > "$1"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script, folder, out])


@case(missing="storage for volume claims", since=(2, 15), config=WORKSPACE, outputs={"Output": "kept"})
def workspace_in_containers() -> str:
    return in_workspace(folder=dsl.WORKSPACE_PATH_PLACEHOLDER).outputs["out"]


@case(missing="storage for volume claims", stages={"write": {"out": "x"}})
def volumes():
    made = kubernetes.CreatePVC(access_modes=["ReadWriteOnce"], size="1Gi", pvc_name_suffix="-x")
    used = write(text="x")
    kubernetes.mount_pvc(used, pvc_name=made.outputs["name"], mount_path="/data")
    kubernetes.DeletePVC(pvc_name=made.outputs["name"]).after(used)
