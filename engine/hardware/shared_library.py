"""Where NVIDIA's libraries are: the copy that torch brings, or the toolkit's. No torch, nothing is started."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

_MAJORS = (13, 12)


def find(stem: str) -> tuple[str, ctypes.CDLL]:
    """(name or path, the library), ``stem`` such as ``cupti``. Raises ``OSError`` if there is none."""
    names = (*(f"lib{stem}.so.{major}" for major in _MAJORS), f"lib{stem}.so")
    for path in (*_loaded(stem), *names, *_packaged(stem)):
        try:
            return path, ctypes.CDLL(path)
        except OSError:
            continue
    raise OSError(f"lib{stem} is not installed")


def _loaded(stem: str) -> list[str]:
    """The copy that is in this process already: two copies would not see each other's state."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    lines = [line for line in maps.splitlines() if f"/lib{stem}.so" in line]
    return list(dict.fromkeys(line.split(maxsplit=5)[5] for line in lines))


def _packaged(stem: str) -> list[str]:
    spec = find_spec("nvidia")
    roots = spec.submodule_search_locations or [] if spec is not None else []
    return [str(path) for root in roots for path in sorted(Path(root).glob(f"*/lib/lib{stem}.so.*"))]
