"""Publish a model, its card and its report on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import NamedTuple

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from tpulm import storage
from tpulm.convert import onnx
from tpulm.convert.huggingface import HALVES, SHARDS, WEIGHTS
from tpulm.convert.sentence_transformers import EMBEDDER_FILES
from tpulm.errors import CloudRefused, ConfigError, Unavailable
from tpulm.progress import SILENT, Progress
from tpulm.report.finetuning import MISTAKES, SUMMARY, is_finetuning
from tpulm.report.run import page_of
from tpulm.workfolder import REVISION, REVISIONS, read_result

_REPORT = "report.html"
_OF_THE_WORK = (SUMMARY, MISTAKES)  # they hold texts or local paths, and are left out silently
_FILES = (  # of a model, as patterns: card, weights, tokenizer and settings, in the folder or in one of `_FOLDERS`
    *("README.md", "LICENSE*", "model*.safetensors", SHARDS, "model.onnx*", "config.json", "*_config.json", "chat_template.*"),
    *("tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "*.model"),
)
_FOLDERS = (*EMBEDDER_FILES, PurePath(onnx.FILE).parts[0])


class File(NamedTuple):
    name: str  # in the repository
    content: PurePath | bytes  # where it is, or what it holds
    size: int  # bytes


@dataclass(frozen=True)
class Publication:
    """What goes into one repository."""

    repository: str
    files: tuple[File, ...]
    left_out: tuple[str, ...]  # names of files that may not belong to the model, and of links
    revision: str | None = None  # a branch; None: the main one

    @property
    def name(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def check_health(folder: PurePath) -> None:
    """Raise ConfigError for a model that its health check does not call all right."""
    if storage.exists(folder / "run.json"):
        health = (read_result(folder, "evaluation") or {}).get("health", "")
    else:
        health = storage.read_json(folder / SUMMARY)["health"] if storage.exists(folder / SUMMARY) else ""
    if health and not health.startswith("all right"):
        raise ConfigError(f"{folder} is not all right: {health}\nTo publish it as it is, add --anyway")


def publications(
    model: str | PurePath,
    repository: str,
    *,
    anyway: bool = False,
    include: Sequence[str] = (),
    revisions: bool = False,
    with_samples: bool = False,
) -> list[Publication]:
    """What `push` uploads of a work folder, a fine-tuning or a Hugging Face folder.

    The report has no sentence of the corpus or of labelled data in it, unless it is `with_samples`.

    Files that models do not have, and links, are left out unless they are named in `include`.

    With `revisions` those that 'tpulm export --revisions' made go into branches of their names.

    ELECTRA's halves go into separate repositories, NAME-discriminator and NAME-generator, like its authors'.

    Raises ConfigError if there is no model, or no file of `include`, for a name that the Hub does not accept, and for a model
    that its health check does not call all right, unless it is to be published `anyway`.
    """
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(f"'{repository}' is not a repository name: {error}") from error
    if repository.count("/") != 1:
        raise ConfigError(f"'{repository}' names no owner: write USER/NAME or ORGANIZATION/NAME")
    folder = storage.as_path(model)
    is_run = storage.exists(folder / "run.json")
    source = folder / "export" if is_run else folder
    if not anyway:
        check_health(folder)
    has_report = is_run or is_finetuning(folder)
    report = [page_of(folder, with_samples=with_samples).encode()] if has_report else []
    parts = _parts(source, repository)
    if not parts:
        remedy = f"; tpulm export {folder} makes it" if is_run else ""
        raise ConfigError(f"{folder} has no model to publish: {source / WEIGHTS} is missing{remedy}")
    pages = [File(_REPORT, page, len(page)) for page in report]
    result = [Publication(name, (*files, *pages), rest) for name, part in parts for files, rest in [_files(part, include)]]
    if missing := set(include) - {file.name for one in result for file in one.files}:
        raise ConfigError(f"--include {min(missing)}: there is no such file in {source}")
    if revisions:
        branches = [one for one in storage.list_folder(folder / REVISIONS) if REVISION.fullmatch(one.name)]
        if not branches:
            raise ConfigError(f"{folder / REVISIONS} holds no model; 'tpulm export {folder} --revisions' makes them")
        for branch in sorted(branches, key=lambda path: path.name):
            result += [Publication(name, *_files(part, include), branch.name) for name, part in _parts(branch, repository)]
    if linked := [one.name for one in result if WEIGHTS in one.left_out]:
        raise ConfigError(f"{WEIGHTS} of {linked[0]} is a link; to send what it leads to, add --include {WEIGHTS}")
    return result


def _parts(folder: PurePath, repository: str) -> list[tuple[str, PurePath]]:
    """The repository and the folder of each model: one, or ELECTRA's halves; none if there is no model."""
    halves = [(f"{repository}-{half}", folder / half) for half in HALVES if storage.exists(folder / half / WEIGHTS)]
    return halves or [(repository, folder)] * storage.exists(folder / WEIGHTS)


def push(publication: Publication, *, private: bool = True, progress: Progress = SILENT) -> str:
    """Upload it, in one commit, and return its address. Weights that were uploaded before a kill are not uploaded again.

    Raises ConfigError without a token, CloudRefused if the Hub refuses, Unavailable if it does not respond.
    """
    if get_token() is None:
        raise ConfigError("there is no token for the Hugging Face Hub: set HF_TOKEN, or run 'hf auth login'")
    api = HfApi(library_name="tpulm")
    with storage.scratch_folder() as folder:
        progress.start(f"Sending {publication.name}")
        for file in publication.files:
            storage.make_folder((folder / file.name).parent)
            content = file.content if isinstance(file.content, bytes) else storage.read_bytes(file.content)
            storage.write_atomic(folder / file.name, content)
        try:
            address = str(api.create_repo(publication.repository, private=private, exist_ok=True))
            if publication.revision is not None:
                api.create_branch(publication.repository, branch=publication.revision, exist_ok=True)
            api.upload_folder(
                repo_id=publication.repository,
                folder_path=folder,
                revision=publication.revision,
                commit_message="Upload the model with tpulm",
                delete_patterns=["*"] if publication.revision else None,  # a branch begins with the main one's files
            )
        except HfHubHTTPError as error:
            status = error.response.status_code
            why = {401: "the token is not valid", 403: "the token may not write there"}.get(status, str(error).strip())
            kind = Unavailable if status >= 500 or status == 429 else CloudRefused
            raise kind(f"the Hub refused {publication.repository} ({status}): {why}") from error
        except OSError as error:  # of the network
            raise Unavailable(f"the Hub does not answer: {error}. Run the same command to continue") from error
    return address


def _files(folder: PurePath, include: Sequence[str]) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The files of a model, and the names of those that are left out."""
    files, left_out = list[File](), list[str]()
    for name, info in sorted(storage.walk(folder).items()):
        place = PurePath(name)
        within = [folder / place, *(folder / parent for parent in place.parents if parent.name)]
        is_link = any(isinstance(one, Path) and one.is_symlink() for one in within)
        known = any(fnmatchcase(place.name, pattern) for pattern in _FILES) or name in _FOLDERS
        of_model = len(place.parts) == 1 or place.parts[0] in _FOLDERS
        if name in include or (known and of_model and not is_link):
            files.append(File(name, folder / name, info.size))
        elif of_model and not name.startswith(".") and name not in _OF_THE_WORK:
            left_out.append(name)
    return tuple(files), tuple(left_out)
