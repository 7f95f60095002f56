"""Commands of Python components: the function, its source, and the packages that it installs."""

# No postponed annotations: kfp reads annotations as types.

import json

import pytest
from kfp import dsl

from torchx_kfp.execution.pipeline.python_components import parse_command
from torchx_kfp.local import load_pipeline

pytestmark = pytest.mark.versions


def commands_of(**options):
    @dsl.component(base_image="python:3.11", **options)
    def function(x: int) -> int:
        return x

    @dsl.pipeline
    def pipeline():
        function(x=1)

    (container,) = [made.container for made in load_pipeline(pipeline).components.values() if made.container]
    return (*container.command, *container.args)


@pytest.mark.parametrize(
    ("options", "installs"),
    [
        ({}, []),
        ({"install_kfp_package": False}, []),
        ({"packages_to_install": ["a==1", 'b; python_version<"3.9"', "c[x]>=1,<2"]}, 1),
        ({"packages_to_install": ["kfp==2.0.1", "a"]}, 1),
        ({"packages_to_install": ["a"], "install_kfp_package": False}, 1),
        ({"use_venv": True, "packages_to_install": ["a"]}, 1),
        ({"use_venv": True}, []),
        ({"kfp_package_path": "git+https://github.com/kubeflow/pipelines.git@master#subdirectory=sdk/python"}, []),
        ({"kfp_package_path": "/dist/kfp-2.17.0-py3-none-any.whl", "packages_to_install": ["a"]}, 1),
        ({"packages_to_install": ["git+https://host/a.git#egg=a", "./b"]}, 1),
        (
            {"packages_to_install": ["a"], "pip_index_urls": ["https://$USER@one/simple", "http://two"]},
            [
                *("--index-url", "https://$USER@one/simple", "--extra-index-url", "http://two"),
                *("--trusted-host", "https://$USER@one/simple", "--trusted-host", "http://two", "a"),
            ],
        ),
        (
            {"packages_to_install": ["a"], "pip_index_urls": ["http://one"], "pip_trusted_hosts": ["h"]},
            ["--index-url", "http://one", "--trusted-host", "h", "a"],
        ),
    ],
)
def test_what_a_command_installs(options, installs):
    python = parse_command(commands_of(**options))
    expected = options["packages_to_install"] if installs == 1 else installs
    assert python.installs == ((tuple(expected),) if expected else ())
    assert python.function == "function"
    assert "def function(x: int) -> int:" in python.source


def test_the_command_of_an_older_kfp():
    script = (
        '\nif ! [ -x "$(command -v pip)" ]; then\n    python3 -m ensurepip || python3 -m ensurepip --user || '
        "apt-get install python3-pip\nfi\n\nPIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip install --quiet     "
        "--no-warn-script-location 'a' 'kfp==2.0.1' && \"$0\" \"$@\"\n"
    )
    start = (
        'program_path=$(mktemp -d)\nprintf "%s" "$0" > "$program_path/ephemeral_component.py"\npython3 -m '
        'kfp.components.executor_main --component_module_path "$program_path/ephemeral_component.py" "$@"\n'
    )
    words = ("sh", "-c", script, "sh", "-ec", start, "def f(): ...", "--executor_input", "{}")
    python = parse_command((*words, "--function_to_execute", "f"))
    assert (python.function, python.source, python.installs) == ("f", "def f(): ...", (("a",),))
    assert python.command("f.py", {"s3://x": "x"})[3:6] == ['{"s3://x": "x"}', "--component_module_path", "f.py"]
    assert json.loads(python.arguments[1]) == {}


@pytest.mark.parametrize("index", [1, 2, 4, 5])
def test_commands_that_only_look_alike(index):
    words = list(commands_of(packages_to_install=["a"]))
    assert parse_command(words) is not None
    words[index] = "true"
    assert parse_command(words) is None
