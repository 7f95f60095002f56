"""The settings of a connection and the options of a submission: which place wins, what a file may have, addresses."""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.errors import HostSettingsError
from torchx_kfp.execution.host.connection import make_client
from torchx_kfp.execution.host.settings import SETTINGS as DEFINED
from torchx_kfp.host import connect, submit

#: Settings, and the variables of kfp.Client for them.
OF_CLIENT = {
    "host": "KF_PIPELINES_ENDPOINT",
    "ui_host": "KF_PIPELINES_UI_ENDPOINT",
    "client_id": "KF_PIPELINES_IAP_OAUTH2_CLIENT_ID",
    "other_client_id": "KF_PIPELINES_APP_OAUTH2_CLIENT_ID",
    "other_client_secret": "KF_PIPELINES_APP_OAUTH2_CLIENT_SECRET",
    "experiment": "KF_PIPELINES_DEFAULT_EXPERIMENT_NAME",
}
CONNECTION = {name for name, setting in DEFINED.items() if setting.kind != "runs"}
SETTINGS = (*sorted(CONNECTION), "experiment", "tracker_base")
SECRETS = ("existing_token", "cookies", "other_client_secret", "proxy")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(environ: dict[str, str], text: str, mode: int = 0o600) -> Path:
    path = Path(environ["HOME"], ".config", "torchx-kfp", "config.ini")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def read(keywords: dict[str, Any], environ: dict[str, str]) -> Any:
    """Return the settings of a connection that is made in this environment."""
    with mock.patch.dict(os.environ, environ, clear=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the settings have them, too
        return connect(**keywords).connection.settings


def given_in(settings: Any) -> dict[str, Any]:
    """Return the settings that are not as by default."""
    default = read({}, {"HOME": "/nowhere"})
    return {name: it for name in SETTINGS if (it := getattr(settings, name)) != getattr(default, name)}


def variable(name: str) -> str:
    return f"TORCHX_KFP_{name.upper()}"


# Where they come from


def test_flags_win_over_the_environment_and_that_over_the_file(environ: dict[str, str]) -> None:
    file = write(environ, "[kfp]\nnamespace = file\nexperiment = file\nhost = https://kfp.example.com\n")
    environ |= {"TORCHX_KFP_NAMESPACE": "environment", "TORCHX_KFP_EXPERIMENT": "environment"}
    settings = read({"namespace": "flag", "host": None}, environ)
    assert given_in(settings) == {
        "host": "https://kfp.example.com",
        "namespace": "flag",
        "experiment": "environment",
    }
    sources = [settings.source(name) for name in ("namespace", "experiment", "host")]
    assert sources == ["--namespace", "TORCHX_KFP_EXPERIMENT", f"host in {file}"]


def test_the_example_in_the_docs(environ: dict[str, str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "runs-on-kfp.md").read_text(encoding="utf-8")
    file = write(environ, page.partition("```ini\n")[2].partition("```")[0])
    settings = read({}, environ)
    assert (settings.host, settings.warnings) == ("https://kubeflow.example.com/pipeline", ())
    assert settings.ssl_ca_cert == str(file.parent / "company-ca.pem")


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_has_a_variable_and_a_line_in_the_file(name: str, environ: dict[str, str]) -> None:
    text = {"verify_ssl": "false", "host": "https://h", "ui_host": "https://h"}.get(name, "/x")
    value = False if name == "verify_ssl" else text
    assert getattr(read({}, {**environ, variable(name): text}), name) == value
    write(environ, f"[kfp]\n{name} = {text}\n")
    assert getattr(read({}, environ), name) == value


@pytest.mark.parametrize("name", OF_CLIENT)
def test_variables_of_kfp_come_after_ours(name: str, environ: dict[str, str]) -> None:
    environ[OF_CLIENT[name]] = "https://theirs"
    settings = read({}, environ)
    assert (getattr(settings, name), settings.source(name)) == ("https://theirs", OF_CLIENT[name])
    environ[variable(name)] = "https://ours"
    assert getattr(read({}, environ), name) == "https://ours"


@pytest.mark.versions
def test_a_person_signs_in_only_to_the_host_of_these_variables(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kfp.Client itself would use its variables for any host."""
    asked: list[Any] = []
    monkeypatch.setattr("kfp.client.auth.get_auth_token", lambda *ids: (asked.append(ids) or "token", False))
    environ |= {OF_CLIENT["host"]: "https://mine", OF_CLIENT["client_id"]: "mine"}
    for host in ({"host": "https://other"}, {}):
        with mock.patch.dict(os.environ, environ, clear=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = make_client(connect(**host).connection.settings)
        assert made._run_api.api_client.configuration.api_key == ({} if host else {"authorization": "token"})
    assert asked == [("mine", None, None)]


@pytest.mark.versions
def test_settings_and_their_variables_are_those_of_kfp_client() -> None:
    from kfp.client import Client, client

    theirs = set(inspect.signature(Client.__init__).parameters) - {"self", "credentials"}
    # kfp.Client has one namespace for both, takes an object for token_file, and knows no trackers.
    assert theirs == CONNECTION - {"service_namespace", "token_file"}
    variables = {it for name, it in vars(client).items() if name.endswith("_ENV") or name.startswith("KF_PIPELINES_")}
    assert variables == {*OF_CLIENT.values(), "KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME"}


def test_the_options_of_a_submission_are_described() -> None:
    keywords = inspect.signature(submit).parameters.values()
    names = [each.name for each in keywords if each.kind is each.KEYWORD_ONLY]
    assert [name for name in names if f"\n    {name}: " not in str(inspect.getdoc(submit))] == []


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({}, "home/.config/torchx-kfp/config.ini"),
        ({"XDG_CONFIG_HOME": "x"}, "x/torchx-kfp/config.ini"),
        ({"XDG_CONFIG_HOME": "x", "TORCHX_KFP_CONFIG": "y/z.ini"}, "y/z.ini"),
    ],
)
def test_the_place_of_the_file(more: dict[str, str], place: str, tmp_path: Path) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text("[kfp]\nnamespace = mine\n")
    variables = {"HOME": "home", **more}
    assert read({}, {name: str(tmp_path / it) for name, it in variables.items()}).namespace == "mine"


def test_paths_in_the_file_are_relative_to_it(environ: dict[str, str]) -> None:
    file = write(environ, "[kfp]\nssl_ca_cert = ca.pem\ntoken_file = /run/token\n")
    settings = read({}, environ)
    assert settings.ssl_ca_cert == str(file.parent / "ca.pem")
    assert settings.token_file == "/run/token"
    assert read({"ssl_ca_cert": "ca.pem"}, {"HOME": "/nowhere"}).ssl_ca_cert == "ca.pem"


# Credentials belong to a host


def test_settings_of_one_host_are_not_used_for_another(environ: dict[str, str]) -> None:
    file = write(environ, "[kfp]\nhost = https://a.example.com\nexisting_token = secret\nnamespace = alice\n")
    other = read({"host": "https://b.example.com"}, environ)
    assert given_in(other) == {"host": "https://b.example.com"}
    [warning] = other.warnings
    for fact in (str(file), "https://a.example.com", "https://b.example.com"):
        assert fact in warning
    assert "secret" not in warning
    same = read({"host": "a.example.com/"}, environ)
    assert (same.existing_token, same.warnings) == ("secret", ())
    write(environ, "[kfp]\nhost = https://a.example.com\n")
    assert read({"host": "https://b.example.com"}, environ).warnings == ()
    # A context may be called like a host.
    write(environ, "[kfp]\nhost = https://b\nexisting_token = secret\n")
    assert given_in(read({"kube_context": "b"}, environ)) == {"kube_context": "b"}


@pytest.mark.parametrize("name", ["cookies", "token_file", "ui_host", "ssl_ca_cert", "verify_ssl", "tracker_base"])
def test_what_belongs_to_a_host_is_not_used_for_another(name: str, environ: dict[str, str]) -> None:
    value = {"verify_ssl": "false", "ui_host": "https://x"}.get(name, "/x")
    write(environ, f"[kfp]\nhost = https://a\n{name} = {value}\n")
    assert given_in(read({"host": "https://b"}, environ)) == {"host": "https://b"}
    assert given_in(read({"kube_context": "b"}, environ)) == {"kube_context": "b"}


def test_a_token_and_its_file_are_one_setting(environ: dict[str, str]) -> None:
    write(environ, "[kfp]\nhost = https://a\nexisting_token = old\ncookies = mine\n")
    settings = read({}, {**environ, "TORCHX_KFP_TOKEN_FILE": "/run/token"})
    assert given_in(settings) == {"host": "https://a", "token_file": "/run/token", "cookies": "mine"}


def test_secrets_are_not_shown(environ: dict[str, str]) -> None:
    settings = read(dict.fromkeys(SECRETS, "hidden"), environ)
    assert "hidden" not in repr(settings)
    other = {"TORCHX_KFP_HOST": "https://b.example.com", "TORCHX_KFP_EXISTING_TOKEN": "hidden"}
    [warning] = read({"host": "https://a.example.com"}, {**environ, **other}).warnings
    assert "b.example.com" in warning
    assert "hidden" not in warning
    other = {"TORCHX_KFP_HOST": "https://me:hidden@b.example.com"}
    with pytest.raises(HostSettingsError, match=says("TORCHX_KFP_HOST", "b.example.com")) as caught:
        read({"host": "https://a.example.com"}, {**environ, **other})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("character", ["\u200b", "\u201c", "\x1b", "é"])
def test_a_secret_that_a_request_cannot_carry_is_refused(name: str, character: str, environ: dict[str, str]) -> None:
    """They come with what is copied from a chat or a page."""
    with pytest.raises(HostSettingsError, match=says(name, f"{character!a}", "6")) as caught:
        read({name: f"hidde{character}n"}, environ)
    assert "hidde" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "mode", "warns"),
    [
        ("existing_token", 0o600, False),
        ("existing_token", 0o640, True),
        ("existing_token", 0o604, True),
        ("token_file", 0o644, False),
    ],
)
def test_a_file_with_a_secret_that_others_can_read_is_a_warning(
    name: str, mode: int, warns: bool, environ: dict[str, str]
) -> None:
    file = write(environ, f"[kfp]\n{name} = hidden\n", mode)
    found = read({}, environ).warnings
    assert bool(found) is warns
    for warning in found:
        assert warning.startswith(f"Run chmod 600 {file}: ")
        assert warning.endswith("'existing_token'.")
        assert "hidden" not in warning


def test_a_token_file_that_others_can_read_is_a_warning(environ: dict[str, str]) -> None:
    config = write(environ, "[kfp]\ntoken_file = token\n", 0o644)
    token = config.parent / "token"
    assert read({}, environ).warnings == (), "there is none"
    token.write_text("hidden")
    for mode, expected in ((0o600, ()), (0o644, (token,))):
        token.chmod(mode)
        for keywords in ({}, {"token_file": str(token)}):
            found = read(keywords, environ).warnings
            assert [text.partition(": ")[0] for text in found] == [f"Run chmod 600 {file}" for file in expected]


# Mistakes


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("[kfp]\nhosts = https://a\n", ("'hosts'", "Did you mean 'host'?", "token_file")),
        ("[kpf]\nhost = https://a\n", ("[kpf]", "[kfp]")),
        ("host = https://a\n", ("in line 1", "[kfp]")),
        ("[kfp]\nexisting_token hidden\n", ("in line 2", "ParsingError")),
        (
            "[kfp]\nhost = https://a\nhost = https://b\n",
            ("in line 3", "DuplicateOption", "Give the setting 'host' once"),
        ),
        ("[kfp]\n[kfp]\n", ("in line 2", "DuplicateSection")),
        ("[kfp]\nverify_ssl = maybe\n", ("'maybe'", "true or false")),
        ("[kfp]\nhost = ftp://a\n", ("'ftp://a'", "https://")),
        ("[kfp]\ncookies = a\n  hidden\n", ("cookies in", r"'\n'")),
        (b"\xff", ("cannot be read",)),
    ],
)
def test_mistakes_in_the_file(text: str | bytes, facts: tuple[str, ...], environ: dict[str, str]) -> None:
    file = write(environ, "")
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(HostSettingsError, match=says(file, *facts)) as caught:
        read({}, environ)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("keywords", "more", "facts"),
    [
        ({"host": "ftp://a"}, {}, ["--host", "'ftp://a'"]),
        ({}, {"TORCHX_KFP_VERIFY_SSL": "2"}, ["TORCHX_KFP_VERIFY_SSL", "'2'", "true or false"]),
        ({"nampace": "x"}, {}, ["'nampace'", "'namespace'"]),
        ({}, {"TORCHX_KFP_CONFIG": "/nowhere/x.ini"}, ["TORCHX_KFP_CONFIG", "/nowhere/x.ini", "does not exist"]),
    ],
)
def test_mistakes_in_a_flag_and_in_a_variable(
    keywords: dict[str, str], more: dict[str, str], facts: list[str], environ: dict[str, str]
) -> None:
    with pytest.raises(HostSettingsError, match=says(*facts)):
        read(keywords, {**environ, **more})


# Addresses


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
        ("LOCALHOST.:8080", "http://LOCALHOST.:8080"),
        ("kfp.localhost:8080", "http://kfp.localhost:8080"),
        ("127.8.8.8:8888", "http://127.8.8.8:8888"),
        ("[::1]:8888", "http://[::1]:8888"),
        ("128.0.0.1:8888", "https://128.0.0.1:8888"),
        ("localhost.example.com", "https://localhost.example.com"),
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
def test_forms_of_an_address(given: str, address: str, environ: dict[str, str]) -> None:
    assert read({"host": given}, environ).host == address


@pytest.mark.parametrize(
    ("given", "fact"),
    [
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
def test_what_is_not_an_address_is_refused(given: str, fact: str, environ: dict[str, str]) -> None:
    with pytest.raises(HostSettingsError, match=says("TORCHX_KFP_HOST", repr(given), fact)):
        read({}, {**environ, "TORCHX_KFP_HOST": given})


@pytest.mark.parametrize(
    "password", ["hidden", "hidden#hidden", "hidden/hidden", "hidden hidden", "hidden?hidden", "hidden\\"]
)
@pytest.mark.parametrize("scheme", ["https://", "ftp://", ""])
def test_a_password_in_an_address_is_not_shown(scheme: str, password: str, environ: dict[str, str]) -> None:
    """Also if it is not escaped."""
    with pytest.raises(HostSettingsError, match=says("--host", "kfp.example.com")) as caught:
        read({"host": f"{scheme}me:{password}@kfp.example.com"}, environ)
    assert "hidden" not in str(caught.value)


@settings(max_examples=30)
@given(st.text())
def test_an_address_stays_as_it_is(text: str) -> None:
    try:
        address = read({"host": text}, {"HOME": "/nowhere"}).host
    except HostSettingsError:
        return
    if address:
        assert address.startswith(("http://", "https://"))
        assert read({"host": address}, {"HOME": "/nowhere"}).host == address


# The proxy of the environment


@pytest.mark.parametrize(
    ("host", "variables", "expected"),
    [
        (
            "https://kfp.example.com",
            {"HTTPS_PROXY": "http://me:pw@proxy:3128"},
            ("http://me:pw@proxy:3128", "HTTPS_PROXY"),
        ),
        (
            "https://kfp.example.com",
            {"https_proxy": "proxy:3128", "HTTPS_PROXY": "x"},
            ("http://proxy:3128", "https_proxy"),
        ),
        ("http://kfp.example.com", {"HTTP_PROXY": "http://a", "HTTPS_PROXY": "http://b"}, ("http://a", "HTTP_PROXY")),
        ("https://kfp.example.com", {"ALL_PROXY": "http://c"}, ("http://c", "ALL_PROXY")),
        ("https://kfp.example.com", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.b,.example.com"}, None),
        ("https://kfp.example.com", {"HTTPS_PROXY": "http://p", "no_proxy": "*"}, None),
        (
            "https://kfp.example.com",
            {"HTTPS_PROXY": "http://p", "TORCHX_KFP_PROXY": "http://q"},
            ("http://q", "TORCHX_KFP_PROXY"),
        ),
        ("http://localhost:8080", {"HTTP_PROXY": "http://p"}, None),
        ("http://ml-pipeline.kubeflow.svc:8888", {"HTTP_PROXY": "http://p"}, None),
        ("", {"HTTPS_PROXY": "http://p"}, None),
    ],
)
def test_the_proxy_is_that_of_the_environment(
    host: str, variables: dict[str, str], expected: tuple[str, str] | None, environ: dict[str, str]
) -> None:
    settings = read({"host": host}, {**environ, **variables})
    assert (settings.proxy, settings.sources.get("proxy")) == (expected or ("", None))
