"""Drive the emulator with clients that no test installs and print what works; docs/design/cloud-clients.md has the outcome.

In an environment of its own, with this repository's src in PYTHONPATH:

pip install starlette uvicorn pydantic jinja2 google-crc32c google-cloud-tpu google-cloud-common google-api-python-client \
    'skypilot[gcp]' 'dstack[gcp]'; python benchmarks/cloud_clients.py [CLIENT …]

gcloud, which no package index has, is the Google Cloud CLI in PATH.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from cloud_emulator import Emulator

Steps = Iterator[tuple[str, Callable[[], Any]]]
load: Callable[[str], Any] = importlib.import_module
PROJECT, ZONE = "tpulm-emulator", "us-central1-a"
PLACE = f"projects/{PROJECT}/locations/{ZONE}"
NAME, QUEUED = f"{PLACE}/nodes/one", f"{PLACE}/queuedResources/two"
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base", "schedulingConfig": {"preemptible": True}}


def until(get: Callable[[], Any], wanted: Any, seconds: float = 20) -> None:
    give_up_at = time.monotonic() + seconds
    while (found := get()) != wanted:
        assert time.monotonic() < give_up_at, f"{found!r}, not {wanted!r}"
        time.sleep(0.1)


def options(address: str) -> dict[str, Any]:
    endpoint = load("google.api_core.client_options").ClientOptions(api_endpoint=address)
    return {"credentials": load("google.auth.credentials").AnonymousCredentials(), "client_options": endpoint}


def discovered(emulator: Emulator, service: str, api: str) -> Any:
    return load("googleapiclient.discovery").build(service, api, static_discovery=True, **options(f"{emulator.url}/"))


def api_python_client(emulator: Emulator, api: str) -> Steps:
    places = discovered(emulator, "tpu", api).projects().locations()
    nodes, queue = places.nodes(), places.queuedResources()
    queued = {"tpu": {"nodeSpec": [{"parent": PLACE, "nodeId": "two", "node": NODE}]}}

    def ended(request: Any) -> None:
        name = request.execute()["name"]
        until(lambda: places.operations().get(name=name).execute()["done"], True)
        assert "error" not in places.operations().get(name=name).execute()

    yield "create", lambda: ended(nodes.create(parent=PLACE, nodeId="one", body=NODE))
    yield "list", lambda: until(lambda: [found["name"] for found in nodes.list(parent=PLACE).execute()["nodes"]], [NAME])
    yield "get", lambda: until(lambda: nodes.get(name=NAME).execute()["state"], "READY")
    yield "update", lambda: ended(nodes.patch(name=NAME, updateMask="labels", body={"labels": {"a": "b"}}))

    def cancel() -> None:
        name = nodes.create(parent=PLACE, nodeId="three", body=NODE).execute()["name"]
        assert places.operations().cancel(name=name).execute() == {}
        until(lambda: places.operations().get(name=name).execute().get("error", {}).get("code"), 1)

    yield "cancel", cancel
    emulator.tpu.preempt("one", grace_seconds=0)
    yield "preempted", lambda: until(lambda: nodes.get(name=NAME).execute()["state"], "PREEMPTED")
    yield "delete", lambda: ended(nodes.delete(name=NAME))
    yield "queue", lambda: ended(queue.create(parent=PLACE, queuedResourceId="two", body=queued))
    yield "queue: list", lambda: until(lambda: len(queue.list(parent=PLACE).execute()["queuedResources"]), 1)
    yield "queue: get", lambda: until(lambda: queue.get(name=QUEUED).execute()["state"]["state"], "ACTIVE")
    yield "queue: delete", lambda: ended(queue.delete(name=QUEUED, force=True))


def skypilot(emulator: Emulator) -> Steps:
    instance, utils = load("sky.provision.gcp.instance"), load("sky.provision.gcp.instance_utils")
    load("sky.adaptors.gcp").build = lambda service, api, **more: discovered(emulator, service, api)
    utils.GCPComputeInstance.filter = lambda *arguments, **more: {}  # Compute Engine's VMs are not emulated
    tpus, provider = utils.GCPTPUVMInstance, {"project_id": PROJECT, "availability_zone": ZONE, "_has_tpus": True}
    network = {"subnetwork": f"projects/{PROJECT}/regions/us-central1/subnetworks/default", "enableExternalIps": True}

    def run(name: str, **more: Any) -> None:
        node = {**NODE, "labels": {"skypilot-user": "me"}, "metadata": {"ssh-keys": "me:key"}, "networkConfig": network, **more}
        config = load("sky.provision.common").ProvisionConfig(provider, {}, {}, node, 1, {}, False, None)
        instance.run_instances("us-central1", name, name, config)

    def states(name: str) -> list[str]:
        return [status.value for status, _ in instance.query_instances(name, name, provider).values()]

    yield "create", lambda: run("one")
    yield "list", lambda: until(lambda: states("one"), ["UP"])
    yield "get", lambda: until(lambda: len(instance.get_cluster_info("us-central1", "one", provider).instances), 1)
    yield "update", lambda: tpus.set_labels(PROJECT, ZONE, next(iter(tpus.filter(PROJECT, ZONE, {}, []))), {"a": "b"})
    emulator.tpu.preempt(next(iter(emulator.tpu.nodes())), grace_seconds=0)
    yield "preempted", lambda: until(lambda: states("one"), [])
    yield "delete", lambda: until(emulator.tpu.nodes, {})  # with the query before it
    yield "queue", lambda: run("two", gcp_queued_resource=True)
    yield "queue: get", lambda: until(lambda: states("two"), ["UP"])
    yield "queue: delete node", lambda: instance.terminate_instances("two", provider)
    yield "queue: delete", lambda: until(emulator.tpu.queued_resources, {}, seconds=5)


def dstack(emulator: Emulator) -> Steps:
    backend, models = load("dstack._internal.core.backends.gcp.compute"), load("dstack._internal.core.models.instances")
    backend.auth.authenticate = lambda creds, project: (options("")["credentials"], project)
    backend.gcp_resources.create_runner_firewall_rules = lambda **ignored: None  # Compute Engine's
    config = load("dstack._internal.core.backends.gcp.models").GCPConfig(project_id=PROJECT, creds={"type": "default"})
    gcp = backend.GCPCompute(config)
    load("google.cloud.common")  # the type of operations' metadata, which google-cloud-tpu lacks
    overridden = options(emulator.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"])
    gcp.tpu_client = load("google.cloud.tpu_v2").TpuClient(transport="rest", **overridden)  # its own speaks gRPC
    gcp.disk_client.get = lambda **ignored: SimpleNamespace(self_link="disk")  # Compute Engine's
    resources = {"cpus": 96, "memory_mib": 1, "gpus": [{"name": "v3-8", "memory_mib": 131072}], "spot": True}
    tpu = {"backend": "gcp", "instance": {"name": "v3-8", "resources": resources}, "region": "us-central1", "price": 1}
    offer = models.InstanceOfferWithAvailability(**tpu, availability="available", availability_zones=[ZONE])
    wanted = {"project_name": "p", "instance_name": "one", "user": "me", "ssh_keys": [{"public": "key"}]}
    made = gcp.create_instance(offer, models.InstanceConfiguration(**wanted), None)
    disk = SimpleNamespace(volume_id="disk", provisioning_data=SimpleNamespace(availability_zone=ZONE))
    yield "create", lambda: until(lambda: len(emulator.tpu.nodes()), 1)
    yield "get", lambda: gcp.update_provisioning_data(made, "", "")
    yield "update", lambda: gcp.attach_volume(disk, made)
    emulator.tpu.preempt(made.instance_id, grace_seconds=0)
    yield "preempted", lambda: gcp.update_provisioning_data(made, "", "")  # ProvisioningError, state 11, is right
    yield "delete", lambda: gcp.terminate_instance(made.instance_id, "us-central1", made.backend_data)
    yield "delete: gone", lambda: until(emulator.tpu.nodes, {})


def gcloud(emulator: Emulator, *track: str) -> Steps:
    """The Google Cloud CLI, without a login; it reads the addresses from the environment."""
    more = {"CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true", "CLOUDSDK_CORE_PROJECT": PROJECT}

    def run(*words: str) -> str:
        with tempfile.TemporaryDirectory() as config:
            command = ["gcloud", *track, "compute", "tpus", *words, f"--zone={ZONE}", "--quiet"]
            environment = os.environ | more | {"CLOUDSDK_CONFIG": config}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(kind: str, name: str, field: str = "state") -> str:
        return run(kind, "describe", name, f"--format=value({field})")

    what = ("--accelerator-type=v3-8", "--spot")
    yield "create", lambda: run("tpu-vm", "create", "one", "--version=tpu-ubuntu2204-base", *what)
    yield "list", lambda: until(lambda: run("tpu-vm", "list", "--format=value(name)"), "one")
    yield "get", lambda: until(lambda: state("tpu-vm", "one"), "READY")
    yield "update", lambda: run("tpu-vm", "update", "one", "--update-labels=a=b")
    emulator.tpu.preempt("one", grace_seconds=0)
    yield "preempted", lambda: until(lambda: state("tpu-vm", "one"), "PREEMPTED")
    yield "delete", lambda: run("tpu-vm", "delete", "one")
    yield "delete: gone", lambda: until(emulator.tpu.nodes, {})
    node = ("--node-id=two", "--runtime-version=tpu-ubuntu2204-base")
    yield "queue", lambda: run("queued-resources", "create", "two", *node, *what)
    yield "queue: list", lambda: until(lambda: run("queued-resources", "list", "--format=value(name)"), "two")
    yield "queue: get", lambda: until(lambda: state("queued-resources", "two", "state.state"), "ACTIVE")
    yield "queue: delete", lambda: run("queued-resources", "delete", "two", "--force")
    yield "queue: gone", lambda: until(emulator.tpu.queued_resources, {})


CLIENTS: dict[str, Callable[[Emulator], Steps]] = {
    "google-api-python-client v2": lambda emulator: api_python_client(emulator, "v2"),
    "google-api-python-client v2alpha1": lambda emulator: api_python_client(emulator, "v2alpha1"),
    "skypilot": skypilot,
    "dstack": dstack,
    "gcloud": gcloud,
    "gcloud alpha": lambda emulator: gcloud(emulator, "alpha"),
}


def attempt(do: Callable[[], Any]) -> str:
    try:
        do()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "works"


for client in sys.argv[1:] or CLIENTS:
    with Emulator() as emulator:
        os.environ |= emulator.environment
        emulator.create_bucket("runs")
        package = client.split()[0]
        print(f"{client} ({'the one in PATH' if package == 'gcloud' else version(package)})", flush=True)

        def drive(client: str = client, emulator: Emulator = emulator) -> None:
            for step, do in CLIENTS[client](emulator):
                print(f"    {step}: {attempt(do)}", flush=True)

        if (ended := attempt(drive)) != "works":
            print(f"    {ended}", flush=True)
