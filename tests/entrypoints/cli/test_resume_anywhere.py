"""`--resume` of `run` and `submit`: from here to here, from a host to here and back, and from host to host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.fake_kfp import KfpHost
from tests.programs import results_in
from torchx_kfp.host import attach
from torchx_kfp.tracking import FsspecResultTracker

#: A host's pods have the folder of the tracker base as a volume.
PIPELINE = '''\
from kfp import dsl, kubernetes
from kfp.dsl import pipeline_context
from torchx.specs import AppDef, Role

from torchx_kfp import Stages, hpo

APP = """
import os, sys
from torchx_kfp.tracking import current_run
tag, folder, *words = sys.argv[1:]
print("ran", tag)
with open(folder + "/notes", "a") as notes:
    notes.write(tag + chr(10))
if os.path.exists(folder + "/fail-" + tag):
    sys.exit(3)
stage = current_run()
parents = [one for each in stage.parents.values() for one in (each if isinstance(each, (list, tuple)) else [each])]
stage.put(loss=len(tag) + sum(parent.results()["loss"] for parent in parents), text=" ".join([tag, *words]))
"""
TRIAL = "import sys; from torchx_kfp.tracking import current_run; current_run().put(y=float(sys.argv[1]))"


def app(tag, folder, *words, **role):
    args = ["-c", APP, tag, f"{folder}", *words]
    return AppDef(tag, [Role("role", image="app:1", entrypoint="python3", args=args, **role)])


def mount_base():
    for task in pipeline_context.Pipeline.get_default_pipeline().tasks.values():
        kubernetes.mount_pvc(task, "claim", BASE)


@dsl.container_component
def plain(tag: str, text: str, folder: str, out: dsl.OutputPath(str)):
    script = 'echo "$1" >> "$2/notes"; printf %s "$1-$3" > "$0"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-ec", script, out, tag, folder, text])


@dsl.pipeline(name="anywhere")
def anywhere(tracker_base: str, folder: str, rate: float = 0.5):
    stages = Stages(tracker_base=tracker_base)
    prepared = stages.task(app("prepare", folder, f"{rate}"), results={"loss": float, "text": str})
    named = plain(tag="name", text=prepared.outputs["text"], folder=folder)
    with dsl.ParallelFor([1, 2]) as item:
        tried = stages.task(app("try", folder, f"{item}"), reads=prepared)
    with dsl.If(prepared.outputs["loss"] > 1.0):
        stages.task(app("branch", folder), reads=prepared)
    both = stages.task(app("both", folder, num_replicas=2), engine="job", reads=prepared, results={})
    best = hpo.search(
        lambda p: AppDef("trial", [Role("r", image="i", entrypoint="python3", args=["-c", TRIAL, f"{p.x}"])]),
        {"x": hpo.choice(3, 5)}, maximize="y", optimizer="grid", rounds=1, trials=2, tracker_base=tracker_base,
    )
    train = stages.task(
        app("train", folder, f"{named.output}", f"{best.outputs['x']}"),
        reads={"tries": dsl.Collected(tried.outputs["run_id"]), "both": both},
    )
    stages.task(app("last", folder), reads=train)
    mount_base()


@dsl.pipeline(name="light")
def light(tracker_base: str, folder: str, rate: float = 0.5):
    stages = Stages(tracker_base=tracker_base)
    prepared = stages.task(app("prepare", folder, f"{rate}"), results={"loss": float, "text": str})
    unread = plain(tag="unread", text="x", folder=folder)
    train = stages.task(app("train", folder, f"{prepared.outputs['text']}"), reads=prepared)
    both = plain(tag="both", text=unread.output, folder=folder).after(train)
    stages.task(app("last", folder), reads=train).after(both)
    mount_base()


def quiet(stages, folder, reads):
    program = 'echo $0 >> "$1/notes"; test ! -e "$1/fail-$0"'
    for name in ("quiet", "last"):
        role = Role("role", image="app:1", entrypoint="sh", args=["-c", program, name, f"{folder}"])
        reads = stages.task(AppDef(name, [role]), reads=reads)
    mount_base()


@dsl.pipeline(name="silent")
def silent(tracker_base: str, folder: str):
    stages = Stages(tracker_base=tracker_base)
    quiet(stages, folder, stages.task(app("prepare", folder)))


@dsl.pipeline(name="mute")
def mute(tracker_base: str, folder: str):
    quiet(Stages(tracker_base=tracker_base), folder, None)
'''
#: The stages that run again after `train` has failed.
AGAIN = ["last", "train"]
FIRST = ["both", "both", "branch", "name", "prepare", "train", "try", "try"]


class Place:
    """The folder of a user, and the host."""

    def __init__(self, folder: Path, host: str, call: Call) -> None:
        self.folder, self.host, self.base, self.call = folder, host, str(folder / "base"), call
        (folder / "base").mkdir()
        # A process imports one module of a name.
        self.file = f"{folder.name}.py"
        (folder / self.file).write_text(f"BASE = {self.base!r}\n{PIPELINE}")
        self.given = ["-p", f"folder={folder}", "--tracker-base", self.base]

    def notes(self) -> list[str]:
        """Return the tags of the stages that have run since the last call, sorted."""
        notes = self.folder / "notes"
        found = sorted(notes.read_text().split()) if notes.exists() else []
        notes.unlink(missing_ok=True)
        return found

    def submit(self, *words: str, code: int = 0, said: str = "") -> str:
        done = self.call("submit", *words, "--host", self.host, "--watch", "--quiet", "--no-cache")
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
        return done.stdout.split()[0]

    def run(self, *words: str, code: int = 0) -> str:
        done = self.call("run", *words, "--quiet", "--no-cache")
        assert done.returncode == code, done.stderr
        return max((self.folder / "local_outputs").iterdir(), key=lambda path: path.stat().st_ctime_ns).name


@pytest.fixture(autouse=True)
def _named_base(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the folder of the pods: what is there is read for those only who have named it."""
    monkeypatch.setenv("TORCHX_KFP_TRACKER_BASE", str(project / "base"))


@pytest.fixture
def place(project: Path, call: Call) -> Iterator[Place]:
    with KfpHost(project / "host", options={"cache": False}) as host:
        yield Place(project, host.url, call)


def test_every_pair_of_places(place: Place) -> None:
    (place.folder / "fail-train").touch()
    there = place.submit(f"{place.file}:anywhere", *place.given, code=1)
    assert place.notes() == FIRST
    here = place.run(f"{place.file}:anywhere", *place.given, code=1)
    assert place.notes() == FIRST
    (place.folder / "fail-train").unlink()

    planned = place.call("submit", f"{place.file}:anywhere", "--resume", there, "--dry-run", "--host", place.host)
    assert planned.returncode == 0, planned.stderr
    for stage in ("prepare", "plain", "try", "branch", "both", "search-ask-1", "trial", "search-best"):
        assert f"{stage} " in planned.stdout
    assert planned.stdout.count(f"kept, from {there}") == 8
    assert "runs: it failed" in planned.stdout
    assert place.notes() == []

    again = place.submit(f"{place.file}:anywhere", "--resume", there)
    assert place.notes() == AGAIN
    back = place.run(f"{place.file}:anywhere", "--resume", there, "--host", place.host)
    assert place.notes() == AGAIN
    up = place.submit(f"{place.file}:anywhere", "--resume", here)
    assert place.notes() == AGAIN
    down = place.run(f"{place.file}:anywhere", "--resume", here)
    assert place.notes() == AGAIN
    replayed = place.call("replay", f"{down}/prepare")
    assert f"come from the run {here}. To replay it there: torchx-kfp replay {here}/prepare" in replayed.stderr
    texts = {attach(run, host=place.host).wait()["train"].results["text"] for run in (again, up)}
    for run_ in (back, down):
        shown = place.call("show", f"{run_}/train", "--json")
        texts |= {json.loads(shown.stdout)["results"]["text"]} if shown.returncode == 0 else {shown.stderr}
    assert texts == {"train name-prepare 0.5 5"}


def test_a_chain_on_a_host(place: Place) -> None:
    """Outputs that nobody was given, and results that are gone, are made again; the chain is told."""
    (place.folder / "fail-train").touch()
    first = place.submit(f"{place.file}:light", *place.given, code=1)
    assert place.notes() == ["prepare", "train", "unread"]
    (place.folder / "fail-train").unlink()
    (place.folder / "fail-last").touch()
    planned = place.call(
        "submit", f"{place.file}:light", "--resume", first, "--host", place.host, "--dry-run", "--json"
    )
    steps = {step["name"]: step for step in json.loads(planned.stdout)["plan"]["stages"]}
    assert steps["prepare"]["kept_from"] == first
    assert "no other stage was given it" in steps["plain"]["reason"]
    second = place.submit("--resume", first[:8], code=1, said=f"Resumes {first}: ")
    assert place.notes() == ["both", "last", "train", "unread"]
    for words, what in {
        ("replay", f"{first}/last"): f"'last' was not started in the run {first}: it was not run",
        ("replay", f"{second}/prepare"): f"come from the run {first}. To replay it there: torchx-kfp replay {first}",
    }.items():
        refused = place.call(*words, "--host", place.host)
        assert (refused.returncode, what in refused.stderr) == (2, True), refused.stderr
    anew = place.call("submit", "--resume", second, "--from", "prepare", "--dry-run", "--host", place.host)
    assert "prepare  runs: you start from it" in anew.stdout, anew.stderr
    (place.folder / "fail-last").unlink()
    last = place.submit(f"{place.file}:light", "--resume", second)
    assert place.notes() == ["last"]
    result = attach(last, host=place.host).wait()
    assert result["prepare"].cached_from == first
    assert result["train"].cached_from == second
    assert result["train"].results["text"] == "train prepare 0.5"
    # Commands follow the record to the runs in which stages ran.
    shown = place.call("results", last, "--host", place.host, "--json")
    assert {run_id.rpartition("/")[0] for run_id in results_in(shown.stdout)} == {
        f"{first}/prepare", f"{second}/train", f"{last}/last"
    }  # fmt: skip
    shown = place.call("show", f"{last}/prepare", "--host", place.host, "--json")
    assert json.loads(shown.stdout)["run_id"].startswith(f"{first}/prepare/"), shown.stderr
    compared = place.call("compare", first, last, "--host", place.host, "--json")
    assert '"train"' in compared.stdout, compared.stderr
    assert f"torchx-kfp logs {first}/prepare`" in place.call("logs", f"{last}/prepare", "--host", place.host).stderr
    assert place.call("logs", f"{first}/prepare", "--host", place.host).stdout == "ran prepare\n"
    anew = ["--from", "last", "-p", "rate=0.7", "--host", place.host, "--dry-run"]
    changed = place.call("submit", f"{place.file}:light", "--resume", last, *anew)
    assert f"kept, from {first}" in changed.stdout
    assert "changed, kept anyway: command" in changed.stdout
    found = place.call("runs", "--host", place.host, "--json")
    assert {run["run"]: run["resumes"] for run in json.loads(found.stdout)} == {
        first: None,
        second: first,
        last: second,
    }

    other = ["--tracker-base", f"{place.base}/other"]
    refused = place.call("submit", f"{place.file}:light", "--resume", second, *other, "--host", place.host)
    assert refused.returncode == 2
    assert all(fact in refused.stderr for fact in (place.base, "/other", "--tracker-base", "without --resume"))
    shown = place.call("show", "--tracker-base", place.base, f"{last}/last", "--json")
    assert json.loads(shown.stdout)["resumes"] == [second, first]
    store = FsspecResultTracker(place.base).store
    for file in store.list_files():
        if second in file.key:
            store.remove(file.key)
    gone = place.call("submit", f"{place.file}:light", "--resume", second, "--host", place.host, "--dry-run")
    assert f"runs: no results of it are under '{place.base}' (any more)" in gone.stdout


@pytest.mark.parametrize(("name", "stages", "tags"), [("silent", ["prepare"], []), ("mute", [], ["--tag", "a=b"])])
def test_a_stage_that_recorded_nothing_is_kept(place: Place, name: str, stages: list[str], tags: list[str]) -> None:
    """The tracker base has something else of the run: results of another stage, or tags."""
    (place.folder / "fail-last").touch()
    first = place.submit(f"{place.file}:{name}", *place.given, *tags, code=1)
    (place.folder / "fail-last").unlink()
    assert place.notes() == ["last", *stages, "quiet"]
    place.submit(f"{place.file}:{name}", "--resume", first)
    assert place.notes() == ["last"]


def test_stages_that_kfp_took_from_its_cache(project: Path, call: Call) -> None:
    """They have no pod that would tell their run ids: stages that read them were given those."""
    with KfpHost(project / "host") as host:
        place = Place(project, host.url, call)
        words = ["--host", place.host, "--watch", "--quiet"]
        assert call("submit", f"{place.file}:light", *place.given, *words).returncode == 0
        place.notes()
        (place.folder / "fail-again").touch()
        edited = PIPELINE.replace('app("last", folder)', 'app("again", folder)')
        (place.folder / "edited.py").write_text(f"BASE = {place.base!r}\n{edited}")
        failed = call("submit", "edited.py:light", *place.given, *words)
        assert failed.returncode == 1
        assert place.notes() == ["again"]
        dry = ["--resume", failed.stdout.split()[0], "--host", host.url, "--dry-run"]
        planned = call("run", "edited.py:light", *dry)
        assert planned.returncode == 0, planned.stderr
        kept = [line.split()[0] for line in planned.stdout.splitlines() if "kept, from" in line]
        # Nobody was given an output of the last two stages, and nobody needs one.
        assert set(kept) == {"prepare", "train", "plain", "plain-2"}
        call("submit", "edited.py:light", *dry[:2], "--from", "train", *words)
        assert place.notes() == ["again", "both", "train"]


def test_a_run_stays_under_its_tracker_base_if_the_pipeline_has_another(project: Path, call: Call) -> None:
    """Otherwise nothing would be kept: the results would be sought under the pipeline's own."""
    text = (project / "pipelines.py").read_text()
    (project / "with_default.py").write_text(text.replace("(tracker_base: str)", "(tracker_base: str = 'default')"))
    assert call("run", "with_default.py:fails", "--tracker-base", "base", "--quiet").returncode == 1
    assert call("run", "with_default.py:fails", "--resume", "latest", "--quiet").returncode == 1
    assert not (project / "default").exists()
