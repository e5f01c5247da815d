"""Writing the TFRecord files that imports read."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from tpulm.dataset.example import Example
from tpulm.dataset.tfrecord import masked_crc32c


def serialize(features: Mapping[str, Sequence[int] | Sequence[float]]) -> bytes:
    """An Example of these features: floats where the first value is one, else int64s. Equal features give equal bytes."""
    example = Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        (feature.float_list if isinstance(values[0], float) else feature.int64_list).value.extend(values)
    return example.SerializeToString(deterministic=True)


def frame(data: bytes) -> bytes:
    """The data framed as one record of a file."""
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return b"".join([length, checksums[0], data, checksums[1]])
