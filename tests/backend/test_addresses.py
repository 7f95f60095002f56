"""Addresses of hosts, in all the forms in which people have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.backend.addresses import host_address, is_this_machine
from torchx_kfp.errors import HostSettingsError


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
