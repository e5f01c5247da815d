"""The emulator's own calls on TPUs: POST /_control/tpu/ACTION with the arguments of the action as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pydantic

from cloud_emulator.answers import Answer, ApiError, invalid, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.errors import EmulatorError, suggest
from cloud_emulator.router import Route

if TYPE_CHECKING:
    from cloud_emulator.tpu.control import Tpu

PATH = "_control/tpu"
ACTIONS = (
    "add_project",
    "add_secret",
    "advance",
    "allow",
    "answer_next",
    "deny",
    "disable_service",
    "enable_service",
    "fail_metadata",
    "fail_queued",
    "freeze",
    "hold",
    "kill",
    "kill_worker",
    "maintenance",
    "preempt",
    "release",
    "repair",
    "restock",
    "set",
    "set_billing",
    "set_quota",
    "set_state",
    "stock_out",
    "suspend",
    "take_back",
    "thaw",
    "vanish",
)


class TpuControlRoutes:
    def __init__(self, tpu: Callable[[], Tpu]):
        self._tpu = tpu

    def routes(self) -> list[Route]:
        return [
            Route("control", "GET", f"{PATH}/status", "", self.status),
            Route("control", "GET", f"{PATH}/history", "", self.history),
            Route("control", "GET", f"{PATH}/console/{{node}}/{{worker}}", "", self.console),
            Route("control", "POST", f"{PATH}/faults", "", self.set_faults),
            Route("control", "DELETE", f"{PATH}/faults", "", self.clear_faults),
            Route("control", "POST", f"{PATH}/{{action}}", "", self.act),
        ]

    def status(self, call: Call) -> Answer:
        return json_answer(self._tpu().status())

    def history(self, call: Call) -> Answer:
        return json_answer([event._asdict() for event in self._tpu().history()])

    def console(self, call: Call, node: str, worker: str) -> Answer:
        try:
            text = self._tpu().console(node, int(worker))
        except (EmulatorError, ValueError) as error:
            raise invalid(str(error)) from None
        return Answer(200, {"Content-Type": "text/plain; charset=UTF-8"}, text.encode())

    def set_faults(self, call: Call) -> Answer:
        try:
            self._tpu().faults.set(**call.json())
        except EmulatorError as error:
            raise invalid(str(error)) from None
        return self.status(call)

    def clear_faults(self, call: Call) -> Answer:
        self._tpu().faults.clear()
        return self.status(call)

    def act(self, call: Call, action: str) -> Answer:
        if action not in ACTIONS:
            raise ApiError(404, f"there is no '{action}' to do.{suggest(action, list(ACTIONS))}", "notFound")
        try:
            pydantic.validate_call(getattr(self._tpu(), action))(**call.json())
        except pydantic.ValidationError as error:
            wrong = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
            raise invalid(f"{action}: {'; '.join(wrong)}") from None
        except EmulatorError as error:
            raise invalid(f"{action}: {error}") from None
        return self.status(call)
