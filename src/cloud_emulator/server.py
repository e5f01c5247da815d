"""The emulator as a server of its own, in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cloud_emulator import as_it_was as old_behaviours
from cloud_emulator import endpoints
from cloud_emulator.answers import ApiError
from cloud_emulator.app import Application
from cloud_emulator.errors import EmulatorError
from cloud_emulator.faults import Faults
from cloud_emulator.machines.machine import MachineSettings
from cloud_emulator.service import Service

if TYPE_CHECKING:
    from cloud_emulator.compute import Compute
    from cloud_emulator.tpu import Tpu

HOST = "127.0.0.1"  # never reachable from elsewhere
PROJECT = "tpulm-emulator"
IDLE_SECONDS = 3600  # a shorter limit would close connections just as clients reuse them
START_SECONDS = 30


class _Protocol(H11Protocol):
    """Hands the application the connection, which it needs for dropping it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


class _Server(uvicorn.Server):
    """Stops at once when asked to, not at the next tick."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self._asked = asyncio.Event()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # 0: the tick at which the Date header is renewed
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), timeout=1)

    def ask_to_stop(self) -> None:
        self.should_exit = True
        self._asked.set()


class Emulator:
    """Cloud Storage and Cloud TPU on this machine, from `with` to the end of its block.

    `folder` keeps all objects for the next emulator with that folder; without one they live in memory. `port` 0 is any free
    one. `project` is there from the start, with all services, billing and quota; `machines` is what TPU VMs are like.
    `as_it_was` names old behaviours (`cloud_emulator.as_it_was`), None those of the environment. Raises OSError where the
    port is taken.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        port: int = 0,
        project: str = PROJECT,
        machines: MachineSettings | None = None,
        as_it_was: Iterable[str] | None = None,
    ):
        self._project = project
        old = old_behaviours.chosen(as_it_was)
        self._service = Service(None if folder is None else Path(folder), project, machines, lambda: self.environment, old)
        self._port = port
        self._token = secrets.token_hex(16)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Emulator:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> Emulator:
        # The protocol is named because asyncio turns off the delaying of small packets only where it sees TCP.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, self._port))
        except BaseException:
            listener.close()
            self._service.close()
            raise
        self._port = listener.getsockname()[1]
        application = Application(self._service, self._token)
        config = uvicorn.Config(
            application,  # type: ignore[arg-type]
            http=_Protocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        server = self._server = _Server(config)

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await server.serve(sockets=[listener])

        def run() -> None:
            with listener:
                asyncio.run(serve())
            application.close()

        self._thread = threading.Thread(target=run, name="emulator", daemon=True)
        self._thread.start()
        give_up_at = time.monotonic() + START_SECONDS
        while not server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up_at:
                raise RuntimeError(f"the emulator did not start on {self.url}")
            time.sleep(0.001)
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._server.ask_to_stop)
            self._thread.join()
            self._server = self._thread = None
        self._service.close()

    @property
    def tpu(self) -> Tpu:
        """Orders to the emulated TPU service: what befalls nodes, what fails, how long things take, what time it is."""
        return self._service.tpu()

    @property
    def compute(self) -> Compute:
        """Orders to the emulated Compute Engine; it has the clock of `tpu`."""
        return self._service.world().compute

    @property
    def url(self) -> str:
        """With the token that every request needs (`cloud_emulator.admission`)."""
        return f"http://{HOST}:{self._port}/{self._token}"

    @property
    def environment(self) -> dict[str, str]:
        """What the clients of a process need in order to talk to this emulator, and to look for no credentials elsewhere."""
        return environment_for(self.url, self._project)

    @property
    def faults(self) -> Faults:
        return self._service.faults

    @property
    def requests(self) -> dict[str, int]:
        """How many requests of each kind were answered, such as {"GET object": 3, "POST object": 1}."""
        return self._service.requests()

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Return once no client is connected and all that was on its way is carried out, as what a killed client had sent.

        Raises TimeoutError.
        """
        assert self._server is not None, "the emulator does not run"
        state, give_up_at = self._server.server_state, time.monotonic() + seconds
        while state.connections or state.tasks:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"after {seconds:g} s {len(state.connections)} clients are connected to {self.url}")
            time.sleep(0.01)

    def create_bucket(self, name: str, location: str = "US", **fields: Any) -> None:
        """`fields` are further ones of the bucket's resource, such as storageClass."""
        try:
            self._service.store.create_bucket(name, {"location": location, **fields})
        except ApiError as error:
            raise EmulatorError(f"cannot create the bucket '{name}': {error}") from None

    def bucket_names(self) -> list[str]:
        return [bucket.name for bucket in self._service.store.buckets()]


def environment_for(url: str, project: str = PROJECT) -> dict[str, str]:
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if HOST not in direct.split(","):
        direct = f"{direct},{HOST}".lstrip(",")
    return {
        "STORAGE_EMULATOR_HOST": url,  # google-cloud-storage and gcsfs
        "TENSORSTORE_GCS_HTTP_URL": url,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "emulated",  # TensorStore would look for real ones
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # read when gcsfs is imported; its gRPC part knows no emulator
        "GOOGLE_CLOUD_PROJECT": project,
        "NO_GCE_CHECK": "true",  # no search for a metadata server
        "GOOGLE_APPLICATION_CREDENTIALS": "",
        "CLOUDSDK_CONFIG": os.devnull,  # the user's own credentials stay out of it
        "EPATH_USE_TF": "false",  # TensorFlow's file system knows no emulator
        "NO_PROXY": direct,
        "no_proxy": direct,
        **endpoints.environment_for(url),
    }
