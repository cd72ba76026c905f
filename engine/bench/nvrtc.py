"""CUDA source to machine code without a toolkit: the compiler that torch brings along, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from engine.hardware.shared_library import find


def compile_cuda(source: str, capability: tuple[int, int], options: Sequence[str] = ()) -> bytes:
    """A module for exactly that compute capability. Raises ``OSError`` if there is no compiler or it refuses."""
    _, library = find("nvrtc")
    words = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", *options]
    flags = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def check(status: int, what: str) -> None:
        if status:
            raise OSError(f"nvrtc: {what} returned {status}: {_log(library, program)}")

    text = source.encode()
    check(library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernelarc.cu", 0, None, None), "create")
    try:
        check(library.nvrtcCompileProgram(program, len(words), flags), "compile")
        check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)), "size")
        code = ctypes.create_string_buffer(size.value)
        check(library.nvrtcGetCUBIN(program, code), "code")
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    if not program or library.nvrtcGetProgramLogSize(program, ctypes.byref(size)):
        return ""
    log = ctypes.create_string_buffer(max(size.value, 1))
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode("utf-8", "replace")[:500]
