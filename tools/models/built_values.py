"""Values in models of pydantic, for which DSPy need not have validators and serializers built.

DSPy makes a TypeAdapter for each value that it reads or writes. pydantic then builds a validator
and a serializer, unless the type is a model, which has both; building them takes longer than their
use. DSPy reads and writes the values as before. What it reads of their fields, and how answers in
other forms are read, is in answer_parsing.py and fields.py.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_origin

import pydantic

from tools.models.answer_schema import SIGNATURES_CACHED, FieldValues

T = TypeVar("T")

# The types that DSPy leaves to pydantic as it reads a value.
_READ_TYPES = (bool, int, float, list, dict, tuple, set)
# Those of most values that are written. Of a number, pydantic writes NaN and infinity in a model as None.
_WRITTEN_TYPES = (str, list, dict)


class BuiltValue(pydantic.RootModel[T], Generic[T]):
    """A value that pydantic can validate and serialize without building anything."""

    def __str__(self) -> str:
        """Return the value as text, which is what DSPy writes of a value that has no JSON."""
        return str(self.root)

    __repr__ = __str__

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Return the name that errors call the type by: pydantic's own."""
        return str(pydantic.TypeAdapter(params[0]).validator.title)


_Written = BuiltValue[Any]


@lru_cache(maxsize=SIGNATURES_CACHED)
def with_built_outputs(signature: Any) -> Any:
    """Return `signature` with output fields of BuiltValues, where that changes no value."""
    for name, field in signature.output_fields.items():
        annotation = field.annotation
        if (get_origin(annotation) or annotation) in _READ_TYPES:
            built = BuiltValue[annotation]  # type: ignore[valid-type]  # any type, at run time
            signature = signature.with_updated_fields(name, type_=built)
    return signature


def unwrap(values: Mapping[str, Any]) -> FieldValues:
    """Return the values that were read by a signature with built outputs."""
    return {
        name: value.root if isinstance(value, BuiltValue) else value
        for name, value in values.items()
    }


def is_numbered_list(field: Any, value: Any) -> bool:
    """Return whether DSPy writes a value as a numbered list: a list for a field of text."""
    return isinstance(value, list) and field.annotation is str


def wrap(fields: Mapping[str, Any], values: Mapping[str, Any]) -> FieldValues:
    """Return `values` of `fields` to be written by DSPy."""
    wrapped = dict(values)
    for name, value in values.items():
        is_numbered = name in fields and is_numbered_list(fields[name], value)
        if type(value) in _WRITTEN_TYPES and not is_numbered:
            wrapped[name] = _Written.model_construct(value)
    return wrapped
