"""When did kernels, copies and fills run? CUPTI's activity records, read straight from its buffers.

The library is the one torch itself loads. Only the fields needed are decoded: every record used here (kernel,
memcpy, memset) has its kind in the first 4 bytes and start and end, in nanoseconds, at bytes 16 and 24, in all
versions of the structs (``cupti_activity.h``). Building objects for whole records, as Python bindings do, costs
40 µs each, which for a block of short calls was twenty times what the calls themselves took.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from engine.hardware.shared_library import find

MEMCPY, MEMSET, CONCURRENT_KERNEL = 1, 2, 10
_WANTED = frozenset((MEMCPY, MEMSET, 3, CONCURRENT_KERNEL))
_RECORD = struct.Struct("<I12xQQ")
_BUFFER_BYTES = 2 << 20
_ALIGN = 8

_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class Activities:
    """The start and end of everything the device did. Raises ``OSError`` if CUPTI is missing or refuses."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        _, self._library = find("cupti")
        self._buffers: dict[int, Any] = {}
        self._free: list[int] = []
        # CUPTI holds no references of its own.
        self._callbacks = (_Requested(self._request), _Completed(self._complete))
        self._check("cuptiActivityRegisterCallbacks", *self._callbacks)
        for kind in (CONCURRENT_KERNEL, MEMCPY, MEMSET):
            self._check("cuptiActivityEnable", kind)
        self._stamp = ctypes.c_uint64()
        self._now_into = ctypes.byref(self._stamp)
        self._get_timestamp: Callable[[Any], int] = self._library.cuptiGetTimestamp
        self.flush()

    def now(self) -> int:
        """Nanoseconds on the clock of the records."""
        self._get_timestamp(self._now_into)
        return self._stamp.value

    def flush(self) -> None:
        """Everything that has ended is in ``records`` afterwards."""
        self._library.cuptiActivityFlushAll(0)

    def _check(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise OSError(f"CUPTI does not start: {function} returned {status}")

    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        if self._free:
            address = self._free.pop()
        else:
            memory = ctypes.create_string_buffer(_BUFFER_BYTES + _ALIGN)
            address = -(-ctypes.addressof(memory) // _ALIGN) * _ALIGN
            self._buffers[address] = memory
        buffer[0], size[0], most[0] = address, _BUFFER_BYTES, 0

    def _complete(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p()
        place, step = ctypes.byref(record), self._library.cuptiActivityGetNextRecord
        start, length = ctypes.c_void_p(buffer), ctypes.c_size_t(valid)
        found, decode, view = self.records, _RECORD.unpack_from, ctypes.string_at
        while valid and step(start, length, place) == 0 and record.value:
            kind, begin, end = decode(view(record.value, _RECORD.size))
            if kind in _WANTED:
                found.append((begin, end))
        self._free.append(buffer)
