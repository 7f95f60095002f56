"""The settings of a connection and the options of a submission: which place wins, what a file may have, addresses."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import says
from tests.modules import places
from torchx_kfp.errors import HostSettingsError
from torchx_kfp.execution.host.settings import (
    FLAGS,
    SETTINGS,
    SUBMISSION,
    Settings,
    Submission,
    config_file,
    flag,
    host_address,
    is_this_machine,
    read_settings,
    variable,
)
from torchx_kfp.host import HostKeywords, submit

OF_CLIENT = {name: setting.of_client for name, setting in SETTINGS.items() if setting.of_client}
SECRETS = ("existing_token", "cookies", "other_client_secret", "proxy")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(environ: dict[str, str], text: str, mode: int = 0o600) -> Path:
    path = config_file(environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


# Where they come from


def test_nothing_is_given(environ: dict[str, str]) -> None:
    assert read_settings({}, environ) == Settings()


def test_flags_win_over_the_environment_and_that_over_the_file(environ: dict[str, str]) -> None:
    file = write(environ, "[kfp]\nnamespace = file\nexperiment = file\nhost = https://kfp.example.com\n")
    environ |= {"TORCHX_KFP_NAMESPACE": "environment", "TORCHX_KFP_EXPERIMENT": "environment"}
    settings = read_settings({"namespace": "flag", "host": None, "experiment": ""}, environ)
    assert settings == Settings(host="https://kfp.example.com", namespace="flag", experiment="environment")
    assert settings.source("namespace") == "--namespace"
    assert settings.source("experiment") == "TORCHX_KFP_EXPERIMENT"
    assert settings.source("host") == f"host in {file}"


def test_the_example_in_the_docs(environ: dict[str, str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "runs-on-kfp.md").read_text(encoding="utf-8")
    file = write(environ, page.partition("```ini\n")[2].partition("```")[0])
    settings = read_settings({}, environ)
    assert (settings.host, settings.warnings) == ("https://kubeflow.example.com/pipeline", ())
    assert settings.ssl_ca_cert == str(file.parent / "company-ca.pem")


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_has_a_variable_and_a_line_in_the_file(name: str, environ: dict[str, str]) -> None:
    text = {"verify_ssl": "false", "host": "https://h", "ui_host": "https://h"}.get(name, "/x")
    value = False if name == "verify_ssl" else text
    assert getattr(read_settings({}, {**environ, variable(name): text}), name) == value
    write(environ, f"[kfp]\n{name} = {text}\n")
    assert getattr(read_settings({}, environ), name) == value


@pytest.mark.parametrize("name", OF_CLIENT)
def test_variables_of_kfp_come_after_ours(name: str, environ: dict[str, str]) -> None:
    environ[OF_CLIENT[name]] = "https://theirs"
    settings = read_settings({}, environ)
    assert (getattr(settings, name), settings.source(name)) == ("https://theirs", OF_CLIENT[name])
    environ[variable(name)] = "https://ours"
    assert getattr(read_settings({}, environ), name) == "https://ours"


@pytest.mark.versions
def test_settings_have_the_names_of_kfp_client() -> None:
    from kfp.client import Client

    theirs = set(inspect.signature(Client.__init__).parameters) - {"self", "credentials"}
    # kfp.Client has one namespace for both, takes an object for token_file, an experiment for each run, and no tracker.
    assert theirs == set(SETTINGS) - {"service_namespace", "token_file", "experiment", "tracker_base"}


@pytest.mark.versions
def test_variables_of_kfp_are_those_that_its_client_reads() -> None:
    from kfp.client import client

    theirs = {
        value for name, value in vars(client).items() if name.endswith("_ENV") or name.startswith("KF_PIPELINES_")
    }
    from torchx_kfp.execution.host.host_runs import OVERRIDE_EXPERIMENT

    assert theirs == {*OF_CLIENT.values(), OVERRIDE_EXPERIMENT}


def test_a_setting_stands_where_it_is_declared_and_where_it_is_used() -> None:
    """Flags, variables, the file, the docs and TorchX's options come from the declaration."""
    declared, compared, used = "Settings", "HostKeywords", "make_client"
    assert places("other_client_id", "") == sorted([declared, compared, used])
    assert set(HostKeywords.__annotations__) == set(FLAGS)


def test_the_options_of_a_submission_are_one_list() -> None:
    """The command line and TorchX's scheduler make their options from it. ``submit`` has the same as keywords."""
    keywords = inspect.signature(submit).parameters.values()
    # What the run is made of; the others are the host's.
    own = {"workspace", "tags", "resume", "from_stages"}
    defaults = {each.name: each.default for each in keywords if each.kind is each.KEYWORD_ONLY}
    assert defaults.keys() >= own
    assert {name: defaults[name] for name in defaults.keys() - own} == vars(Submission())
    assert [name for name in SUBMISSION if f"\n    {name}: " not in str(inspect.getdoc(submit))] == []
    assert places("pipeline_root", "") == ["Host", "Submission", "schedule", "submit"]


def test_the_place_of_the_file(tmp_path: Path) -> None:
    assert config_file({"HOME": "/home/me"}) == Path("/home/me/.config/torchx-kfp/config.ini")
    assert config_file({"HOME": "/home/me", "XDG_CONFIG_HOME": "/x"}) == Path("/x/torchx-kfp/config.ini")
    assert config_file({"XDG_CONFIG_HOME": "/x", "TORCHX_KFP_CONFIG": "/y/z.ini"}) == Path("/y/z.ini")


def test_paths_in_the_file_are_relative_to_it(environ: dict[str, str]) -> None:
    file = write(environ, "[kfp]\nssl_ca_cert = ca.pem\ntoken_file = /run/token\n")
    settings = read_settings({}, environ)
    assert settings.ssl_ca_cert == str(file.parent / "ca.pem")
    assert settings.token_file == "/run/token"
    assert read_settings({"ssl_ca_cert": "ca.pem"}, {}).ssl_ca_cert == "ca.pem"


def test_settings_can_be_read_again(environ: dict[str, str]) -> None:
    write(environ, "[kfp]\nexisting_token = first\n")
    settings = read_settings({"host": "https://kfp.example.com"}, environ)
    write(environ, "[kfp]\nexisting_token = second\n")
    again = read_settings({"host": "https://kfp.example.com"}, environ)
    assert settings.read_again() == again
    assert again.existing_token == "second"
    assert Settings(host="x").read_again() == Settings(host="x")


# Credentials belong to a host


def test_credentials_of_one_host_are_not_sent_to_another(environ: dict[str, str]) -> None:
    file = write(environ, "[kfp]\nhost = https://a.example.com\nexisting_token = secret\nnamespace = alice\n")
    other = read_settings({"host": "https://b.example.com"}, environ)
    assert other == Settings(host="https://b.example.com", namespace="alice")
    [warning] = other.warnings
    for fact in (str(file), "https://a.example.com", "https://b.example.com", "--host"):
        assert fact in warning
    assert "secret" not in warning
    same = read_settings({"host": "a.example.com/"}, environ)
    assert (same.existing_token, same.warnings) == ("secret", ())


@pytest.mark.parametrize("name", ["cookies", "token_file", "ui_host", "ssl_ca_cert", "verify_ssl"])
def test_what_belongs_to_a_host(name: str, environ: dict[str, str]) -> None:
    write(environ, f"[kfp]\nhost = https://a\n{name} = {'false' if name == 'verify_ssl' else '/x'}\n")
    assert read_settings({"host": "https://b"}, environ) == Settings(host="https://b")
    assert read_settings({"kube_context": "b"}, environ) == Settings(kube_context="b")


def test_a_token_and_its_file_are_one_setting(environ: dict[str, str]) -> None:
    write(environ, "[kfp]\nhost = https://a\nexisting_token = old\n")
    settings = read_settings({}, {**environ, "TORCHX_KFP_TOKEN_FILE": "/run/token"})
    assert settings == Settings(host="https://a", token_file="/run/token")


def test_the_password_in_the_address_of_another_host_is_not_shown() -> None:
    environ = {"TORCHX_KFP_HOST": "https://me:hidden@b.example.com", "TORCHX_KFP_EXISTING_TOKEN": "hidden"}
    [warning] = read_settings({"host": "https://a.example.com"}, environ).warnings
    assert "b.example.com" in warning
    assert "hidden" not in warning


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("character", ["\u200b", "\u201c", "\x1b", "é"])
def test_a_secret_that_a_request_cannot_carry(name: str, character: str) -> None:
    """They come with what is copied from a chat or a page."""
    with pytest.raises(HostSettingsError, match=says(f"--{name.replace('_', '-')}", f"{character!a}", "6")) as caught:
        read_settings({name: f"hidde{character}n"}, {})
    assert "hidde" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    settings = Settings(**dict.fromkeys(SECRETS, "hidden"))
    assert "hidden" not in repr(settings)
    assert set(SECRETS) <= set(SETTINGS)


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_file_with_a_token_that_others_can_read(mode: int, warns: bool, environ: dict[str, str]) -> None:
    file = write(environ, "[kfp]\nexisting_token = hidden\n", mode)
    warnings = read_settings({}, environ).warnings
    assert bool(warnings) is warns
    for warning in warnings:
        assert f"chmod 600 {file}" in warning
        assert "'existing_token'" in warning
        assert "hidden" not in warning


def test_a_file_without_secrets_may_be_read_by_all(environ: dict[str, str]) -> None:
    write(environ, "[kfp]\nhost = https://kfp.example.com\ntoken_file = token\n", 0o644)
    assert read_settings({}, environ).warnings == ()


# Mistakes


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("[kfp]\nhosts = https://a\n", ("'hosts'", "Did you mean 'host'?", "token_file")),
        ("[kpf]\nhost = https://a\n", ("[kpf]", "[kfp]")),
        ("host = https://a\n", ("line 1 is not in a section", "[kfp]")),
        ("[kfp]\nexisting_token hidden\n", ("line 2", "not a setting")),
        ("[kfp]\nhost = https://a\nhost = https://b\n", ("line 3", "'host'", "again")),
        ("[kfp]\n[kfp]\n", ("line 2", "[kfp]", "again")),
        ("[kfp]\nverify_ssl = maybe\n", ("'maybe'", "true or false")),
        ("[kfp]\nhost = ftp://a\n", ("'ftp://a'", "https://")),
        ("[kfp]\ncookies = a\n  hidden\n", ("cookies in", r"'\n'")),
    ],
)
def test_mistakes_in_the_file(text: str, facts: tuple[str, ...], environ: dict[str, str]) -> None:
    file = write(environ, text)
    with pytest.raises(HostSettingsError, match=says(file, *facts)) as caught:
        read_settings({}, environ)
    assert "hidden" not in str(caught.value)


def test_a_file_that_is_not_text(environ: dict[str, str]) -> None:
    file = write(environ, "")
    file.write_bytes(b"\xff")
    with pytest.raises(HostSettingsError, match=says(file, "cannot be read")):
        read_settings({}, environ)


def test_a_file_that_is_named_must_exist(environ: dict[str, str]) -> None:
    with pytest.raises(HostSettingsError, match=says("TORCHX_KFP_CONFIG", "/nowhere/x.ini", "does not exist")):
        read_settings({}, {"TORCHX_KFP_CONFIG": "/nowhere/x.ini"})


def test_mistakes_in_a_flag_and_in_a_variable(environ: dict[str, str]) -> None:
    with pytest.raises(HostSettingsError, match=says("--host", "'ftp://a'")):
        read_settings({"host": "ftp://a"}, environ)
    with pytest.raises(HostSettingsError, match=says("TORCHX_KFP_VERIFY_SSL", "'2'", "true or false")):
        read_settings({}, {**environ, "TORCHX_KFP_VERIFY_SSL": "2"})
    with pytest.raises(HostSettingsError, match=says("'nampace'", "'namespace'")):
        read_settings({"nampace": "x"}, environ)


def test_names_of_flags() -> None:
    assert (flag("token_file"), flag("verify_ssl")) == ("--token-file", "--no-verify-ssl")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("https://kfp.example.com", "https://kfp.example.com"),
        (" https://kfp.example.com/ ", "https://kfp.example.com"),
        ("HTTP://kfp.example.com:8080", "http://kfp.example.com:8080"),
        ("https://kubeflow.example.com/pipeline/", "https://kubeflow.example.com/pipeline"),
        ("kfp.example.com", "https://kfp.example.com"),
        ("kfp.example.com:8443/pipeline", "https://kfp.example.com:8443/pipeline"),
        # These have no TLS as a rule.
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1:8888", "http://127.0.0.1:8888"),
        ("[::1]:8888", "http://[::1]:8888"),
        ("ml-pipeline.kubeflow.svc:8888", "http://ml-pipeline.kubeflow.svc:8888"),
        ("ml-pipeline.kubeflow.svc.cluster.local:8888", "http://ml-pipeline.kubeflow.svc.cluster.local:8888"),
        # Copied from the browser, from kubectl port-forward's page, or from a request.
        ("http://localhost:8080/#/runs/details/f19b6e98-51e7-4b62-ae0c-601f7270d2b4", "http://localhost:8080"),
        ("http://localhost:8080/index.html?x=1#/runs", "http://localhost:8080"),
        ("https://kubeflow.example.com/_/pipeline/?ns=alice#/runs", "https://kubeflow.example.com/pipeline"),
        ("https://kubeflow.example.com/pipeline/#/experiments", "https://kubeflow.example.com/pipeline"),
        ("http://localhost:8080/apis/v2beta1/runs?page_size=1", "http://localhost:8080"),
        ("https://host/pipeline/apis/v2beta1/healthz", "https://host/pipeline"),
    ],
)
def test_forms_of_an_address(given: str, address: str) -> None:
    assert host_address(given) == address


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ("", "no host"),
        ("https://", "no host"),
        ("https:///pipeline", "no host"),
        ("ftp://kfp.example.com", "https://"),
        ("s3://bucket/results", "https://"),
        ("my host", "space"),
        ("host:port", "port"),
        ("https://host:99999", "Port"),
        ("http://[::1", "IPv6"),
    ],
)
def test_what_is_not_an_address(given: str, fact: str) -> None:
    with pytest.raises(HostSettingsError, match=says("TORCHX_KFP_HOST", repr(given), fact)):
        host_address(given, "TORCHX_KFP_HOST")


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(HostSettingsError, match=says("--host", "kfp.example.com", "existing_token")) as caught:
        host_address("https://me:hidden@kfp.example.com", "--host")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("password", ["hidden#hidden", "hidden/hidden", "hidden hidden", "hidden?hidden", "hidden\\"])
@pytest.mark.parametrize("scheme", ["https://", "ftp://", ""])
def test_a_password_that_is_not_escaped_is_not_shown_either(scheme: str, password: str) -> None:
    with pytest.raises(HostSettingsError, match=says("--host", "@kfp.example.com")) as caught:
        host_address(f"{scheme}me:{password}@kfp.example.com", "--host")
    assert "hidden" not in str(caught.value)


@given(st.text())
def test_an_address_stays_as_it_is(text: str) -> None:
    try:
        address = host_address(text)
    except HostSettingsError:
        return
    assert host_address(address) == address
    assert address.startswith(("http://", "https://"))


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST.", "kfp.localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_this_machine(name: str) -> None:
    assert is_this_machine(name)


@pytest.mark.parametrize("name", ["", "local", "localhost.example.com", "10.0.0.1", "128.0.0.1", "minio.kubeflow"])
def test_other_machines(name: str) -> None:
    assert not is_this_machine(name)
