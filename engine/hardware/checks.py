"""The single checks of ``kernelarc doctor``. Each is a function of what it looks at, returns, and never raises."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine import paths
from engine.errors import KernelArcError
from engine.hardware.facts import CudaProbe, cpu_facts, package_version, torch_has_cuda
from engine.hardware.shared_library import find
from engine.model_keys import keys_set
from engine.text import clean, redact

OK, WARN, FAIL, ABSENT = "ok", "warn", "fail", "absent"
COMMAND_S = 10.0
LOW_DISK_BYTES = 2 << 30
NETWORK_FILE_SYSTEMS = ("nfs", "lustre", "cifs", "smb", "9p", "fuse", "gpfs", "beegfs", "ceph", "afs", "glusterfs")
WAL_RESET_FIXED = (3, 51, 3)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """``status``: ok, warn (works, worse), fail (a CPU campaign cannot work), absent (not here, not needed)."""

    name: str
    status: str
    detail: str
    fix: str = ""


def python() -> Check:
    return Check(name="python", status=OK, detail=f"{sys.version.split()[0]} at {sys.executable}")


def torch() -> Check:
    version = package_version("torch")
    if version is None:
        return Check(name="torch", status=FAIL, detail="not installed", fix="pip install 'torch>=2.10'")
    build = "with CUDA" if torch_has_cuda() else "CPU only"
    triton = package_version("triton")
    extra = f", triton {triton}" if triton else ", no triton"
    return Check(name="torch", status=OK, detail=f"{version} ({build}){extra}")


def processor() -> Check:
    facts = cpu_facts()
    cores = facts.cores or 0
    memory = (facts.memory_bytes or 0) / 2**30
    detail = f"{facts.name}, {cores} cores, {memory:.0f} GiB"
    if cores < 2:
        fix = "two cores let one be kept for timing"
        return Check(name="cpu", status=WARN, detail=f"{detail}: compiling disturbs timing", fix=fix)
    return Check(name="cpu", status=OK, detail=detail)


def gpus(probe: CudaProbe) -> list[Check]:
    if not probe.devices:
        return [Check(name="gpu", status=ABSENT, detail=probe.error or "CUDA shows no device")]
    found = []
    for gpu in probe.devices:
        capability = ".".join(str(part) for part in gpu.compute_capability)
        detail = f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, compute capability {capability}"
        found.append(Check(name=f"cuda:{gpu.index}", status=OK, detail=detail))
    if not torch_has_cuda():
        fix = "install a CUDA build of torch to run campaigns on the GPU"
        found.append(Check(name="gpu", status=WARN, detail="the installed torch cannot use it", fix=fix))
    return found


def nvml(driver: str | None, uuids: list[str] | None, probe: CudaProbe) -> Check:
    if driver is not None:
        return Check(name="nvml", status=OK, detail=f"driver {driver}, {len(uuids or [])} GPU(s) readable")
    if probe.devices:
        fix = "telemetry stays empty; check that libnvidia-ml.so.1 is visible here"
        return Check(name="nvml", status=WARN, detail="cannot be used or does not answer", fix=fix)
    return Check(name="nvml", status=ABSENT, detail="no NVIDIA driver library")


def cupti(probe: CudaProbe) -> Check:
    if not probe.devices:
        return Check(name="cupti", status=ABSENT, detail="needed on a GPU only")
    try:
        path, _ = find("cupti")
    except OSError:
        fix = "pip install nvidia-cuda-cupti times kernels by CUPTI instead of CUDA events"
        return Check(name="cupti", status=WARN, detail="libcupti is not installed", fix=fix)
    return Check(name="cupti", status=OK, detail=Path(path).name)


def host_compiler() -> Check:
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return Check(
                name="c++ compiler", status=OK, detail=f"{_version_line([found, '--version'])} at {found}"
            )
    fix = "apt-get install g++; torch.compile on the CPU and C++ solutions need it"
    return Check(name="c++ compiler", status=WARN, detail="none found", fix=fix)


def cuda_compiler(probe: CudaProbe) -> Check:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = shutil.which("nvcc") or shutil.which(f"{home}/bin/nvcc")
    if found:
        return Check(name="nvcc", status=OK, detail=f"{_version_line([found, '--version'], -1)} at {found}")
    if probe.devices:
        fix = "CUDA C++ and CUTLASS solutions need the CUDA toolkit; Triton ones do not"
        return Check(name="nvcc", status=WARN, detail="not found", fix=fix)
    return Check(name="nvcc", status=ABSENT, detail="needed for CUDA C++ on a GPU only")


def sandbox(layers: Mapping[str, str] | None) -> list[Check]:
    """``layers``: name → ``on`` or ``off: why`` as the bench found them; ``None`` if it could not look."""
    if layers is None:
        return [Check(name="sandbox", status=WARN, detail="the layers could not be tried")]
    outer = [name for name in ("bubblewrap", "namespaces") if layers.get(name) == "on"]
    found = [
        Check(name=f"sandbox {name}", status=OK if state == "on" else ABSENT, detail=clean(state, 300))
        for name, state in layers.items()
    ]
    if not outer:
        fix = "apt-get install bubblewrap, or allow unprivileged user namespaces"
        detail = "no outer layer works: candidates could read your files and reach the network"
        found.append(Check(name="sandbox", status=WARN, detail=detail, fix=fix))
    return found


def python_path() -> list[Check]:
    """Packages that only PYTHONPATH shows are not there for candidates; nothing to say where there are none."""
    from engine.bench.sandbox import hidden_paths

    hidden = hidden_paths()
    if not hidden:
        return []
    detail = f"candidates do not see {', '.join(hidden)}"
    fix = "install what they need into this environment"
    return [Check(name="PYTHONPATH", status=WARN, detail=detail, fix=fix)]


def ptrace(path: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> Check:
    scope = _read(path)
    if scope is None:
        return Check(name="ptrace scope", status=ABSENT, detail="no yama in this kernel")
    if scope == "0":
        fix = "sysctl kernel.yama.ptrace_scope=1; a sandbox with its own process namespace covers it too"
        return Check(
            name="ptrace scope", status=WARN, detail="0: processes of one user may trace each other", fix=fix
        )
    return Check(name="ptrace scope", status=OK, detail=scope)


def sqlite() -> Check:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < (3, 35):
        return Check(name="sqlite", status=FAIL, detail=f"{version} is too old", fix="use 3.35 or later")
    note = ""
    if sqlite3.sqlite_version_info < WAL_RESET_FIXED:
        note = "; older than 3.51.3 (WAL-reset bug), harmless here: the engine alone writes and checkpoints"
    return Check(name="sqlite", status=OK, detail=version + note)


def state_folder() -> Check:
    """Where campaigns are stored: writable, local, with room."""
    home = paths.home()
    existing = next(folder for folder in (home, *home.parents) if os.path.exists(folder))  # noqa: PTH110 - never raises
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = "set KERNELARC_HOME to a folder of yours"
        return Check(name="state folder", status=FAIL, detail=f"{home} cannot be written", fix=fix)
    if existing != home:
        try:
            Path(tempfile.mkdtemp(dir=existing)).rmdir()
        except OSError as error:  # permissions say yes, and yet: /proc, a full quota
            fix = "set KERNELARC_HOME to a folder of yours"
            detail = f"{home} cannot be created ({error.strerror})"
            return Check(name="state folder", status=FAIL, detail=detail, fix=fix)
    kind = file_system_of(existing)
    free = shutil.disk_usage(existing).free
    detail = f"{home} on {kind or 'an unknown file system'}, {free / 2**30:.1f} GiB free"
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        fix = "SQLite's WAL needs one host: set KERNELARC_HOME to a local disk"
        return Check(name="state folder", status=WARN, detail=detail, fix=fix)
    if free < LOW_DISK_BYTES:
        return Check(name="state folder", status=WARN, detail=detail, fix="free some space there")
    return Check(name="state folder", status=OK, detail=detail)


def lock_folder() -> Check:
    try:
        folder = paths.lock_dir()
    except (KernelArcError, OSError) as error:
        return Check(name="lock folder", status=FAIL, detail=_why(error), fix="device locks need it")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            name="lock folder", status=FAIL, detail=f"{folder} cannot be written", fix="set its mode to 1777"
        )
    return Check(name="lock folder", status=OK, detail=str(folder))


def runtime_folder() -> Check:
    try:
        folder = paths.runtime_dir(create=True)
    except (KernelArcError, OSError) as error:
        fix = "control sockets need it: set XDG_RUNTIME_DIR to a folder of yours with mode 0700"
        return Check(name="runtime folder", status=FAIL, detail=_why(error), fix=fix)
    return Check(name="runtime folder", status=OK, detail=str(folder))


def keys(environ: Mapping[str, str] = os.environ) -> Check:
    """Which model keys are set: names only."""
    found = keys_set(environ)
    if found:
        return Check(name="api keys", status=OK, detail=", ".join(found))
    detail = "none set: agents with recipes, replay and inbox need none"
    return Check(name="api keys", status=ABSENT, detail=detail, fix="export the key of your model's provider")


def endpoint(base: str, timeout_s: float = 3.0) -> Check:
    """Asks an OpenAI-compatible server for its models."""
    import httpx

    shown = redact(base)
    headers = {}
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        answer = httpx.get(
            f"{base.rstrip('/')}/models", headers=headers, timeout=timeout_s, follow_redirects=False
        )
        names = [str(item["id"]) for item in answer.json()["data"]] if answer.status_code == 200 else []
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        fix = "start the server, or correct --api-base"
        return Check(name="model server", status=WARN, detail=f"{shown}: {_why(error)}", fix=fix)
    except (ValueError, KeyError, TypeError):
        return Check(name="model server", status=WARN, detail=f"{shown}: answers, but not as an OpenAI API does")
    if answer.status_code != 200:
        fix = "check the key and the path; the base usually ends in /v1"
        return Check(name="model server", status=WARN, detail=f"{shown}: HTTP {answer.status_code}", fix=fix)
    listed = ", ".join(clean(name, 60) for name in names[:4]) + (" …" if len(names) > 4 else "")
    return Check(name="model server", status=OK, detail=f"{shown}: {len(names)} models ({listed})")


def terminal(environ: Mapping[str, str] = os.environ, is_tty: bool | None = None) -> Check:
    """What a screen may use here."""
    tty = sys.stdout.isatty() if is_tty is None else is_tty
    term = environ.get("TERM", "")
    size = shutil.get_terminal_size()
    colours = "truecolor" if environ.get("COLORTERM") in ("truecolor", "24bit") else "256 colours"
    if "256" not in term and colours != "truecolor":
        colours = "16 colours"
    if environ.get("NO_COLOR"):
        colours = "no colour (NO_COLOR)"
    parts = [f"TERM={term or 'unset'}", colours, f"{size.columns}x{size.lines}"]
    for name, variable in (("tmux", "TMUX"), ("screen", "STY"), ("ssh", "SSH_CONNECTION")):
        if environ.get(variable):
            parts.append(name)
    encoding = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    utf8 = bool(re.search(r"utf-?8", encoding, re.IGNORECASE))
    parts.append(f"locale {encoding or 'unset'}")
    detail = ", ".join(parts)
    if not tty or term in ("", "dumb"):
        return Check(
            name="terminal", status=ABSENT, detail=f"{detail}: plain text only", fix="use `kernelarc status`"
        )
    if not utf8:
        return Check(name="terminal", status=WARN, detail=detail, fix="export LC_ALL=C.UTF-8 for lines and blocks")
    if size.columns < 80 or size.lines < 24:
        return Check(name="terminal", status=WARN, detail=detail, fix="80x24 shows every panel")
    return Check(name="terminal", status=OK, detail=detail)


def file_system_of(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds ``folder``: the last, longest mount point above it."""
    best, kind = "", ""
    for line in (_read(mountinfo) or "").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        inside = point == "/" or folder == Path(point) or Path(point) in folder.parents
        if inside and len(point) >= len(best):
            best, kind = point, right.split(" ")[0]
    return kind


def _version_line(argv: list[str], line: int = 0) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _why(error)
    lines = done.stdout.strip().splitlines()
    return clean(lines[line], 120) if lines else f"exit status {done.returncode}"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _why(error: Exception) -> str:
    return redact(" ".join(str(error).split())) or type(error).__name__
