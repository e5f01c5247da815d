"""The Cloud Billing Catalog: the rows of recorded/billing.json, which are Google's own but for those marked as made."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from cloud_emulator.answers import Answer, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.projects import Projects
from cloud_emulator.router import Route
from cloud_emulator.rpc import RpcError, bad_argument

_SKUS = "_cloudbilling/v1/services/{service}/skus"
_PAGE = 8  # the service has tens of thousands of rows and pages of 5000


class BillingRoutes:
    def __init__(self, projects: Projects):
        self._projects = projects

    def routes(self) -> list[Route]:
        return [Route("LIST prices", "GET", _SKUS, "", self.list_skus)]

    def list_skus(self, call: Call, service: str) -> Answer:
        """Open to every login; the API must be on in the caller's project."""
        self._projects.permitted(self._projects.default, "cloudbilling.googleapis.com")
        if service not in _services() or "prices" in self._projects.as_it_was:
            raise RpcError(404, f"Service {service} was not found.")
        skus, token = _services()[service], call.query.get("pageToken", "")
        if token and not token.isdecimal():
            raise bad_argument("The page token is invalid.")
        end = int(token or 0) + min(call.whole_number("pageSize") or 5000, _PAGE)
        return json_answer({"skus": skus[int(token or 0) : end], "nextPageToken": str(end) if end < len(skus) else ""})


@functools.cache
def _services() -> dict[str, list[dict[str, Any]]]:
    """By service: each row as the API has it, without what is said of it here."""
    text = (resources.files("cloud_emulator") / "recorded" / "billing.json").read_text(encoding="utf-8")
    return {service: [entry["sku"] for entry in entries] for service, entries in json.loads(text)["services"].items()}
