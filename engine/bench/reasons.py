"""From what happened in a candidate's process to a stable reason code and a SOL-ExecBench status. Pure."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Sequence

from engine.bench import wire

_ROW = {
    wire.RAISED: "wrong.exception",
    wire.STRUCTURE: "wrong.structure",
    wire.SHAPE: "wrong.shape",
    wire.DTYPE: "wrong.dtype",
    wire.TYPE: "hack.lazy-output",
    wire.MEMORY: "resource.memory",
    wire.DEVICE: "wrong.device",
    wire.IMPORT: "crash.import",
    wire.DISK: "resource.disk",
    wire.EXITED: "hack.early-exit",
    wire.INPUTS: "wrong.inputs",
}
_EVENT = {
    "timeout": "resource.timeout",
    "memory": "resource.memory",
    "processes": "resource.processes",
    "output": "resource.output",
    "protocol": "hack.forged-report",
    "awake": "hack.unfrozen",
}
_STATUS = {
    "wrong.shape": "INCORRECT_SHAPE",
    "wrong.structure": "INCORRECT_SHAPE",
    "wrong.dtype": "INCORRECT_DTYPE",
    "wrong.exception": "RUNTIME_ERROR",
    "resource.timeout": "TIMEOUT",
    "compile.timeout": "TIMEOUT",
    "fault.reference": "INVALID_REFERENCE",
}
_PREFIX_STATUS = {
    "wrong": "INCORRECT_NUMERICAL",
    "hack": "REWARD_HACK",
    "compile": "COMPILE_ERROR",
    "crash": "RUNTIME_ERROR",
    "resource": "RUNTIME_ERROR",
}


def fault_reason(role: str, reason: str) -> str:
    """Of a process that is not the candidate's and failed for ``reason``: perhaps in the problem's own code."""
    return "fault.inputs" if reason == "wrong.inputs" else f"fault.{role}"


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def system_fault(error: OSError) -> tuple[str, str]:
    """Reason and detail where the operating system refuses us something: a full disk, too many open files."""
    reason = "fault.disk" if error.errno in _NO_ROOM else "fault.system"
    return reason, f"{error.strerror or type(error).__name__}: {error.filename or 'the bench'}"


_CUDA_WORDS = ("CUDA", "NVIDIA driver", "_scaled_mm", "cuda", "cudnn")


def asks_for_cuda(text: str, source: str) -> bool:
    """Whether a reference that failed on a machine without a GPU needs one, by its error or by what it calls."""
    return any(word in text or word in source for word in _CUDA_WORDS)


PACKAGES = {"triton": "triton", "cute_dsl": "cutlass", "cutile": "cuda.tile", "cudnn_frontend": "cudnn"}
"""What a declared language is imported as."""


def missing_package(languages: Sequence[str], detail: str, installed: Callable[[str], bool]) -> str:
    """The package of a declared language whose import failed because this machine does not have it; or empty.

    ``detail`` is the candidate's word, so ``installed`` is asked as well.
    """
    for language in languages:
        package = PACKAGES.get(language)
        if package and f"No module named '{package.partition('.')[0]}" in detail and not installed(package):
            return package
    return ""


def status_of(reason: str) -> str:
    """The SOL-ExecBench status of a reason code."""
    if not reason:
        return "PASSED"
    return _STATUS.get(reason) or _PREFIX_STATUS.get(reason.partition(".")[0], "RUNTIME_ERROR")


def verdict_of(reason: str) -> str:
    """PASS, FAIL, REJECT or ERROR (the machine's, the problem's or our own fault)."""
    prefix = reason.partition(".")[0]
    if not reason:
        return "PASS"
    return {"gate": "REJECT", "needs": "ERROR", "fault": "ERROR"}.get(prefix, "FAIL")


def reason_of(report: wire.Report) -> tuple[str, str]:
    """(reason, detail) of a keeper's report; ("", "") when every call returned what was declared."""
    text = report.text.decode("utf-8", "replace")
    if report.event == "exit" and report.code == 0:
        return "hack.early-exit", "the process ended itself, as if all were well, during a call"
    if report.event == "exit":
        return "crash.exit", f"the process ended with exit status {report.code} during a call"
    if report.event == "signal":
        if report.code == signal.SIGXCPU:
            return "resource.timeout", "the processor time limit was reached"
        try:
            name = signal.Signals(report.code).name
        except ValueError:
            name = str(report.code)
        return "crash.signal", f"the process was killed by {name} during a call"
    if report.event != "done":
        return _EVENT.get(report.event, "crash.exit"), text or _EVENT_TEXT.get(report.event, report.event)
    for status, _ in report.rows:
        if status != wire.OK:
            return _ROW.get(status, "hack.forged-report"), text
    return "", ""


_EVENT_TEXT = {
    "timeout": "the deadline passed",
    "memory": "more memory than allowed",
    "processes": "more processes than allowed",
    "output": "more than 1 MiB written to stdout and stderr",
}
