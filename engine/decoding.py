"""Documents that somebody else wrote, decoded: whatever is wrong with one is a :class:`BadInput`.

A decoder's own error is not all that a document can cause: nesting ends in ``RecursionError``, and YAML's
constructors raise what Python's do for a date, number or tag that cannot be.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import BadInput
from engine.text import one_line

_PAIR = re.compile(rb"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89a-fA-F][0-9a-fA-F]{2})")
_MERGE = "tag:yaml.org,2002:merge"
DEEP = "nested too deeply"
_YAML_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def decode_json(data: bytes | str, *, where: str, kind: Any = Any, what: str = "", fix: str = "") -> Any:
    """One JSON document as ``kind``, without its byte order mark. Raises :class:`BadInput`: what and where."""
    text = data.removeprefix(codecs.BOM_UTF8) if isinstance(data, bytes) else data.removeprefix("\ufeff")
    return _decoded(msgspec.json.decode, text, where, kind, what, fix)


def decode_msgpack(data: bytes, *, where: str, kind: Any = Any, fix: str = "") -> Any:
    """One MessagePack document as ``kind``. Raises :class:`BadInput`."""
    return _decoded(msgspec.msgpack.decode, data, where, kind, "", fix)


def _decoded(decode: Any, data: bytes | str, where: str, kind: Any, what: str, fix: str) -> Any:
    try:
        return decode(data, type=kind)
    except RecursionError:
        why = DEEP
    except (msgspec.MsgspecError, UnicodeError) as error:
        why = _why_not(data, error)
    raise BadInput(f"{what}: {why}" if what else why, where=where, fix=fix)


def _why_not(data: bytes | str, error: Exception) -> str:
    """What is wrong with a document; half of a surrogate pair has no clear message."""
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    lone = _SURROGATE.search(_PAIR.sub(rb"\1", raw))
    if lone is not None:
        return f"{lone[1].decode()} is half of a surrogate pair and no character"
    return str(error)


def read_yaml(path: Path, kind: Any = Any, *, fix: str = "") -> Any:
    """A YAML file as ``kind``. Raises :class:`BadInput`: file, line or field; ``fix`` is for a wrong field."""
    return parse_yaml(read_text(path), kind, where=str(path), fix=fix)


class MissingFile(BadInput):
    """There is no such file, which some readers take for an empty one."""


def read_text(path: Path) -> str:
    """A text file. Raises :class:`BadInput`, :class:`MissingFile` if there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise MissingFile(f"cannot be read ({error.strerror})", where=str(path)) from None
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror or error})", where=str(path)) from None
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8"
        raise BadInput(f"is not UTF-8 text (byte {error.start})", where=str(path), fix=fix) from None


def parse_yaml(
    text: str, kind: Any = Any, *, where: str, what: str = "is not valid YAML", above: int = 0, fix: str = ""
) -> Any:
    """``text`` as ``kind``. ``above``: lines of the file before it. Raises as :func:`read_yaml` does."""
    import yaml

    try:
        return msgspec.convert(yaml.load(text, Loader=_loader()), kind)
    except yaml.YAMLError as error:
        remedy = "correct it; a text may need quotes"
        raise BadInput(f"{what} ({_place(error, above)})", where=where, fix=remedy) from None
    except RecursionError:
        raise BadInput(f"{what} ({DEEP})", where=where, fix="write fewer levels") from None
    except msgspec.ValidationError as error:
        raise BadInput(str(error), where=where, fix=fix) from None


def _place(error: Exception, above: int) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = one_line(getattr(error, "problem", None) or str(error))
    return f"line {mark.line + 1 + above}: {problem}" if mark else problem


def _loader() -> Any:
    """The safe loader, whose errors all say where they are."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc, valid-type]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            written: set[str] = set()  # before `<<` adds what is merged in
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                    continue
                if key.value in written:
                    what = f"{one_line(key.value, 40)!r} is written twice"
                    raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
                written.add(key.value)
            return super().construct_mapping(node, deep=deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except _YAML_ERRORS as error:
                value = node.value if isinstance(node.value, str) else node.tag
                what = f"{one_line(str(value), 40)!r} cannot be read as {node.tag.rpartition(':')[2]} ({error})"
                raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from None

    return Loader
