"""tf.train.Example, the content of a TFRecord's record: features by name. Read with protobuf, without TensorFlow.

The message is that of TensorFlow's core/example/example.proto and feature.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from google.protobuf.message import DecodeError

from tpulm.protos import KIND, field, message_class, new_file

_PACKAGE: Final = "tpulm.example"
_KINDS: Final = {"bytes_list": "bytes", "float_list": "floats", "int64_list": "int64s", None: "nothing"}


class NotAnExample(ValueError):
    """The bytes are not a tf.train.Example."""


def parse(data: bytes) -> Mapping[str, Any]:
    """The features by name, for `values`. Raises NotAnExample."""
    try:
        return Example.FromString(data).features.feature
    except DecodeError as error:
        raise NotAnExample(str(error)) from error


def values(feature: Any, kind: Literal["int64_list", "float_list"]) -> Sequence[Any]:
    """The int64s or floats of a feature. Raises NotAnExample if it holds something else."""
    value_kind = feature.WhichOneof("kind")
    if value_kind != kind:
        raise NotAnExample(f"holds {_KINDS[value_kind]}, not {_KINDS[kind]}")
    return getattr(feature, kind).value


def _message_class() -> Any:
    file = new_file(_PACKAGE)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    kinds = (("bytes_list", KIND.TYPE_BYTES), ("float_list", KIND.TYPE_FLOAT), ("int64_list", KIND.TYPE_INT64))
    for number, (name, value) in enumerate(kinds, 1):
        file.message_type.add(name=name).field.append(field("value", 1, value, many=True))
        feature.field.append(field(name, number, name, package=_PACKAGE, oneof=True))
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.extend([field("key", 1, KIND.TYPE_STRING), field("value", 2, "Feature", package=_PACKAGE)])
    features.field.append(field("feature", 1, "Features.FeatureEntry", package=_PACKAGE, many=True))
    file.message_type.add(name="Example").field.append(field("features", 1, "Features", package=_PACKAGE))
    return message_class(file, "Example")


Example: Final = _message_class()
