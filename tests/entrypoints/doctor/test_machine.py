"""Checks of this machine: versions that fit together or not, and settings without the values of secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import pytest

from tests.facts import says
from torchx_kfp.entrypoints.doctor.machine import Installed, check_engine, check_packages, check_python, check_settings
from torchx_kfp.entrypoints.doctor.verdicts import Level, Verdict
from torchx_kfp.execution.host.settings import read_settings


def one(verdicts: Iterable[Verdict]) -> Verdict:
    [verdict] = verdicts
    return verdict


def installed(packages: Mapping[str, tuple[str, list[str]]]) -> Installed:
    """Return what looks up a distribution among these."""

    def look(name: str) -> tuple[str, list[str]]:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return packages[name]

    return look


#: As its metadata has it.
KFP_2_17 = ("2.17.0", ['urllib3==2.6.3; python_version < "3.10"', 'urllib3==2.7.0; python_version >= "3.10"'])
GOOD: Mapping[str, tuple[str, list[str]]] = {
    "torchx-kfp": ("0.2.0", ['kfp<3,>=2.14; extra == "pipelines"', 'gcsfs>=1; extra == "gcs"', "fsspec>=2023.10.0"]),
    "kfp": ("2.16.1", ["urllib3<3", 'typing-extensions<5; python_version < "3.9"', "not a requirement!"]),
    "kfp-kubernetes": ("2.16.1", ["kfp<3,>=2.16.0"]),
    "kfp-server-api": ("2.16.1", []),
    "torchx": ("0.7.0", ["urllib3 <1.27,>=1.21.1", "fsspec >=2023.10.0"]),
    "urllib3": ("1.26.20", []),
    "fsspec": ("2026.9.0", []),
    "s3fs": ("2026.9.0", ["fsspec<2026.9.1,>=2026.9.0"]),
}


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9, 1), "warning"), ((3, 10, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "warning")]
)
def test_the_version_of_python(version: tuple[int, ...], level: str) -> None:
    found = one(check_python(version))
    assert found.level.value == level
    assert re.search(says("Python", ".".join(map(str, version))), str(found))
    assert ("3.10 to 3.13" in str(found)) == (level == "warning")


@pytest.mark.versions
def test_the_packages_of_this_environment_fit_together() -> None:
    found = one(check_packages())
    assert (found.level, found.way_out) == (Level.OK, ""), found
    assert re.search(says(*(f"{name} {metadata.version(name)}" for name in ("kfp", "fsspec", "urllib3"))), found.found)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (
            {"kfp": KFP_2_17, "urllib3": ("2.7.0", [])},
            ["torchx 0.7.0 needs urllib3", "<1.27", "2.7.0 is here", "kfp 2.17.0", '"kfp<2.17"'],
        ),
        ({"kfp": KFP_2_17}, ["kfp 2.17.0 needs urllib3 ==2.7.0", "1.26.20 is here", '"kfp<2.17"']),
        ({"kfp": ("1.8.22", [])}, ["torchx-kfp 0.2.0 needs kfp", "1.8.22 is here", "kfp-kubernetes 2.16.1 needs kfp"]),
        ({"fsspec": ("2026.8.0", [])}, ["s3fs 2026.9.0 needs fsspec", "2026.8.0 is here"]),
        ({"kfp": ("2.16.1", ["click>=8"])}, ["kfp 2.16.1 needs click, which is not installed"]),
    ],
)
def test_packages_that_do_not_fit_together(change: dict[str, tuple[str, list[str]]], facts: list[str]) -> None:
    assert one(check_packages(installed(GOOD))).level is Level.OK
    found = one(check_packages(installed({**GOOD, **change})))
    assert found.level is Level.MISSING
    assert re.search(says(*facts), str(found)), found


def test_the_nightly_of_torchx_is_torchx() -> None:
    packages = {name: value for name, value in GOOD.items() if name != "torchx"}
    packages |= {"torchx-nightly": ("2026.10.1", ["urllib3>=2"]), "urllib3": ("2.5.0", [])}
    packages["torchx-kfp"] = ("0.2.0", ["torchx>=0.7"])
    assert one(check_packages(installed(packages))).level is Level.OK


def test_packages_that_are_missing() -> None:
    found = one(check_packages(installed({name: value for name, value in GOOD.items() if name != "kfp"})))
    assert found.level is Level.MISSING
    assert re.search(says("no 'kfp'", 'pip install "torchx-kfp[pipelines]"'), str(found))


@pytest.mark.lowest
def test_no_container_engine_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    found = one(check_engine())
    assert found.level is Level.WARNING
    assert re.search(says("None answers", "DOCKER_HOST", "torchx-kfp run --docker"), str(found))
    assert "\n" not in str(found)


def test_settings_say_where_they_come_from_and_hide_secrets(tmp_path: Path) -> None:
    file = tmp_path / "config.ini"
    file.write_text(
        "[kfp]\nhost = https://kfp.example.com/pipeline/\nexisting_token = of-the-file\nproxy = http://p:1\n"
    )
    file.chmod(0o644)
    environ = {"TORCHX_KFP_CONFIG": str(file), "TORCHX_KFP_COOKIES": "of-the-environment", "HOME": str(tmp_path)}
    settings = read_settings({"namespace": "team", "tracker_base": "sftp://me:word@store/results"}, environ)
    found = {verdict.subject: verdict for verdict in check_settings(settings)}
    assert found["setting host"].found == f"https://kfp.example.com/pipeline, from host in {file}."
    assert found["setting namespace"].found == "team, from --namespace."
    assert found["setting cookies"].found == "given, and not shown, from TORCHX_KFP_COOKIES."
    assert found["setting existing_token"].found == f"given, and not shown, from existing_token in {file}."
    assert "@store/results" in found["setting tracker_base"].found
    warned = found["settings"]
    assert warned.level is Level.WARNING
    assert "chmod 600" in warned.found
    text = "\n".join(map(str, found.values()))
    assert not [secret for secret in ("of-the-file", "of-the-environment", "word", "http://p:1") if secret in text]


def test_no_settings_at_all(tmp_path: Path) -> None:
    found = one(check_settings(read_settings({}, {"HOME": str(tmp_path)})))
    assert (found.level, found.subject) == (Level.OK, "settings")
