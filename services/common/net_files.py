"""A small trained network on disk: ``config.json`` and one file of tensors, read together or not at all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from services.common.errors import ConfigError

CONFIG_NAME: Final = "config.json"

Tensors = Mapping[str, NDArray[Any]]
Net = TypeVar("Net")


class NetConfig(BaseModel):
    """What must be known beside a network's weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    made_by: ClassVar[str]
    """The command that makes one."""

    def write(self, folder: Path) -> None:
        """Stores it in ``folder``."""
        (folder / CONFIG_NAME).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads it from ``folder``.

        Raises:
            ConfigError: it is missing, not such a file, or of another version; names file, field and fix.
        """
        path = folder / CONFIG_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name a folder that `{cls.made_by}` wrote") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            problem = f"{field}: {first['msg']}" if field else first["msg"]
            raise ConfigError(f"{path}: {problem}; train it again with `{cls.made_by}`") from None


def check_tensors(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ``ValueError`` when these are not the tensors of ``shapes``, or hold numbers that are not finite."""
    if odd := sorted(shapes.keys() ^ tensors.keys()):
        raise ValueError(f"{odd[0]} is {'missing' if odd[0] in shapes else 'unknown'}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{name} has shape {list(tensors[name].shape)}, {CONFIG_NAME} wants {list(shape)}")
        if not np.isfinite(tensors[name]).all():
            raise ValueError(f"{name} has numbers that are not finite")


def save_net(folder: Path, config: NetConfig, weights_name: str, tensors: Tensors) -> None:
    """Writes both files into ``folder``, which need not be there."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{weights_name}.part"
    save_file({name: np.ascontiguousarray(each) for name, each in tensors.items()}, part)
    part.replace(folder / weights_name)
    config.write(folder)


def load_net(folder: Path, config: NetConfig, weights_name: str, build: Callable[[Tensors], Net]) -> Net:
    """What ``build`` makes of the tensors in ``folder``.

    Raises:
        ConfigError: the file is missing or damaged, or ``build`` raises ``ValueError``: it does not fit ``config``.
    """
    path = folder / weights_name
    try:
        return build(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be used ({error}); train it again with `{config.made_by}`") from error
