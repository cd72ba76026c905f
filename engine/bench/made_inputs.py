"""Inputs that a problem's own code makes, in a candidate's process as with the judge (imports torch).

They could travel through host memory, but gigabytes take longer there than making them once more on the device.
Nothing here is trusted: other inputs than the judge's have other digests. What must not happen is that an honest
candidate is blamed because a setting that it chose for the whole process reaches the problem's code, or the
reverse: each side has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from engine.problems.axes import resolve_axes
from engine.problems.inputs import CustomInputs, make_inputs
from engine.problems.model import Problem
from engine.problems.reference import load_reference

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How a setting of the whole process is read and written."""


def _settings() -> list[Setting]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def attribute(of: Any, name: str) -> Setting:
        return lambda: getattr(of, name), lambda value: setattr(of, name, value)

    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, torch.set_default_device),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (_read_precision, _write_precision),
        attribute(matmul, "allow_fp16_reduced_precision_reduction"),
        attribute(matmul, "allow_bf16_reduced_precision_reduction"),
        attribute(cudnn, "enabled"),
        attribute(cudnn, "benchmark"),
        attribute(cudnn, "deterministic"),
        (torch.get_num_threads, torch.set_num_threads),
        *(
            (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind))
            for kind in ("cpu", "cuda")
        ),
    ]


def _read_precision() -> tuple[str | None, str | None]:
    """Of float32 products, by its older and by its newer name (since torch 2.9), None where one is not there."""
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    try:
        return torch.get_float32_matmul_precision(), newer
    except RuntimeError:  # it was set by the newer name, and the older one refuses to be read then
        return None, newer


def _write_precision(wanted: tuple[str | None, str | None]) -> None:
    """In this order: the older name sets both, and torch refuses products where the two contradict each other."""
    older, newer = wanted
    if older is not None:
        torch.set_float32_matmul_precision(older)
    matmul = torch.backends.cuda.matmul
    if newer is not None and matmul.fp32_precision != newer:
        matmul.fp32_precision = newer


class MadeInputs:
    """The problem's input function, loaded before the candidate is. A call raises whatever its module raises."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self._problem, self._device = problem, device
        self._settings = _settings()
        self._own = self._read()
        self._trouble: BaseException | None = None
        self._function: CustomInputs | None = None
        try:
            with self._as_at_start():
                self._function = getattr(
                    load_reference(problem.definition), problem.definition.custom_inputs_entrypoint or ""
                )
        except (Exception, SystemExit) as error:  # noqa: BLE001  the problem's border: told when inputs are asked for
            self._trouble = error

    def __call__(self, workload: int, seed: int) -> list[Any]:
        """One set in definition order, as :func:`engine.problems.inputs.make_inputs` gives the judge."""
        definition, wanted = self._problem.definition, self._problem.workloads[workload]
        axes = resolve_axes(definition, wanted)
        if self._trouble is not None:
            raise self._trouble
        with self._as_at_start():
            return make_inputs(definition, wanted, axes, self._device, seed, entrypoint=self._function)

    def _read(self) -> list[Any]:
        return [read() for read, _ in self._settings]

    @contextmanager
    def _as_at_start(self) -> Iterator[None]:
        """With the settings that the process had before anybody's code ran, and the problem's own changes."""
        theirs = self._read()
        self._write(self._own, theirs)
        try:
            yield
        finally:
            self._own = self._read()
            self._write(theirs, self._own)

    def _write(self, wanted: list[Any], present: list[Any]) -> None:
        for (_, write), value, now in zip(self._settings, wanted, present, strict=True):
            if value != now:
                write(value)
