"""Builds a C++/CUDA solution: ``python -m engine.bench.builder FOLDER``, exec'd in the sandbox by the engine.

FOLDER holds the sources under ``src/`` and ``plan.json``; the library ends up as ``FOLDER/<name>.so``. The sources
are foreign, so this runs without network, secrets or write access to anything but FOLDER. Exit code 0, or 1 with
the compiler's words on stderr.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from engine.bench.confine import may_change_user
from engine.bench.machine import total_memory

COMPILED = (".cu", ".cpp", ".cc", ".cxx", ".c")
_MEMORY = min(24 << 30, max(8 << 30, total_memory() * 3 // 4))  # address space: nvcc reserves more than it uses
_PROCESSES = 512
_UID = 60999  # whom compilers run as where we may choose: sources may include what they can read
_FILE = 512 << 20
_SAID = 16 << 10


def main() -> NoReturn:
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "plan.json").read_text())
    _limit()
    _drop(folder)
    os.environ["TORCH_CUDA_ARCH_LIST"] = plan["arch"]
    os.environ["MAX_JOBS"] = str(plan["jobs"])
    sources = [f for f in sorted((folder / "src").iterdir()) if f.suffix in COMPILED]
    try:
        objects = [_compile(folder, plan, source) for source in sources]
        _link(folder, plan, objects)
    except subprocess.CalledProcessError as error:
        sys.stderr.write((error.stdout or "") + (error.stderr or ""))
        sys.exit(1)
    sys.exit(0)


def _limit() -> None:
    """Of each compiler process: a source may try to fill the machine's memory or disk."""
    for kind, value in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_FSIZE, _FILE), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (value, value))


def _drop(folder: Path) -> None:
    if not may_change_user(_UID):
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, _UID, _UID, follow_symlinks=False)
    resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES, _PROCESSES))
    os.setgroups([])
    os.setresgid(_UID, _UID, _UID)
    os.setresuid(_UID, _UID, _UID)


def _run(argv: list[str]) -> None:
    """Raises :class:`CalledProcessError` with the beginning of what the compiler said, however much that is."""
    with tempfile.TemporaryFile() as said:
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False).returncode
        if code:
            said.seek(0)
            raise subprocess.CalledProcessError(code, argv, stderr=said.read(_SAID).decode("utf-8", "replace"))


def _torch() -> Path:
    """The installed package, found without importing it (that alone takes seconds)."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("torch is not installed")
    return Path(spec.origin).parent


def _cuda_home() -> Path:
    """Where the toolkit of the ``nvcc`` on PATH is; packaged wrappers point elsewhere, so its headers decide."""
    nvcc = shutil.which("nvcc")
    named = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
    found = [str(Path(nvcc).resolve().parent.parent)] if nvcc else []
    for place in (*named, *found, "/usr/local/cuda", *map(str, sorted(Path("/usr/local").glob("cuda-*")))):
        if place and (Path(place) / "include" / "cuda_runtime.h").is_file():
            return Path(place)
    return Path("/usr/local/cuda")


def _includes(folder: Path, *, cuda: bool, plain: bool) -> list[str]:
    paths = [str(folder / "src")]
    if not plain:
        torch = _torch() / "include"
        paths += [str(torch), str(torch / "torch/csrc/api/include"), sysconfig.get_paths()["include"]]
    if cuda:
        paths.append(str(_cuda_home() / "include"))
    cutlass = os.environ.get("CUTLASS_DIR", "/usr/local/cutlass")
    return [flag for path in (*paths, f"{cutlass}/include") if Path(path).is_dir() for flag in ("-isystem", path)]


def _compile(folder: Path, plan: dict[str, Any], source: Path) -> str:
    target = str(folder / f"{source.name}.o")
    plain = plan["plain"]
    common = [] if plain else ["-DTORCH_API_INCLUDE_EXTENSION_H", f"-DTORCH_EXTENSION_NAME={plan['name']}"]
    includes = _includes(folder, cuda=plan["cuda"], plain=plain)
    if plain and source.suffix == ".c":
        _run(["gcc", "-std=gnu11", "-fPIC", *plan["cflags"], *includes, "-c", str(source), "-o", target])
        return target
    common.append("-std=c++17")
    if source.suffix == ".cu":
        arch = plan["arch"].replace(".", "")
        device = [f"-gencode=arch=compute_{arch},code=sm_{arch}", "--compiler-options", "-fPIC"]
        relaxed = ["--expt-relaxed-constexpr", "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__"]
        given = [flag for flag in plan["cuda_cflags"] if "arch" not in flag and "gencode" not in flag]
        _run(["nvcc", *common, *relaxed, *device, *given, *includes, "-c", str(source), "-o", target])
    else:
        _run(["g++", *common, "-fPIC", *plan["cflags"], *includes, "-c", str(source), "-o", target])
    return target


def _link(folder: Path, plan: dict[str, Any], objects: list[str]) -> None:
    libraries = []
    if not plan["plain"]:
        libraries += [f"-L{_torch() / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
        libraries += ["-lc10_cuda", "-ltorch_cuda"] if plan["cuda"] else []
    if plan["cuda"]:
        libraries += [f"-L{_cuda_home()}/lib64", "-lcudart"]
    target = str(folder / f"{plan['name']}.so")
    _run(["g++", "-shared", *objects, *libraries, *plan["ld_flags"], "-o", target])


if __name__ == "__main__":
    main()
