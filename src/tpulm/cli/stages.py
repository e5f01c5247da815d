"""`tpulm train`, `evaluate` and `export`: the later stages of a run, one at a time."""

from __future__ import annotations

from tpulm.cli.options import (
    AllowCpu,
    AsJson,
    Coordinator,
    HostIndex,
    Init,
    NumHosts,
    Overrides,
    RunFile,
    WorkDir,
    Workfolder,
    load_run,
)
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table
from tpulm.storage import is_remote


def train(
    reference: RunFile,
    workdir: WorkDir,
    overrides: Overrides = None,
    init: Init = None,
    coordinator: Coordinator = None,
    num_hosts: NumHosts = None,
    host_index: HostIndex = None,
    allow_cpu: AllowCpu = False,
    as_json: AsJson = False,
) -> None:
    """Pretrain on the dataset that is already in W ('tpulm dataset prepare'), from the newest checkpoint if there is one."""
    config = load_run(reference, overrides, init, allow_cpu=allow_cpu)
    from tpulm import hosts, pipeline, workfolder

    member = hosts.membership(coordinator, num_hosts, host_index)
    with (
        drawn_progress() as progress,
        workfolder.working_in(config, workdir, stage="train", member=member, progress=progress) as folder,
    ):
        result = pipeline.train(config, folder.path, hosts=folder.hosts, progress=progress)
    print_table("Training", _readable(result))
    if as_json:
        print_json(result)


def evaluate(
    workdir: Workfolder,
    coordinator: Coordinator = None,
    num_hosts: NumHosts = None,
    host_index: HostIndex = None,
    as_json: AsJson = False,
) -> None:
    """Score the newest checkpoint of W on all of its held-out text."""
    from tpulm import hosts, pipeline, workfolder

    config = workfolder.open_run(workdir)
    member = hosts.membership(coordinator, num_hosts, host_index)
    with (
        drawn_progress() as progress,
        workfolder.working_in(config, workdir, stage="evaluate", member=member, progress=progress) as folder,
    ):
        result = pipeline.evaluate(config, folder.path, hosts=folder.hosts, progress=progress)
    print_table("Held-out text", _readable(result))
    if as_json:
        print_json(result)


def export(
    workdir: Workfolder,
    coordinator: Coordinator = None,
    num_hosts: NumHosts = None,
    host_index: HostIndex = None,
    as_json: AsJson = False,
) -> None:
    """Write the newest checkpoint of W as a Hugging Face folder, W/export."""
    from tpulm import hosts, pipeline, workfolder

    config = workfolder.open_run(workdir)
    member = hosts.membership(coordinator, num_hosts, host_index)
    with (
        drawn_progress() as progress,
        workfolder.working_in(config, workdir, stage="export", member=member, progress=progress) as folder,
    ):
        path = pipeline.export(config, folder.path, hosts=folder.hosts, progress=progress)
    loader = "AutoModelForCausalLM" if config.model.architecture == "decoder" else "AutoModelForMaskedLM"
    if is_remote(path):
        console.print(
            f"exported to [bold]{path}[/]: tpulm.load_model('{path}') loads it; for transformers copy the folder to disk"
        )
    else:
        console.print(f"exported to [bold]{path}[/]: {loader}.from_pretrained('{path}') loads it")
    if as_json:
        print_json({"export": str(path)})


def _readable(result: dict[str, object]) -> dict[str, str]:
    def text(value: object) -> str:
        if isinstance(value, float):
            return f"{value:,.4f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    return {name.replace("_", " "): text(value) for name, value in result.items() if value is not None}
