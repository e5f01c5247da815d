"""`tpulm train`, `evaluate` and `export`: the later stages of a run, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

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
from tpulm.errors import ConfigError, some_of
from tpulm.storage import holder, is_remote

if TYPE_CHECKING:
    from tpulm.config import RunConfig, SourceConfig


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
    from tpulm import pipeline, workfolder
    from tpulm.runtime import hosts

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
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Score this text in place of the held-out one: whatever a corpus may be. Repeatable."
        ),
    ] = None,
    text_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of --on: the jsonl key or column of the text; by default as in the run.")
    ] = None,
    documents: Annotated[
        Literal["line", "paragraph", "file"] | None,
        typer.Option(help="Of --on, plain text: what a document is; by default as in the run."),
    ] = None,
    coordinator: Coordinator = None,
    num_hosts: NumHosts = None,
    host_index: HostIndex = None,
    as_json: AsJson = False,
) -> None:
    """Score the newest checkpoint of W on all of its held-out text, or on text of your own: tpulm evaluate W --on new.txt.gz

    While a run works in W, and with --on, nothing is written into W, and one device is used. Text of your own is cleaned,
    encoded and laid out as the run's, and its duplicates stay.
    """
    from tpulm import pipeline, workfolder
    from tpulm.runtime import hosts

    config = workfolder.open_run(workdir)
    sources = _sources(config, on or [], {"text_field": text_field, "documents": documents})
    member = hosts.membership(coordinator, num_hosts, host_index)
    if on and member is not None:
        raise ConfigError("--on is for one host; leave out what is for several")
    with drawn_progress() as progress:
        if on or (member is None and holder(workdir) is not None):
            result = pipeline.look(config, workdir, on=sources, progress=progress)
        else:
            working = workfolder.working_in(config, workdir, stage="evaluate", member=member, progress=progress)
            with working as folder:
                result = pipeline.evaluate(config, folder.path, hosts=folder.hosts, progress=progress)
    print_table(some_of(on) if on else "Held-out text", _readable(result))
    if as_json:
        print_json(result)


def _sources(config: RunConfig, paths: list[str], settings: dict[str, str | None]) -> list[SourceConfig]:
    """Files of text; what is not set is as in the run's first source of files."""
    from tpulm.config import SourceConfig
    from tpulm.config.schema import DATASETS
    from tpulm.config.validation import validated

    given = {name: value for name, value in settings.items() if value is not None}
    if given and not paths:
        raise ConfigError(f"{' and '.join(f'--{name}'.replace('_', '-') for name in given)} is for --on; name a file with it")
    like = next((source for source in config.corpus.sources if source.format not in (*DATASETS, "python")), None)
    names = ("text_field", "documents", "encoding", "on_error")
    usual = {} if like is None else {name: getattr(like, name) for name in names}
    return [validated(SourceConfig, {**usual, **given, "path": path}, f"--on {path}") for path in paths]


def export(
    workdir: Workfolder,
    coordinator: Coordinator = None,
    num_hosts: NumHosts = None,
    host_index: HostIndex = None,
    as_json: AsJson = False,
) -> None:
    """Write the newest checkpoint of W as a Hugging Face folder, W/export."""
    from tpulm import pipeline, workfolder
    from tpulm.runtime import hosts

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
        if isinstance(value, dict):
            return ", ".join(f"{reason} {count:,}" for reason, count in value.items())
        return f"{value:,}" if isinstance(value, int) else str(value)

    return {name.replace("_", " "): text(value) for name, value in result.items() if value is not None and value != {}}
