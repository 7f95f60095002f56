"""No change of code leaves a stage with an old result, however the stage finds its code; others stay cached.

Of what a stage may use nothing is missed: what cannot be followed uses all files of the directory.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.execution.local.components import states
from tests.facts import says
from torchx_kfp import Stages
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.runs.events import StageFinished
from torchx_kfp.execution.runs.watch import messages
from torchx_kfp.local import RunResult, State, Watch, attach, run
from torchx_kfp.tracking import workspaces

#: The commands of stages, the variables of their AppDefs, and the files that they use.
STAGES: dict[str, tuple[Sequence[str], dict[str, str], dict[str, str]]] = {
    "script": (["python", "m0.py"], {}, {"m0.py": "print('V1')"}),
    "sh-cd": (["sh", "-c", "cd d1 && python m1.py"], {}, {"d1/m1.py": "print('V1')"}),
    "bash-cd": (["bash", "-c", "set -e; cd d2; python m2.py"], {}, {"d2/m2.py": "print('V1')"}),
    "pushd": (["bash", "-c", "pushd d3 >/dev/null; python m3.py"], {}, {"d3/m3.py": "print('V1')"}),
    "subshell": (["sh", "-c", "(cd d4; exec python m4.py)"], {}, {"d4/m4.py": "print('V1')"}),
    "script-with-cd": (["sh", "run5.sh"], {}, {"run5.sh": "cd d5; python m5.py", "d5/m5.py": "print('V1')"}),
    "make": (["make", "-s", "train"], {}, {"Makefile": "train:\n\tpython m6.py", "m6.py": "print('V1')"}),
    "pythonpath": (
        ["python", "s0.py"],
        {"PYTHONPATH": "lib0"},
        {"lib0/h0.py": "V = 'V1'", "s0.py": "import h0\nprint(h0.V)"},
    ),
    "env-command": (
        ["env", "PYTHONPATH=lib1", "python", "s1.py"],
        {},
        {"lib1/h1.py": "V = 'V1'", "s1.py": "import h1\nprint(h1.V)"},
    ),
    "sh-assignment": (
        ["sh", "-c", "PYTHONPATH=lib2 python s2.py"],
        {},
        {"lib2/h2.py": "V = 'V1'", "s2.py": "import h2\nprint(h2.V)"},
    ),
    "dunder-import": (["python", "s3.py"], {}, {"h3.py": "V = 'V1'", "s3.py": "print(__import__('h3').V)"}),
    "importlib": (
        ["python", "s4.py"],
        {},
        {"h4.py": "V = 'V1'", "s4.py": "import importlib\nprint(importlib.import_module('h4').V)"},
    ),
    **{
        f"names-{suffix}": (["python", "r.py", f"f.{suffix}"], {}, {f"f.{suffix}": "V1"})
        for suffix in (
            *(
                "yaml",
                "toml",
                "ini",
                "sql",
                "ipynb",
                "json",
                "jsonl",
                "conf",
                "properties",
                "env",
                "xml",
                "txt",
                "args",
            ),
            *("j2", "tf"),
        )
    },
    "names-no-suffix": (["python", "r.py", "noext"], {}, {"noext": "V1"}),
    "names-at-file": (["python", "r.py", "@g.args"], {}, {"g.args": "V1"}),
    "named-in-code": (
        ["python", "j.py"],
        {},
        {"j.py": "print(open('settings/one.json').read().strip())", "settings/one.json": "V1"},
    ),
    "outside": (
        ["python", "../outside.py"],
        {},
        {"../outside.py": "import beside\nprint(beside.V)", "../beside.py": "V = 'V1'"},
    ),
}
FILES = {name: text for _, _, files in STAGES.values() for name, text in files.items()}
FILES |= {"r.py": "import sys\nprint(open(sys.argv[1].lstrip('@')).read().strip())", "lib9/h9.py": "V = 'V1'"}


@dsl.component(base_image="python:3.11")
def inserted() -> str:
    import sys

    sys.path.insert(0, "lib9")
    import h9

    print(h9.V)
    return h9.V


@dsl.pipeline(name="stale")
def stale(tracker_base: str) -> None:
    stages = Stages(tracker_base=tracker_base)
    for name, (command, env, _) in STAGES.items():
        stages.task(AppDef(name, [Role("r", image="x", entrypoint=command[0], args=[*command[1:]], env=env)]))
    inserted()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def ran(pipeline: Any, **options: Any) -> RunResult:
    watch = options.pop("watch", Watch())
    result = run(pipeline, {"tracker_base": "results"}, output_dir="runs", watch=watch, **options)
    result.raise_for_failure()
    return result


def app(name: str, *words: str, **role: Any) -> AppDef:
    return AppDef(name, [Role("r", image="x", entrypoint=words[0], args=[*words[1:]], **role)])


def pipeline_of(*apps: AppDef) -> Any:
    @dsl.pipeline(name="p")
    def pipeline(tracker_base: str) -> None:
        for app in apps:
            Stages(tracker_base=tracker_base).task(app)

    return pipeline


TRAIN = pipeline_of(app("train", "python", "train.py"))


def test_every_stage_has_the_result_of_the_code_as_it_is(project: Path) -> None:
    write(project, FILES)
    first = ran(stale)
    assert {stage.name: stage.last_lines(1) for stage in first.stages} == {
        name: ["V1"] for name in (*STAGES, "inserted")
    }
    assert set(states(ran(stale)).values()) == {"cached"}
    write(project, {name: text.replace("V1", "V2") for name, text in FILES.items() if "V1" in text})
    assert {stage.name: stage.last_lines(1) for stage in ran(stale).stages} == {
        name: ["V2"] for name in (*STAGES, "inserted")
    }


def test_only_what_may_use_a_file_runs_again(project: Path) -> None:
    write(project, {name: text for name, text in FILES.items() if not name.startswith("..")})
    files = {"train.py": "import data", "evaluate.py": "import data", "data.py": "", "NOTES.md": "", "old/x.csv": ""}
    write(project, files)

    evaluate = app("evaluate", "python", "-m", "evaluate")
    pipeline = pipeline_of(app("train", "python", "train.py"), evaluate, app("make", "true"))
    first = ran(pipeline)
    assert [first[name].code for name in ("train", "evaluate")] == ["data.py, train.py", "data.py, evaluate.py"]
    assert first["make"].code.startswith("all ")
    for changed, again in (
        ("train.py", {"train", "make"}),
        ("NOTES.md", {"make"}),
        ("old/x.csv", {"make"}),
        ("new.py", {"make"}),
        ("data.py", {"train", "evaluate", "make"}),
    ):
        with (project / changed).open("a") as file:
            file.write("# changed\n")
        found = states(ran(pipeline))
        assert {name for name, state in found.items() if state == "succeeded"} == again, changed
        assert set(states(ran(pipeline)).values()) == {"cached"}, changed


def test_the_code_that_was_counted_is_shown(project: Path) -> None:
    write(project, {"train.py": "import data", "data.py": ""})
    for _ in range(2):
        result = ran(TRAIN)
        words = [sys.executable, "-m", "torchx_kfp", "show", "latest", "--output-dir", "runs"]
        shown = subprocess.run(words, capture_output=True, text=True, check=False)
        assert re.search(r"code +train +data.py, train.py\n", shown.stdout), shown.stderr
        lines = messages(StageFinished(result["train"]), verbose=True)
        assert "train   code: data.py, train.py" in lines
        assert "<dt>code</dt><dd>data.py, train.py</dd>" in attach(output_dir="runs").report().read_text()


def test_what_is_not_code(project: Path) -> None:
    """Git and ``.torchxignore`` say what; runs and results are never code."""
    pipeline = pipeline_of(app("make", "true"))
    subprocess.run(["git", "init", "-q"], check=True)
    write(
        project, {".gitignore": "ignored", "ignored/x.py": "", "m.py": "", "venv/pyvenv.cfg": "", "venv/lib/x.py": ""}
    )
    assert ran(pipeline)["make"].code == "all 2 files of . (true is not followed)"
    write(project, {"ignored/x.py": "1", "ignored/y.py": "1", "venv/lib/x.py": "1"})
    assert ran(pipeline)["make"].state is State.CACHED
    write(project, {".torchxignore": "/*\n!/lib"})
    assert ran(pipeline)["make"].state is State.SUCCEEDED
    write(project, {"m.py": "1"})
    assert ran(pipeline)["make"].state is State.CACHED


def test_what_a_stage_writes_for_the_next_one(project: Path) -> None:
    """Code that it makes counts at once; what it writes into a folder of its run does not."""
    make = (
        "mkdir -p outputs/$TORCHX_JOB_ID; date > outputs/$TORCHX_JOB_ID/made.csv; "
        'echo "V = $1" > new; cmp -s new generated.py || cp new generated.py; rm new'
    )
    write(project, {"train.py": "import generated\nprint(generated.V, 'outputs', 'made.csv')"})

    @dsl.pipeline(name="p")
    def pipeline(tracker_base: str, value: int) -> None:
        stages = Stages(tracker_base=tracker_base)
        made = stages.task(app("make", "sh", "-c", make, "sh", f"{value}"), cache=False)
        stages.task(app("train", "python", "train.py")).after(made)

    def again(value: int) -> tuple[str, list[str], str]:
        result = run(pipeline, {"tracker_base": "results", "value": value}, output_dir="runs", watch=Watch())
        train = result["train"]
        return str(train.state), train.last_lines(1), train.code

    code = "generated.py, train.py"
    assert again(1) == ("succeeded", ["1 outputs made.csv"], code)
    assert again(1) == ("cached", ["1 outputs made.csv"], code)
    assert again(2) == ("succeeded", ["2 outputs made.csv"], code)


def test_a_folder_with_too_many_files_is_not_cached(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "MOST_FILES", 3)
    write(project, {f"{number}.txt": "" for number in range(4)})
    pipeline = pipeline_of(app("a", "true"), app("b", "true"))

    class Warnings(Watch):
        def __init__(self) -> None:
            self.said: list[str] = []

        def on_warning(self, message: str) -> None:
            self.said.append(message)

    for _ in range(2):
        watch = Warnings()
        assert states(ran(pipeline, watch=watch)) == {"a": "succeeded", "b": "succeeded"}
        assert watch.said == [
            f"The stages that use its files are not cached: {str(project)!r} has more than 3 files. List those that "
            "are not code in .torchxignore there."
        ]
    with pytest.raises(ArgumentError, match=says(".torchxignore")):
        workspaces.list_code(project)
    write(project, {".torchxignore": "*.txt"})
    ran(pipeline)
    assert set(states(ran(pipeline)).values()) == {"cached"}


def test_a_link_to_a_folder_elsewhere(project: Path, tmp_path: Path) -> None:
    write(tmp_path, {"shared/helper.py": "V = 1", "project/train.py": "import helper"})
    (project / "lib").symlink_to("../shared")
    pipeline = pipeline_of(app("train", "python", "train.py", env={"PYTHONPATH": "lib"}))
    assert ran(pipeline)["train"].code == "lib/helper.py, train.py"
    assert ran(pipeline)["train"].state is State.CACHED
    write(tmp_path, {"shared/helper.py": "V = 22"})
    assert ran(pipeline)["train"].state is State.SUCCEEDED


PIPELINE = """
from kfp import dsl
from torchx.specs import AppDef, Role
from torchx_kfp import Stages
@dsl.component
def component() -> str:
    import edlib
    return edlib.f()
@dsl.component
def other() -> str:
    return "V1"
def app(name, *command):
    return AppDef(name, [Role(name, image="x", entrypoint=command[0], args=list(command[1:]))])
@dsl.pipeline(name="ed")
def p(tracker_base: str):
    st = Stages(tracker_base=tracker_base)
    st.task(app("command", "mytrain"))
    st.task(app("module", "python", "-m", "edlib.run"))
    st.task(app("code", "python", "-c", "from edlib.run import main; main()"))
    component()
    other()
"""
MAIN = "from edlib import f\nfrom torchx_kfp.tracking import current_run\ndef main():\n    current_run().put(v=f())\n"


@pytest.mark.parametrize("kind", ["path", "finder"])
def test_an_editable_install_of_the_interpreter_is_code(project: Path, tmp_path: Path, kind: str) -> None:
    """As pip writes it: a line in a ``.pth`` file, or one that installs a finder; and ``direct_url.json``."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    [packages] = venv.glob("lib/python*/site-packages")
    source, own = tmp_path / "source" / "src", Path(workspaces.__file__).parents[2]
    lines = [sysconfig.get_path("purelib"), str(own)]
    (packages / "base.pth").write_text("\n".join([*lines, *([str(source)] if kind == "path" else [])]))
    if kind == "finder":
        write(packages, {"__editable__.edlib.pth": f"import sys; sys.path.append({str(source)!r})"})
        about = {"url": (tmp_path / "source").as_uri(), "dir_info": {"editable": True}}
        write(packages, {"edlib-1.dist-info/direct_url.json": json.dumps(about)})
    run_py = f"{MAIN}if __name__ == '__main__':\n    main()"
    write(source, {"edlib/__init__.py": "def f(): return 'V1'", "edlib/run.py": run_py})
    write(venv, {"bin/mytrain": f"#!{venv}/bin/python\nfrom edlib.run import main\nmain()"})
    (venv / "bin" / "mytrain").chmod(0o755)
    write(project, {"ed.py": PIPELINE})

    def again() -> dict[str, tuple[str, Any]]:
        words = [f"{venv}/bin/python", "-m", "torchx_kfp", "run", "ed.py", "--tracker-base", "results", "--json"]
        environ = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}"}
        done = subprocess.run(words, capture_output=True, text=True, env=environ, check=False)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        ends = [event for event in events if event["event"] == "stage_finished"]
        assert ends, done.stderr
        values = {end["name"]: (end["results"] or end["outputs"]) for end in ends}
        return {end["name"]: (end["state"], next(iter(values[end["name"]].values()))) for end in ends}

    names = ("command", "module", "code", "component", "other")
    assert again() == dict.fromkeys(names, ("succeeded", "V1"))
    assert again() == dict.fromkeys(names, ("cached", "V1"))
    write(source, {"edlib/__init__.py": "def f(): return 'V2'"})
    assert again() == {**dict.fromkeys(names, ("succeeded", "V2")), "other": ("cached", "V1")}


def test_a_workspace_that_is_edited_while_it_runs(project: Path) -> None:
    """Stages get it as it was packed, and so does the cache."""
    write(project, {"code/train.py": "print('V1')"})

    @dsl.component(base_image="python:3.11")
    def edit() -> str:
        from pathlib import Path

        Path("code/train.py").write_text("print('V2')\n")
        return "edited"

    @dsl.pipeline(name="p")
    def pipeline(tracker_base: str, workspace: str) -> None:
        train = Stages(tracker_base=tracker_base, workspace=workspace).task(app("train", "python", "train.py"))
        train.after(edit().set_caching_options(False))

    assert ran(pipeline, workspace="code")["train"].last_lines(1) == ["V1"]
    assert ran(pipeline, workspace="code")["train"].last_lines(1) == ["V2"]
    assert ran(pipeline, workspace="code")["train"].state is State.CACHED


def test_code_that_a_stage_registers_stays_code(project: Path) -> None:
    """Also if it is edited, or Python caches its modules, while the stage runs."""
    register = "from torchx_kfp.tracking import current_run\ncurrent_run().add_artifact({0!r}, {0!r}, store=False)\n"
    edit = "import os\nif not os.path.exists('edited'):\n  open('edited', 'x'); open('c.yaml', 'w').write('V2')\n"
    write(project, {".torchxignore": "edited", "c.yaml": "V1", "src/m.py": "V = 'V1'"})
    write(project, {"a.py": f"open('src/new.txt', 'w').write('')\n{register.format('src')}"})
    write(project, {"b.py": f"{edit}{register.format('c.yaml')}"})
    write(project, {"read.py": "from src import m\nprint(m.V, open('c.yaml').read().strip())"})
    pipeline = pipeline_of(*(app(name, "python", f"{name}.py") for name in ("a", "b", "read")))
    for version in ("V2", "V3"):
        ran(pipeline, parallelism=1)
        assert ran(pipeline)["read"].last_lines(1) == [f"{version if version == 'V3' else 'V1'} {version}"]
        write(project, {"c.yaml": "V3", "src/m.py": "V = 'V3'"})


#: The commands of stages, their variables, files in the directory, and the one elsewhere, or ignored, that they use.
ELSEWHERE: dict[str, tuple[Sequence[str], dict[str, str], dict[str, str], tuple[str, str]]] = {
    "ignored": (["python", "build0/a.py"], {}, {"build0/a.py": "import b\nprint(b.V)"}, ("build0/b.py", "V = 'V1'")),
    "link": (["python", "b.py"], {}, {"b.py": "print(open('link').read())"}, ("build1/linked", "V1")),
    "cd": (["sh", "-c", "cd '../c d' && python a.py"], {}, {}, ("../c d/a.py", "print('V1')")),
    "make": (["make", "-s", "-C", "../d"], {}, {}, ("../d/Makefile", "all:\n\t@echo V1")),
    "chdir": (["env", "-C", "../e", "python", "a.py"], {}, {}, ("../e/a.py", "print('V1')")),
    "folder": (["python", "../f"], {}, {}, ("../f/__main__.py", "print('V1')")),
    "home": (["sh", "-c", "python ~/g/a.py"], {}, {}, ("../home/g/a.py", "print('V1')")),
    "variable": (["sh", "-c", 'python "$HERE/a.py"'], {"HERE": "../h"}, {}, ("../h/a.py", "print('V1')")),
    "perl": (["perl", "../i/a.pl"], {}, {"../i/a.pl": "do '../i/b.pl';"}, ("../i/b.pl", "print 'V1', chr(10);")),
    "pythonpath": (
        ["sh", "-c", "PYTHONPATH=$PWD/'../j j' python j.py"],
        {},
        {"j.py": "import jj\nprint(jj.V)"},
        ("../j j/jj.py", "V = 'V1'"),
    ),
    "inserted": (
        ["python", "k.py"],
        {},
        {"k.py": "import sys\nsys.path.insert(0, '../k')\nimport kk\nprint(kk.V)"},
        ("../k/kk.py", "V = 'V1'"),
    ),
    "parent": (
        ["python", "l.py"],
        {},
        {
            "l.py": "import sys\nfrom pathlib import Path\nROOT = Path(__file__).resolve().parent.parent\n"
            "sys.path.append(str(ROOT))\nfrom ll import V\nprint(V)"
        },
        ("../ll/__init__.py", "V = 'V1'"),
    ),
    "opened": (["python", "m.py"], {}, {"m.py": "print(open('../m/a.yaml').read())"}, ("../m/a.yaml", "V1")),
}


def test_code_elsewhere_is_not_missed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project.parent / "home"))
    subprocess.run(["git", "init", "-q"], check=True)
    write(project, {".gitignore": "build*"})
    (project / "link").symlink_to("build1/linked")
    for _, _, files, (name, text) in ELSEWHERE.values():
        write(project, {**files, name: text})
    apps = (app(name, *words, env=env) for name, (words, env, _, _) in ELSEWHERE.items())
    pipeline = pipeline_of(*apps)

    def lines() -> dict[str, list[str]]:
        return {stage.name: [line for line in stage.last_lines(2) if line.strip()] for stage in ran(pipeline).stages}

    assert lines() == {name: ["V1"] for name in ELSEWHERE}
    assert set(states(ran(pipeline)).values()) == {"cached"}
    for _, _, _, (name, text) in ELSEWHERE.values():
        write(project, {name: text.replace("V1", "V2")})
    assert lines() == {name: ["V2"] for name in ELSEWHERE}


def test_code_that_changes_while_a_stage_runs(project: Path) -> None:
    """What it has used is not known: if the old file comes back, with its time, the result is not taken."""
    write(project, {"data.py": "print('V1')", "train.py": "import os\nos.rename('new.py', 'data.py')\nimport data"})
    (project / "data.py").rename("old.py")
    for version in ("V2", "V3"):
        os.link("old.py", "data.py")
        write(project, {"new.py": f"print('{version}')"})
        os.utime("new.py", (1, 1))
        assert ran(TRAIN)["train"].last_lines(1) == [version]
        (project / "data.py").unlink()


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["python", "a.py"], {"a.py": "import os\nprint(os.environ.get('MY_FACTOR', 1))"}),
        (
            ["python", "a.py"],
            {"a.py": "import b", "b.py": "import os\nfor n in ['FACTOR']: print(os.getenv(f'MY_{n}'))"},
        ),
        (["sh", "-c", "echo $MY_FACTOR"], {}),
        (["sh", "a.sh"], {"a.sh": "echo ${MY_FACTOR:-1}"}),
        (["make", "-s", "train"], {"Makefile": "train:\n\t@echo $(MY_FACTOR)"}),
    ],
    ids=["python", "in parts", "command", "script", "make"],
)
def test_a_variable_of_the_shell_counts_if_the_code_names_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], files: dict[str, str]
) -> None:
    write(project, files)
    pipeline = pipeline_of(app("stage", *command))
    monkeypatch.setenv("MY_FACTOR", "1")
    assert ran(pipeline)["stage"].last_lines() == ["1"]
    # Another terminal, or another session.
    for name in ("TERM", "SHLVL", "_", "SSH_CONNECTION", "XDG_SESSION_ID", "MY", "OTHER_MY_FACTOR"):
        monkeypatch.setenv(name, "other")
    assert states(ran(pipeline)) == {"stage": "cached"}
    monkeypatch.setenv("MY_FACTOR", "9")
    assert ran(pipeline)["stage"].last_lines() == ["9"]
    monkeypatch.delenv("MY_FACTOR")
    assert states(ran(pipeline)) == {"stage": "succeeded"}
    monkeypatch.setenv("MY_FACTOR", "1")
    assert states(ran(pipeline)) == {"stage": "cached"}
