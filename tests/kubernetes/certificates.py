"""An authority that signs the certificates of a cluster's servers and clients."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: The names of the API server, in and outside of the cluster.
HOSTS = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True)
class Authority:
    """A folder with ``ca.crt``, and the pairs of ``NAME.crt`` and ``NAME.key`` that it has signed."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "ca.crt"

    def create(self) -> Authority:
        """Make the authority's own certificate."""
        key = _write_key(self.folder / "ca.key")
        name = _name("test authority")
        certificate = _begin(name, key.public_key()).issuer_name(name)
        certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        _write(certificate.sign(key, hashes.SHA256()), self.file)
        return self

    def sign(self, name: str, user: str, group: str | None = None) -> tuple[Path, Path]:
        """Make a certificate for a server at 127.0.0.1 and for a client; return its file and that of its key."""
        authority = x509.load_pem_x509_certificate(self.file.read_bytes())
        signing = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        key = _write_key(files[1])
        certificate = _begin(_name(user, group), key.public_key()).issuer_name(authority.subject)
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        names = [x509.DNSName(host) for host in HOSTS]
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = certificate.add_extension(usages, critical=False)
        certificate = certificate.add_extension(x509.SubjectAlternativeName([*names, address]), critical=False)
        _write(certificate.sign(signing, hashes.SHA256()), files[0])
        return files


def write_key_pair(private: Path, public: Path) -> None:
    """Write a pair of keys, with which tokens of service accounts are signed and verified."""
    key = _write_key(private).public_key()
    public.write_bytes(key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def _name(user: str, group: str | None = None) -> x509.Name:
    names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(names)


def _begin(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).public_key(key)
    builder = builder.not_valid_before(now - day).not_valid_after(now + 30 * day)
    return builder.serial_number(x509.random_serial_number())


def _write_key(file: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    plain = serialization.NoEncryption()
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    file.chmod(0o600)
    return key


def _write(certificate: x509.Certificate, file: Path) -> None:
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
