"""The connection to a host: whose credentials it sends, what it repeats, and how it explains failures."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import ssl
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.execution.host.answers_of_kfp import answer, recorded
from tests.execution.host.scripted import CLOSE, Reply, Request, Scripted, scripted, status
from tests.facts import says
from torchx_kfp.errors import (
    HostAnswerLostError,
    HostCredentialsError,
    HostError,
    HostNotFoundError,
    HostRefusedError,
    HostSettingsError,
    HostUnreachableError,
)
from torchx_kfp.execution.host.connection import Connection, Timeouts
from torchx_kfp.execution.host.settings import Settings, read_settings

QUICK = Timeouts(wait=0.001)
RUNS = "/apis/v2beta1/runs"


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted(lambda request: Reply({"is": request.path})) as running:
        yield running


def connect(server: Scripted, patience: Timeouts = QUICK, **settings: object) -> Connection:
    return Connection(Settings(host=server.url, **settings), patience)


def in_turn(*replies: Reply | None) -> Callable[[Request], Reply | None]:
    """Answer each request with the next of these, and then always with the last."""
    rest = itertools.chain(replies, itertools.repeat(replies[-1]))
    return lambda request: next(rest)


def test_a_request_has_a_query_or_a_body_of_json(server: Scripted) -> None:
    query = {"page_size": 2, "sort_by": "created_at desc", "page_token": "", "filter": None}
    assert connect(server).get(RUNS, **query) == {"is": f"{RUNS}?page_size=2&sort_by=created_at%20desc"}
    assert connect(server).post(RUNS, {"display_name": "é"}) == {"is": RUNS}
    # A command line may have bytes that are not UTF-8, which Python makes surrogates of.
    assert connect(server).get(RUNS, filter="\udcff") == {"is": f"{RUNS}?filter=%3F"}
    got, posted, _ = server.requests
    assert got.method == "GET"
    assert "Authorization" not in got.headers
    assert (posted.method, posted.body) == ("POST", {"display_name": "é"})
    assert posted.headers["Content-Type"] == "application/json"


def test_numbers_that_json_lacks_are_refused(server: Scripted) -> None:
    with pytest.raises(HostRefusedError, match=says("NaN", "JSON")):
        connect(server).post(RUNS, {"x": float("nan")})
    assert not server.requests


def test_a_link_needs_no_request() -> None:
    connection = Connection(Settings(host="http://127.0.0.1:1", token_file="/nowhere/token"))
    assert connection.link("a/b") == "http://127.0.0.1:1/#/runs/details/a%2Fb"
    settings = Settings(host="http://127.0.0.1:8888", ui_host="https://kfp.example.com/pipeline")
    assert Connection(settings).link("x") == "https://kfp.example.com/pipeline/#/runs/details/x"
    assert Connection(Settings()).link("x") == "", "inside of a cluster, the UI's address is not known"


@pytest.mark.versions
def test_using_a_host_prints_and_warns_nothing(with_tls: Scripted) -> None:
    """In a new process, without logging; requests are repeated, and the user wants no check of the certificate."""
    with_tls.script = in_turn(CLOSE, Reply("", 503), Reply("", 429), Reply({"ok": True}))
    program = (
        "from torchx_kfp.execution.host.connection import Connection, Timeouts\n"
        "from torchx_kfp.execution.host.settings import Settings\n"
        f"settings = Settings(host={with_tls.url!r}, verify_ssl=False)\n"
        f"assert Connection(settings, Timeouts(wait=0.01)).get({RUNS!r}) == {{'ok': True}}\n"
        "import logging; assert not logging.getLogger().handlers\n"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    # Deprecations inside of libraries are shown because of -W always.
    assert not [word for word in ("Pipeline", "Retry", "Insecure") if word in done.stderr], done.stderr


# Credentials


@pytest.mark.versions
def test_a_token_file_is_read_for_each_request(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "token"
    connection = connect(server, token_file=str(file), cookies="authservice_session=abc")
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        connection.get(RUNS)
        assert server.requests[-1].headers["Cookie"] == "authservice_session=abc"
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (None, "No such file"),
        ("", "is empty"),
        ("a b\n", "more than a token"),
        (b"\xff", "not text"),
        ("a\u200bb", r"'\u200b'"),
    ],
)
def test_a_token_file_that_cannot_be_used(server: Scripted, tmp_path: Path, content: object, fact: str) -> None:
    file = tmp_path / "token"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.write_text(str(content))
    settings = read_settings({"host": server.url, "token_file": str(file)}, {"HOME": str(tmp_path)})
    with pytest.raises(HostSettingsError, match=says(str(file), "token_file", fact)) as caught:
        Connection(settings, QUICK).get(RUNS)
    assert "a b" not in str(caught.value), "it may be a secret"


@pytest.mark.parametrize(
    "proxy", ["http://me:s3#cret@127.0.0.1:9", "me:s3cret@127.0.0.1:9", "http://me:s3cret@[::1]:9"]
)
def test_the_password_of_a_proxy_is_not_shown(server: Scripted, proxy: str) -> None:
    with pytest.raises(HostError) as caught:
        connect(server, proxy=proxy).get(RUNS)
    assert "cret" not in "".join(traceback.format_exception(caught.value))


def only_for(token: Callable[[], str]) -> Callable[[Request], Reply]:
    def answer(request: Request) -> Reply:
        if request.headers.get("Authorization") == f"Bearer {token()}":
            return Reply({"ok": True})
        return status(16, "Unauthenticated: Request header error: there is no user identity header.", 401)

    return answer


@pytest.mark.versions
def test_a_token_that_has_changed_in_the_settings_file_is_read_again(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "config.ini"
    file.write_text(f"[kfp]\nhost = {server.url}\nexisting_token = first\n")
    file.chmod(0o600)
    connection = Connection(read_settings({}, {"TORCHX_KFP_CONFIG": str(file)}), QUICK)
    valid = "first"
    server.script = only_for(lambda: valid)
    assert connection.get(RUNS) == {"ok": True}
    valid = "second"
    with pytest.raises(
        HostCredentialsError, match=says("401", "there is no user identity", f"existing_token in {file}")
    ):
        connection.get(RUNS)
    file.write_text(file.read_text().replace("first", "second"))
    assert connection.get(RUNS) == {"ok": True}


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, "sent without credentials"),
        ({"existing_token": "hidden"}, "existing_token"),
        ({"cookies": "session=hidden"}, "cookies"),
        ({"existing_token": "hidden", "namespace": "alice"}, "'alice'"),
    ],
)
@pytest.mark.parametrize("code", [401, 403])
def test_credentials_that_are_not_accepted(
    server: Scripted, tmp_path: Path, code: int, settings: dict[str, str], sent: str
) -> None:
    # A 403 with code 7 is KFP's own, and another matter.
    server.script = lambda request: status(16, "User 'me' is not authorized", code)
    connection = Connection(read_settings({"host": server.url, **settings}, {"HOME": str(tmp_path)}), QUICK)
    facts = says(
        code, RUNS, "User 'me' is not authorized", sent, "TORCHX_KFP_TOKEN_FILE", "TORCHX_KFP_EXISTING_TOKEN", "cookies"
    )
    with pytest.raises(HostCredentialsError, match=facts) as caught:
        connection.get(RUNS)
    assert "hidden" not in str(caught.value)
    assert ("may have expired" in str(caught.value)) is bool(settings)
    # A token that has expired may be a new one by now; new credentials seldom have other rights.
    assert len(server.requests) == (2 if code == 401 else 1)


def test_a_host_is_asked_through_the_proxy_of_the_environment(server: Scripted, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "HTTP_PROXY": server.url}
    assert Connection(read_settings({"host": "http://kfp.example.com"}, environ), QUICK).get(RUNS)
    assert [request.path for request in server.requests] == [f"http://kfp.example.com{RUNS}"]
    gone = {**environ, "HTTP_PROXY": "http://127.0.0.1:9"}
    with pytest.raises(HostUnreachableError, match=says("the proxy of HTTP_PROXY does not answer")):
        Connection(read_settings({"host": "http://kfp.example.com"}, gone), QUICK).get(RUNS)


@pytest.mark.parametrize(
    "page",
    [
        None,
        "<h2>Log in to Your Account</h2><a href='/auth/ldap'>Log in with LDAP</a>",
        "<form><input type='password' name='p'></form>",
        "<script>location.href = '/login?next=/'</script>",
        "<a>Sign in</a>",
    ],
)
def test_a_page_to_sign_in_and_a_redirect_to_one_are_recognized(server: Scripted, page: str | None) -> None:
    redirect = Reply("", 302, {"Location": "/dex/auth?client_id=kubeflow"})
    server.script = lambda request: Reply(f"<html>{page}</html>", kind="text/html") if page else redirect
    for call in (connect(server).get, connect(server).post):
        with pytest.raises(HostCredentialsError, match=says("page to sign in", "TORCHX_KFP_COOKIES")):
            call(RUNS)


# What is repeated


TOO_EARLY = Reply("", 429, {"Retry-After": "3600"})


@pytest.mark.versions
@pytest.mark.parametrize(
    ("method", "trouble"),
    [*(("get", trouble) for trouble in (CLOSE, Reply("", 500), Reply("", 503), TOO_EARLY)), ("post", TOO_EARLY)],
)
def test_what_the_host_has_not_accepted_is_repeated(server: Scripted, method: str, trouble: Reply | None) -> None:
    server.script = in_turn(trouble, trouble, Reply({"ok": True}))
    begun = time.monotonic()
    assert getattr(connect(server), method)(RUNS) == {"ok": True}
    assert len(server.requests) == 3
    assert time.monotonic() - begun < 60, "the host does not decide how long a user waits"


@pytest.mark.versions
@pytest.mark.parametrize(
    ("reply", "facts"),
    [
        (CLOSE, ["POST", RUNS]),
        (Reply({"a": "b" * 50}, cut=True), ["POST", RUNS]),
        # A proxy that does not wait any longer.
        *((Reply("", code), [f"{code}"]) for code in (408, 502, 504)),
        (status(13, "it broke", 500), ["it broke"]),
        (status(14, "it restarts", 503), ["it restarts"]),
        (Reply("<html>Bad gateway. <a>Sign in</a></html>", 502, kind="text/html"), ["502", "web page"]),
        (Reply("<html>hello</html>", kind="text/html"), ["web page"]),
        (Reply("hello"), ["hello"]),
    ],
)
def test_a_post_that_may_have_been_accepted_is_not_repeated(
    server: Scripted, reply: Reply | None, facts: list[str]
) -> None:
    server.script = lambda request: reply
    with pytest.raises(HostError, match=says(*facts, "may have accepted it", "check there before")) as caught:
        connect(server).post(RUNS, {})
    assert isinstance(caught.value, HostAnswerLostError | HostUnreachableError)
    assert "later" not in str(caught.value)
    assert len(server.requests) == 1


def test_a_host_that_stays_busy(server: Scripted) -> None:
    server.script = lambda request: Reply("", 503)
    with pytest.raises(HostUnreachableError, match=says("503", "try again later")):
        connect(server).get(RUNS)
    assert len(server.requests) == 4


def test_a_log_that_the_host_does_not_have_is_asked_for_once(server: Scripted) -> None:
    server.script = lambda request: status(13, "failed to read the log", 500)
    with pytest.raises(HostError, match="failed to read the log"):
        connect(server).log("/log")
    assert len(server.requests) == 1


# Failures


@pytest.mark.versions
def test_no_one_listens(server: Scripted) -> None:
    server.close()
    begun = time.monotonic()
    for call in (connect(server).get, connect(server).post):
        with pytest.raises(HostUnreachableError, match=says(server.url, "does not answer", "refused", "port-forward")):
            call(RUNS)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("unknown-run", HostNotFoundError, "Run 00000000-0000-0000-0000-000000000000 not found."),
        ("create-wrong-parameter", HostRefusedError, "parameter tracker_base is not optional, yet has neither default"),
        ("create-broken-spec", HostAnswerLostError, "unknown template format: pipeline spec is invalid."),
    ],
)
def test_errors_of_the_api_have_its_words_once(
    server: Scripted, name: str, error: type[HostError], message: str
) -> None:
    content = recorded(name)
    server.script = lambda request: Reply(content["answer"], content["status"])
    with pytest.raises(error, match=says(f"POST {server.url}{RUNS}", message)) as caught:
        connect(server).post(RUNS, {})
    assert type(caught.value) is error
    assert str(caught.value).count(message[:20]) == 1


def test_an_error_shows_neither_the_query_nor_what_could_harm_a_terminal(server: Scripted) -> None:
    server.script = lambda request: status(3, "wrong \x1b[31mfilter", 400)
    with pytest.raises(HostRefusedError, match=rf"^GET {server.url}{RUNS} failed: wrong \\x1b\[31mfilter\.$"):
        connect(server).get(RUNS, filter='{"predicates": []}')


def test_a_log_may_be_a_web_page(server: Scripted) -> None:
    """A stage prints what it has fetched."""
    server.script = lambda request: Reply("<html>Sign in to go on</html>", kind="text/plain; charset=utf-8")
    assert connect(server).log("/log") == b"<html>Sign in to go on</html>"


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for this machine that signs itself, and its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kfp")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def with_tls(certificate: Path) -> Iterator[Scripted]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with scripted(lambda request: Reply({"ok": True}), context) as running:
        yield running


@pytest.mark.versions
def test_a_certificate_is_checked_unless_the_user_says_otherwise(
    with_tls: Scripted, certificate: Path, tmp_path: Path
) -> None:
    assert connect(with_tls, ssl_ca_cert=str(certificate)).get(RUNS) == {"ok": True}
    assert connect(with_tls, verify_ssl=False).get(RUNS) == {"ok": True}
    facts = says(
        with_tls.url, "certificate", "self", "public ones", "TORCHX_KFP_SSL_CA_CERT", "TORCHX_KFP_VERIFY_SSL=false"
    )
    with pytest.raises(HostUnreachableError, match=facts):
        connect(with_tls).get(RUNS)
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(HostSettingsError, match=says(missing, "No such file", "ssl_ca_cert")):
        connect(with_tls, ssl_ca_cert=missing).get(RUNS)


def test_tls_with_a_host_that_has_none(server: Scripted) -> None:
    settings = Settings(host=server.url.replace("http:", "https:"))
    with pytest.raises(HostUnreachableError, match=says(server.port, "does not use TLS", "http://")):
        Connection(settings, QUICK).get(RUNS)


# Without a host


def run_without_host(tmp_path: Path, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: the Kubernetes client reads the environment when it is loaded."""
    program = (
        "from torchx_kfp.execution.host.connection import Connection, Timeouts\n"
        "from torchx_kfp.execution.host.settings import read_settings\n"
        f"connection = Connection(read_settings(), Timeouts(retries=0))\n{code}"
    )
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), **environ},
    )


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "%s"}}]
users: [{name: me, user: {}}]
"""


@pytest.mark.versions
def test_the_proxy_of_a_kubernetes_api_server(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG % server.url)
    code = f"print(connection.get({RUNS!r})); print(repr(connection.link('x')), connection.name)"
    done = run_without_host(tmp_path, code, KUBECONFIG=str(file))
    path = f"/api/v1/namespaces/kubeflow/services/ml-pipeline:http/proxy{RUNS}"
    assert done.stdout == f"{{'is': '{path}'}}\n'' {server.url}{path.removesuffix(RUNS)}\n", done.stderr
    wrong = run_without_host(tmp_path, code, KUBECONFIG=str(file), TORCHX_KFP_KUBE_CONTEXT="there")
    assert wrong.returncode == 1
    for fact in ("HostSettingsError", "'there'", str(file), "get-contexts"):
        assert fact in wrong.stderr


IN_A_POD = """
import os
import kubernetes
from kfp.client import Client
from kubernetes.config.incluster_config import InClusterConfigLoader
from torchx_kfp.execution.host import connection as module

# What is in a pod, at places of this test.
module.POD_NAMESPACE = os.environ["POD"] + "/namespace"
Client._IN_CLUSTER_DNS_NAME = os.environ["SERVICE"]
kubernetes.config.load_incluster_config = lambda: InClusterConfigLoader(
    token_filename=os.environ["POD"] + "/token", cert_filename=os.environ["POD"] + "/ca.crt"
).load_and_set()
"""


@pytest.mark.versions
@pytest.mark.parametrize(
    ("multi_user", "namespace"), [(True, "alice"), pytest.param(False, "", marks=pytest.mark.usual)]
)
def test_inside_of_a_cluster(
    server: Scripted, tmp_path: Path, certificate: Path, multi_user: bool, namespace: str
) -> None:
    server.script = lambda request: Reply({"multi_user": multi_user})
    for name, text in {"token": "of kubernetes", "namespace": "alice\n", "sa": "of kfp\n"}.items():
        (tmp_path / name).write_text(text.replace(" ", "-"))
    (tmp_path / "ca.crt").write_bytes(certificate.read_bytes())
    code = f"{IN_A_POD}\nconnection.get({RUNS!r}); print(repr(connection.namespace), connection.name)"
    done = run_without_host(
        tmp_path,
        code,
        POD=str(tmp_path),
        SERVICE=server.url.removeprefix("http://"),
        KF_PIPELINES_SA_TOKEN_PATH=str(tmp_path / "sa"),
        KUBERNETES_SERVICE_HOST="127.0.0.1",
        KUBERNETES_SERVICE_PORT="1",
    )
    assert done.stdout == f"{namespace!r} {server.url}\n", done.stderr
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer of-kfp"}


def test_the_namespace_of_kfps_own_settings(server: Scripted, tmp_path: Path) -> None:
    file = tmp_path / ".config" / "kfp" / "context.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"namespace": "alice"}')
    code = "print(repr(connection.namespace))"
    assert run_without_host(tmp_path, code, TORCHX_KFP_HOST=server.url).stdout == "'alice'\n"
    own = run_without_host(tmp_path, code, TORCHX_KFP_HOST=server.url, TORCHX_KFP_NAMESPACE="bob")
    assert own.stdout == "'bob'\n"
    elsewhere = run_without_host(tmp_path, code, TORCHX_KFP_HOST=server.url, TORCHX_KFP_SERVICE_NAMESPACE="kfp")
    assert elsewhere.stdout == "''\n", "the namespace of KFP's services is not a user's"


#: How KFP 2.17 answers a run whose workspace lacks a setting (the paths are invented).
WITH_STACK = (
    "Internal error: workspace PVC spec must specify accessModes\nFailed to compile job\n"
    "github.com/kubeflow/pipelines/backend/src/common/util.Wrap\n\t/go/src/backend/src/common/util/error.go:361\n"
    "runtime.goexit\n\t/usr/local/go/src/runtime/asm_amd64.s:1771\nFailed to create a new run\n"
    "github.com/kubeflow/pipelines/backend/src/common/util.Wrap\n\t/go/src/backend/src/common/util/error.go:361"
)


def test_an_error_is_without_the_stack_of_kfps_server(server: Scripted) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.Status", "code": 2, "message": WITH_STACK}
    server.script = lambda request: Reply({"code": 13, "message": WITH_STACK, "details": [detail]}, 500)
    with pytest.raises(HostError, match=r"failed: Internal error: workspace PVC spec must specify accessModes\.$"):
        Connection(Settings(host=server.url)).get(RUNS)


def refusal(name: str) -> Reply:
    """Return a refusal that an installation of several users gave."""
    refused = answer("several-users")[name]
    return Reply(refused["answer"], refused["status"])


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("list", ["'bob@example.com' may not list runs in the namespace 'team-a'"]),
        ("get", ["'bob@example.com' may not get runs in the namespace 'team-a'"]),
        ("get-v1beta1", ["'bob@example.com' may not get runs in the namespace 'team-a'"]),
        ("terminate", ["'bob@example.com' may not terminate runs in the namespace 'team-a'"]),
        ("retry", ["'bob@example.com' may not retry runs in the namespace 'team-a'"]),
        ("experiments", ["'bob@example.com' may not list experiments in the namespace 'team-a'"]),
    ],
)
def test_a_right_that_is_missing_is_named(server: Scripted, name: str, facts: list[str]) -> None:
    """Other credentials of the same user would not help."""
    server.script = lambda request: refusal(name)
    connection = Connection(Settings(host=server.url, namespace="team-b", cookies="a=b"))
    with pytest.raises(HostCredentialsError, match=says(*facts, "owner of this namespace's profile")) as caught:
        connection.get(RUNS)
    for other in ("team-b", "expired", "ResourceAttributes", "token"):
        assert other not in str(caught.value)


@pytest.mark.parametrize("name", ["runs-without-namespace", "experiments-without-namespace"])
def test_a_host_of_several_users_needs_a_namespace(server: Scripted, name: str) -> None:
    server.script = lambda request: refusal(name)
    facts = says("The host is multi-user", "--namespace NAME", "TORCHX_KFP_NAMESPACE")
    with pytest.raises(HostRefusedError, match=facts):
        Connection(Settings(host=server.url)).get(RUNS)


@pytest.mark.parametrize(
    ("name", "fact"),
    [("no-identity", "User identity is empty in the request header."), ("expired-token", "401: Jwt is expired.")],
)
def test_words_of_a_proxy_about_credentials_are_shown(server: Scripted, name: str, fact: str) -> None:
    server.script = lambda request: refusal(name)
    with pytest.raises(HostCredentialsError, match=says("HTTP status 401: ", fact, "TORCHX_KFP_EXISTING_TOKEN")):
        Connection(Settings(host=server.url, namespace="team-a")).get(RUNS)
