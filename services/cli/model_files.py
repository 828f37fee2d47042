"""Checksums of model files: of whole files for the manifest, of the tensors alone for the catalog's pin."""

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from services.common.file_digest import file_digest

MANIFEST_NAME = "forerun-model.json"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint folder holds and where it came from; lies in the folder itself."""

    name: str
    source: str
    license: str
    weights_sha256: str
    converted_with: str
    files: dict[str, FileRecord]

    def write(self, folder: Path) -> None:
        """Stores the manifest in ``folder``."""
        (folder / MANIFEST_NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """The folder's manifest; ``None`` where it is missing or damaged, which both mean: fetch again."""
        try:
            fields = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
            fields["files"] = {name: FileRecord(**record) for name, record in fields["files"].items()}
            return cls(**fields)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def damage(self, folder: Path, *, checksums: bool) -> str:
        """Names the first file that is missing or differs; empty when all are as recorded."""
        for name, record in self.files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != record.bytes:
                return f"{name} has {path.stat().st_size} bytes instead of {record.bytes}"
            if checksums and file_digest(path) != record.sha256:
                return f"{name} does not match its checksum"
        return ""


def record_files(folder: Path) -> dict[str, FileRecord]:
    """A record of every file in ``folder``."""
    return {
        path.name: FileRecord(path.stat().st_size, file_digest(path))
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST_NAME
    }


def tensor_digest(path: Path) -> str:
    """SHA-256 over the tensors of a safetensors file in name order: name, dtype, shape and bytes of each.

    Unlike the file's own digest it does not change with the order or padding that a library version writes.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        data_start = 8 + header_bytes
        for name in sorted(set(header) - {"__metadata__"}):
            tensor = header[name]
            digest.update(f"{name} {tensor['dtype']} {tensor['shape']}\n".encode())
            begin, end = tensor["data_offsets"]
            file.seek(data_start + begin)
            while begin < end:
                chunk = file.read(min(CHUNK_BYTES, end - begin))
                if not chunk:
                    raise ValueError(f"{path} ends inside tensor {name}")
                digest.update(chunk)
                begin += len(chunk)
    return digest.hexdigest()
