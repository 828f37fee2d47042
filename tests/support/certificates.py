"""A certificate authority made for one test, and certificates that it signs."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Name = x509.Name


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM files of a certificate and its private key."""

    cert_file: Path
    key_file: Path


class CertificateAuthority:
    """Signs certificates valid for 127.0.0.1 and localhost, or for one other DNS name."""

    def __init__(self, folder: Path, name: str = "test-authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        basic = x509.BasicConstraints(ca=True, path_length=0)
        certificate = _builder(self._name, self._name, self._key.public_key()).add_extension(basic, critical=True)
        self.ca_file = folder / f"{name}.pem"
        self.ca_file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, dns_name: str | None = None) -> KeyPair:
        """A certificate called ``name``."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [x509.DNSName(dns_name or "localhost")]
        if dns_name is None:
            alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = _builder(_name(name), self._name, key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        pair = KeyPair(self._folder / f"{name}.cert.pem", self._folder / f"{name}.key.pem")
        pair.cert_file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pair.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair


def _name(text: str) -> Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: Name, issuer: Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
