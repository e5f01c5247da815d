"""Whether a work folder's corpus is still the one that a configuration and the files on disk describe."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from tpulm.config import CorpusConfig, RunConfig, SourceConfig, differences, listed
from tpulm.corpus.hub import is_folder
from tpulm.corpus.manifest import CorpusManifest, InputRecord, reading_settings
from tpulm.corpus.piece import is_unchanged
from tpulm.corpus.sources import InputFile, find_files
from tpulm.errors import ConfigError, WorkFolderMismatch


def verify(manifest: CorpusManifest, config: CorpusConfig, workdir: str | os.PathLike[str], *, part_bytes: int) -> None:
    """Raise WorkFolderMismatch if the settings or the files differ from those that made the manifest.

    A corpus none of whose files can be found any more is no mismatch: the work folder may have moved to another machine.
    Nor is another version of Python, with other text of its own, nor a dataset that cannot be looked at from here and now.
    Paths are not compared, contents are.
    """
    away: set[int] = set()
    try:
        files = find_files(config.sources, away=away)
    except ConfigError:
        if any(_is_there(source) for source in config.sources):
            raise
        files = None
    found: list[object] = list(_settings_changes(manifest, config, part_bytes))
    if files is not None:
        found.extend(_file_changes(manifest, config, files, away))
    if found:
        raise WorkFolderMismatch(
            f"{os.fspath(workdir)} was begun with another corpus (there -> now):\n{listed(found)}\n"
            "Use another --workdir, or delete this one to begin again."
        )


def _is_there(source: SourceConfig) -> bool:
    """Whether this machine has the source's files; what any machine can reach says nothing of that."""
    if source.format == "hub" and not is_folder(source.path):
        return False
    try:
        return bool(find_files([source], away=set()))
    except ConfigError:
        return False


def _settings_changes(manifest: CorpusManifest, config: CorpusConfig, part_bytes: int) -> Iterator[object]:
    # The sources are compared file by file: where they lie does not matter, nor by which pattern they are named.
    theirs, ours = (RunConfig(corpus=item.model_copy(update={"sources": ()})) for item in (manifest.config, config))
    yield from differences(theirs, ours)
    if manifest.part_bytes != part_bytes:
        yield f"data.part_bytes: {manifest.part_bytes} -> {part_bytes}"


def _file_changes(
    manifest: CorpusManifest, config: CorpusConfig, files: Sequence[InputFile], away: Collection[int]
) -> Iterator[str]:
    records = [record for record in manifest.inputs if record.source not in away]
    if manifest.limit_reached:
        files = files[: len(records)]
    if len(files) != len(records):
        before, now = {record.within for record in records}, {file.within for file in files}
        yield f"number of files: {len(records)} -> {len(files)}"
        yield from (f"new: {path}" for path in sorted(now - before))
        yield from (f"gone: {path}" for path in sorted(before - now))
        return
    for record, file in zip(records, files, strict=True):
        theirs = reading_settings(manifest.config, record.source, record)
        ours = reading_settings(config, file.source, file)
        name = file.name if file.within == record.within else f"{file.name} (was {record.within})"
        yield from (f"{name}, {key}: {theirs.get(key)} -> {ours.get(key)}" for key in ours if theirs.get(key) != ours.get(key))
        if theirs == ours and file.format != "python" and not is_unchanged(record, file):
            yield f"{file.name}: {_difference(record, file)}"


def _difference(record: InputRecord, file: InputFile) -> str:
    if file.format == "hub" and file.sha256:
        return (
            f"its dataset changed on the Hub, {record.sha256} -> {file.sha256}; revision = '{record.sha256}' reads the former"
        )
    return f"its content is not what it was (was {record.bytes} bytes, is {file.bytes})"
