"""What the CUDA driver says of the visible GPUs, printed as JSON: run as a short process of its own.

``python -m engine.hardware.cuda_probe``. The engine never loads the driver itself; asking CUDA rather than NVML
makes ``cuda:i`` mean what it means to a candidate, whatever CUDA_VISIBLE_DEVICES and MIG do to the indices.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid

# CUdevice_attribute, cuda.h
_SM_COUNT, _L2_BYTES, _MAJOR, _MINOR = 16, 38, 75, 76


def main() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return _answer(error=f"no CUDA driver ({error})")
    code = driver.cuInit(0)
    if code:
        return _answer(error=f"the CUDA driver refuses: cuInit returned {code} ({_name(driver, code)})")
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return _answer(devices=[_device(driver, index) for index in range(count.value)])


def _device(driver: ctypes.CDLL, index: int) -> dict[str, object]:
    handle = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(128)
    driver.cuDeviceGetName(name, len(name), handle)
    raw = (ctypes.c_ubyte * 16)()
    # The second version answers with the MIG instance's UUID where there is one.
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    get_uuid(ctypes.byref(raw), handle)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    return {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "uuid": str(uuid.UUID(bytes=bytes(raw))),
        "memory_bytes": memory.value,
        "sm_count": _attribute(driver, handle, _SM_COUNT),
        "l2_bytes": _attribute(driver, handle, _L2_BYTES),
        "compute_capability": [_attribute(driver, handle, _MAJOR), _attribute(driver, handle, _MINOR)],
    }


def _attribute(driver: ctypes.CDLL, handle: ctypes.c_int, which: int) -> int | None:
    value = ctypes.c_int()
    return None if driver.cuDeviceGetAttribute(ctypes.byref(value), which, handle) else value.value


def _name(driver: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(text))
    return text.value.decode() if text.value else "unknown"


def _answer(**document: object) -> int:
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
