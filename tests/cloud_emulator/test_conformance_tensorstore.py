"""TensorStore, unmodified, against the emulator."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import tensorstore as ts

from cloud_emulator import Emulator


def test_generations(gcs: Emulator):
    store = ts.KvStore.open("gs://runs/kv/").result()
    absent = store.read("k").result().stamp.generation
    first = store.write("k", b"1", if_equal=absent).result()
    store.write("k", b"2", if_equal=absent).result()
    assert store.read("k").result().value == b"1"
    second = store.write("k", b"2", if_equal=first.generation).result()
    stale = store.write("k", b"3", if_equal=first.generation).result()
    assert store.read("k").result().value == b"2" and stale.generation != second.generation
    unchanged = store.read("k", if_not_equal=second.generation).result()
    assert unchanged.state == "unspecified"


def test_two_writers_of_one_ocdbt_lose_nothing(gcs: Emulator):
    def write(name: str) -> None:
        store = ts.KvStore.open("gs://runs/db/|ocdbt:", context=ts.Context()).result()
        for i in range(10):
            store.write(f"{name}-{i}", name.encode()).result()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, "ab"))
    store = ts.KvStore.open("gs://runs/db/|ocdbt:", context=ts.Context()).result()
    assert len(store.list().result()) == 20
