"""A ``kfp.Client`` for its ways to prove who sends a request, without its prints, warnings and waits."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchx_kfp.backend.settings import CONFIG, FLAGS, Settings, config_file, refuse_in_header, variable
from torchx_kfp.errors import HostSettingsError, TorchxKfpError
from torchx_kfp.text import shown

#: What kfp.Client leaves as the host if it has found none.
_NONE = "http://localhost"
#: In a pod, the file with the pod's namespace.
POD_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


def make_client(settings: Settings) -> Any:
    """Return a ``kfp.Client`` with these settings.

    Raises:
        HostSettingsError: there is no host, or a file that the settings name cannot be read.
    """
    for name in ("ssl_ca_cert", "token_file"):
        if path := getattr(settings, name):
            _read(path, settings.source(name))
    given = {
        name: getattr(settings, name) or None for name in FLAGS.keys() - {"service_namespace", "token_file", "ui_host"}
    }
    given |= {"namespace": settings.service_namespace, "verify_ssl": settings.verify_ssl}
    signs_in = bool(settings.client_id and settings.other_client_id and settings.other_client_secret)
    with _silence(sys.stderr if signs_in else io.StringIO()):
        from kfp.client import Client

        class Quick(Client):  # type: ignore[misc]
            def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
                """Do nothing: the constructor would wait for a host that does not answer, and write a file."""
                return SimpleNamespace(multi_user=False)

        try:
            client = Quick(**given, credentials=_TokenFile(settings) if settings.token_file else None)
        except TorchxKfpError:
            raise
        # kfp.Client raises what google.auth, json and others raise.
        except Exception as error:
            # What a library says about a wrong URL has the password in it.
            said = str(error).replace(settings.proxy, "...") if settings.proxy else str(error)
            raise HostSettingsError(
                f"The connection to {settings.host or 'KFP'} could not be set up: {type(error).__name__}: "
                f"{shown(said, 300)}. kfp.Client itself fails with these settings."
            ) from (None if settings.proxy else error)
    if not settings.host and _configuration(client).host == _NONE:
        raise HostSettingsError(_no_host(settings))
    return client


def client_namespace(client: Any, settings: Settings) -> str:
    """Return the namespace of ``kfp.Client``'s own settings file, if it has one."""
    # The client takes another namespace of services for the user's.
    return str(client.get_user_namespace() or "") if settings.service_namespace == "kubeflow" else ""


def _configuration(client: Any) -> Any:
    return client._run_api.api_client.configuration


class _TokenFile:
    """Reads the token before each request; kfp.Client calls this its credentials."""

    def __init__(self, settings: Settings) -> None:
        self._path, self._source = settings.token_file, settings.source("token_file")

    def refresh_api_key_hook(self, config: Any) -> None:
        token = _read(self._path, self._source).strip()
        if not token or len(token.split()) > 1:
            what = "is empty" if not token else "contains more than a token"
            raise HostSettingsError(f"The file {self._path!r} of {self._source} {what}. Write the token alone into it.")
        refuse_in_header(token, f"The file {self._path!r} of {self._source}")
        config.api_key["authorization"] = token


def _read(path: str, source: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise HostSettingsError(f"The file {path!r} of {source} cannot be read: {why}.") from None


def _no_host(settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    return (
        f"No KFP host is given. Give one of these:\n"
        f"- --host https://kfp.example.com, or the variable {variable('host')} or KF_PIPELINES_ENDPOINT;\n"
        f"- a line 'host = https://kfp.example.com' below [kfp] in {config_file(environ)}\n"
        f"  ({CONFIG} names another file);\n"
        f"- http://localhost:8080 as the host, while this runs:\n"
        f"  kubectl port-forward -n {settings.service_namespace} svc/ml-pipeline-ui 8080:80\n"
        f"Without a host, KFP's service is used inside a cluster, and elsewhere the Kubernetes API server of the "
        f"kubeconfig. Neither is here: {_about_kubeconfig(settings, environ)}"
    )


def _about_kubeconfig(settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    files = (environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    if not any(Path(file).expanduser().exists() for file in files):
        return f"there is no file {' or '.join(files)}."
    context = f"its context {settings.kube_context!r}" if settings.kube_context else "its current context"
    return f"{context} in {' or '.join(files)} does not exist or cannot be used ('kubectl config get-contexts')."


@contextlib.contextmanager
def _silence(output: Any) -> Iterator[None]:
    """Keep what kfp and the libraries below it print, warn about and log away from stdout and stderr."""
    root, handler = logging.getLogger(), logging.NullHandler()
    # logging.warning() would set up a handler that writes to stderr from then on.
    added = not root.handlers
    if added:
        root.addHandler(handler)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(output):
            warnings.simplefilter("ignore")
            yield
    finally:
        if added:
            root.removeHandler(handler)
