"""What surrounds one candidate process: its own mounts and folders, its limits, its user."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engine.bench import compile_cache, seccomp, wire
from engine.bench import namespaces as ns

SCRATCH = "/tmp/kernelarc"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FILES, _SHARED_FILES = 2 * compile_cache.MAX_FILES, 4096
"""Files and folders below /tmp and /dev/shm: each takes about a kilobyte of the kernel's own memory."""


def confinement_of(pid: int) -> dict[str, str]:
    """What /proc says of a child: layers that are in force, not those that were asked for."""
    fields: dict[str, str] = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = value.strip()

    def layer(on: bool, why: str) -> str:
        return "on" if on else f"off: {why}"

    uid = fields.get("Uid", "").split("\t")[0]
    return {
        "unprivileged-user": layer(uid not in ("", "0", str(os.getuid())), f"runs as uid {uid or 'unknown'}"),
        "no-capabilities": layer(fields.get("CapEff", "x").strip("0") == "", f"holds {fields.get('CapEff')}"),
        "no-new-privileges": layer(fields.get("NoNewPrivs") == "1", "refused by the kernel"),
        "system-call-filter": layer(fields.get("Seccomp") == "2", "refused by the kernel"),
    }


def write_sources(scratch: str, sources: list[tuple[str, str]]) -> None:
    """The candidate's files, owned by us and read-only for it. Paths were checked when the solution was read."""
    root = Path(scratch) / "src"
    for relative, content in sources:
        target = root / relative
        if not target.resolve().is_relative_to(root):
            raise wire.ProtocolError("a source path leaves its folder")
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8", errors="surrogateescape", newline="")
        target.chmod(0o444)


def write_library(scratch: str, name: str, content: bytes) -> None:
    target = Path(scratch) / "src" / f"{name}.so"
    target.write_bytes(content)
    target.chmod(0o555)


def private_mounts(spawn: wire.Spawn) -> dict[str, str]:
    """This child's own /tmp, /dev/shm and /proc. What cannot be mounted is reported, not hidden."""
    layers: dict[str, str] = {}
    kept = [prefix for prefix in os.environ.get("KERNELARC_KEEP", "").split(":") if prefix.startswith("/tmp/")]

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            action()
            layers[name] = "on"
        except OSError as error:
            layers[name] = f"off: {error}"

    def tmp() -> None:
        ns.mount("none", "/", "", ns.MS_REC | ns.MS_PRIVATE)
        # Interpreter or package prefixes below /tmp must stay visible under the new /tmp.
        handles = [(prefix, os.open(prefix, os.O_PATH | os.O_CLOEXEC)) for prefix in kept]
        size = f"size={spawn.limits.scratch},nr_inodes={_FILES},mode=1777"
        ns.mount("tmpfs", "/tmp", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, size)
        for prefix, handle in handles:
            Path(prefix).mkdir(mode=0o755, parents=True, exist_ok=True)
            ns.bind(f"/proc/self/fd/{handle}", prefix)
            os.close(handle)

    attempt("private-tmp", tmp)
    store = os.environ.pop(compile_cache.MOUNT, "")
    if store and not store.startswith("/tmp/"):
        attempt("hidden-cache", lambda: ns.mount("tmpfs", store, "tmpfs", ns.MS_RDONLY, "size=4k,mode=700"))
    attempt(
        "private-shm",
        lambda: ns.mount(
            "tmpfs",
            "/dev/shm",
            "tmpfs",
            ns.MS_NOSUID | ns.MS_NODEV,
            f"size=64m,nr_inodes={_SHARED_FILES},mode=1777",
        ),
    )
    attempt("private-proc", lambda: ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC))
    return layers


def private_folders(scratch: str, uid: int) -> None:
    """``src`` is ours and read-only for the candidate; the rest belongs to it."""
    root = Path(scratch)
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    (root / "src").mkdir(mode=0o755, exist_ok=True)
    for name in ("home", "tmp", "cache"):
        folder = root / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if may_change_user(uid):
            os.chown(folder, uid, uid)


def confine(spawn: wire.Spawn, keep: set[int], output: int, scratch: str, *, filtered: bool = True) -> None:
    """In the child, before any foreign byte is read: descriptors, session, limits, user, privileges.

    ``filtered`` False leaves the system-call filter to the caller, for a program that must connect first.
    """
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    close_all_but(keep | {0, 1, 2})
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(
            "1000"
        )  # if memory runs out, nobody trusted is the first to go
    limits = spawn.limits
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NOFILE, limits.files)
    _limit(resource.RLIMIT_CPU, limits.cpu_s)
    _limit(resource.RLIMIT_MEMLOCK, 64 << 20)
    if limits.memory and spawn.device == "cpu":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
        _limit(resource.RLIMIT_AS, used + limits.memory + spawn.input_bytes + spawn.output_bytes)
    if may_change_user(spawn.uid):
        _limit(resource.RLIMIT_NPROC, limits.processes)
        os.setgroups([])
        ns.drop_bounding_set()
        os.setresgid(spawn.uid, spawn.uid, spawn.uid)
        os.setresuid(spawn.uid, spawn.uid, spawn.uid)
        ns.prctl(ns.PR_SET_DUMPABLE, 1)  # /proc/self stays readable for honest code; there is nothing secret in it
    else:
        with suppress(OSError):
            ns.drop_bounding_set()
            ns.clear_capabilities()
    ns.prctl(ns.PR_SET_NO_NEW_PRIVS, 1)
    if filtered:
        with suppress(OSError):
            seccomp.install()
    os.environ.update(private_environment(scratch))
    os.chdir(f"{scratch}/home")


def may_change_user(uid: int) -> bool:
    return os.geteuid() == 0 and ns.is_mapped(uid)


def private_environment(scratch: str) -> dict[str, str]:
    """Every place that a candidate's libraries write to is its own."""
    return {
        "HOME": f"{scratch}/home",
        "TMPDIR": f"{scratch}/tmp",
        "XDG_CACHE_HOME": f"{scratch}/cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/cache/inductor",
        "TRITON_CACHE_DIR": f"{scratch}/cache/triton",
        "TRITON_HOME": f"{scratch}/home",
        "TORCH_EXTENSIONS_DIR": f"{scratch}/cache/extensions",
        "CUDA_CACHE_PATH": f"{scratch}/cache/cuda",
        "NUMBA_CACHE_DIR": f"{scratch}/cache/numba",
        "MPLCONFIGDIR": f"{scratch}/cache/matplotlib",
    }


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def close_all_but(keep: set[int]) -> None:
    low = 0
    for fd in sorted(keep):
        if fd > low:
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)
