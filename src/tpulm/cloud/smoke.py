"""A smoke test in a real project: checks on one very small TPU VM that Google answers as this package assumes.

Nobody has run this against Google yet: each line checks an assumption, and any other answer is worth a bug report.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.cloud import bundle, launch, prices, setup
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.provider import UNTIL_LABEL, Refused, Request, deletion_command
from tpulm.cloud.settings import CloudSettings
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, ConfigError, TpulmError, Unavailable
from tpulm.progress import SILENT, Progress
from tpulm.readable import dollars, duration
from tpulm.runtime import interrupt

LONGEST_SECONDS = 1800.0  # that one VM may live
LEAST_SECONDS = 600.0  # that the budget must buy of each VM
_VMS = 2  # share the budget: the queued resource may become a second VM
_QUEUED_SECONDS = 300.0  # for which a queued resource is watched
_GONE_SECONDS = 600.0  # for which a deletion may take

_GROUP = "[0-9a-f]{1,4}"  # of an IPv6 address
_GROUPS = rf"{_GROUP}(?::{_GROUP})*"
_HIDDEN = (  # redacted in a transcript, besides known names
    (re.compile(r"\b[a-z][0-9a-f]{15,16}-tp\b"), "TENANT-tp"),
    (re.compile(r"\bt1v-n-[0-9a-f]+-w-"), "t1v-n-X-w-"),
    (re.compile(r"\[EID: 0x[0-9a-f]+\]"), "[EID: …]"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "ADDRESS"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "EMAIL"),
    (re.compile(r"((?:UID|CONSUMER_PROJECT_NUMBER): )'\d+'"), r"\1'…'"),
    (re.compile(rf"\b(?:{_GROUP}:){{7}}{_GROUP}\b", re.IGNORECASE), "ADDRESS"),
    (re.compile(rf"(?:\b{_GROUPS}|(?<![\w:]))::{_GROUPS}\b|\b{_GROUPS}::(?!\w)", re.IGNORECASE), "ADDRESS"),
    (re.compile(r"(?<!\d)(?<!\d\.)\d{9,}(?!\d| ?(?:bytes|B)\b)"), "NUMBER"),  # mostly project numbers
)


@dataclass(frozen=True)
class SmokeCheck:
    """One assumption. `ok` None: it could not be checked."""

    what: str
    ok: bool | None
    found: str


@dataclass
class _PendingRequest:
    """A request whose node may exist and be billed."""

    at: float
    dollars_per_hour: float
    queued: bool


@dataclass
class Smoke:
    """`log` gets each check when it is done. Everything created is deleted in any case, or named if that fails."""

    settings: CloudSettings  # with a budget and an accelerator
    api: TpuApi
    rest: GoogleRest
    log: Callable[[SmokeCheck], None]
    pause_seconds: float = 2.0
    progress: Progress = SILENT
    name: str = field(default_factory=lambda: f"tpulm-smoke-{secrets.token_hex(3)}")
    facts: dict[str, Any] = field(default_factory=dict)  # reported by the VM
    spent: float = 0.0  # dollars at most, at the prices found
    appear_seconds: float = 90.0  # after which a missing node counts as gone: a get right after a create may answer 404
    clock: Callable[[], float] = time.time
    wait: Callable[[float], None] = time.sleep
    _pending: dict[tuple[str, str], _PendingRequest] = field(default_factory=dict)  # by name and zone
    _prices: dict[str, float] = field(default_factory=dict)  # dollars per hour by zone

    @property
    def workdir(self) -> PurePath:
        return storage.as_path(f"gs://{self.settings.bucket}/{self.name}")

    def run(self) -> None:
        """Run all checks. Raises ConfigError if the budget buys too little, CloudRefused if no zone has a VM."""
        zone_prices = prices.find_prices(self.settings.model_copy(update={"budget": None}), self.settings.zones, rest=self.rest)
        if not zone_prices:
            raise ConfigError(f"no price is known for a {self.settings.accelerator}; write dollars_per_hour = … in cloud.toml")
        zones = tuple(zone_prices)
        self._prices = {zone: price.dollars_per_hour for zone, price in zone_prices.items()}
        dearest = max(zone_prices.values(), key=lambda price: price.dollars_per_hour)
        if (seconds := self._seconds(_VMS)) < LEAST_SECONDS:
            needed = LEAST_SECONDS / 3600 * dearest.dollars_per_hour * _VMS
            raise ConfigError(
                f"--budget {dollars(self.settings.budget)} buys {duration(seconds)} of each of two VMs at "
                f"{dollars(dearest.dollars_per_hour)} an hour; give it at least {dollars(needed)}"
            )
        self.log(SmokeCheck("price", dearest.source == prices.CATALOG, str(dearest)))
        try:
            check = setup.quota(setup.Project(self.settings, self.rest))
            self.log(SmokeCheck("quota", check.ok is True, check.found))
        except (GoogleError, CloudRefused) as error:
            self.log(SmokeCheck("quota", None, str(error)))
        try:
            self.progress.start("packing and uploading")
            staged = str(bundle.stage(self.workdir / "cloud" / "bundles"))
            self.log(self._refusal(staged))
            request = self._create(zones, staged)
            self.log(SmokeCheck("creation", True, f"a {'spot ' * request.spot}{request.accelerator} in {request.zone}"))
            for line in self._of_vm(request):
                self.log(line)
            self._delete()
            self.log(self._queued(request))
            self._delete()
        finally:
            self._clean()

    def _seconds(self, vms: int) -> float:
        """How many seconds each of so many VMs may live on the rest of the budget."""
        remaining, price = (self.settings.budget or 0.0) - self.spent, max(self._prices.values())
        return min(LONGEST_SECONDS, remaining / vms / price * 3600) if price else LONGEST_SECONDS

    # -- before anything is created -------------------------------------------------------------------------------------

    def _refusal(self, staged: str) -> SmokeCheck:
        """A zone that does not offer the type should refuse, and create nothing."""
        kind = self.settings.accelerator
        other = next((zone for zone in self.api.zones() if kind not in self.api.types(zone)), None)
        if other is None:
            return SmokeCheck("refusal of a zone", None, f"every zone offers a {kind}")
        try:
            self._ask(self._request(other, LEAST_SECONDS, staged))
        except Refused as refused:
            named = ("could not be found in the zonal accelerator configurations", "not supported")
            return SmokeCheck(
                "refusal of a zone", refused.kind == "zone" and any(one in str(refused) for one in named), str(refused)
            )
        self._delete()
        return SmokeCheck("refusal of a zone", False, f"{other} does not list a {kind}, and took the request")

    # -- the VM ---------------------------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> str:
        """Request a node; returns the operation's name. A refused node may exist, too: unanswered requests are retried."""
        interrupt.check("what was created is deleted")
        price = self._prices.get(request.zone, max(self._prices.values()))
        pending = self._pending[request.name, request.zone] = _PendingRequest(self.clock(), price, request.queued)
        try:
            return self.api.create(request)
        except Refused:
            pending.dollars_per_hour = 0.0
            raise
        finally:
            pending.at = self.clock()

    def _create(self, zones: tuple[str, ...], staged: str) -> Request:
        refusals: list[str] = []
        seconds = self._seconds(_VMS)
        for zone in zones:
            request = self._request(zone, seconds, staged)
            self.progress.start(f"asking {zone}")
            try:
                operation = self._ask(request)
            except Refused as refused:
                refusals.append(f"{zone}: {refused}")
                continue
            until = self.clock() + seconds
            while (creation := self.api.progress(operation)).pending and self._state(zone) != "READY" and self.clock() < until:
                self._pause()
            if creation.refused is None:
                return request
            refusals.append(f"{zone}: {creation.refused}")
        raise CloudRefused("no zone gave a VM:\n" + "\n".join(refusals))

    def _request(self, zone: str, seconds: float, staged: str) -> Request:
        request = launch.vm_request(
            self.settings,
            self.name,
            zone,
            run=self.name,
            workdir=self.workdir,
            bundle_path=staged,
            until=self.clock() + seconds,
            metadata={"tpulm-attempt": "0", "tpulm-program": "probe", "enable-guest-attributes": "TRUE"},
        )
        return replace(request, valid_seconds=seconds)

    def _of_vm(self, request: Request) -> Iterator[SmokeCheck]:
        begun = self.clock()
        ends = begun + request.valid_seconds
        facts, log = self.workdir / "smoke" / "facts.json", self.workdir / "cloud" / "attempts" / "0" / "log-0.txt"
        self.progress.start("the VM boots")
        answer = ""
        while storage.info(facts) is None and self.clock() < ends and self._state(request.zone) is not None:
            self._pause()
        if storage.info(facts) is None:
            message = f"nothing of the VM in the bucket after {duration(self.clock() - begun)}"
            yield SmokeCheck("boot", False, f"{message}; it told '{self.api.boot_progress(request.name, request.zone)}'")
            return
        yield SmokeCheck("boot", True, f"its facts were in the bucket {duration(self.clock() - begun)} after it was created")
        until = self.clock() + 60
        while answer != "probed" and self.clock() < until and self._state(request.zone) not in (None, "DELETING"):
            answer = self.api.boot_progress(request.name, request.zone) or answer
            self._pause()
        yield SmokeCheck("guest attributes", answer == "probed", f"'{answer}' was read" if answer else "none could be read")
        facts_of_vm = storage.parse_json(storage.read_bytes(facts))
        self.facts.update(facts_of_vm)
        yield from of_metadata(facts_of_vm.get("metadata") or {}, request, self.settings.project)
        text = storage.read_bytes(log).decode(errors="replace") if storage.info(log) else ""
        yield SmokeCheck(
            "log", "this line came from the VM" in text, f"{log.name} in the bucket" if text else "no log in the bucket"
        )
        self.progress.start("the VM deletes itself")
        since = self.clock()
        until = min(since + _GONE_SECONDS, ends)
        while (state := self._state(request.zone)) is not None and self.clock() < until:
            self._pause()
        took = duration(self.clock() - since)
        message = f"the node was gone {took} later" if state is None else f"it is {state} after {took}"
        yield SmokeCheck("self-deletion", state is None, message)

    def _queued(self, like: Request) -> SmokeCheck:
        """Delete a queued resource while it is PROVISIONING: nobody has published whether Google refuses that."""
        what, seconds = "deleting in PROVISIONING", self._seconds(1)
        if seconds < _QUEUED_SECONDS:
            return SmokeCheck(what, None, f"the rest of the budget buys {duration(seconds)} only")
        name, ends = f"{self.name}-q", str(round(self.clock() + seconds))
        # With all that a VM needs to delete itself, in case it boots when nobody watches any more.
        metadata = {**like.metadata, "tpulm-node": name, "tpulm-valid-until": ends}
        labels = {**like.labels, UNTIL_LABEL: ends}
        request = replace(like, name=name, queued=True, valid_seconds=seconds, labels=labels, metadata=metadata)
        self.progress.start("a queued resource")
        try:
            self._ask(request)
        except Refused as refused:
            return SmokeCheck(what, None, f"the queued resource was refused: {refused}")
        until = self.clock() + _QUEUED_SECONDS
        state = ""
        while self.clock() < until:
            state = self.api.queued_state(request.name, request.zone) or ""
            if state == "PROVISIONING":
                try:
                    refusal = self.api.delete(request.name, request.zone)
                except CloudRefused as error:
                    refusal = str(error)
                return SmokeCheck(what, "not supported" in refusal, refusal or "it was accepted, with force")
            if state in ("ACTIVE", "FAILED", "SUSPENDED"):
                break
            interrupt.check("what was created is deleted")
            self.wait(self.pause_seconds / 10)
        return SmokeCheck(what, None, f"it was not seen in PROVISIONING, but {state or 'nowhere'}")

    # -- the end --------------------------------------------------------------------------------------------------------

    def _delete(self) -> None:
        """Delete everything requested, and wait until it is gone. Raises Unavailable if it stays."""
        until = self.clock() + _GONE_SECONDS
        while self._pending:
            for (name, zone), pending in list(self._pending.items()):
                now = self.clock()
                with contextlib.suppress(TpulmError):
                    if self.api.node_status(name, zone).state is not None:
                        self.api.delete(name, zone)
                    elif now >= pending.at + self.appear_seconds:
                        self._count(self._pending.pop((name, zone)))
            if self._pending and self.clock() >= until:
                names = " and ".join(f"{name} in {zone}" for name, zone in self._pending)
                raise Unavailable(f"{names} could not be deleted for {duration(_GONE_SECONDS)}")
            if self._pending:
                self.wait(self.pause_seconds)

    def _clean(self) -> None:
        """Delete everything, or name what is left; the folder last, since a VM that is left needs it to delete itself."""
        removed = False
        try:
            self.progress.start("deleting what is left")
            with contextlib.suppress(TpulmError):
                self._delete()
                storage.remove(self.workdir)
                removed = True
        finally:
            for pending in self._pending.values():
                self._count(pending)
            commands = [
                deletion_command(name, zone, self.settings.project, queued=pending.queued)
                for (name, zone), pending in self._pending.items()
            ]
            if not removed:
                commands.append(f"gcloud storage rm --recursive {self.workdir}")
            message = f"maybe still there, and billing: {'; '.join(commands)}"
            if not commands:
                message = f"neither nodes nor queued resources of {self.name}, nor its folder in the bucket"
            self.log(SmokeCheck("nothing left", not commands, message))

    def _count(self, pending: _PendingRequest) -> None:
        self.spent += (self.clock() - pending.at) / 3600 * pending.dollars_per_hour

    def _state(self, zone: str) -> str | None:
        try:
            return self.api.node_status(self.name, zone).state
        except Unavailable:
            return "unknown"

    def _pause(self) -> None:
        interrupt.check("what was created is deleted")
        self.wait(self.pause_seconds)


def of_metadata(metadata: Mapping[str, str | None], request: Request, project: str) -> Iterator[SmokeCheck]:
    """The metadata server's answers, compared with cloud_emulator/recorded/metadata.json."""
    own = {key: metadata.get(f"instance/attributes/{key}") for key in ("tpulm-project", "tpulm-zone", "tpulm-node")}
    yield SmokeCheck("metadata: our own", own == {key: request.metadata[key] for key in own}, _spoken(own))
    env = dict(re.findall(r"^(\w+): '(.*)'$", metadata.get("instance/attributes/tpu-env") or "", re.MULTILINE))
    named = {key: env.get(key) for key in ("CONSUMER_PROJECT_ID", "ZONE", "NODE_ID")}
    yield SmokeCheck("metadata: tpu-env", list(named.values()) == [project, request.zone, request.name], _spoken(named))
    name = metadata.get("instance/name") or "nothing"
    yield SmokeCheck("metadata: name", bool(re.fullmatch(r"t1v-n-[0-9a-f]+-w-\d+", name)), f"{name}, which is not the node's")
    place = metadata.get("project/project-id") or "nothing"
    whose = "the project itself" if place == project else "a project of Google's"
    yield SmokeCheck("metadata: project", bool(re.fullmatch(r"[a-z][0-9a-f]+-tp", place)), f"{place}: {whose}")
    worker = metadata.get("instance/attributes/agent-worker-number") or ""
    endpoints = (metadata.get("instance/attributes/worker-network-endpoints") or "").split(",")
    fits = worker == "0" and all(entry.count(":") == 2 for entry in endpoints)
    yield SmokeCheck("metadata: workers", fits, f"number {worker or '?'} of {len(endpoints)}, {endpoints[0] or 'no endpoints'}")
    preempted = metadata.get("instance/preempted")
    message = f"instance/preempted is {preempted}; whether it turns TRUE is seen in a preemption only"
    yield SmokeCheck("preemption flag", preempted in ("FALSE", "TRUE"), message)


def transcript(lines: list[SmokeCheck], smoke: Smoke, *, about: str) -> str:
    """The checks and the VM's facts as text for a bug report, with names and ids redacted."""
    marks = {True: "ok", False: "NO", None: "?"}
    text = "\n".join(f"{marks[line.ok]:2}  {line.what}: {line.found}" for line in lines)
    facts = json.dumps(smoke.facts, indent=1) if smoke.facts else "nothing"
    number = str((smoke.facts.get("metadata") or {}).get("project/numeric-project-id") or "")
    known = {
        smoke.name: "NODE",
        smoke.settings.bucket: "BUCKET",
        smoke.settings.project: "PROJECT",
        smoke.settings.service_account: "EMAIL",
        number: "NUMBER",
    }
    for path, mark in ((smoke.settings.network, "NETWORK"), (smoke.settings.subnetwork, "SUBNETWORK")):
        if path and (name := path.rpartition("/")[2]) != "default":
            known[name] = mark
        known |= dict.fromkeys(re.findall(r"projects/([^/]+)", path or ""), "PROJECT")  # the host of a Shared VPC
    return hidden(f"{about}\n\n{text}\n\nThe VM:\n{facts}\n", known)


def hidden(text: str, known: Mapping[str, str]) -> str:
    """The text with ids redacted; `known` maps names to their placeholders."""
    for name in sorted(filter(None, known), key=len, reverse=True):
        text = re.sub(rf"((?<![a-z0-9])|(?<=\\n)){re.escape(name)}(?![a-z0-9])", known[name], text)
    for pattern, mark in _HIDDEN:
        text = pattern.sub(mark, text)
    return text


def _spoken(values: Mapping[str, str | None]) -> str:
    return ", ".join(f"{key} {value or 'is missing'}" for key, value in values.items())
