"""`tpulm`: the commands, and how an error becomes an exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from io import TextIOWrapper
from types import FrameType, TracebackType
from typing import Final

import typer

from tpulm.cli import bench, cloud, dataset, finetune, plan, reference, report, run, tokenizer, use
from tpulm.cli.options import Commands
from tpulm.cli.terminal import naming_stdout, print_error
from tpulm.errors import Stopped, TpulmError
from tpulm.runtime import watchdog
from tpulm.runtime.memory import keep_between_steps
from tpulm.storage import abandon, storage_error

_SHOW_CURSOR: Final = b"\x1b[?25h"
_REPORTED: Final = ("jax", "jaxlib", "libtpu", "numpy", "optax", "orbax-checkpoint", "tokenizers", "transformers", "torch")

app = Commands(
    name="tpulm",
    help="Raw text in any language in, a pretrained Hugging Face language model out.\n\n"
    "Begin with 'tpulm quickstart', then 'tpulm run RUN.toml --workdir W' on your own text.\n\n"
    "Exit codes: 0 done, 2 usage or configuration, 3 bad input data, 4 cloud refused, "
    "75 stopped after saving (the same command continues), 130 stopped with nothing to save, 1 anything else.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_WHOLE, _STAGES, _USE = "The whole path", "Single stages", "Use a model"
app.command(rich_help_panel=_WHOLE)(run.quickstart)
app.command(rich_help_panel=_WHOLE)(run.run)
app.command(rich_help_panel=_WHOLE, as_json=False)(report.report)
app.command(rich_help_panel=_WHOLE, as_json=False)(reference.recipes)
for _command in (reference.settings, plan.plan, plan.devices):
    app.command(rich_help_panel=_WHOLE)(_command)
app.add_typer(tokenizer.app, name="tokenizer", rich_help_panel=_STAGES)
app.add_typer(dataset.app, name="dataset", rich_help_panel=_STAGES)
for _command in (run.train, run.evaluate, run.export):
    app.command(rich_help_panel=_STAGES)(_command)
app.add_typer(cloud.app, name="cloud", rich_help_panel="The cloud")
app.command("import", rich_help_panel=_USE)(use.import_)
for _command in (finetune.finetune, bench.bench, finetune.classify, finetune.embed, use.fill_mask, use.generate, report.push):
    app.command(rich_help_panel=_USE)(_command)


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the versions of tpulm and its main dependencies."),
) -> None:
    if version:
        import platform
        from importlib.metadata import PackageNotFoundError, metadata

        print(f"tpulm {metadata('tpulm')['Version']}\npython {platform.python_version()}")
        for name in _REPORTED:
            with contextlib.suppress(PackageNotFoundError):
                print(f"{name} {metadata(name)['Version']}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def main() -> None:
    """The console script."""
    keep_between_steps()
    watchdog.begin()
    signal.signal(signal.SIGINT, _stop)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    threading.excepthook = _thread_excepthook
    sys.excepthook = _excepthook
    sys.unraisablehook = _unraisablehook
    _silence_library_warnings()
    _prepare_streams()
    try:
        try:
            typer.main.get_command(app)()  # app() would put typer's hook in the place of ours
        except SystemExit as leaving:
            with naming_stdout():
                sys.stdout.flush()
            _exit(leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1)
    except TpulmError as error:
        is_stop = isinstance(error, Stopped)
        print_error(str(error).removeprefix("stopped ") if is_stop else str(error), title="stopped" if is_stop else "error")
        _exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what the end of the interpreter would flush
        _exit(1)
    except OSError as error:
        if error.filename == "stdout":
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print_error(str(storage_error("use", error.filename or "a file", error)))
        _exit(1)


def _prepare_streams() -> None:
    """UTF-8 where results go to files and pipes, whatever the locale; what a terminal's encoding lacks is escaped.

    A stream that is closed is opened, so that no file gets its number: stdout to be read alone, which makes writing an error.
    """
    if sys.stdout is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            has_encoding = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if has_encoding else "utf-8", errors="backslashreplace")


def _silence_library_warnings() -> None:
    """No log lines between the bars but errors. Whoever wants more sets the variables, or PYTHONWARNINGS, before."""
    for library in ("absl", "asyncio"):  # orbax and its tasks log what they then raise
        logging.getLogger(library).setLevel(logging.CRITICAL)
    logging.getLogger("jax").setLevel(logging.ERROR)
    for name, level in (
        ("TF_CPP_MIN_LOG_LEVEL", "2"),  # XLA
        ("TPU_MIN_LOG_LEVEL", "2"),  # libtpu, into its files
        ("TPU_STDERR_LOG_LEVEL", "2"),
        ("GRPC_VERBOSITY", "ERROR"),
    ):
        os.environ.setdefault(name, level)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _stop(number: int, frame: FrameType | None) -> None:
    """Ctrl-C where nothing is to be saved: the end, at once. `interrupt.handled` replaces it where something is.

    An exception would come out of whatever is running, half an import of jaxlib or a compiler, which not all of them survive.
    Bytes are written past Python's streams, whose locks may be held, and show the cursor that a progress bar has hidden.
    """
    abandon()
    os.write(2, _SHOW_CURSOR * os.isatty(2) + b"stopped\n")
    os._exit(128 + number)


def _exit(code: int) -> None:
    """Exit at once where a thread still compiles: ending the interpreter around it would abort the process (code 134).

    So would JAX, which waits at the end for the other hosts, where this one fails or one of them is gone. Where all went well
    they part here, all of them in the same way.
    """
    several = "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()
    if several and not code:
        sys.modules["jax"].distributed.shutdown()
    if threading.active_count() > 1 or several:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a last Ctrl-C would change the code
    sys.exit(code)


def _thread_excepthook(arguments: threading.ExceptHookArgs) -> None:
    """As usual, but for the threads that save checkpoints: the main thread raises, and reports, what fails there."""
    frames = traceback.extract_tb(arguments.exc_traceback)
    if not any(f"{os.sep}orbax{os.sep}" in frame.filename for frame in frames):
        threading.__excepthook__(arguments)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As usual, but for writes that were under way when a save failed, which tensorstore reports one by one."""
    if not _is_of_failed_save(error):
        sys.__excepthook__(kind, error, trace)


def _unraisablehook(arguments: sys.UnraisableHookArgs) -> None:
    """The same for those that its threads report: the loop which waited for them is closed by then."""
    if not _is_of_failed_save(arguments.exc_value):
        sys.__unraisablehook__(arguments)


def _is_of_failed_save(error: BaseException | None) -> bool:
    return str(error) == "Event loop is closed" or "in OCDBT database" in str(error)
