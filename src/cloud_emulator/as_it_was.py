"""The emulator as it was before it answered as Google does.

Each name brings one old behaviour back, so that one can see the tests of a client fail that relies on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from cloud_emulator.errors import EmulatorError, suggest

VARIABLE = "TPULM_EMULATOR_AS_IT_WAS"  # names with commas between them, or "all"

OLD = {
    "addresses": "external addresses have no quota",
    "deletion": "`force` deletes a queued resource in PROVISIONING and SUSPENDING, too",
    "failed-data": "a queued resource fails at once, with code 13 and no reason",
    "guest-attributes": "nothing can be written to the metadata server",
    "metadata": "`project/project-id` on a VM is the user's project",
    "operations": "operations carry the type of metadata that google-cloud-tpu has for them",
    "paging": "all locations come in one page",
    "prices": "the prices of the Billing Catalog are not served",
    "quota-names": "v5litepod-1, -4 and -8 count against the quota of larger slices",
    "refusals": "every refusal of a zone or of a type in it is a 404",
    "zones": "there is no zone us-south1-ai1b",
}


def chosen(names: Iterable[str] | None = None) -> frozenset[str]:
    """`names`, or those of the environment variable where None; "all" stands for every one. Raises EmulatorError."""
    found = {name.strip() for name in (os.environ.get(VARIABLE, "").split(",") if names is None else names)} - {""}
    for name in sorted(found - {*OLD, "all"}):
        raise EmulatorError(f"{VARIABLE}: there is no old behaviour '{name}'.{suggest(name, OLD)} Known: {', '.join(OLD)}, all")
    return frozenset(OLD if "all" in found else found)
