"""The table of calls: which function answers which method and path."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cloud_emulator.answers import Answer, ApiError
from cloud_emulator.calls import Call


class Route(NamedTuple):
    """`kind` is what requests are counted under; `permission` is what the caller needs, which tells reads from writes."""

    kind: str
    method: str
    path: str  # "storage/v1/b/{bucket}/o/{object}", "v2/nodes/{node}:stop"; {rest...} stands for all that follows
    permission: str
    answer: Callable[..., Answer]  # (call, **parameters)
    argument: str = ""  # a query argument that must be there: "upload_id", or "alt=media"
    in_text: bool = False  # errors are text, not JSON

    @property
    def writes(self) -> bool:
        return self.permission.rpartition(".")[2] not in ("get", "list", "getIamPolicy", "")


class Match(NamedTuple):
    route: Route
    parameters: dict[str, str]

    def answer(self, call: Call) -> Answer:
        try:
            return self.route.answer(call, **self.parameters)
        except ApiError as error:
            return error.answer(self.route.in_text)


class Router:
    """Routes are tried in their order."""

    def __init__(self, routes: list[Route]):
        self._routes = [(route, route.path.split("/")) for route in routes]

    def match(self, call: Call) -> Match:
        other_methods = False
        for route, pattern in self._routes:
            parameters = _parameters(pattern, call.segments)
            if parameters is None or not _has(route.argument, call):
                continue
            if route.method == call.method:
                return Match(route, parameters)
            other_methods = True
        if other_methods:
            raise ApiError(405, "Method Not Allowed", "methodNotAllowed")
        raise ApiError(404, f"Not Found: the emulator has no {call.method} /{'/'.join(call.segments)}", "notFound")


def _parameters(pattern: list[str], segments: tuple[str, ...]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for at, part in enumerate(pattern):
        if part.endswith("...}"):
            found[part[1:-4]] = "/".join(segments[at:])
            return found if found[part[1:-4]] else None
        if at >= len(segments):
            return None
        name, _, verb = part.partition("}")  # "{node}:stop" takes "a:stop" apart
        if name.startswith("{"):
            if verb and not segments[at].endswith(verb):
                return None
            found[name[1:]] = segments[at].removesuffix(verb)
        elif part != segments[at]:
            return None
    return found if len(pattern) == len(segments) else None


def _has(argument: str, call: Call) -> bool:
    name, _, value = argument.partition("=")
    return not argument or (name in call.query and value in ("", call.query[name]))
