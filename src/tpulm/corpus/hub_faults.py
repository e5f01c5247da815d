"""What goes wrong with datasets of the Hugging Face Hub, said with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from tpulm.config import SourceConfig
from tpulm.errors import ConfigError, DataError, TpulmError, Unavailable

_NETWORK: tuple[str, ...] = ("httpx", "httpcore", "requests", "urllib3", "aiohttp", "socket", "ssl")
_PAGE = "https://huggingface.co/datasets"


def unavailable(source: SourceConfig, why: str) -> Unavailable:
    name = source.path.removeprefix("hub:")
    return Unavailable(
        f"{source.path} cannot be read from the Hugging Face Hub: {why}. Without a network, bring the dataset here from "
        f"where there is one and name the folder:\n  hf download {name} --repo-type dataset --local-dir FOLDER\n"
        '  sources = [{path = "hub:FOLDER"}], FOLDER beginning with ./ or /'
    )


def interrupted(source: SourceConfig, name: str, error: BaseException) -> Unavailable:
    return Unavailable(
        f"{source.path}: the Hugging Face Hub stopped answering while {name} was read ({error}); run the same command again "
        "when it does, files that were read to their end need not be read again"
    )


def explained(source: SourceConfig, error: BaseException) -> TpulmError:
    """The error to raise instead of one of the libraries'."""
    if isinstance(error, TpulmError):
        return error
    name = source.path.removeprefix("hub:")
    kinds = {kind.__name__ for one in _causes(error) for kind in type(one).__mro__}
    text = next(iter(str(error).strip().splitlines()), "")[:300]
    if "GatedRepoError" in kinds or "gated dataset" in text:
        return ConfigError(
            f"{source.path} is gated: accept its terms on {_PAGE}/{name}, then let this machine in with 'hf auth login' or a "
            "token in HF_TOKEN"
        )
    if "RevisionNotFoundError" in kinds:
        return ConfigError(f"{source.path} has no revision '{source.revision}'; {_PAGE}/{name}/commits/main lists them")
    if {"RepositoryNotFoundError", "DatasetNotFoundError", "HFValidationError"} & kinds:
        return ConfigError(
            f"the Hugging Face Hub has no dataset '{name}', or shows it to its owners alone: look for it at {_PAGE}; if it is "
            "private, 'hf auth login' or a token in HF_TOKEN lets this machine in"
        )
    if "scripts are no longer supported" in str(error) or "trust_remote_code" in str(error):
        return ConfigError(
            f"{source.path} is a program that makes a dataset, which is not run. The Hub has often converted such a dataset: "
            f'try revision = "refs/convert/parquet"; {_PAGE}/{name} shows its files'
        )
    if is_network(error):
        return unavailable(source, f"it does not answer ({type(error).__name__}: {text})")
    if {"EmptyDatasetError", "DataFilesNotFoundError", "FileNotFoundError"} & kinds:
        return ConfigError(
            f"{source.path} holds no files of text or tables that can be read ({text}); a dataset is of .parquet, .jsonl, "
            ".csv or .txt files"
        )
    return DataError(f"{type(error).__name__}: {text}", location=source.path)


def is_network(error: BaseException) -> bool:
    """Whether it may go well at another time: no network, no answer, or a server's own failure."""
    for one in _causes(error):
        if isinstance(one, (ConnectionError, TimeoutError)):
            return True
        if any(kind.__module__.startswith(_NETWORK) for kind in type(one).__mro__):
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(10):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__
