"""What the TPU API refuses before it begins anything."""

from __future__ import annotations

import re

from cloud_emulator import places
from cloud_emulator.catalogue import Accelerator
from cloud_emulator.rpc import bad_argument, recorded_refusal
from cloud_emulator.tpu.messages import types

NODE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
LABELS = 64
METADATA_BYTES = 256 * 1024
PREFIX = "Cloud TPU received a bad request. "


def identifier(kind: str, name: str) -> None:
    if not NODE_ID.fullmatch(name):
        raise bad_argument(
            f'{PREFIX}The {kind} id "{name}" is invalid: it must match regular expression '
            "'^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$' [EID: 0x4f3c9a1e2b7d6085]"
        )


def labels(given: dict[str, str]) -> None:
    if len(given) > LABELS:
        raise bad_argument(f"{PREFIX}There are {len(given)} labels, and at most {LABELS} are allowed.")
    for key, value in given.items():
        if not LABEL_KEY.fullmatch(key):
            raise bad_argument(f'{PREFIX}Label key "{key}" violates format constraints: {LABEL_KEY.pattern}')
        if not LABEL_VALUE.fullmatch(value):
            raise bad_argument(f'{PREFIX}Label value "{value}" violates format constraints: {LABEL_VALUE.pattern}')


def node(wanted: types.Node, zone_name: str) -> Accelerator:
    """Its accelerator; raises RpcError for what is wrong with it."""
    accelerator = _accelerator(wanted, zone_name)
    if wanted.runtime_version not in places.all_runtime_versions():
        raise bad_argument(f'{PREFIX}The runtime version "{wanted.runtime_version}" is invalid. [EID: 0x2c5d8e7f1a3b4960]')
    labels(dict(wanted.labels))
    for key, value in wanted.metadata.items():
        if len(value.encode()) > METADATA_BYTES:
            raise bad_argument(f'{PREFIX}Value for metadata key "{key}" is too large: maximum size is {METADATA_BYTES} bytes.')
    scheduling = wanted.scheduling_config
    if scheduling.preemptible and scheduling.spot:
        raise bad_argument(f"{PREFIX}A node is either preemptible or spot, not both.")
    return accelerator


def _accelerator(wanted: types.Node, zone_name: str) -> Accelerator:
    name = wanted.accelerator_type
    config = wanted.accelerator_config
    if name and config.topology:
        raise bad_argument(f"{PREFIX}accelerator_type and accelerator_config are mutually exclusive.")
    accelerator = places.with_topology(config.type_.name, config.topology) if config.topology else places.find(name)
    if accelerator is None:
        raise bad_argument(f'{PREFIX}The accelerator type "{name or config.topology}" is invalid. [EID: 0x7a1b5c3d9e2f4860]')
    if zone_name not in accelerator.zones:
        raise recorded_refusal("type-not-in-zone", type=accelerator.name, zone=zone_name)
    return accelerator
