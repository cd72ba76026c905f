"""Where safetensors inputs lie, and what their headers say (read without torch)."""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec

from engine.decoding import decode_json
from engine.errors import BadInput
from engine.problems.files import is_plain

_MAX_HEADER = 64 * 1024 * 1024
_MAX_PARTS = 64  # of a path, that are left out one by one


class TensorHeader(msgspec.Struct, frozen=True):
    """One tensor as its file's header describes it; ``dtype`` is safetensors' own tag (``F32``)."""

    dtype: str
    shape: list[int]


def resolve_blob(path: str, root: str | Path | None) -> Path | None:
    """The file of a safetensors input, or ``None`` if it is nowhere.

    Looked for under the problem's folder, then under ``$FLASHINFER_TRACE_DIR``, then as given; under a folder,
    leading parts of the path are stripped one by one until something exists (a trace path often repeats the
    dataset's own folder names). A link in the problem's folder must stay there or in the dataset; the dataset's
    own may lead anywhere, as a download cache's do. Raises :class:`BadInput` for a path that climbs with ``..``.
    """
    given = PurePosixPath(path)
    if ".." in given.parts and not given.is_absolute():
        fix = "use a path below the problem's folder or $FLASHINFER_TRACE_DIR"
        raise BadInput(f"the safetensors path {path!r} leads out of its folder", fix=fix)
    dataset = os.environ.get("FLASHINFER_TRACE_DIR")
    roots = [Path(r) for r in (root, dataset) if r]
    if not given.is_absolute():
        for folder in roots:
            for start in range(min(len(given.parts), _MAX_PARTS)):
                candidate = folder.joinpath(*given.parts[start:])
                if dataset and folder == Path(dataset) and is_plain(candidate):
                    return candidate
                if any(is_plain(candidate, place) for place in roots):
                    return candidate
    as_given = Path(path)
    return as_given if is_plain(as_given) else None


def blob_header(file: Path) -> dict[str, TensorHeader]:
    """Names, types and shapes in a safetensors file. Raises :class:`BadInput` if it is not one."""
    info = file.stat()
    return _read_header(file, info.st_mtime_ns, info.st_size)


@lru_cache(maxsize=256)
def _read_header(file: Path, mtime_ns: int, size: int) -> dict[str, TensorHeader]:
    try:
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(_MAX_HEADER, size):
                raise BadInput("not a safetensors file", where=str(file), fix="download it again")
            header = stream.read(length)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(file)) from None
    said = {"where": str(file), "what": "the safetensors header cannot be read", "fix": "download it again"}
    raw: dict[str, msgspec.Raw] = decode_json(header, kind=dict[str, msgspec.Raw], **said)
    return {
        name: decode_json(bytes(entry), kind=TensorHeader, **said)
        for name, entry in raw.items()
        if name != "__metadata__"
    }
