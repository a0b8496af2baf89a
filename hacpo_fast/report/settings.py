"""A run's settings as YAML, line by line, each beside its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from pydantic_core import PydanticUndefined

from hacpo_fast import config_file
from hacpo_fast.config_file import NAME


class SettingLine(NamedTuple):
    depth: int
    key: str
    value: str | None
    """As YAML; None: a section begins."""
    default: str | None
    """As YAML; None: required, or not known to this version."""
    changed: bool
    """Differs from its default."""


def setting_lines(config: Mapping[str, Any]) -> list[SettingLine]:
    """All settings of config.yaml in their order."""
    defaults = {setting.key: setting.default for setting in config_file.settings()}
    return list(_lines(config, [], 0, defaults))


def differences(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """(key, the value in each run) of all settings in which runs differ; "" where a run lacks it."""
    flat = [dict(_flat(config, [])) for config in configs]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [(key, [as_yaml(each[key]) if key in each else "" for each in flat]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def as_yaml(value: Any) -> str:
    """`value` on one line."""
    if value is None:
        return "null"
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _lines(
    section: Mapping[str, Any], path: list[str], depth: int, defaults: Mapping[str, Any]
) -> Iterator[SettingLine]:
    for key, value in section.items():
        here = [*path, str(key)]
        if isinstance(value, Mapping) and _is_section(here, defaults):
            yield SettingLine(depth, str(key), None, None, False)
            yield from _lines(value, here, depth + 1, defaults)
            continue
        if value is None and _is_section(here, defaults):  # a section that may be left out
            yield SettingLine(depth, str(key), "null", "null", False)
            continue
        default = next((defaults[name] for name in _generic(here) if name in defaults), PydanticUndefined)
        if default is PydanticUndefined:
            yield SettingLine(depth, str(key), as_yaml(value), None, False)
        else:
            default = list(default) if isinstance(default, tuple) else default  # as YAML gives it back
            yield SettingLine(depth, str(key), as_yaml(value), as_yaml(default), value != default)


def _flat(section: Mapping[str, Any], path: list[str]) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        here = [*path, str(key)]
        if isinstance(value, Mapping) and value:
            yield from _flat(value, here)
        else:
            yield ".".join(here), value


def _is_section(path: list[str], defaults: Mapping[str, Any]) -> bool:
    """Whether settings are known below `path`; else a mapping is a value (params)."""
    return any(key.startswith(f"{name}.") for name in _generic(path) for key in defaults)


def _generic(path: list[str]) -> list[str]:
    """Names under which the settings at `path` may be known: any one part may be a name that the user gave."""
    return [".".join(path), *(".".join([*path[:at], NAME, *path[at + 1 :]]) for at in range(1, len(path)))]
