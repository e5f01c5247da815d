"""Commands and their options: those that several commands share, those that set a field of a settings class, and `--json`."""

from __future__ import annotations

import functools
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import PurePath
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_origin

import typer
from typer.core import TyperCommand, TyperOption

from tpulm.cli import terminal
from tpulm.errors import ConfigError
from tpulm.storage import as_path

if TYPE_CHECKING:  # pydantic's models cost a fifth of a second, which --help need not pay
    from tpulm.config import RunConfig
    from tpulm.runtime.hosts import Membership

SetOptions = dict[str, Any]  # the options of a `FieldOptions` that were given, by the names of their fields
SEVERAL_HOSTS = "Several hosts"


class Command(TyperCommand):
    """Its parameters are made from its function when they are first needed: `tpulm --help` needs none.

    An option that is given twice is refused; the parser would silently take the last.
    """

    def __init__(self, *, function: Callable[..., None], as_json: bool, **settings: Any):
        super().__init__(**settings)
        del self.params, self.callback
        self._function, self._as_json = function, as_json

    def __getattr__(self, name: str) -> Any:
        if name not in ("params", "callback"):
            raise AttributeError(name)
        alone = typer.Typer(add_completion=False)
        alone.command()(_with_options(self._function, as_json=self._as_json))
        click_command = typer.main.get_command(alone)
        self.params, self.callback = click_command.params, click_command.callback
        return getattr(self, name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, parameters = self.make_parser(ctx).parse_args(args=list(args))
        for one, count in Counter(parameters).items():
            if isinstance(one, TyperOption) and count > 1 and not (one.multiple or one.count or one.is_eager):
                ctx.fail(f"{one.opts[0]} is given {count} times; give it once.")
        rest = super().parse_args(ctx, args)
        if empty := [name for name, value in ctx.params.items() if isinstance(value, PurePath) and values.get(name) == ""]:
            ctx.fail(f"{empty[0]} is an empty path: is a variable unset? The current folder is '.'")
        terminal.begin(as_json=bool(ctx.params.get("as_json")))
        return rest


class Commands(typer.Typer):
    """A group of such commands. Each has `--json` unless it says otherwise."""

    def command(self, name: str | None = None, *, as_json: bool = True, **settings: Any) -> Callable[[Any], Any]:
        def register(function: Callable[..., None]) -> Callable[..., None]:
            def named() -> None: ...

            named.__name__, named.__doc__ = function.__name__, function.__doc__
            kind: Any = functools.partial(Command, function=function, as_json=as_json)
            super(Commands, self).command(name, cls=kind, **settings)(named)
            return function

        return register


class FieldOptions(NamedTuple):
    """Options that set fields of a settings class: with their names, types, choices, defaults and meanings.

    The class is named as "module:name", and imported when the command is used.
    """

    settings: str
    fields: tuple[str, ...]
    names: Mapping[str, str] = MappingProxyType({})  # field -> option, where it is not called like the field
    panel: str | None = None
    default: str = ""  # in words, where it is not the field's

    def parameters(self) -> Iterator[inspect.Parameter]:
        from tpulm.config.reference import groups_of, option_type

        model = resolve_name(self.settings)
        documented = {setting.name: setting for setting in next(groups_of(model)).settings}
        for field in self.fields:
            kind, setting = option_type(model, field), documented[field]
            names = [self.names[field]] if field in self.names else []
            metavar = field.upper() if kind is str else None
            help = f"{setting.meaning[:1].upper()}{setting.meaning[1:]}".replace("None:", "default:")
            default = self.default or (
                "" if setting.default in ("none", "required", '""', "[]") else setting.default.strip('"')
            )
            help = "; ".join(filter(None, [help, f"default {default}" if default else ""]))
            help += ". Repeatable." if get_origin(kind) is list else "."
            annotation = Annotated[kind | None, option(help, *names, metavar=metavar, panel=self.panel)]
            yield inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    @staticmethod
    def set_options(**values: Any) -> SetOptions:
        return {name: value for name, value in values.items() if value is not None}


def _with_options(function: Callable[..., None], *, as_json: bool) -> Callable[..., None]:
    """The function with a parameter for each option: a dataclass becomes its fields, `SetOptions` those it names."""
    parameters, groups = list[inspect.Parameter](), dict[str, tuple[Callable[..., Any], list[str]]]()
    for one in inspect.signature(function, eval_str=True).parameters.values():
        fields = [item for item in getattr(one.annotation, "__metadata__", ()) if isinstance(item, FieldOptions)]
        if fields:
            members, make = list(fields[0].parameters()), FieldOptions.set_options
        elif isinstance(one.annotation, type) and is_dataclass(one.annotation):
            members, make = list(inspect.signature(one.annotation, eval_str=True).parameters.values()), one.annotation
        else:
            parameters.append(one)
            continue
        parameters += members
        groups[one.name] = (make, [member.name for member in members])
    if as_json:
        kind = Annotated[bool, option("Print the result as one JSON object on stdout.", "--json")]
        parameters.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        values.pop("as_json", None)
        for name, (make, members) in groups.items():
            values[name] = make(**{member: values.pop(member) for member in members})
        function(**values)

    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    command.__signature__ = inspect.Signature(keywords)  # pyright: ignore[reportAttributeAccessIssue]
    return command


def option(help: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


def argument(help: str, metavar: str | None = None, **settings: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, **settings)


def path_option(help: str, *names: str, metavar: str = "FILE", panel: str | None = None) -> Any:
    return option(help, *names, metavar=metavar, parser=as_path, panel=panel)


def path_argument(help: str, metavar: str) -> Any:
    return argument(help, metavar, parser=as_path)


RunFile = Annotated[str, argument("A run file (.toml), or a recipe's name such as bert-mini ('tpulm recipes').", "RUN")]
WorkDir = Annotated[
    PurePath,
    path_option(
        "The work folder, here or as gs://bucket/folder: made if absent, continued if not.", "--workdir", "-w", metavar="W"
    ),
]
Workfolder = Annotated[PurePath, path_argument("The work folder of a run.", "W")]
_SET = "Override a setting ('tpulm settings' lists them), such as --set {}. Repeatable."
Overrides = Annotated[list[str] | None, option(_SET.format("train.steps=1000"), "--set", metavar="NAME=VALUE")]
TuningOverrides = Annotated[list[str] | None, option(_SET.format("patience=5"), "--set", metavar="NAME=VALUE")]
Encoding = Annotated[str, option("Text encoding: cp949, shift_jis, utf-16, cp1252, …", metavar="NAME")]
_OF_A_VOCABULARY = "A vocab.txt, which does not say how text is normalized"
Lowercase = Annotated[
    bool | None,
    option(
        "Whether it was made of lower-case text; by default, whether no token has capital letters.",
        "--lowercase/--cased",
        panel=_OF_A_VOCABULARY,
        show_default=False,
    ),
]
StripAccents = Annotated[
    bool | None,
    option(
        "Whether that text had no accents; by default, whether it was lower-case and hardly a token has accents.",
        "--strip-accents/--keep-accents",
        panel=_OF_A_VOCABULARY,
        show_default=False,
    ),
]
Track = Annotated[
    list[str] | None,
    option(
        "Also log to trackio, wandb or mlflow. Repeatable; API keys come from the environment.",
        metavar="NAME",
        panel="Trackers",
    ),
]


@dataclass(frozen=True)
class RunOptions:
    reference: RunFile
    overrides: Overrides = None
    init: Annotated[
        PurePath | None,
        path_option(
            "Continue training the model in DIR (an import, an export or a work folder): its settings, tokenizer and weights, "
            "and the optimizer's moments if present. Give it to every command of the run.",
            metavar="DIR",
        ),
    ] = None

    def load(self, *more: str) -> RunConfig:
        """The run's settings, with `more` NAME=VALUE overrides."""
        from tpulm.config import load

        start = None
        if self.init is not None:
            from tpulm.convert.continuing import starting_point

            start = starting_point(self.init)
        return load(self.reference, [*(self.overrides or []), *more], start=start, note=terminal.say_note)


@dataclass(frozen=True)
class TrainingOptions(RunOptions):
    allow_cpu: Annotated[
        bool,
        option(
            "Use whatever devices JAX finds, even without the TPU or GPU that the run asks for or this machine has.",
            "--allow-cpu",
        ),
    ] = False
    track: Track = None

    def load(self, *more: str) -> RunConfig:
        return super().load(*more, *(["hardware.platform=any"] if self.allow_cpu else []), *tracked(self.track))


@dataclass(frozen=True)
class HostOptions:
    coordinator: Annotated[
        str | None,
        option(
            "Address of host 0 as HOST:PORT. Detected on TPU slices, as are the next two options.",
            metavar="ADDRESS:PORT",
            panel=SEVERAL_HOSTS,
        ),
    ] = None
    num_hosts: Annotated[int | None, option("Number of hosts.", panel=SEVERAL_HOSTS)] = None
    host_index: Annotated[int | None, option("Index of this host, from 0.", panel=SEVERAL_HOSTS)] = None

    def membership(self) -> Membership | None:
        from tpulm.runtime import hosts

        return hosts.membership(self.coordinator, self.num_hosts, self.host_index)


def tracked(names: list[str] | None) -> list[str]:
    """The setting that `--track` stands for."""
    return [f"track.to={json.dumps(names)}"] if names else []


def listed(text: str | None) -> list[str]:
    """The parts between commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def rates_of(text: str | None) -> list[float]:
    """What `--learning-rates` names."""
    rates = list[float]()
    for rate in listed(text):
        try:
            rates.append(float(rate))
        except ValueError:
            rates.append(0.0)
        if not 0.0 < rates[-1] < 1.0:
            raise ConfigError(f"--learning-rates {rate}: give numbers between 0 and 1, such as 5e-5,1e-4")
    return rates
