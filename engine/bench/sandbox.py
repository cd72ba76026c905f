"""How trusted helper processes (zygote, judge) are exec'd: inside a sandbox, with an allow-list environment.

Candidates are forked from the zygote, so whatever the zygote cannot see or reach, they cannot either, and /proc
shows them an environment without secrets.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

_ENGINE = Path(__file__).resolve().parent.parent

# Environment variables that may pass through unchanged; everything else stays outside.
_ALLOWED = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "TRITON_LIBCUDA_PATH",
    "CUTLASS_DIR",
)

# Compilers that Triton, torch.compile and C++ solutions need; toolkits often live outside the system's folders.
_TOOLS = ("nvcc", "g++", "gcc", "ninja")
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/sys", "/nix/store")


class Sandbox(msgspec.Struct, frozen=True):
    """Which outer layer a helper process is started in: ``bubblewrap``, ``namespaces`` or ``none``."""

    kind: str
    layers: dict[str, str]


def choose_sandbox() -> Sandbox:
    """The strongest outer layer this box offers, found by trying it."""
    from engine.bench.probe import outer_sandbox

    return outer_sandbox()


def environment(device: str, threads: int = 1) -> dict[str, str]:
    """What a helper process and its children see; nothing of ours is inherited beyond the allow-list."""
    kept = {name: os.environ[name] for name in _ALLOWED if name in os.environ}
    below_tmp = [prefix for prefix in readable_prefixes() if prefix.startswith("/tmp/")]
    kept.update(
        {
            "PATH": os.pathsep.join(search_path()),
            "HOME": "/tmp",
            # The unprivileged uid has no account, and torch.compile asks who it is.
            "USER": "kernelarc",
            "LOGNAME": "kernelarc",
            "PYTHONPATH": str(_ENGINE.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONNOUSERSITE": "1" if not site.ENABLE_USER_SITE else "",
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
            # An idle sibling that spins would ruin the timing of the one that works.
            "OMP_WAIT_POLICY": "PASSIVE",
            # glibc's moving thresholds make one kernel read 0.3 or 5 ms depending on what ran before.
            # All from one heap that never shrinks: no page faults after warm-up, for either side.
            "MALLOC_MMAP_MAX_": "0",
            "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            # Asking whether there is a GPU must not initialise the driver in a process that forks.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TORCHINDUCTOR_CACHE_DIR": "/tmp/kernelarc/cache/inductor",
            "TRITON_CACHE_DIR": "/tmp/kernelarc/cache/triton",
            "TORCH_EXTENSIONS_DIR": "/tmp/kernelarc/cache/extensions",
            "CUDA_CACHE_PATH": "/tmp/kernelarc/cache/cuda",
            "KERNELARC_KEEP": ":".join(below_tmp),
        }
    )
    if not kept["PYTHONNOUSERSITE"]:
        del kept["PYTHONNOUSERSITE"]
    if device == "cpu":
        kept["CUDA_VISIBLE_DEVICES"] = ""
    return kept


def search_path() -> list[str]:
    """Folders of the interpreter, of the compilers found on our own PATH, and the system's."""
    tools = [shutil.which(tool) for tool in _TOOLS]
    folders = [str(Path(sys.executable).parent), *(str(Path(tool).parent) for tool in tools if tool)]
    return list(dict.fromkeys([*folders, "/usr/local/bin", "/usr/bin", "/bin"]))


def readable_prefixes() -> list[str]:
    """Folders that Python needs: interpreter, environment, packages outside both, and this package itself."""
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(_ENGINE)}
    wanted.add(str(Path(sys.executable).resolve().parent.parent))
    for entry in sys.path:
        if entry.endswith(("site-packages", "dist-packages")) and Path(entry).is_dir():
            wanted.add(entry)
    kept: list[str] = []
    for path in sorted(wanted, key=len):
        covered = any(path == other or path.startswith(f"{other}/") for other in (*kept, *_SYSTEM))
        if not covered and path != "/":
            kept.append(path)
    return kept


def hidden_paths() -> list[str]:
    """Folders that only PYTHONPATH makes importable here. Candidates do not see them: they may hold anything."""
    seen = (*readable_prefixes(), *_SYSTEM, str(_ENGINE.parent))
    named = [os.path.realpath(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return [
        part
        for part in dict.fromkeys(named)
        if Path(part).is_dir() and not any(part == place or part.startswith(f"{place}/") for place in seen)
    ]


_MISSING_MODULE = re.compile(r"No module named '([A-Za-z_]\w*)[.']")


def why_missing(error: str) -> str:
    """What an ImportError's text leaves out: the module is here, but only through PYTHONPATH. Else empty."""
    found = _MISSING_MODULE.search(error)
    for folder in hidden_paths() if found else ():
        place = Path(folder) / found[1]  # type: ignore[index]
        if place.is_dir() or place.with_suffix(".py").is_file():
            return f"; {folder} is only on PYTHONPATH, which candidates do not see: install the package"
    return ""


def command(
    sandbox: Sandbox,
    module: str,
    arguments: Iterable[str],
    env: Mapping[str, str],
    *,
    readable: Iterable[str] = (),
    writable: Iterable[str] = (),
    cuda: bool = False,
) -> list[str]:
    """The argv that starts ``python -m module`` in the sandbox. Inherited descriptors stay open."""
    python = [sys.executable, "-P", "-m", module, *arguments]
    reads = [*_existing(_SYSTEM), *readable_prefixes(), *readable]
    if sandbox.kind == "bubblewrap":
        return [*_bubblewrap(reads, list(writable), env, cuda=cuda), *python]
    if sandbox.kind == "namespaces":
        plan = json.dumps({"read": reads, "write": list(writable), "cuda": cuda, "path": sys.path})
        return [sys.executable, "-P", "-m", "engine.bench.enter", plan, *python]
    return python


def _existing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if Path(path).exists()]


def _bubblewrap(reads: list[str], writes: list[str], env: Mapping[str, str], *, cuda: bool) -> list[str]:
    arguments = [
        shutil.which("bwrap") or "bwrap",
        *("--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        *("--die-with-parent", "--clearenv"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--tmpfs", "/tmp"),
    ]
    for name, value in env.items():
        arguments += ["--setenv", name, value]
    if cuda:
        arguments += [word for node in cuda_devices() for word in ("--dev-bind", node, node)]
    made = {"/tmp", "/"}
    for path, option in [*((p, "--ro-bind") for p in reads), *((p, "--bind") for p in writes)]:
        if Path(path).is_symlink():
            arguments += ["--symlink", str(Path(path).readlink()), path]
            continue
        for parent in reversed(Path(path).parents):
            if str(parent) not in made:
                arguments += ["--perms", "0755", "--dir", str(parent)]
                made.add(str(parent))
        made.add(path)
        arguments += [option, path, path]
    return [*arguments, "--remount-ro", "/", "--chdir", "/", "--"]


def cuda_devices() -> list[str]:
    """Device nodes of the NVIDIA driver, for a sandbox that hides /dev."""
    found = [str(node) for node in Path("/dev").glob("nvidia*")]
    return sorted(found)
