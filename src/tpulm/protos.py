"""Protobuf messages described in code instead of generated files: the wire format has only field numbers and types."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

KIND: Final = descriptor_pb2.FieldDescriptorProto  # TYPE_BYTES and so on


def new_file(package: str, syntax: str = "proto3") -> Any:
    return descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)


def field(
    name: str, number: int, kind: Any, *, package: str = "", many: bool = False, oneof: bool = False, default: str = ""
) -> Any:
    """A field of a scalar type, or of the message type of `package` named `kind`."""
    descriptor = KIND(name=name, number=number, label=KIND.LABEL_REPEATED if many else KIND.LABEL_OPTIONAL)
    if isinstance(kind, str):
        descriptor.type, descriptor.type_name = KIND.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        descriptor.type = kind
    if default:
        descriptor.default_value = default
    if oneof:
        descriptor.oneof_index = 0
    return descriptor


def message_class(file: Any, name: str) -> Any:
    """The class of the message `name`, which `file` describes."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
