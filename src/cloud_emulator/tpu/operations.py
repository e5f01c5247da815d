"""Long-running operations: begun by a call, ended by the clock, and told to whoever asks."""

from __future__ import annotations

import uuid

import proto
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty

from cloud_emulator.clock import Clock
from cloud_emulator.rpc import not_found
from cloud_emulator.tpu.behaviour import Failure
from cloud_emulator.tpu.messages import raw, timestamp, types


class Operations:
    def __init__(self, clock: Clock):
        self._clock = clock
        self._operations: dict[str, Operation] = {}

    def begin(self, target: str, verb: str) -> Operation:
        """Its name lies in the location of its target."""
        location = target.rpartition("/")[0].rpartition("/")[0]
        digits = uuid.uuid4().hex
        parts = f"{digits[:13]}-{digits[13:21]}-{digits[21:29]}"
        name = f"{location}/operations/operation-{round(self._clock.now() * 1000)}-{parts}"
        metadata = types.OperationMetadata(target=target, verb=verb, api_version="v2", create_time=timestamp(self._clock.now()))
        operation = Operation(name=name)
        operation.metadata.Pack(raw(metadata))
        self._operations[name] = operation
        return operation

    def succeed(self, operation: Operation, result: proto.Message | None = None) -> None:
        if not operation.done:
            operation.response.Pack(Empty() if result is None else raw(result))
            self._end(operation)

    def fail(self, operation: Operation, failure: Failure) -> None:
        if not operation.done:
            operation.error.code = failure.code
            operation.error.message = failure.message
            self._end(operation)

    def _end(self, operation: Operation) -> None:
        metadata = types.OperationMetadata()
        operation.metadata.Unpack(raw(metadata))
        metadata.end_time = timestamp(self._clock.now())
        operation.metadata.Pack(raw(metadata))
        operation.done = True

    def get(self, name: str) -> Operation:
        if name not in self._operations:
            raise not_found(name)
        return self._operations[name]

    def list(self, location: str) -> list[Operation]:
        return [found for name, found in self._operations.items() if name.startswith(f"{location}/operations/")]

    def forget(self, name: str) -> None:
        self.get(name)
        del self._operations[name]
