"""The emulator: its services, the application that answers for them, and a server in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import unquote

import uvicorn
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Mount
from uvicorn.protocols.http.h11_impl import H11Protocol

from cloud_emulator.catalogue import DEFAULT, Catalogue
from cloud_emulator.errors import ApiError, EmulatorError
from cloud_emulator.faults import Faults
from cloud_emulator.http import Admission, Call, Endpoint, Lazy, failed, not_routed
from cloud_emulator.machines import SERVER, Machines, MachineSettings
from cloud_emulator.project_apis import ProjectApis
from cloud_emulator.projects import Projects
from cloud_emulator.storage.api import StorageApi
from cloud_emulator.storage.store import Store

if TYPE_CHECKING:
    from cloud_emulator.tpu.control import Tpu

HOST = "127.0.0.1"  # never reachable from elsewhere
PROJECT = "tpulm-emulator"
IDLE_SECONDS = 3600  # a shorter limit would close connections just as clients reuse them
START_SECONDS = 30
# Each API is served below a name that no bucket has, except the TPU API, which is at the root beside Cloud Storage.
APIS = ("SERVICEUSAGE", "COMPUTE", "CLOUDRESOURCEMANAGER", "CLOUDBILLING", "IAM", "CLOUDQUOTAS", "SECRETMANAGER")


class _Protocol(H11Protocol):
    """Hands the application the connection, so that it can drop it."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.app_state = {**self.app_state, "transport": transport}
        super().connection_made(transport)


class Emulator:
    """Cloud Storage and Cloud TPU on this machine, for the duration of a `with` block.

    `folder` keeps all objects for the next emulator with that folder; without one they are in memory. `port` 0 is any free one.
    `project` exists from the start, with all services, billing and quota; `machines` are the VMs' settings; `accelerators` is a
    file of TPU types (`cloud_emulator.catalogue`). Raises EmulatorError, and OSError if the port is taken.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        port: int = 0,
        project: str = PROJECT,
        machines: MachineSettings | None = None,
        accelerators: str | os.PathLike[str] = DEFAULT,
    ):
        self._project, self._port = project, port
        self._catalogue = Catalogue(Path(accelerators))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._tpu: Tpu | None = None
        self._tpu_lock = threading.Lock()
        self._closed = False
        self._begin(Store(None if folder is None else Path(folder)), machines)

    def _begin(self, store: Store, machines: MachineSettings | None) -> None:
        self._token = secrets.token_hex(16)
        self._projects = Projects(self._project, self._catalogue)
        self._store = store
        self._storage = StorageApi(store, lambda permission: self.faults.is_granted(permission))
        self.faults = Faults(self._storage.name_of)  # of Cloud Storage
        self._tpu_faults = Faults(_tpu_name)
        self._requests: Counter[str] = Counter()
        self._machines = Machines(machines or MachineSettings(), lambda: self.environment, self._running_loop)
        self._application = self._make_application()

    def reset(self, machines: MachineSettings | None = None) -> None:
        """Begin anew on the same port, with another token: end all machines, drop all connections, and forget buckets,
        projects, faults and counts of requests. What a folder keeps stays there, and is no longer served.
        """
        assert self._server is not None, "the emulator does not run"
        with self._tpu_lock:
            tpu, self._tpu = self._tpu, None
            store = self._store
            self._begin(Store(None), machines)
        for connection in list(self._server.server_state.connections):
            self._running_loop().call_soon_threadsafe(connection.transport.abort)
        if tpu is not None:
            tpu.close()
        store.close()

    def __enter__(self) -> Emulator:
        return self if self._server else self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> Emulator:
        # The protocol is named because asyncio sets TCP_NODELAY only on sockets whose protocol is TCP.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, self._port))
        except BaseException:
            listener.close()
            self.stop()
            raise
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            lambda *request: self._application(*request),  # `reset` makes another
            interface="asgi3",
            http=_Protocol,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=1,
            **SERVER,
        )
        server = self._server = uvicorn.Server(config)

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await server.serve(sockets=[listener])
            await asyncio.to_thread(self._close)  # machines' metadata is served in this loop, too

        def run() -> None:
            with listener:
                asyncio.run(serve())

        self._thread = threading.Thread(target=run, name="emulator", daemon=True)
        self._thread.start()
        give_up_at = time.monotonic() + START_SECONDS
        while not server.started:
            if not self._thread.is_alive() or time.monotonic() > give_up_at:
                raise RuntimeError(f"the emulator did not start on {self.url}")
            time.sleep(0.001)
        return self

    def stop(self) -> None:
        """End all machines, and release the folder for another emulator."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None
        self._close()

    def _close(self) -> None:
        with self._tpu_lock:
            self._closed = True
            if self._tpu is not None:
                self._tpu.close()
                self._tpu = None
        self._store.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the emulator does not run"
        return self._loop

    @property
    def is_running(self) -> bool:
        return self._server is not None

    @property
    def tpu(self) -> Tpu:
        """Orders to the emulated TPU service: preemptions, failures, quota, delays, the clock."""
        with self._tpu_lock:
            if self._closed:
                raise RuntimeError("this emulator was stopped")
            if self._tpu is None:  # google-cloud-tpu's types take a while to load
                try:
                    from cloud_emulator.tpu.control import Tpu
                except ModuleNotFoundError as error:
                    raise EmulatorError(f"emulated TPUs need {error.name}: pip install google-cloud-tpu") from None
                self._tpu = Tpu(self._projects, self._machines, self._tpu_faults)
            return self._tpu

    @property
    def url(self) -> str:
        """The base URL, with the token that every request needs (`cloud_emulator.http`)."""
        return f"http://{HOST}:{self._port}/{self._token}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a process's clients need to talk to this emulator and to look for no credentials elsewhere."""
        return environment_for(self.url, self._project)

    @property
    def requests(self) -> dict[str, int]:
        """How many requests of each kind were answered, such as {"GET object": 3, "POST object": 1}; those in batches count."""
        return dict(self._requests)

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Wait until no client is connected and all requests are carried out, including those of a killed client.

        Raises TimeoutError.
        """
        assert self._server is not None, "the emulator does not run"
        state, give_up_at = self._server.server_state, time.monotonic() + seconds
        while state.connections or state.tasks:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"after {seconds:g} s {len(state.connections)} clients are connected to {self.url}")
            time.sleep(0.01)

    def create_bucket(self, name: str, location: str = "US", **fields: Any) -> None:
        """Create a bucket; `fields` are further ones of its resource, such as storageClass."""
        try:
            self._store.create_bucket(name, {"location": location, **fields})
        except ApiError as error:
            raise EmulatorError(f"cannot create the bucket '{name}': {error}") from None

    def bucket_names(self) -> list[str]:
        return [bucket.name for bucket in self._store.buckets()]

    def object_names(self, bucket: str) -> list[str]:
        return list(self._store.bucket(bucket).names)

    # The application

    def _make_application(self) -> Starlette:
        app = Starlette(
            routes=[
                Endpoint("", "POST", "/_control/faults", "", self._set_faults),
                Endpoint("", "DELETE", "/_control/faults", "", self._set_faults),
                Endpoint("", "GET", "/_control/status", "", self._status),
                Endpoint("", "GET", "/_control/page", "", lambda call: HTMLResponse(self._page(call))),
                Mount("/_control/tpu", Lazy(lambda: self.tpu.routes())),
                Mount("/v2", Lazy(self._tpu_routes)),
                Mount("/v2alpha1", Lazy(self._tpu_routes)),  # the same methods; fields of its own are refused
                *ProjectApis(self._projects).routes(),
                *self._storage.routes(),  # last: they take any path
            ],
            middleware=[Middleware(Admission, token=self._token)],
            exception_handlers={HTTPException: not_routed, Exception: failed},
        )
        app.router.redirect_slashes = False
        app.state.requests = self._requests
        app.state.faults = {"storage": self.faults, "tpu": self._tpu_faults}
        return app

    def _tpu_routes(self) -> list[BaseRoute]:
        tpu = self.tpu
        from cloud_emulator.tpu.api import TpuApi

        return TpuApi(tpu).routes()

    def _set_faults(self, call: Call) -> dict[str, Any]:
        self.faults.set(**call.content())
        return self._status(call)

    def _page(self, call: Call) -> str:
        """The emulator's state for people: read-only, without scripts, reloaded every five seconds."""
        storage, tpu = self._status(call), self._tpu and self._tpu.status()
        faults = {name: value for name, value in storage["faults"].items() if value}
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(tpu["now"] if tpu else time.time()))
        template = Environment(autoescape=True).from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
        return template.render(storage=storage, tpu=tpu, faults=faults, now=now)

    def _status(self, call: Call) -> dict[str, Any]:
        with self._store.lock:
            buckets = {
                bucket.name: {
                    "location": bucket.fields["location"],
                    "objects": len(bucket.objects),
                    "bytes": sum(stored.size for stored in bucket.objects.values()),
                }
                for bucket in self._store.buckets()
            }
        faults = {"faults": self.faults.settings.model_dump(mode="json"), "injected": self.faults.injected}
        return {**faults, "requests": self.requests, "buckets": buckets}


def _tpu_name(call: Call) -> str:
    """The name of a TPU API call's resource, including the id of one that it creates."""
    path = unquote(re.split("/v2(?:alpha1)?/", call.scope["path"], maxsplit=1)[-1])
    created = call.query_params.get("nodeId") or call.query_params.get("queuedResourceId")
    return f"{path}/{created}" if created else path


def keep_private(output: TextIO) -> None:
    """Before the token is written to it: a file to which output goes becomes its owner's alone."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(output.fileno()).st_mode):
            os.fchmod(output.fileno(), 0o600)


def environment_for(url: str, project: str = PROJECT) -> dict[str, str]:
    """The variables that point clients at the emulator; addresses of APIs end with a slash, as gcloud needs them."""
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
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{url}/",
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{url}/_{name.lower()}/" for name in APIS},
    }
