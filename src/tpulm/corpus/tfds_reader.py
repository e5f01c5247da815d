"""ArrayRecord shards of TensorFlow Datasets: a document a record, in the feature `text_field`; dots descend into features."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.corpus.bytestream import ByteStream
from tpulm.corpus.faults import Faults
from tpulm.corpus.records import BATCH_BYTES, Batch, Batcher
from tpulm.corpus.tfds import described, parts_of
from tpulm.errors import DataError, suggest

_MOST_RECORDS: Final = 1024  # decoded at once
_EXPANSION: Final = 4  # of records over the compressed shard, a guess
_WIKI40B_HEADS: Final = re.compile(r"\s*_START_(?:ARTICLE|SECTION|PARAGRAPH)_\s*")


def read_tfds(stream: ByteStream, source: SourceConfig, faults: Faults) -> Iterator[Batch]:
    """Raises DataError for a dataset without the feature, or whose feature is no single string, whatever `on_error` says."""
    folder = storage.as_path(stream.path).parent
    name = PurePath(stream.path).name
    stream.exhaust()
    with described(folder) as builder:
        (part,) = (part for part in parts_of(builder, source) if PurePath(part.filename).name == name)
        parse, path = _parser(builder.info.features, source.text_field, faults)
        is_wiki40b = builder.info.name == "wiki40b"
    batcher = Batcher(faults, place=lambda record: f"record {record}")
    for number, record in _records(stream, part.skip, part.skip + part.take, faults):
        try:
            value: Any = parse(record)
            for step in path:
                value = value[step]
            text = value.decode()
        except UnicodeDecodeError as error:
            faults.add(
                "undecodable", f"'{source.text_field}' is not UTF-8 (byte {error.start} of the text).", f"record {number}"
            )
            continue
        except Exception as error:  # of protobuf, or of the library's checks
            faults.add("broken_file", f"not an example as described ({error}). Prepare it again.", f"record {number}")
            continue
        batcher.add(plain_wiki40b(text) if is_wiki40b else text, number)
        yield from batcher.full()
    yield from batcher.flush()


def plain_wiki40b(text: str) -> str:
    """Without Wiki-40B's markers: titles, section heads and paragraphs (which `_NEWLINE_` parts) become lines."""
    return _WIKI40B_HEADS.sub("\n", text).replace("_NEWLINE_", "\n").strip()


def _records(stream: ByteStream, first: int, last: int, faults: Faults) -> Iterator[tuple[int, bytes]]:
    """The records of a stretch with their numbers in the shard."""
    from array_record.python.array_record_module import ArrayRecordReader

    number = first
    # A copy, so that a bucket that does not answer is never taken for a broken file.
    with storage.local_copy(stream.path) as here:
        reader = None
        try:
            reader = ArrayRecordReader(str(here), options="readahead_buffer_size:0", file_reader_buffer_size=32 << 10)
            count = reader.num_records()
            if count < last:
                raise ValueError(f"it has {count} records, not {last}")
            size = max(1, stream.read_bytes * _EXPANSION // max(1, count))
            at_once = min(_MOST_RECORDS, max(1, 4 * BATCH_BYTES // size))
            while number < last:
                for record in reader.read(number, min(number + at_once, last)):
                    yield number, record
                    number += 1
        except (ValueError, RuntimeError, IndexError, OSError) as error:
            faults.add(
                "broken_file", f"not a whole ArrayRecord file ({error}). Copy or prepare it again.", f"after record {number}"
            )
        finally:
            if reader is not None:
                with contextlib.suppress(RuntimeError):  # said above, and again by a broken file's reader
                    reader.close()


def _parser(features: Any, text_field: str, faults: Faults) -> tuple[Any, list[str]]:
    """What decodes the one feature of a record, and the way down to it in what comes out."""
    import numpy as np
    from tensorflow_datasets.core.example_parser import ExampleParserNp

    described = features.get_serialized_info()
    path = [text_field] if text_field in described else text_field.split(".")
    spec: Any = described
    for name in path:
        if not isinstance(spec, dict) or name not in spec:
            names = list(_names(described))
            raise DataError(
                f"there is no feature '{text_field}'.{suggest(text_field, names)} The features: {', '.join(names)}. "
                "Set text_field.",
                location=faults.name,
            )
        spec = spec[name]
    kind = getattr(spec, "np_dtype", None)
    if isinstance(spec, dict) or spec.shape or kind not in (np.object_, np.str_, np.bytes_, object, str, bytes):
        what = "features of its own" if isinstance(spec, dict) else "a list" if spec.shape else str(np.dtype(kind))
        raise DataError(f"feature '{text_field}' holds {what}, not a text; set text_field.", location=faults.name)
    wanted: Any = spec
    for name in reversed(path):
        wanted = {name: wanted}
    return ExampleParserNp(wanted).parse_example, path


def _names(features: Any, prefix: str = "") -> Iterator[str]:
    for name, value in features.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield prefix + name
