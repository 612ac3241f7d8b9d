"""Where settings come from: flags, then environment, then a TOML file, then the defaults.

Called by the front door. Whatever is not a setting is refused here, by name and with the nearest
name that is one; so is a value out of range, with the place that gave it.
"""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import AliasChoices, ByteSize, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from .flags import Parser, nearest
from .settings import Settings

PREFIX = "PACELINE_"
CONFIG_VARIABLE = PREFIX + "CONFIG"

_RULES = {"byte_size": "should be a size such as 2GiB"}


class SettingsError(ValueError):
    """A setting that cannot be used: one sentence that names it and where it was given."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` a flag per setting, grouped, plus --config. Values stay strings."""
    parser.add_argument("--config", metavar="FILE", help=f"TOML file, or {CONFIG_VARIABLE}")
    for group, names in Settings.groups().items():
        section = parser.add_argument_group(group)
        for name in names:
            field = Settings.model_fields[name]
            section.add_argument(
                *(_flag(spelling) for spelling in _spellings(name)),
                dest=name,
                metavar=_metavar(name, field.annotation),
                default=argparse.SUPPRESS,
                help=_help(field.description or "", field.default),
            )


def read_flags(
    parser: Parser, argv: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """A command's own flags, which the parser has, and what `load` wants of those that it shares
    with `serve`. Raises UsageError."""
    own = [action.dest for action in parser._actions if action.dest != "help"]
    add_flags(parser)
    flags = vars(parser.parse_strictly(argv))
    mine = {name: flags.pop(name) for name in own}
    config = flags.pop("config")
    return mine, flags, config


def load(flags: dict[str, Any], config: str | None = None) -> Settings:
    """The effective settings. `flags` maps field names to values; `config` is a TOML file.

    Without `config` the file is the one PACELINE_CONFIG names, if it does. Raises SettingsError.
    """
    config = config or os.environ.get(CONFIG_VARIABLE) or None
    from_file = InitSettingsSource(Settings, _read(config) if config else {})
    _refuse_unknown_variables()

    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, from_file

    try:
        layered = Layered(**flags)
    except ValidationError as error:
        raise SettingsError(_sentence(error, flags, config)) from None
    return Settings(**layered.model_dump(exclude_unset=True))


def to_toml(settings: Settings) -> str:
    """The settings as a TOML file that `load` reads back to an equal Settings."""
    lines: list[str] = []
    for group, names in Settings.groups().items():
        lines.append(f"# {group}")
        lines += [f"{name} = {_toml_value(getattr(settings, name))}" for name in names]
        lines.append("")
    return "\n".join(lines)


def _read(config: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(Path(config).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {config}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{config} is not valid TOML: {error}") from None
    known = list(_all_spellings())
    for key in values:
        if key not in known:
            raise SettingsError(f'unknown key "{key}" in {config}{nearest(key, known)}')
    return values


def _refuse_unknown_variables() -> None:
    known = [CONFIG_VARIABLE, *map(_variable, _all_spellings())]
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise SettingsError(f"unknown environment variable {name}{nearest(name, known)}")


def _sentence(error: ValidationError, flags: dict[str, Any], config: str | None) -> str:
    """All complaints in one sentence, each with its field, its value and its source."""
    complaints: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        text = _RULES.get(detail["type"], detail["msg"])
        text = text.removeprefix("Value error, ").removeprefix("Input ")
        if not detail["loc"]:
            complaints.setdefault(text, [])
            continue
        name = _canonical(str(detail["loc"][0]))
        given = f"got {detail['input']!r} from {_source(name, flags, config)}"
        complaints.setdefault(f"{name} ({given})", []).append(text)
    return "; ".join(f"{head} {' or '.join(texts)}".strip() for head, texts in complaints.items())


def _source(name: str, flags: dict[str, Any], config: str | None) -> str:
    if name in flags:
        return _flag(name)
    present = {variable.upper() for variable, value in os.environ.items() if value}
    for variable in map(_variable, _spellings(name)):
        if variable in present:
            return variable
    return config or "the defaults"


def _spellings(name: str) -> list[str]:
    alias = Settings.model_fields[name].validation_alias
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]


def _all_spellings() -> Iterator[str]:
    for name in Settings.model_fields:
        yield from _spellings(name)


def _canonical(spelling: str) -> str:
    return next(name for name in Settings.model_fields if spelling in _spellings(name))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _help(description: str, default: object) -> str:
    shown = str(default).lower() if isinstance(default, bool) else default
    text = description if default is None else f"{description} Default: {shown}."
    return text.replace("%", "%%")


def _metavar(name: str, annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "{" + ",".join(get_args(annotation)) + "}"
    if annotation is bool:
        return "{true,false}"
    kinds = {
        int: "N",
        float: "X",
        ByteSize: "SIZE",
        Path: "DIR" if name.endswith("_dir") else "FILE",
    }
    for kind in (annotation, *get_args(annotation)):
        if kind in kinds:
            return kinds[kind]
    return name.rpartition("_")[2].upper()


def _toml_value(value: object) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)
