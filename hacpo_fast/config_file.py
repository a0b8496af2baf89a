"""From YAML and `section.key=value` to a `Config`, with errors that name the key and the nearest valid one."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from hacpo_fast import yaml_text
from hacpo_fast.algorithm import presets
from hacpo_fast.config import Config, Section
from hacpo_fast.errors import UserError
from hacpo_fast.limits import no_path

NAME = "<name>"  # stands for a name that the user gives: of an agent, of a way to sample


PLAN = frozenset(("pairs", "methods", "warm_starts"))
"""Keys of hacpo_fast.compare.plan.Plan that no settings have."""


class Setting(NamedTuple):
    key: str
    type: str
    default: Any
    description: str


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """The settings of `path` (YAML; None: nothing but defaults) with `overrides` (`section.key=value`) on top.

    Raises UserError with one line per wrong setting.
    """
    return validate(read(path, overrides), where=str(path) if path is not None else "settings")


def read(path: str | Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The same, as plain dictionaries that nothing has looked at yet.

    `include: FILE` (or a list of files) at the top of a file takes the settings of others as a start, paths being
    relative to that file; what stands below, and later files of the list, replace single settings of it.
    """
    return override({} if path is None else _with_includes(Path(path), ()), overrides)


def override(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of `tree` with `overrides` (`section.key=value`) on top, and right below these the preset they name."""
    copy = merged({}, tree)
    return _put(merged(copy, _preset(_put({}, overrides))), overrides)


def _preset(tree: dict[str, Any]) -> dict[str, Any]:
    """The settings of the preset that `tree` names; an unknown one is left to `Config` to refuse."""
    algorithm = tree.get("algorithm")
    name = algorithm.get("preset") if isinstance(algorithm, dict) else None
    return presets.PRESETS[name].tree() if isinstance(name, str) and name in presets.PRESETS else {}


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """A new tree that has everything of both, of `above` where both have it."""
    result = dict(below)
    for key, value in above.items():
        before = result.get(key, {} if isinstance(value, dict) else None)
        both = isinstance(before, dict) and isinstance(value, dict)
        result[key] = merged(before, value) if both else value
    return result


def _put(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Writes `overrides` into `tree` and returns it."""
    for override in overrides:
        key, equals, text = override.partition("=")
        *sections, name = key.split(".")
        if not equals or not name or not all(sections):
            raise UserError(f"'{_cut(override)}' is not a setting: write section.key=value, for example run.seed=1")
        try:
            value = yaml_text.parse(text)
        except UserError as error:
            raise UserError(f"{_cut(override)}: cannot be read: {_first_line(error)}") from None
        section = tree
        for part in sections:
            if not isinstance(section.get(part), dict):
                section[part] = {}
            section = section[part]
        section[name] = value
    return tree


def validate(plain: Any, where: str = "settings") -> Config:
    """A `Config` from plain dictionaries. An agent set to null is left out (`agents.bob=null`)."""
    if isinstance(plain, dict) and isinstance(plain.get("agents"), dict):
        plain = {**plain, "agents": {name: agent for name, agent in plain["agents"].items() if agent is not None}}
    if isinstance(plain, dict):
        plain = merged(_preset(plain), plain)
        if PLAN & plain.keys():
            raise UserError(
                f"{where}: this looks like the plan of a comparison, for python -m hacpo_fast.compare {where}; the "
                "settings of a run have sections such as task: and agents:"
            )
    try:
        return Config.model_validate(plain)
    except ValidationError as error:
        lines = [f"  {_explain(item)}{_nearest_agent(item['loc'], plain)}" for item in error.errors()]
        raise UserError("\n".join([f"{where}: {len(lines)} setting(s) to mend", *lines])) from None


def settings(section: type[Section] = Config, prefix: str = "") -> Iterator[Setting]:
    """Every setting below `section`, in the order of the file that defines it."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        inner, named = _section_of(field.annotation)
        if inner is not None:
            yield from settings(inner, f"{key}.{NAME}." if named else f"{key}.")
        else:
            yield Setting(key, _type_name(field.annotation), field.get_default(), field.description or "")


def help_text() -> str:
    """All settings with type, default and meaning, one section after the other."""
    lines, last = [], None
    for setting in settings():
        head = setting.key.rpartition(".")[0]
        if head != last:
            lines += ["", f"{head}:"]
            last = head
        default = "required" if setting.default is PydanticUndefined else f"default {_yaml(setting.default)}"
        lines += [f"  {setting.key}  ({setting.type}, {default})", f"      {setting.description}"]
    return "\n".join([*lines, "", presets.help_text()]).lstrip("\n")


def _with_includes(path: Path, includers: tuple[Path, ...]) -> dict[str, Any]:
    if reason := no_path(str(path)):
        raise UserError(f"{_shown(str(path))}: {reason}")
    if path.resolve() in includers:
        circle = " -> ".join(str(file) for file in (*includers, path.resolve()))
        raise UserError(f"include: the files include each other in a circle: {circle}")
    own = _read(path)
    names = own.pop("include", None) or []
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: include: give the path of a YAML file, relative to this one, or a list of them")
    tree: dict[str, Any] = {}
    for name in names:
        try:
            tree = merged(tree, _with_includes(path.parent / name, (*includers, path.resolve())))
        except UserError as error:
            raise UserError(f"{path}: include: {str(error).removeprefix('include: ')}") from None
    return merged(tree, own)


def _read(path: Path) -> dict[str, Any]:
    if path.is_dir() or path.suffix.lower() not in (".yaml", ".yml"):
        raise UserError(f"{path}: not a YAML file; give a .yaml file such as configs/quickstart.yaml")
    try:
        tree = yaml_text.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file{_nearest_file(path)}") from None
    except (OSError, UnicodeDecodeError, UserError) as error:
        raise UserError(f"{path}: not readable as YAML: {error}") from None
    if tree is not None and not isinstance(tree, dict):
        raise UserError(f"{path}: holds a list or a single value; sections such as task: and agents: are expected")
    return tree or {}


def _nearest_file(path: Path) -> str:
    around = [str(p) for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(str(path), around, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _explain(item: dict[str, Any]) -> str:
    *above, last = item["loc"] or ("",)
    key = _cut(".".join(str(part) for part in (*above, last)))
    if item["type"] == "invalid_key" or last == "[key]":
        names = ".".join(str(part) for part in above if part != item["input"])
        return f"{names or 'the file'}: the name {_shown(item['input'])} is no text; put it into quotes"
    if item["type"] == "extra_forbidden":
        return f"{key}: no such setting{_nearest_key(item['loc'])}"
    if item["type"] == "missing":
        described = {setting.key: setting.description for setting in settings()}
        meaning = described.get(".".join(_generic(item["loc"])), "")
        return f"{key}: required but missing" + (f" ({meaning})" if meaning else "")
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] in ("model_type", "dict_type"):
        message = "Input should be a mapping of settings"
    if item["type"] == "string_type" and isinstance(item["input"], (dict, list)):
        return f"{key}: text with braces or brackets needs quotes of its own here: \"{key}='...'\""
    if item["type"] == "value_error" and not isinstance(item["input"], (str, int, float)):
        return f"{key}: {message}" if key else message  # a rule over several settings: its message names them
    return f"{key}: {message}, not {_shown(item['input'])}" if item["type"] != "value_error" else f"{key}: {message}"


def _shown(value: Any, longest: int = 200) -> str:
    """A value as it is written, or what can be said of one that nobody wants to read."""
    if isinstance(value, int) and value.bit_length() > 4 * longest:  # Python itself refuses to write very long ones
        return f"a whole number of about {round(value.bit_length() * 0.30103)} digits"
    return _cut(repr(value), longest)


def _cut(text: str, longest: int = 200) -> str:
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"


def _nearest_key(loc: tuple) -> str:
    """The valid key most like `loc`: in the same section if one is close, else anywhere."""
    parts = _generic(loc)
    keys = [setting.key for setting in settings()]
    keys += sorted({key.rpartition(".")[0] for key in keys if "." in key})
    head, wrong = ".".join(parts[:-1]), parts[-1]
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == head}
    near = [siblings[name] for name in difflib.get_close_matches(wrong, siblings, n=1, cutoff=0.5)]
    if not near:  # right name, wrong section?
        near = [key for key in keys if key.rpartition(".")[2] == wrong][:1]
    if not near:
        near = difflib.get_close_matches(".".join(parts), keys, n=1, cutoff=0.5)
    if not near:
        return f"; this section has {', '.join(siblings)}" if siblings else ""
    names = [str(part) for part, generic in zip(loc, parts, strict=True) if generic == NAME]
    for name in names:
        near[0] = near[0].replace(NAME, name, 1)
    return f"; did you mean {near[0]}?"


def _nearest_agent(loc: tuple, plain: dict[str, Any]) -> str:
    """For an agent without a model, which a misspelt name makes (agents.smal.lr=1e-5): those that have one."""
    if len(loc) != 3 or (loc[0], loc[2]) != ("agents", "model"):
        return ""
    known = [str(name) for name, agent in plain["agents"].items() if isinstance(agent, dict) and agent.get("model")]
    if not known:
        return ""
    near = difflib.get_close_matches(str(loc[1]), known, n=1, cutoff=0.5)
    return f"; did you mean agents.{near[0]}?" if near else f"; agents with a model are {', '.join(known)}"


def _generic(loc: tuple) -> list[str]:
    """`loc` with the names that users give replaced by <name>."""
    parts, section, inner = [], Config, None
    for part in map(str, loc):
        parts.append(part)
        if section is NAME:  # this part is itself a name
            parts[-1], section = NAME, inner
            continue
        field = section.model_fields.get(part) if section else None
        inner, named = _section_of(field.annotation) if field else (None, False)
        section = NAME if named else inner
    return parts


def _section_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The Section inside an annotation, and whether it is a mapping from names to such sections."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is dict:
        inner, _ = _section_of(arguments[1])
        return inner, inner is not None
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for argument in arguments:
            if argument is not type(None):
                return _section_of(argument)
    return None, False


def _type_name(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(map(_yaml, arguments))
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join("empty" if a is type(None) else _type_name(a) for a in arguments)
    if origin is tuple:
        return "[" + ", ".join(map(_type_name, arguments)) + "]"
    if origin is dict:
        return "mapping"
    if origin is list:
        return f"list of {_type_name(arguments[0])}s"
    return {str: "text", int: "whole number", float: "number", bool: "true | false"}.get(annotation, str(annotation))


def _yaml(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
