"""A service's configuration as a section of a larger file: the same fields, without those that the supervisor sets."""

from collections.abc import Collection

from pydantic import create_model

from services.common.config import ConfigModel


def section_of(service: type[ConfigModel], name: str, *, without: Collection[str]) -> type[ConfigModel]:
    """A model with the fields, types, limits, defaults and documentation of ``service``, minus ``without``.

    Rules that span several fields are not copied, since they may name absent ones: they run when the service's own
    configuration is built.

    Raises:
        ValueError: ``without`` names a field that ``service`` does not have.
    """
    if unknown := set(without) - set(service.model_fields):
        raise ValueError(f"{service.__name__} has no field {', '.join(sorted(unknown))}")
    fields = {key: (field.annotation, field) for key, field in service.model_fields.items() if key not in without}
    model: type[ConfigModel] = create_model(  # type: ignore[call-overload]  # fields are known at run time only
        name, __base__=ConfigModel, __doc__=service.__doc__, __module__=__name__, **fields
    )
    return model
