"""Records of files that are one document, a JSON array or YAML, each with the line it starts on."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class Item:
    """A record: the line it starts on (from 1), its value, and the text that it was made from."""

    line: int
    value: Any
    text: str = ""


@dataclass(frozen=True)
class Broken:
    """The document cannot be read on from this line; the reason says why."""

    line: int
    reason: str


def json_items(text: str) -> Iterator[Item | Broken]:
    """The elements of a JSON array, one by one; what precedes a mistake is given all the same."""
    decoder = json.JSONDecoder()
    line = 1
    position = counted = _skip(text, 0) + 1
    line += text.count("\n", 0, counted)
    is_first = True
    while True:
        position = _skip(text, position)
        line += text.count("\n", counted, position)
        counted = position
        closes = text[position : position + 1] == "]"
        if closes and _skip(text, position + 1) == len(text):
            return
        if not is_first and not closes:
            if text[position : position + 1] != ",":
                yield Broken(line, "is not JSON from here on: a comma or ] is missing")
                return
            position = _skip(text, position + 1)
            line += text.count("\n", counted, position)
            counted = position
        try:
            value, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            at = f"{error.msg} at line {error.lineno}, character {error.colno}"
            yield Broken(line, f"is not JSON from here on: {at}")
            return
        except RecursionError:
            yield Broken(line, "is JSON that is nested too deeply; nothing after it was read")
            return
        yield Item(line, value, text[position:end])
        line += text.count("\n", counted, end)
        position = counted = end
        is_first = False


def _skip(text: str, position: int) -> int:
    found = SPACE.match(text, position)
    return found.end() if found else position


class _JsonTypes(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML, but instants stay texts, as in the other formats."""


_JsonTypes.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def yaml_items(text: str) -> Iterator[Item | Broken]:
    """The elements of YAML lists, and each document that is no list; instants stay texts."""
    if half := re.search(r"[\ud800-\udfff]", text):
        yield Broken(1 + text.count("\n", 0, half.start()), "is not UTF-8")
        return
    try:
        loader = _JsonTypes(text)
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, error.position)
        yield Broken(line, f"holds a character that YAML does not allow: {error.reason}")
        return
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            is_list = isinstance(node, yaml.SequenceNode)
            for each in node.value if is_list else [node]:
                value = loader.construct_document(each)
                # A document of nothing is what follows a last ---.
                if is_list or value is not None:
                    yield Item(each.start_mark.line + 1, value)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        yield Broken(line, f"is not YAML from here on: {error.problem or error.context}")
    except yaml.reader.ReaderError as error:
        line = 1 + text.count("\n", 0, error.position)
        yield Broken(line, f"holds a character that YAML does not allow: {error.reason}")
    except (RecursionError, ValueError) as error:
        yield Broken(1, f"is not YAML that can be read: {type(error).__name__}")
    finally:
        loader.dispose()
