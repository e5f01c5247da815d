"""A small writer of TF1 checkpoints, and random ones under the names that Google's code gives."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpulm.dataset.tfrecord import masked_crc32c

# Of `bert()` below, as Google writes it.
BERT_CONFIG: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
BERT_CONFIG |= {"max_position_embeddings": 20, "type_vocab_size": 2, "vocab_size": 60, "hidden_act": "gelu"}
BERT_CONFIG |= {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "initializer_range": 0.02}
ELECTRAS: dict[str, dict[str, Any]] = {  # what `electra` takes
    "projected": {"size": 128, "small": 64, "embedding": 32},
    "as wide": {"size": 128, "small": 128, "embedding": 128},
    "generator projected": {"size": 128, "small": 64, "embedding": 128},
    "own embeddings": {"size": 128, "small": 64, "embedding": 32, "own_embeddings": True},
    "one body": {"size": 128, "small": 128, "embedding": 32, "own_layers": False},
}
MAGIC = 0xDB4775248B80FB57
KINDS = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "bfloat16": 14, "float16": 19}


def varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def entry(kind: int, shape: tuple[int, ...], shard: int, offset: int, data: bytes, *, more: bytes = b"") -> bytes:
    sizes = b"".join(message(2, number(1, size)) for size in shape)
    places = number(3, shard) + number(4, offset) + number(5, len(data))
    return number(1, kind) + message(2, sizes) + places + b"\x35" + struct.pack("<I", masked_crc32c(data)) + more


def header(shards: int, *, endianness: int = 0) -> bytes:
    return number(1, shards) + number(2, endianness) + message(3, number(1, 1))


def block(entries: list[tuple[bytes, bytes]], *, restart_every: int) -> bytes:
    """Prefix-compressed, as LevelDB does it."""
    data, restarts, before = b"", [], b""
    for place, (key, value) in enumerate(entries):
        shared = 0
        if place % restart_every == 0:
            restarts.append(len(data))
        else:
            shared = next((i for i, (a, b) in enumerate(zip(before, key, strict=False)) if a != b), min(len(before), len(key)))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return data + b"".join(struct.pack("<I", place) for place in restarts or [0]) + struct.pack("<I", len(restarts or [0]))


def table(entries: Mapping[bytes, bytes], *, block_entries: int = 7, restart_every: int = 3, kind: int = 0) -> bytes:
    ordered, data, handles = sorted(entries.items()), b"", []

    def add(piece: bytes, kind: int) -> bytes:
        nonlocal data
        handle = varint(len(data)) + varint(len(piece))
        data += piece + bytes([kind]) + struct.pack("<I", masked_crc32c(piece + bytes([kind])))
        return handle

    for start in range(0, len(ordered), block_entries):
        some = ordered[start : start + block_entries]
        handles.append((some[-1][0], add(block(some, restart_every=restart_every), kind)))
    meta = add(block([], restart_every=1), 0)
    index = add(block(handles, restart_every=1), 0)
    return data + (meta + index).ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def write(prefix: Path, tensors: Mapping[str, np.ndarray], *, shards: int = 1, **layout: int) -> Path:
    """The checkpoint of these tensors, dealt out to the data files one after another."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    files, entries = [b""] * shards, {b"": header(shards)}
    for place, (name, array) in enumerate(tensors.items()):
        shard, data = place % shards, array.tobytes()
        entries[name.encode()] = entry(KINDS[array.dtype.name], array.shape, shard, len(files[shard]), data)
        files[shard] += data
    for shard, data in enumerate(files):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(data)
    prefix.with_name(prefix.name + ".index").write_bytes(table(entries, **layout))
    return prefix


# -- Google's names ---------------------------------------------------------------------------------------------------------


def drawn(shapes: Mapping[str, tuple[int, ...]], *, moments: bool = True) -> dict[str, np.ndarray]:
    """Random numbers far from zero, with two moments each and a step."""
    random = np.random.default_rng(11)
    means = {name: float(name.endswith("gamma")) for name in shapes}
    tensors = {name: random.normal(means[name], 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    if moments:
        for role in ("adam_m", "adam_v"):
            tensors |= {f"{name}/{role}": random.random(shape).astype(np.float32) for name, shape in shapes.items()}
    return tensors | {"global_step": np.array(1234, np.int64)}


def embeddings(scope: str, vocab: int, positions: int, size: int) -> dict[str, tuple[int, ...]]:
    shapes = {"word_embeddings": (vocab, size), "position_embeddings": (positions, size), "token_type_embeddings": (2, size)}
    return {f"{scope}/embeddings/{name}": shape for name, shape in {**shapes, **norm("LayerNorm", size)}.items()}


def norm(scope: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{scope}/beta": (size,), f"{scope}/gamma": (size,)}


def linear(scope: str, inside: int, outside: int) -> dict[str, tuple[int, ...]]:
    return {f"{scope}/kernel": (inside, outside), f"{scope}/bias": (outside,)}


def encoder(scope: str, layers: int, size: int, inner: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in (f"{scope}/encoder/layer_{index}" for index in range(layers)):
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            shapes |= linear(f"{layer}/attention/{part}", size, size)
        shapes |= norm(f"{layer}/attention/output/LayerNorm", size) | linear(f"{layer}/intermediate/dense", size, inner)
        shapes |= linear(f"{layer}/output/dense", inner, size) | norm(f"{layer}/output/LayerNorm", size)
    return shapes


def bert(
    *, layers: int = 2, size: int = 24, inner: int = 40, vocab: int = 60, positions: int = 20
) -> dict[str, tuple[int, ...]]:
    return (
        embeddings("bert", vocab, positions, size)
        | encoder("bert", layers, size, inner)
        | linear("bert/pooler/dense", size, size)
        | linear("cls/predictions/transform/dense", size, size)
        | norm("cls/predictions/transform/LayerNorm", size)
        | {"cls/predictions/output_bias": (vocab,)}
        | {"cls/seq_relationship/output_weights": (2, size), "cls/seq_relationship/output_bias": (2,)}
    )


def electra(
    *,
    size: int = 128,
    small: int = 32,
    embedding: int = 32,
    inner: int = 40,
    own_layers: bool = True,
    own_embeddings: bool = False,
) -> dict[str, tuple[int, ...]]:
    """Two layers, 60 tokens, 20 positions. With embeddings of its own the generator has them as wide as its layers."""
    shapes = embeddings("electra", 60, 20, embedding) | encoder("electra", 2, size, inner)
    if embedding != size:
        shapes |= linear("electra/embeddings_project", embedding, size)
    if own_layers:
        shapes |= encoder("generator", 2, small, 4 * small)
    if own_embeddings:
        shapes |= embeddings("generator", 60, 20, small)
    elif own_layers and small != embedding:
        shapes |= linear("generator/embeddings_project", embedding, small)
    below, size_below = small if own_embeddings else embedding, small if own_layers else size
    shapes |= linear("generator_predictions/dense", size_below, below) | norm("generator_predictions/LayerNorm", below)
    shapes |= linear("discriminator_predictions/dense", size, size) | linear("discriminator_predictions/dense_1", size, 1)
    return shapes | {"generator_predictions/output_bias": (60,)}


def as_transformers(tensors: Mapping[str, np.ndarray], *, half: str = "bert") -> dict[str, np.ndarray]:
    """What transformers' own conversion makes of the names; of ELECTRA, of one half."""
    found: dict[str, np.ndarray] = {}
    generator = half == "generator"
    own = {kind for kind in ("embeddings", "encoder") if any(name.startswith(f"generator/{kind}/") for name in tensors)}
    for name, array in tensors.items():
        scope, _, rest = name.partition("/")
        if name.endswith(("/adam_m", "/adam_v")) or name == "global_step":
            continue
        if half != "bert":
            kind = "encoder" if rest.startswith("embeddings_project") else rest.partition("/")[0]
            mine = "generator" if generator and kind in own else "electra"
            heads = "generator_predictions" if generator else "discriminator_predictions"
            if scope not in (mine, heads):
                continue
            name = name.replace("generator/", "electra/", 1) if scope == "generator" else name
            name = name.replace("generator_predictions/output_bias", "generator_lm_head/bias")
            name = name.replace("dense_1", "dense_prediction")
        name = name.replace("layer_", "layer.").replace("/", ".")
        if name.endswith("kernel"):
            array = array.T
        for theirs, new in (("kernel", "weight"), ("gamma", "weight"), ("beta", "bias"), ("output_weights", "weight")):
            name = name.removesuffix(theirs) + new if name.endswith(theirs) else name
        name = name.removesuffix("output_bias") + "bias" if name.endswith("output_bias") else name
        found[name + ".weight" if name.endswith("_embeddings") else name] = np.ascontiguousarray(array)
    return found
