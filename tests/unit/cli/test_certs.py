"""A folder's certificate authority: who trusts whom, who may read what, and how one is replaced."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner

from services.cli.certificate_authority import CertificateAuthority
from services.cli.certs import command
from services.common.errors import ConfigError


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, ["--out", str(folder), "--json", *arguments])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def is_trusted(ca_file: Path, cert_file: Path, host: str = "localhost") -> bool:
    store = Store(x509.load_pem_x509_certificates(ca_file.read_bytes()))
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName(host))
    try:
        verifier.verify(x509.load_pem_x509_certificate(cert_file.read_bytes()), [])
    except VerificationError:
        return False
    return True


def test_a_first_call_makes_both_and_keys_are_private(tmp_path: Path) -> None:
    made = run(tmp_path / "certs", "--host", "node-a", "--name", "router", "--name", "replica-0")
    folder = tmp_path / "certs"
    assert {each.name for each in folder.iterdir()} == {
        "ca.pem", "ca.key", "router.pem", "router.key", "replica-0.pem", "replica-0.key",
    }  # fmt: skip
    for key in folder.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(made["certificates"]) == 2
    assert is_trusted(folder / "ca.pem", folder / "router.pem", "node-a")
    assert not is_trusted(folder / "ca.pem", folder / "router.pem", "node-b")


def test_a_later_call_renews_with_the_same_authority(tmp_path: Path) -> None:
    run(tmp_path)
    authority, first = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "forerun.pem").read_bytes()
    run(tmp_path, "--days", "3")
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert (tmp_path / "forerun.pem").read_bytes() != first
    assert is_trusted(tmp_path / "ca.pem", tmp_path / "forerun.pem")
    certificate = x509.load_pem_x509_certificate((tmp_path / "forerun.pem").read_bytes())
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3


def test_an_authority_is_replaced_without_a_moment_of_distrust(tmp_path: Path) -> None:
    run(tmp_path)
    old_ca, old_cert = tmp_path / "old-ca.pem", tmp_path / "old.pem"
    old_ca.write_bytes((tmp_path / "ca.pem").read_bytes())
    old_cert.write_bytes((tmp_path / "forerun.pem").read_bytes())
    # 1. Everybody trusts both, and shows the old certificate.
    run(tmp_path, "--new-authority", "--authority-only")
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "ca.pem").read_bytes())
    assert is_trusted(both, old_cert)
    assert (tmp_path / "forerun.pem").read_bytes() == old_cert.read_bytes()
    # 2. New certificates, which those with both trust, and those of before step 1 do not.
    run(tmp_path)
    assert is_trusted(both, tmp_path / "forerun.pem")
    assert not is_trusted(old_ca, tmp_path / "forerun.pem")
    # 3. The old one is forgotten.
    run(tmp_path, "--forget-old")
    assert is_trusted(tmp_path / "ca.pem", tmp_path / "forerun.pem")
    assert not is_trusted(tmp_path / "ca.pem", old_cert)


def test_what_is_not_an_authority_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no certificate authority"):
        CertificateAuthority.load(tmp_path)
    run(tmp_path / "a")
    run(tmp_path / "b")
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(ConfigError, match="is not the key"):
        CertificateAuthority.load(tmp_path / "a")
    (tmp_path / "b" / "ca.key").unlink()
    result = CliRunner().invoke(command, ["--out", str(tmp_path / "b")])
    assert result.exit_code == 2
    assert "without ca.key" in result.output


def test_people_get_what_to_write_into_their_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--out", str(tmp_path)])
    assert "New authority" in result.output
    assert "tls:" in result.output
    assert "key_file:" in result.output
