"""YAML as people write settings in it, and within bounds: any text gives plain values or one message."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from hacpo_fast.errors import UserError

MOST_VALUES = 100_000
"""Of one text, each use of an alias counted: a few lines of aliases of aliases can stand for billions."""

DEEPEST = 50
"""Brackets within brackets. Settings need fewer than ten; what walks through them later is recursive."""


def parse(text: str) -> Any:
    """The value that `text` stands for: dictionaries, lists, text, numbers, booleans and None.

    Unlike in plain YAML, 1e-6 is a number, as people expect, 2026-01-31 is text, and a key that stands twice is an
    error, as are aliases that contain themselves. Raises UserError, which says where in the text.
    """
    loader = None
    try:
        loader = _Loader(text)  # reads the text's characters already
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {}, [])
        return loader.construct_document(node)
    except RecursionError:
        raise UserError("brackets within brackets, too deep to read") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an explicit !!float of something else
        raise UserError(str(error)) from None
    except (LookupError, AttributeError):  # an explicit !!bool, !!int or !!timestamp of something else
        raise UserError("a value is not of the type that its !!tag says; leave the tag out") from None
    finally:
        if loader is not None:
            loader.dispose()


_MERGE = "tag:yaml.org,2002:merge"
_TEXT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
"""What is text here without quotes: dates, and a single =."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _TEXT]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream):
        super().__init__(stream)
        self._flattened: set[yaml.Node] = set()

    def construct_yaml_int(self, node):
        try:
            return super().construct_yaml_int(node)
        except ValueError:
            digits = len(node.value)
            raise yaml.constructor.ConstructorError(
                None, None, f"no number that can be read ({digits} digits)", node.start_mark
            ) from None

    def flatten_mapping(self, node):
        # Not that of the base class, which lets the last of `<<: [*a, *b]` win, and at times what was replaced.
        if node in self._flattened:  # as itself, or where another mapping takes it over
            return
        self._flattened.add(node)
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        keys = [self.construct_object(key, deep=True) for key, _ in own]
        for number, key in enumerate(keys):
            if keys.count(key) > 1:
                again, _ = own[keys.index(key, number + 1)]
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' stands twice", again.start_mark)
        taken_over: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                taken_over += value.value if isinstance(value, yaml.SequenceNode) else [value]
        below = []
        for other in reversed(taken_over):  # of equal keys the last in `node.value` wins: own ones, then the first `<<`
            if not isinstance(other, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(None, None, "<< needs a mapping, or several", other.start_mark)
            self.flatten_mapping(other)
            below += other.value
        node.value = [*below, *own]


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _measure(node: yaml.Node, known: dict[yaml.Node, int], above: list[yaml.Node]) -> int:
    """Values that a node stands for. `known`: those of nodes counted before; `above`: the nodes around this one."""
    if node in known:
        return known[node]
    if node in above:
        raise yaml.composer.ComposerError(None, None, "an alias that contains itself", node.start_mark)
    if len(above) >= DEEPEST:
        raise yaml.composer.ComposerError(None, None, f"more than {DEEPEST} levels of brackets", node.start_mark)
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    else:
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
    known[node] = 1 + sum(_measure(part, known, [*above, node]) for part in parts)
    if known[node] > MOST_VALUES:
        raise yaml.composer.ComposerError(None, None, f"stands for more than {MOST_VALUES} values", node.start_mark)
    return known[node]
