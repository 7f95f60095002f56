"""A pipeline's Kubernetes settings: those that are applied, and those that are reported as not applied."""

import base64
import dataclasses

import pytest
import yaml
from kfp import compiler, dsl, kubernetes

from tests.execution.local.components import shell, shell_out
from tests.watching import Heard
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.local.given_keys import read_keys
from torchx_kfp.local import Watch, load_pipeline, run


def test_settings_that_are_not_applied_and_what_the_application_may_miss_are_said_once(execute, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    @dsl.pipeline
    def pipeline():
        for _ in range(2):
            task = shell(script=":").set_cpu_limit("1").set_accelerator_limit(1).set_accelerator_type("nvidia.com/gpu")
            kubernetes.add_pod_label(task, "a", "b")
            kubernetes.add_node_selector(task, "a", "b")
            kubernetes.add_toleration(task, "a", "Equal", "b")
            kubernetes.set_image_pull_policy(task, "Always")
            kubernetes.set_image_pull_secrets(task, ["x"])
            kubernetes.set_timeout(task, 1000)
            kubernetes.use_field_path_as_env(task, "NS", "metadata.namespace")
        task = shell(script=":")
        kubernetes.mount_pvc(task, "claim", "/no/pvc")
        kubernetes.mount_pvc(task, "there", str(tmp_path))
        kubernetes.use_secret_as_volume(task, "sec", "/no/secret")
        kubernetes.use_config_map_as_volume(task, "conf", "/no/config")
        kubernetes.empty_dir_mount(task, "scratch", "/no/scratch")
        kubernetes.add_ephemeral_volume(task, "temp", "/no/temp", ["ReadWriteOnce"], "1Gi")
        kubernetes.use_secret_as_env(task, "sec", {"u": "NO_USER", "p": "NO_PASSWORD"})
        kubernetes.use_config_map_as_env(task, "conf", {"u": "NO_CONFIG"})
        kubernetes.use_secret_as_volume(task, "optional", "/no/optional", optional=True)

    settings = {"activeDeadlineSeconds": 1000, "resourceTtlOnSuccess": 1, "resourceTtlOnFailure": 2, "mutexName": "m"}
    loaded = dataclasses.replace(load_pipeline(pipeline), platform=settings)
    events = []
    execute(loaded, watch=Heard(on_event=events.append))
    assert events[0].not_applied == (
        "a temporary volume 'temp' (make the directory /no/temp, or use --docker)",
        "an empty directory 'scratch' (make the directory /no/scratch, or use --docker)",
        "cpu and memory limits",
        "image pull policies",
        "image pull secrets",
        "limits of GPUs (CUDA_VISIBLE_DEVICES is '')",
        "node selectors",
        "pod labels and annotations",
        "the config map 'conf' (make the directory /no/config, or use --docker)",
        "the config map 'conf' (set NO_CONFIG, or give --config-map conf=FILE with the key u)",
        "the pipeline's mutex",
        "the secret 'sec' (make the directory /no/secret, or use --docker)",
        "the secret 'sec' (set NO_USER and NO_PASSWORD, or give --secret sec=FILE with the keys u and p)",
        "the time for which a finished run is kept",
        "the variable NS (from the pod's metadata.namespace)",
        "the volume claim 'claim' (make the directory /no/pvc, or use --docker)",
        "tolerations",
    )


def test_settings_of_a_later_version_are_not_applied(execute, tmp_path):
    """They may be of the cluster only, as most that are known; whoever uses one can still run the pipeline here."""

    @dsl.pipeline
    def pipeline():
        shell(script=":")

    loaded = load_pipeline(pipeline)
    documents = [*yaml.safe_load_all(loaded.text)]
    kubernetes = {
        "deploymentSpec": {"executors": {"exec-shell": {"brandNew": {"a": 1}}}},
        "pipelineConfig": {"later": 2},
    }
    file = tmp_path / "later.yaml"
    file.write_text(yaml.safe_dump_all([documents[0], {"platforms": {"kubernetes": kubernetes}}]))
    events = []
    execute(load_pipeline(file), watch=Heard(on_event=events.append))
    unknown = "(this version does not know the setting)"
    assert events[0].not_applied == (f"brandNew {unknown}", f"later {unknown}")


def test_secrets_that_are_given(execute, monkeypatch):
    monkeypatch.setenv("SET", "from the environment")

    @dsl.pipeline
    def pipeline():
        task = shell(script='echo "$USER_OF $SET $BOTH $CONF"')
        kubernetes.use_secret_as_env(task, "sec", {"user": "USER_OF", "set": "SET", "both": "BOTH"})
        kubernetes.use_config_map_as_env(task, "conf", {"key": "CONF"})

    events = []
    secrets = {"sec": {"user": "me", "both": "a b"}}
    result = execute(pipeline, secrets=secrets, config_maps={"conf": {"key": "c"}}, watch=Heard(on_event=events.append))
    assert result.stages[0].last_lines() == ["me from the environment a b c"]
    assert events[0].not_applied == ()
    for file in result.folder.rglob("*"):
        if file.is_file() and file.name != "log.txt":
            assert "a b" not in file.read_text(), f"a secret is in {file}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"secrets": {"kees": {}}}, "No stage uses the secret 'kees'. Did you mean 'keys'? The stages use: keys."),
        ({"config_maps": {"keys": {}}}, "No stage uses the config map 'keys'. The stages use: none."),
        ({"secrets": {"keys": {"b": "x"}}}, "The given secret 'keys' lacks 'a'; it has: b."),
        (
            {"docker": True},
            "A stage in a container takes 'A' from the secret 'keys'. This machine has such a variable, but containers "
            "get only those that you name: --env A. Or give the values: --secret keys=FILE.",
        ),
    ],
)
def test_what_is_given_and_not_taken(tmp_path, monkeypatch, given, message):
    if "docker" in given:
        monkeypatch.setenv("A", "anybody's")

    @dsl.pipeline
    def pipeline():
        kubernetes.use_secret_as_env(shell(script=":"), "keys", {"a": "A"})

    with pytest.raises(ArgumentError) as error:
        run(pipeline, output_dir=tmp_path, watch=Watch(), **given)
    assert str(error.value) == message


def test_the_name_of_a_secret_is_an_argument_of_the_pipeline_around_the_stage(execute):
    if "Union" not in str(kubernetes.use_secret_as_env.__annotations__["secret_name"]):
        pytest.skip("the names of secrets are constants in this kfp")

    @dsl.pipeline
    def inner(name: str):
        task = shell(script='test "$TOKEN" = found')
        kubernetes.use_secret_as_env(task, name, {"key": "TOKEN"})

    @dsl.pipeline
    def outer(name: str = "of-root"):
        inner(name="of-inner")

    result = execute(outer, secrets={"of-inner": {"key": "found"}}, watch=Heard(on_event=(events := []).append))
    assert result.state == "succeeded"
    assert events[0].not_applied == ()


def test_volume_claims_have_their_names(execute):
    @dsl.pipeline
    def pipeline():
        size = {"access_modes": ["ReadWriteOnce"], "size": "1Gi", "storage_class_name": "s"}
        made = kubernetes.CreatePVC(pvc_name_suffix="-data", **size)
        task = shell_out(script='printf %s "$0" > "$0"')
        kubernetes.mount_pvc(task, made.outputs["name"], "/no/data")
        kubernetes.DeletePVC(pvc_name=made.outputs["name"]).after(task)

    result = execute(pipeline)
    stages = {stage.name: stage for stage in result.stages}
    assert stages["createpvc"].outputs == {"name": f"{result.run_id}-data"}
    assert {stage.state for stage in result.stages} == {"succeeded"}


@pytest.fixture
def given(call, tmp_path):
    """Call ``torchx-kfp run`` with these options, for a pipeline that takes three secrets and a config map."""

    @dsl.pipeline
    def pipeline():
        task = shell(script='printf "%s\\n" "$A" "$B" "$C" "$D" "$E" "$F" "$G" "$H"')
        kubernetes.use_secret_as_env(task, "folder", {"user": "A"})
        kubernetes.use_secret_as_env(task, "lines", {"user": "B", "token": "C", "quoted": "D", "equals": "E"})
        kubernetes.use_secret_as_env(task, "manifest", {"user": "F", "token": "G"})
        kubernetes.use_config_map_as_env(task, "map", {"user": "H"})

    compiler.Compiler().compile(pipeline, str(tmp_path / "p.yaml"))
    return lambda *words: call("run", "p.yaml", "--output-dir", "runs", *words)


def test_keys_come_from_folders_files_of_lines_and_manifests(given, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "user").write_text("me\n")
    (tmp_path / "folder" / "..data").mkdir()
    (tmp_path / "folder" / ".hidden").write_bytes(b"\xff")
    (tmp_path / "lines.env").write_text("# comment\n\nuser=me\nexport token = x\nquoted='a b'\nequals=a=b\n")
    encoded = base64.b64encode(b"me").decode()
    (tmp_path / "secret.yaml").write_text(f"kind: Secret\ndata: {{user: {encoded}}}\nstringData: {{token: x}}\n")
    (tmp_path / "map.json").write_text('{"kind": "ConfigMap", "data": {"user": "me"}}')
    words = ("folder=folder", "lines=lines.env", "manifest=secret.yaml")
    done = given(*(part for word in words for part in ("--secret", word)), "--config-map", "map=map.json")
    assert done.returncode == 0, done.stderr
    [log] = tmp_path.glob("runs/*/*/log.txt")
    assert log.read_text() == "me\n\nme\n x\na b\na=b\nme\nx\nme\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s3"], "--secret 's3' is not NAME=PATH. Write, for example, --secret s3=s3.env."),
        (["=x"], "--secret '=x' is not NAME=PATH"),
        (["a=lines", "a=lines"], "--secret a=... is given twice. Give each name once."),
        (["a=missing"], "--secret: 'missing' cannot be read: No such file or directory. Give a folder with a file for"),
        (["a=wrong"], "--secret: line 1 of 'wrong' is not KEY=VALUE."),
        (["a=wrong.yaml"], "--secret: 'wrong.yaml' is not a manifest of a Secret or ConfigMap (its kind is Pod)."),
        (
            ["a=broken.yaml"],
            "--secret: 'broken.yaml' is not a manifest of a Secret or ConfigMap. Take the output of `kubectl",
        ),
        (["a=binary"], "--secret: 'binary' cannot be read: it is not text."),
    ],
)
def test_what_cannot_be_given(given, tmp_path, words, message):
    (tmp_path / "lines").write_text("a=b")
    (tmp_path / "wrong").write_text("my password")
    (tmp_path / "wrong.yaml").write_text("kind: Pod")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "binary").write_bytes(b"\xff")
    done = given(*(part for word in words for part in ("--secret", word)))
    assert done.returncode == 2
    assert message in done.stderr
    assert "password" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_variables_from_labels_and_annotations(execute):
    @dsl.pipeline
    def pipeline():
        task = shell_out(script='printf %s "$LABEL,$NOTE,${NONE-unset},$POD" > "$0"')
        kubernetes.add_pod_label(task, "team", "a")
        kubernetes.add_pod_annotation(task, "note", "b c")
        for name, path in {
            "LABEL": "metadata.labels['team']",
            "NOTE": "metadata.annotations['note']",
            "NONE": "metadata.annotations['none']",
            "POD": "metadata.name",
        }.items():
            kubernetes.use_field_path_as_env(task, name, path)

    (stage,) = execute(pipeline).stages
    assert stage.outputs["out"] == f"a,b c,,{stage.name}_1"


def test_a_key_may_have_any_bytes(tmp_path):
    content = b"\xfe\xed keystore \xff"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "store.jks").write_bytes(content)
    encoded = base64.b64encode(content).decode()
    (tmp_path / "secret.yaml").write_text(f"kind: Secret\ndata: {{store.jks: {encoded}, user: bWU=}}\n")
    for keys in (read_keys(tmp_path / "folder"), read_keys(tmp_path / "secret.yaml")):
        assert keys["store.jks"].encode("utf-8", "surrogateescape") == content
