"""README and documentation: their code runs and prints the output that they show, and their links work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dev.reference import generate
from tests import pages
from tests.events import finished_stages
from tests.programs import Program


def with_blocks(*languages: str) -> list[Path]:
    return [page for page in pages.PAGES if any(block.language in languages for block in pages.blocks(page))]


def name(page: Path) -> str:
    return str(page.relative_to(pages.REPOSITORY))


@pytest.mark.parametrize("page", with_blocks("console"), ids=name)
def test_commands_print_what_the_page_says(page: Path, call: Program) -> None:
    for command, printed in pages.run_commands(page, call):
        assert printed.code == 0 or re.search("failed|Error: ", command.output), f"{command.line}\n{printed.stderr}"
        assert pages.agrees(command.output, printed), f"{command.line}\n{printed.stdout}{printed.stderr}"


def test_an_output_that_is_not_what_the_page_says_is_found() -> None:
    printed = pages.Printed("train   succeeded   0.3   loss=0.04\n", "", 0)
    assert pages.agrees("train succeeded 12.1 loss=0.04", printed)
    assert pages.agrees("train ... loss=0.04", printed)
    assert not pages.agrees("train succeeded 0.3 loss=0.05", printed)
    assert not pages.agrees("train succeeded 0.3", printed)


def test_a_run_on_a_host_has_one_id_on_a_page() -> None:
    first, second, real = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "abc")
    around = pages.with_ids(pages.NOTHING, f"{first}\n", pages.Printed(f"{real}\n", f"To watch it: {real}\n", 0))
    assert around.really(f"watch {first[:8]} {first}") == f"watch {real[:8]} {real}"
    printed = pages.Printed(around.shown(f"Run {real}\n"), "", 0)
    assert pages.agrees(f"Run {first}", printed)
    assert not pages.agrees(f"Run {second}", printed)


def programs(page: Path) -> str:
    """Return the page's Python blocks that are neither files nor parts of a pipeline, one after the other."""
    return "\n".join(
        block.text for block in pages.blocks(page) if block.language == "python" and not pages.is_part(block)
    )


@pytest.mark.parametrize("page", [page for page in pages.PAGES if programs(page)], ids=name)
def test_programs_run_in_a_stage(page: Path, tmp_path: Path, call: Program) -> None:
    pages.write_files(page, tmp_path)
    done = replace(call, program=sys.executable)("-c", programs(page), **pages.stage_environment(tmp_path / "tracker"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", with_blocks("sh"), ids=name)
def test_shell_scripts_run_in_a_stage(page: Path, tmp_path: Path) -> None:
    (script,) = (block.text for block in pages.blocks(page) if block.language == "sh")
    environment = pages.stage_environment(tmp_path)
    done = subprocess.run(["sh", "-euc", script], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"rows": 1000, "accuracy": 0.5}
    assert json.loads((tmp_path / "run" / "this" / "1").read_text()) == {"message": "hello"}


@pytest.mark.parametrize("page", [page for page in pages.PAGES if pages.pipeline(page)], ids=name)
def test_parts_of_pipelines_compile(page: Path, tmp_path: Path, call: Program) -> None:
    pages.write_files(page, tmp_path)
    (tmp_path / "parts.py").write_text(pages.pipeline(page))
    printed = pages.run("torchx-kfp compile parts.py -o parts.yaml", call)
    assert printed.code == 0, printed.stderr
    if page.stem == "storage":
        assert "runtimeParameter: uri" in (tmp_path / "parts.yaml").read_text()


#: Pages of the repository beside the documentation.
OF_REPOSITORY = [
    pages.REPOSITORY / f"{each}.md" for each in ("CHANGELOG", "CONTRIBUTING", "SECURITY", "tests/conformance/README")
]


@pytest.mark.parametrize("page", [*pages.PAGES, *OF_REPOSITORY], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        if anchor:
            assert anchor in pages.anchors(target), f"{link}#{anchor}"


@pytest.mark.parametrize("page", pages.PAGES, ids=name)
def test_pages_load_nothing_from_elsewhere(page: Path) -> None:
    """Pictures are files next to the pages, and do not load fonts from hosts."""
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        file = page.parent / picture
        assert file.stat().st_size < 200_000, picture
        if file.suffix == ".svg":
            assert not re.search(r"@import|url\((?!#)|href=", file.read_text(encoding="utf-8")), picture


def test_what_the_tutorial_declares_are_outputs_of_kfp(tmp_path: Path, call: Program) -> None:
    pages.write_files(pages.REPOSITORY / "docs" / "start" / "tutorial.md", tmp_path)
    pages.write_files(pages.REPOSITORY / "README.md", tmp_path)
    printed = pages.run("torchx-kfp run gate.py --tracker-base results --json --quiet", call)
    assert printed.code == 0, printed.stderr
    evaluated = next(stage for stage in finished_stages(printed.stdout) if stage["name"] == "evaluate")
    outputs = {name: value for name, value in evaluated["outputs"].items() if name != "run_id"}
    assert outputs == {"error": 0.128}
    artifacts = evaluated["artifacts"]
    assert artifacts["metrics"]["metadata"] == {"error": 0.128}
    report = Path(artifacts["report"]["uri"].replace(pages.HOME, str(tmp_path)))
    assert report.read_text().endswith("The slope is 1.872.")


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    """The longest part of each that is the same whatever happens is in the code."""
    sources = (pages.REPOSITORY / "torchx_kfp").rglob("*.py")
    # A long text is written as several, one on each line.
    code = re.sub(r'"\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in sources))
    page = (pages.REPOSITORY / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.+`) \|", page.partition("| the message says |")[2], re.MULTILINE)
    assert len(cells) >= 4
    for message in re.findall(r"`([^`]{5,})`", " ".join(cells)):
        assert max(re.split(r"\.\.\.|\d+|'[^']*'|[()]", message), key=len).strip() in code, message


def test_options_on_pages_exist(call: Program) -> None:
    """Also those in sentences, which are not run."""

    def help_of(*words: str) -> str:
        return call(*words, "--help").stdout

    commands = re.findall(r"^  ([a-z]+) ", help_of().partition("Write:")[2].partition("RUN is")[0], re.MULTILINE)
    options = {name: set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", help_of(name))) for name in commands}
    found = 0
    for page in pages.PAGES:
        for name, words in re.findall(r"torchx-kfp ([a-z]+)\b([^`\n|#]*)", page.read_text(encoding="utf-8")):
            if name in options:
                of_command = words.partition(" -- ")[0]  # then come the arguments of a component
                for option in re.findall(r"(?<!\S)-(?:-[a-z-]+|[a-z])(?![\w-])", of_command):
                    assert option in options[name], f"{page.name}: torchx-kfp {name} has no {option}"
                    found += 1
    assert found > 50


@pytest.mark.parametrize("page", sorted((pages.REPOSITORY / "docs" / "reference").glob("*.md")), ids=name)
def test_the_reference_is_that_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert generate(text) == text, "make goldens writes it"


def test_files_that_contributing_names_exist() -> None:
    text = (pages.REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w/.]+\.(?:py|md|toml))`", text)
    assert len(names) > 20
    for name in names:
        folders = [pages.REPOSITORY, pages.REPOSITORY / "torchx_kfp", pages.REPOSITORY / "torchx_kfp" / "authoring"]
        assert any((folder / name).is_file() for folder in folders), name


def test_the_readme_is_short() -> None:
    assert len((pages.REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 100
