"""The base of every wire type, and nothing else. Knows no field of any of them."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class FrozenModel(BaseModel):
    """An immutable value that two processes exchange.

    Unknown fields are refused. Field names go over the wire as they are written; state-derived
    HTTP documents use the camelCase aliases (`model_dump(by_alias=True)`), and both spellings are
    accepted on input.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=False,
        protected_namespaces=(),
    )
