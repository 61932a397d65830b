"""A node's configuration: from flags, the environment, a TOML file and defaults, in this order; checked key by key.

The keys are the fields of `engine.host.server.ServerConfig` and `engine.turn.settings.Settings`; their types, bounds,
defaults and meanings are read from there and said nowhere else. A key is spelled `suspicion_ms` in a file,
`--suspicion-ms` as a flag and `FORESHORE_SUSPICION_MS` in the environment. Nothing is guessed: an unknown key is an
error, and so is a value that is not what the key's type and bounds say; both name the place where they were found.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

import msgspec
from msgspec.inspect import CustomType, EnumType, Field, IntType, ListType, Metadata, StructType, type_info

from engine.errors import UsageError
from engine.host.server import ServerConfig
from engine.turn.settings import FIXED, Settings

ENVIRONMENT = "FORESHORE_"
OTHERS = frozenset({"FORESHORE_JAVA_HOME"})
"""Variables of the same family that are not a node's (`tools.reconcile.session`)."""
_OF_A_SERVICE = re.compile(
    r"FORESHORE_(\w+_)?(PORT|SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""What Kubernetes and compose set by themselves in every container beside a service of that name: nobody meant a node."""
CONFIG_BYTES_MAX = 1 << 20


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key: what it means and what it takes. `default` is None where a value must be given."""

    name: str
    kind: str
    unit: str
    default: str | int | bool | list[str] | None
    least: int | None
    most: int | None
    choices: list[str]
    meaning: str

    @property
    def flag(self) -> str:
        """As an option of the command."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """In the environment."""
        return ENVIRONMENT + self.name.upper()

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.least is not None:
            return f"a whole number{f' of {self.unit}' if self.unit else ''}, {self.least} to {self.most}"
        return {"flag": "true or false", "list": "a list of texts", "path": "a path"}.get(self.kind, "a text")


_NOT_GIVEN = ("settings", "chosen")
"""Fields that are no keys."""
_TYPES: dict[str, object] = {
    field.name: field.type
    for struct in (ServerConfig, Settings)
    for field in msgspec.structs.fields(struct)
    if field.name not in _NOT_GIVEN
}


def _keys() -> dict[str, Key]:
    found: dict[str, Key] = {}
    for struct in (ServerConfig, Settings):
        info = type_info(struct)
        assert isinstance(info, StructType)
        for field in info.fields:
            if field.name not in _NOT_GIVEN:
                found[field.name] = _key(field)
    return found


def _key(field: Field) -> Key:
    assert isinstance(field.type, Metadata), f"{field.name} has no description"
    told = field.type.extra_json_schema or {}
    kind, inner = "text", field.type.type
    least: int | None = None
    most: int | None = None
    choices: list[str] = []
    match inner:
        case IntType():
            kind, least, most = "number", inner.ge, inner.le
        case EnumType(cls):
            choices = [str(member.value) for member in cls]
        case ListType():
            kind = "list"
        case CustomType():
            kind = "path"
        case msgspec.inspect.BoolType():
            kind = "flag"
        case _:
            assert isinstance(inner, msgspec.inspect.StrType), f"{field.name} has a type that no rule covers"
    unit = next((word for mark, word in (("_ms", "ms"), ("_bytes", "bytes")) if mark in field.name), "")
    default = None if field.required else _default(field)
    name, meaning = field.name, str(told["description"])
    return Key(name=name, kind=kind, unit=unit, default=default, least=least, most=most, choices=choices, meaning=meaning)


def _default(field: Field) -> str | int | bool | list[str]:
    default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    if isinstance(default, Enum):
        return str(default.value)
    assert isinstance(default, str | int | list), f"{field.name} has a default that no rule covers"
    return default


KEYS: dict[str, Key] = _keys()


def load(
    flags: Mapping[str, str | bool | None], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> ServerConfig:
    """The configuration that these say together. Raises UsageError with the key, what was expected and what was found."""
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    if file is not None:
        for name, value in _read(file).items():
            values[name] = checked(_known(name, KEYS, f"in {file}"), value, f"in {file}", text=False)
    variables = {key.variable: key.name for key in KEYS.values()}
    for variable, text in environment.items():
        ours = variable.startswith(ENVIRONMENT) and variable not in OTHERS
        if ours and (variable in variables or not _OF_A_SERVICE.fullmatch(variable)):
            name = variables[_known(variable, variables, "in the environment")]
            values[name] = checked(name, text, f"in {variable}", text=True)
    for name, given in flags.items():
        if given is not None:
            values[name] = given if isinstance(given, bool) else checked(name, given, f"in {KEYS[name].flag}", text=True)
    missing = [key for key in KEYS.values() if key.default is None and key.name not in values]
    if missing:
        key = missing[0]
        raise UsageError(
            f"{key.name} is missing ({key.meaning}): give {key.flag}, {key.variable}, or {key.name} in the file of --config"
        )
    chosen = frozenset(FIXED).intersection(values)
    settings = Settings(**{name: values.pop(name) for name in Settings.__struct_fields__ if name in values})  # type: ignore[arg-type]  # `checked` made each by its field's type
    return ServerConfig(**values, settings=settings, chosen=chosen)  # type: ignore[arg-type]  # as above


def checked(name: str, value: object, where: str, *, text: bool) -> object:
    """A value as its key's type; `text` comes from where everything is text. Raises UsageError."""
    key = KEYS[name]
    given = value
    if text and key.kind == "list":
        given = [part.strip() for part in str(value).split(",") if part.strip()]
    try:
        if key.kind in {"text", "path"} and not str(value).isprintable():
            raise ValueError
        if key.kind == "path":
            if not isinstance(value, str) or not value:
                raise ValueError
            return Path(value).expanduser()
        return msgspec.convert(given, _TYPES[name], strict=not text)
    except ValueError:
        raise UsageError(f"{name} is {value!r} {where}: expected {key.expected}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` if something that is known is near, or else where to look."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else "`foreshore node config` lists what there is"


def toml_line(key: Key) -> str:
    """A key as a line of a configuration file, with its default and its meaning."""
    told = f"{key.meaning} ({key.expected})"
    if key.default is None:
        return f"# {key.name} = ...  # {told}; it must be given"
    return f"{key.name} = {msgspec.json.encode(key.default).decode()}  # {told}"


def _known(name: str, known: Iterable[str], where: str) -> str:
    names = list(known)
    if name not in names:
        raise UsageError(f"{name!r} {where} is not a key of a node's configuration: {nearest(name, names)}")
    return name


def _read(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            data = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read the configuration {file}: {error.strerror}") from None
    if len(data) > CONFIG_BYTES_MAX:
        raise UsageError(f"the configuration {file} is larger than {CONFIG_BYTES_MAX} bytes: expected a TOML file of keys")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration {file} is not TOML: {error}") from None
