"""`tpulm cloud emulator`: the cloud, for now without the cloud."""

from __future__ import annotations

import errno
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from tpulm.cli import cloud_costs, cloud_down, cloud_export, cloud_launch, cloud_rehearse, cloud_runs, cloud_setup, cloud_smoke
from tpulm.cli.commands import Commands
from tpulm.cli.options import AsJson
from tpulm.cli.terminal import console, print_json
from tpulm.errors import ConfigError, MissingExtra, installing

PROJECT = "tpulm-emulator"

app = Commands(help="Runs on Cloud TPU, and rehearsals of them on this machine.", no_args_is_help=True)
app.command()(cloud_setup.doctor)
app.command()(cloud_setup.setup)
app.command()(cloud_smoke.smoke)
app.command()(cloud_launch.launch)
app.command()(cloud_launch.attach)
app.command()(cloud_launch.stop)
app.command()(cloud_rehearse.rehearse)
app.command()(cloud_runs.status)
app.command()(cloud_runs.logs)
app.command()(cloud_costs.cost)
app.command()(cloud_costs.audit)
app.command()(cloud_down.down)
app.command()(cloud_runs.ssh)
app.add_typer(cloud_export.app, name="export")


@app.command()
def emulator(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens on 127.0.0.1; 0 for any free port.")] = 9023,
    folder: Annotated[
        Path | None, typer.Option(metavar="F", help="Keep buckets and objects here, for the next time. Default: in memory.")
    ] = None,
    bucket: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Create this bucket. Repeatable.")] = None,
    project: Annotated[str, typer.Option(metavar="ID", help="The project that there is, with everything enabled.")] = PROJECT,
    as_json: AsJson = False,
) -> None:
    """Cloud Storage and Cloud TPU on this machine, until Ctrl-C: the same clients and gs:// paths, no account, no cost.

    It prints the variables that point a shell at it, with the token that it wants in every address:

        tpulm cloud emulator --bucket runs > emulator.sh & sleep 2

        . ./emulator.sh

        tpulm run electra-small --workdir gs://runs/first

    Faults to rehearse with are set while it runs:

        curl -d '{"error_rate": 0.05, "latency_seconds": 0.02}' $STORAGE_EMULATOR_HOST/_control/faults

        curl -d '{"node": "run-a1", "grace_seconds": 5}' $STORAGE_EMULATOR_HOST/_control/tpu/preempt
    """
    try:
        from tpulm.emulator import Emulator
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the emulator needs {error.name}: {installing('emulator')}") from None
    from tpulm import interrupt

    with interrupt.handled():
        server = Emulator(folder, port, project)
        for name in bucket or []:
            if name not in server.bucket_names():
                server.create_bucket(name)
        try:
            server.start()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            reason = "is in use" if error.errno == errno.EADDRINUSE else "needs privileges"
            raise ConfigError(f"port {port} of 127.0.0.1 {reason}; name another with --port, or --port 0 for any") from None
        try:
            where = f"kept in {folder}" if folder else "kept in memory only"
            names = ", ".join(f"gs://{name}" for name in server.bucket_names()) or "none yet; --bucket NAME creates one"
            console.print(f"Cloud Storage and Cloud TPU, emulated at [bold]{server.url}[/]", soft_wrap=True)
            console.print(f"project: {project}; buckets: {names}; objects are {where}", soft_wrap=True)
            if as_json:
                print_json(
                    {"url": server.url, "project": project, "buckets": server.bucket_names(), "environment": server.environment}
                )
            else:
                console.print("a shell that has evaluated the following lines talks to it; Ctrl-C ends it", soft_wrap=True)
                exports = (f"export {name}={shlex.quote(value)}" for name, value in server.environment.items())
                print("\n".join(exports), flush=True)
            while not interrupt.requested():
                time.sleep(0.1)
        finally:
            server.stop()
