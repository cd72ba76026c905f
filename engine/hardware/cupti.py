"""Where CUPTI's library is: the copy that torch brings, or the toolkit's. No torch, nothing is started."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

_NAMES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")


def find_library() -> tuple[str, ctypes.CDLL]:
    """(name or path, the library). Raises ``OSError`` if there is none."""
    for path in (*_loaded(), *_NAMES, *_packaged()):
        try:
            return path, ctypes.CDLL(path)
        except OSError:
            continue
    raise OSError("libcupti is not installed")


def _loaded() -> list[str]:
    """The copy that is in this process already: two copies would not see each other's subscriptions."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return list(dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libcupti.so" in line))


def _packaged() -> list[str]:
    spec = find_spec("nvidia")
    roots = spec.submodule_search_locations or [] if spec is not None else []
    return [str(path) for root in roots for path in sorted(Path(root).glob("*/lib/libcupti.so.*"))]
