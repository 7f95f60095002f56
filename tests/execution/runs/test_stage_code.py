"""Stages with a workspace are known by the code that they can use: see ``runs.stage_code``.

``use`` is what reads a file in the ways that programs have; a property says that no other way is missed.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.components import dist
from torchx.specs import AppDef, Role

from tests.facts import says
from torchx_kfp import Stages
from torchx_kfp.errors import AppDefError
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.runs.prepared_run import prepare
from torchx_kfp.local import RunResult, Watch, run

FILES = {
    "train.py": "import helper, package.inner\nprint(open('data/a.csv').read(), helper.VALUE, package.inner.VALUE)",
    "evaluate.py": "import helper\nprint(helper.VALUE)",
    "helper.py": "VALUE = 1",
    "package/__init__.py": "",
    "package/inner.py": "VALUE = 2",
    "data/a.csv": "1",
    "data/b.csv": "2",
    "NOTES.md": "notes",
    "unrelated.py": "",
    "conf/one.yaml": "x: 1",
    "conf/two.yaml": "x: 2",
    "tool.sh": "cat NOTES.md",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    monkeypatch.chdir(tmp_path)
    return folder


def python(name: str, *args: str, **role: Any) -> AppDef:
    return AppDef(name, [Role("r", image="i", entrypoint=sys.executable, args=[*args], **role)])


def pipeline_of(*apps: AppDef, **options: Any) -> Any:
    @dsl.pipeline(name="p")
    def pipeline(tracker_base: str, workspace: str = ""):
        for app in apps:
            Stages(tracker_base=tracker_base, workspace=workspace).task(app, **options)

    return pipeline


def keys(pipeline: Any, folder: Path) -> dict[str, str]:
    """Return what KFP's key of each task consists of: image, command, arguments, inputs and outputs.

    That is ``GenerateCacheKey`` in KFP's ``backend/src/v2/cacheutils/cache.go``.
    """
    base = "memory://results"
    prepared = prepare(load_pipeline(pipeline), {"tracker_base": base}, workspace=folder)
    spec, _ = prepared.pipeline.documents
    found = {}
    for name, task in spec["root"]["dag"]["tasks"].items():
        component = spec["components"][task["componentRef"]["name"]]
        container = spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        given = {
            key: prepared.values[value["componentInputParameter"]]
            if "componentInputParameter" in value
            else value["runtimeValue"]["constant"]
            for key, value in task["inputs"]["parameters"].items()
        }
        parts = [container["image"], container["command"], container.get("args", []), given]
        found[name] = json.dumps([*parts, component["outputDefinitions"]])
        assert {"name": "TORCHX_KFP_CODE_URL", "value": prepared.values["workspace"]} in container["env"]
    return found


def changed(pipeline: Any, folder: Path, name: str) -> list[str]:
    """Return the stages whose keys a change of a file changes."""
    before = keys(pipeline, folder)
    (folder / name).write_text("changed = True\n")
    after = keys(pipeline, folder)
    return [stage for stage in before if before[stage] != after[stage]]


@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("train.py", ["train"]),
        ("evaluate.py", ["evaluate"]),
        ("helper.py", ["evaluate", "train"]),
        ("package/inner.py", ["train"]),
        ("data/a.csv", ["train"]),
        ("data/b.csv", ["train"]),  # "data" and "csv" stand there
        ("NOTES.md", []),
        ("unrelated.py", []),
        ("new.py", []),
        ("random.py", ["evaluate", "train"]),  # the standard library would import it
    ],
)
def test_a_changed_file_changes_the_keys_of_the_stages_that_can_use_it(folder: Path, file: str, stages: list[str]):
    pipeline = pipeline_of(python("train", "train.py"), python("evaluate", "-m", "evaluate"))
    assert sorted(changed(pipeline, folder, file)) == stages


def test_a_stage_declares_what_it_reads(folder: Path):
    app = dist.ddp("--x", "1", script="evaluate.py", name="b", image="i", j="1x2")
    for options in ({}, {"engine": "job", "results": {}}):
        pipeline = pipeline_of(app, inputs=["data/*.csv", "NOTES.md"], **options)
        assert changed(pipeline, folder, "data/b.csv") == ["b"]
        (folder / "data" / "b.csv").unlink()
        assert not changed(pipeline, folder, "conf/one.yaml")
        (folder / "conf" / "one.yaml").unlink()


@pytest.mark.parametrize("inputs", ["data/*.csv", ["a:b"], [""], [3]])
def test_what_is_declared_are_patterns(inputs: Any):
    with pytest.raises(AppDefError, match=says(repr(inputs), "['data/*.csv']")):
        Stages(tracker_base="results").task(python("a"), inputs=inputs)


def test_replicas_are_known_by_their_code(folder: Path):
    pipeline = pipeline_of(
        dist.ddp("--x", "1", script="train.py", name="a", image="i", j="2x1"), engine="job", results={}
    )
    assert not changed(pipeline, folder, "NOTES.md")
    assert changed(pipeline, folder, "helper.py") == ["a"]


@pytest.mark.parametrize("is_given", [False, True], ids=["constant", "parameter"])
def test_a_loop_whose_items_name_files(folder: Path, is_given: bool):
    @dsl.pipeline(name="p")
    def pipeline(tracker_base: str, configs: list = [], workspace: str = ""):  # noqa: B006 (KFP's way)
        with dsl.ParallelFor(configs if is_given else ["one", "x"]) as item:
            Stages(tracker_base=tracker_base, workspace=workspace).task(python("a", "evaluate.py", f"{item}"))

    def names() -> set[str]:
        arguments = {"tracker_base": "memory://results", "configs": ["one"]}
        prepared = prepare(load_pipeline(pipeline), arguments, workspace=folder)
        return {value for value in _texts(prepared.pipeline.documents[0]) if value.startswith("code:")}

    before = names()
    (folder / "conf" / "two.yaml").write_text("changed")
    assert names() == before
    (folder / "conf" / "one.yaml").write_text("changed")
    assert len(names()) == 1
    assert names() != before


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = [*value.values()]
    return [text for one in value for text in _texts(one)] if isinstance(value, list) else [str(value)]


def test_an_application_that_reads_the_url_gets_it(folder: Path):
    @dsl.pipeline(name="p")
    def pipeline(tracker_base: str, workspace: str = ""):
        Stages(tracker_base=tracker_base, workspace=workspace).task(python("a", "-c", "print", workspace))

    prepared = prepare(load_pipeline(pipeline), {"tracker_base": "memory://results"}, workspace=folder)
    assert "TORCHX_KFP_CODE_URL" not in [name for name, _ in prepared.pipeline.components["comp-a"].container.env]


def ran(pipeline: Any, folder: Path, **options: Any) -> RunResult:
    return run(pipeline, {"tracker_base": "results"}, workspace=folder, output_dir="runs", watch=Watch(), **options)


def test_a_cached_stage_has_what_it_would_record_now(folder: Path):
    """Whatever file is changed: what a stage prints when it runs is what the cache would give."""
    pipeline = pipeline_of(python("train", "train.py"), python("evaluate", "-m", "evaluate"))
    ran(pipeline, folder)
    seed = random.Random(7)
    for number in range(3):
        name = seed.choice(sorted(FILES))
        with (folder / name).open("a") as file:
            file.write(f"# {number}\n" if name.endswith(".py") else f"{number}\n")
        cached, fresh = ran(pipeline, folder), ran(pipeline, folder, cache=False)
        for one, other in zip(cached.stages, fresh.stages, strict=True):
            assert one.last_lines() == other.last_lines(), (name, one.name)


#: What a program is, the file that it uses, and other files.
USES: list[tuple[str | bytes, str, dict[str, str]]] = [
    ("open('data/b.csv')", "data/b.csv", {}),
    ("open('data/' + name)", "data/b.csv", {}),
    ("open(f'data/{name}.csv')", "data/b.csv", {}),
    ("open('data/%s.csv' % name)", "data/b.csv", {}),
    ("open('data/{}.csv'.format(name))", "data/b.csv", {}),
    ("open(os.path.join('data', name))", "data/b.csv", {}),
    ("open(f'{folder}/{name}.csv')", "data/b.csv", {}),
    ("Path('data').iterdir()", "data/b.csv", {}),
    ("Path('data').glob('*.csv')", "data/b.csv", {}),
    ("Path(name).with_suffix('.csv')", "data/b.csv", {}),
    ("Path(__file__).parent / 'data' / name", "data/b.csv", {}),
    ("os.listdir()", "data/b.csv", {}),
    ("os.listdir('.')", "data/b.csv", {}),
    ("os.listdir(name)", "data/b.csv", {}),
    ("glob.glob('data/?.csv')", "data/b.csv", {}),
    ("glob.glob('**/*.csv', recursive=True)", "data/b.csv", {}),
    ("subprocess.run(['sh', 'tool.sh'])", "data/b.csv", {}),
    ("importlib.resources.files('data')", "data/b.csv", {}),
    ("importlib.import_module(name)", "data/b.csv", {}),
    ("exec(name)", "data/b.csv", {}),
    ("import data", "data.py", {"data/x.csv": ""}),
    ("import package.a", "utils.py", {"package/a.py": "import utils", "package/utils.py": ""}),
    ("import fast", "fast.cpython-311-x86_64-linux-gnu.so", {}),
    ("importlib.resources.files('package.data') / 'x.txt'", "package/data/x.txt", {}),
    (
        "from conf.paths import ROOT\nopen(ROOT / 'x.txt')",
        "conf/x.txt",
        {"conf/paths.py": "ROOT = Path(__file__).parent"},
    ),
    ("importlib.import_module('other')", "other.py", {}),
    ("from importlib import import_module as load\nload(name)", "other.py", {}),
    ("[*map(importlib.import_module, names)]", "other.py", {}),
    ("subprocess.run([sys.executable, '-m', 'other'])", "other.py", {}),
    ("subprocess.run([sys.executable, '-m', name])", "other.py", {}),
    ("os.system('python other.py --x 1')", "other.py", {}),
    ("os.system('python -m other')", "other.py", {}),
    ("os.system('python /app/other.py .')", "x.csv", {}),
    ("subprocess.run(['make', 'data'])", "Makefile", {}),
    ("@hydra.main(config_path='.', config_name='config')\ndef main(c): ...", "config.yaml", {}),
    ("shutil.copytree('.', folder)", "x.csv", {}),
    ("[*Path(__file__).parent.glob('*')]", "x.csv", {}),
    ("open('weights_' + name + '_v1.pt')", "weights_a_v1.pt", {}),
    ("open('data/%(name)s.csv' % values)", "data/x.csv", {}),
    ("string.Template('part-$name.csv')", "part-a.csv", {}),
    ("open('data[1].csv')", "data[1].csv", {}),
    ("open(b'x.csv')", "x.csv", {}),
    ('json.loads(\'{"data": "data/x.csv"}\')', "data/x.csv", {}),
    ("load_dotenv()", ".env", {".torchxignore": "!.env"}),
    ("", "sitecustomize/__init__.py", {}),
    (b"# -*- coding: latin-1 -*-\n# \xe9\nimport other", "other.py", {}),
    (b"\xef\xbb\xbfopen('x.csv')", "x.csv", {}),
    ("open(f'part_{number}')", "part_3", {}),
    ("asyncio.create_subprocess_exec('make')", "Makefile", {}),
    ("os.execvp('make', ['make'])", "Makefile", {}),
    ("os.fwalk(name)", "data/b.csv", {}),
    (
        "execute_notebook('a.ipynb')",
        "other.py",
        {"a.ipynb": f'{{"image": "{"=" * (1 << 20)}", "source": "import other"}}'},
    ),
    ("execute_notebook('a.ipynb')", "other.py", {"a.ipynb": '{"source": ["import other\\n"]}'}),
]


@pytest.mark.parametrize(
    ("program", "file", "others"), USES, ids=[f"{use[0]!r}-{use[1]}-{len(str(use[2]))}" for use in USES]
)
def test_no_use_of_a_file_is_missed(folder: Path, program: str | bytes, file: str, others: dict[str, str]):
    (folder / "train.py").write_bytes(program.encode() if isinstance(program, str) else program)
    for name, text in {**others, file: "before"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert changed(pipeline_of(python("train", "train.py")), folder, file) == ["train"]


#: The words of a command, its variables, and the file that it uses.
WORDS: list[tuple[list[str], dict[str, str], str]] = [
    (["python", "evaluate.py", "--config", "conf/one.yaml"], {}, "conf/one.yaml"),
    (["python", "evaluate.py", "--config=conf/one.yaml"], {}, "conf/one.yaml"),
    (["python", "evaluate.py", "--config-dir", "conf"], {}, "conf/two.yaml"),
    (["python", "evaluate.py", "--data", "."], {}, "NOTES.md"),
    (["python", "-c", "import unrelated"], {}, "unrelated.py"),
    (["python", "-c", "print(open('NOTES.md').read())"], {}, "NOTES.md"),
    (["sh", "tool.sh"], {}, "NOTES.md"),
    (["sh", "-c", "cat *.md; python train.py"], {}, "NOTES.md"),
    (["./program"], {}, "NOTES.md"),
    (["env", "A=1", "make"], {}, "NOTES.md"),
    (["python", "train.py"], {"CONFIG": "conf/one.yaml"}, "conf/one.yaml"),
    (["python", "train.py"], {"PYTHONPATH": "src"}, "src/lib/__init__.py"),
    (["sh", "-c", "PYTHONPATH=src python train.py"], {}, "src/lib/__init__.py"),
    (["env", "PYTHONPATH=src", "python", "train.py"], {}, "src/lib/__init__.py"),
    (["python", "-m", "inside.a"], {"PYTHONPATH": "src"}, "helper.py"),
    (["sh", "-c", 'python "$@"', "x", "train.py"], {}, "helper.py"),
    (["python", "src/main.py"], {}, "src/helper.py"),
    (["python", "-mevaluate"], {}, "helper.py"),
    (["python", "-um", "evaluate"], {}, "helper.py"),
    (["torchrun", "--module", "evaluate"], {}, "helper.py"),
    (["python", "-m", "pytest", "package"], {}, "NOTES.md"),
    (["python", "/app/main.py"], {}, "NOTES.md"),
    (["python", "evaluate.py", "my data.csv"], {}, "my data.csv"),
    (["python", "evaluate.py", "--data=day=1/a.csv"], {}, "day=1/a.csv"),
    *(
        ([role.entrypoint, *role.args], {}, "package/inner.py")
        for named in ({"script": "train.py"}, {"m": "package.inner"})
        for role in dist.ddp("--x", "1", name="a", image="i", j="1x2", **named).roles
    ),
]


@pytest.mark.parametrize(("words", "env", "file"), WORDS, ids=lambda value: " ".join(value)[:40])
def test_no_word_or_variable_of_a_command_is_missed(folder: Path, words: list[str], env: dict[str, str], file: str):
    others = {"src/main.py": "import inside.a", "src/inside/a.py": "import helper", "lib/x.csv": ""}
    for name, text in {**others, **({} if file in FILES else {file: "before"})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with (folder / "train.py").open("a") as program:
        program.write("import lib\n")
    app = AppDef("a", [Role("r", "i", entrypoint=words[0], args=words[1:], env=env)])
    assert changed(pipeline_of(app), folder, file) == ["a"]


def test_what_a_link_to_a_folder_leads_to_counts(folder: Path):
    (folder / "current").symlink_to("data")
    (folder / "evaluate.py").write_text("open('current/b.csv')\n")
    assert changed(pipeline_of(python("evaluate", "evaluate.py")), folder, "data/b.csv") == ["evaluate"]


def test_a_link_may_lead_nowhere(folder: Path):
    (folder / "latest.csv").symlink_to("data/gone.csv")
    assert changed(pipeline_of(python("train", "train.py")), folder, "helper.py") == ["train"]


def test_dots_and_words_of_modules_name_nothing(folder: Path):
    (folder / "evaluate.py").write_text("model.train()\nprint('x.y'.split('.'), name == '.', 'unrelated', sep='.')\n")
    pipeline = pipeline_of(python("evaluate", "evaluate.py"))
    for name in ("data/b.csv", "conf/one.yaml", "train.py", "unrelated.py"):
        assert not changed(pipeline, folder, name)
