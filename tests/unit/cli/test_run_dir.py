"""Who may use a run folder, and what others learn from it."""

import os
from pathlib import Path

import pytest

from services.cli.errors import CliError
from services.cli.paths import cache_dir
from services.cli.ports import PortPicker, who_listens
from services.cli.run_dir import RunDir, RunState, UnitState
from services.cli.units import UnitKind
from services.common.errors import ConfigError
from services.common.ledger import LedgerConfig
from tests.support.free_ports import free_port


def state(tmp_path: Path) -> RunState:
    unit = UnitState(
        name="router", kind=UnitKind.ROUTER, replica_id=None, pid=1, address="a:1", metrics=(("router", "a:2"),),
        log_file=tmp_path / "log",
    )  # fmt: skip
    return RunState(
        pid=os.getpid(), config_file=tmp_path / "c", router_grpc="a:1", router_http="http://a:3", model_names=("m",),
        traces_dir=tmp_path, otlp_endpoint=None, ledger=LedgerConfig(), tls=None, units=(unit,),
    )  # fmt: skip


def test_a_folder_has_one_owner_and_its_state_goes_with_it(tmp_path: Path) -> None:
    run, second = RunDir(tmp_path / "run"), RunDir(tmp_path / "run")
    with pytest.raises(CliError, match="nothing runs in"):
        second.read_state()
    with run.locked():
        with pytest.raises(CliError, match=rf"another `forerun up` \(pid {os.getpid()}\)"), second.locked():
            pass
        with pytest.raises(CliError, match="still starting"):
            second.read_state()
        run.write_state(state(tmp_path))
        assert second.read_state() == state(tmp_path)
        assert second.is_locked()
    assert not second.is_locked()
    with pytest.raises(CliError, match="nothing runs in"):
        second.read_state()
    with second.locked():
        pass


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with run.locked():
        run.write_private(tmp_path / "state.json", '{"pid": 1}')
        with pytest.raises(CliError, match="another version"):
            run.read_state()


def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CliError, match="choose another folder with --run-dir"),
        RunDir(tmp_path / "file" / "x").locked(),
    ):
        pass


def test_private_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    for text in ("one", "two"):
        RunDir.write_private(path, text)
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600


def test_ports() -> None:
    picker = PortPicker()
    picked = [picker.resolve("127.0.0.1:0") for _ in range(20)]
    assert len(set(picked)) == 20
    assert picker.resolve("127.0.0.1:123") == "127.0.0.1:123"
    assert who_listens(f"127.0.0.1:{free_port()}") is None
    picker.release()
    assert who_listens(picked[0]) is None
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1:0: no port to be had there"):
        picker.resolve("192.0.2.1:0")


def test_a_taken_port_names_who_has_it() -> None:
    import socket  # noqa: PLC0415  (this test alone plays the other program)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        owner = who_listens(f"127.0.0.1:{taken.getsockname()[1]}")
    assert owner is not None
    assert str(os.getpid()) in owner


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORERUN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "forerun"
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    assert cache_dir(tmp_path / "flag") == tmp_path / "flag"
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="is not a folder"):
        cache_dir(tmp_path / "file")
