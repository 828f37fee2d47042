"""A certificate authority in a folder, for systems without one: it signs what servers and clients show each other.

ca.pem          its certificate; while it is replaced, those of the authorities before it, too
ca.key          its private key, for this user alone
NAME.pem        a certificate for servers and clients alike
NAME.key        its private key, for this user alone
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.common.errors import ConfigError

AUTHORITY_DAYS: Final = 3650
CLOCKS_APART: Final = datetime.timedelta(hours=1)
"""Certificates hold from so long ago on, for machines whose clocks are behind."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM files of a certificate and its private key."""

    cert_file: Path
    key_file: Path


class CertificateAuthority:
    """Of one folder. ``ca_file`` is what all others must trust."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        """See ``create`` and ``load``."""
        self.ca_file = folder / "ca.pem"
        self._folder = folder
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, folder: Path, name: str = "Forerun") -> Self:
        """Makes a new one. Authorities that were there before and still hold stay trusted."""
        folder.mkdir(parents=True, exist_ok=True)
        before = _certificates(folder / "ca.pem")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} {x509.random_serial_number():x}"[:40])])
        builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        certificate = builder.sign(key, hashes.SHA256())
        now = datetime.datetime.now(datetime.UTC)
        trusted = [certificate, *(each for each in before if each.not_valid_after_utc > now)]
        _write_private(folder / "ca.key", _key_pem(key))
        _write(folder / "ca.pem", b"".join(map(_pem, trusted)))
        return cls(folder, certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The one in ``folder``.

        Raises:
            ConfigError: there is none, or its files are damaged.
        """
        try:
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
            certificate = _certificates(folder / "ca.pem")[0]
        except (OSError, ValueError, IndexError) as error:
            raise ConfigError(
                f"{folder}: holds no certificate authority ({error}); make one in a new folder"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ConfigError(
                f"{folder}: ca.key is not the key of the first certificate in ca.pem; restore one of them"
            )
        return cls(folder, certificate, key)

    @property
    def not_valid_after(self) -> datetime.datetime:
        """Of its own certificate."""
        return self._certificate.not_valid_after_utc

    def forget_others(self) -> None:
        """Trusts itself alone from now on."""
        _write(self.ca_file, _pem(self._certificate))

    def issue(self, name: str, hosts: Sequence[str] = ("localhost", "127.0.0.1"), days: int = 365) -> KeyPair:
        """A certificate in ``NAME.pem``, in place of the one that was there.

        Args:
            name: of the files, and the certificate's common name.
            hosts: DNS names and addresses that its holder is reached by.
            days: that it holds.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = _builder(subject, self._certificate.subject, key.public_key(), days)
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
        builder = builder.add_extension(usage, critical=False)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        pair = KeyPair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        # The key first: a certificate is never beside another one's key for longer than a rename takes.
        _write_private(pair.key_file, _key_pem(key))
        _write(pair.cert_file, _pem(builder.sign(self._key, hashes.SHA256())))
        return pair


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _certificates(file: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(file.read_bytes()) if file.is_file() else []


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_bytes(data)
    part.replace(file)


def _write_private(file: Path, data: bytes) -> None:
    """The same, readable by this user alone from the beginning."""
    part = file.with_name(f"{file.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(data)
    part.replace(file)
