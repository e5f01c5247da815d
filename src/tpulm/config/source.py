"""Where text comes from: a source of a corpus."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tpulm.config.settings import Names, Settings

DATASETS: Final = ("tfds", "hub")  # what the path of a dataset begins with, before a colon
# tpulm.corpus.readers.register adds others
CORPUS_FORMATS: Final = Names("auto", "text", "jsonl", "csv", "tsv", "parquet", "wikipedia", "python", *DATASETS)
_OF_DATASETS: Final[dict[str, tuple[str, ...]]] = {
    "split": DATASETS,
    "data_dir": ("tfds",),
    "config": ("hub",),
    "revision": ("hub",),
    "streaming": ("hub",),
}


class SourceConfig(Settings):
    """One place text comes from: a file, a folder, a glob (`**` descends), or a dataset, "tfds:NAME" or "hub:NAME"."""

    path: str = ""  # relative to the run file; may stay empty only for format "python"
    # auto: by the file's name, or by what the path of a dataset begins with
    format: Annotated[str, AfterValidator(CORPUS_FORMATS.check), CORPUS_FORMATS] = "auto"
    documents: Literal["line", "paragraph", "file"] = "line"  # text only: a document a line, between blank lines, or a file
    text_field: str = "text"  # jsonl key (dots descend), csv/tsv/parquet column, or feature of a dataset
    encoding: str = "utf-8"
    on_error: Literal["stop", "skip"] = "stop"  # bad bytes or records: an error, or left out and counted
    weight: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0  # copies of each training document; 0.5 keeps half of them
    split: str | None = None  # datasets only; None: "train". Of tfds also slices and sums: "train[:10%]", "train+test"
    data_dir: str | None = None  # tfds only: where it is, or will be, prepared; None: ~/tensorflow_datasets
    config: str | None = None  # hub only: the subset; None: the default one
    revision: str | None = None  # hub only: branch, tag or commit; None: main
    streaming: bool = True  # hub only; false: into the cache of the library `datasets` first

    @model_validator(mode="before")
    @classmethod
    def _kind_of_dataset(cls, values: Any) -> Any:
        """The format of a dataset follows from its path, and its split is written out: equal sources are then equal."""
        if not isinstance(values, dict) or not isinstance(values.get("path"), str):
            return values
        kind = values["path"].partition(":")[0]
        if kind not in DATASETS or not values["path"].startswith(f"{kind}:"):
            return values
        if values.get("format", "auto") not in ("auto", kind):
            raise ValueError(
                f"path '{values['path']}' is a dataset, which has no format '{values['format']}'; leave format out"
            )
        split = values.get("split")
        return {**values, "format": kind, "split": "train" if split in (None, "none") else split}

    @model_validator(mode="after")
    def _path_given(self) -> Self:
        if not self.path and self.format != "python":
            raise ValueError("path is missing: name a file, a folder or a glob such as 'reviews/*.txt.gz'")
        return self

    @model_validator(mode="after")
    def _settings_of_its_kind(self) -> Self:
        wrong = [name for name, kinds in _OF_DATASETS.items() if self.format not in kinds and self._is_set(name)]
        if wrong:
            owners = " and ".join(f"{kind}:NAME" for kind in _OF_DATASETS[wrong[0]])
            raise ValueError(f"{wrong[0]} is for datasets ({owners}), and '{self.path or self.format}' is none; leave it out")
        wrong = [name for name in ("documents", "encoding") if self.format in DATASETS and self._is_set(name)]
        if wrong:
            raise ValueError(f"{wrong[0]} is for files, and '{self.path}' is a dataset; leave it out")
        return self

    def _is_set(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default
