"""What keeps the judge from judging: the problem's own code, or a machine that lacks what it needs."""

from __future__ import annotations

import torch

from engine.bench.reasons import asks_for_cuda


class JudgeFault(Exception):
    """The problem's own code failed, or needs what this machine lacks."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def foreign_fault(what: str, error: BaseException, source: str) -> JudgeFault:
    """``needs.cuda`` where the problem's code asks for a GPU that is not there, else ``fault.reference``."""
    try:
        said = str(error)
    except BaseException:  # noqa: BLE001  the text of a foreign exception is foreign code too
        said = "(its text could not be read)"
    text = " ".join(f"{type(error).__name__}: {said}".split())[:600]
    if not torch.cuda.is_available() and asks_for_cuda(text, source):
        return JudgeFault("needs.cuda", f"{what} without a GPU: {text}")
    return JudgeFault("fault.reference", f"{what}: {text}")
