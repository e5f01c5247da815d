"""tf.train.Example: what a record of a TFRecord holds, features by name. Read with protobuf, without TensorFlow.

The message is described here rather than in a generated file: on the wire only numbers and kinds of fields count (tensorflow:
core/example/example.proto, feature.proto).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_Field: Final = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "tpulm.example"
_KINDS: Final = {"bytes_list": "bytes", "float_list": "floats", "int64_list": "int64s", None: "nothing"}


class NotAnExample(ValueError):
    """The bytes are no tf.train.Example."""


def parse(data: bytes) -> Mapping[str, Any]:
    """The features by name, for `integers` and `floats`. Raises NotAnExample."""
    try:
        return _Example.FromString(data).features.feature
    except DecodeError as error:
        raise NotAnExample(str(error)) from error


def serialize(features: Mapping[str, Sequence[int] | Sequence[float]]) -> bytes:
    """An Example of these features: floats where the first value is one, else int64s. Of equal features, equal bytes."""
    example = _Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        (feature.float_list if isinstance(values[0], float) else feature.int64_list).value.extend(values)
    return example.SerializeToString(deterministic=True)


def integers(feature: Any) -> Sequence[int]:
    """The int64s of a feature. Raises NotAnExample where it holds something else."""
    return _values(feature, "int64_list")


def floats(feature: Any) -> Sequence[float]:
    """The floats of a feature. Raises NotAnExample where it holds something else."""
    return _values(feature, "float_list")


def _values(feature: Any, kind: str) -> Sequence[Any]:
    found = feature.WhichOneof("kind")
    if found != kind:
        raise NotAnExample(f"holds {_KINDS[found]}, not {_KINDS[kind]}")
    return getattr(feature, kind).value


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="tpulm/example.proto", package=_PACKAGE, syntax="proto3")
    for name, value in (("BytesList", _Field.TYPE_BYTES), ("FloatList", _Field.TYPE_FLOAT), ("Int64List", _Field.TYPE_INT64)):
        _add(file.message_type.add(name=name), [_field("value", 1, value, many=True)])
    feature = file.message_type.add(name="Feature")
    kinds = (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))
    _add(feature, [_field(name, number, kind, oneof=True) for number, (name, kind) in enumerate(kinds, 1)])
    feature.oneof_decl.add(name="kind")
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _add(entry, [_field("key", 1, _Field.TYPE_STRING), _field("value", 2, "Feature")])
    _add(features, [_field("feature", 1, "Features.FeatureEntry", many=True)])
    _add(file.message_type.add(name="Example"), [_field("features", 1, "Features")])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def _add(message: Any, fields: Iterable[Any]) -> None:
    message.field.extend(fields)


def _field(name: str, number: int, kind: Any, *, many: bool = False, oneof: bool = False) -> Any:
    """A field of a scalar type, or of a message of this package by name."""
    field = _Field(name=name, number=number, label=_Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL)
    if isinstance(kind, str):
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = kind
    if oneof:
        field.oneof_index = 0
    return field


_Example: Final = _message_class()
