"""Does the problem's own code make the same inputs in another process as with the judge? A no-op is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.bench import judge_wire as jw
from engine.bench.contender import Failure
from engine.bench.noop import noop_contender
from engine.bench.plan_calls import FRESH, looked_at, new_seed
from engine.bench.session import Session

_FRESH_SEEDS = 8  # beside those of the calls that raised the question


async def made_alike(session: Session, asked: Mapping[int, Sequence[int]]) -> bool:
    """``asked``: seeds by workload. False once a no-op's inputs are others than the judge's, or cannot be made.

    Whatever else goes wrong with the no-op says nothing about inputs. Raises :class:`engine.errors.Fault` of ours.
    """
    noop = noop_contender(session, False)
    try:
        for workload, seeds in asked.items():
            waiting = [*seeds, *(new_seed() for _ in range(_FRESH_SEEDS))]
            size = min(looked_at(session.specs[workload].output_stride), session.slots[workload])
            for start in range(0, len(waiting), size):
                block = waiting[start : start + size]
                inputs = [jw.Inputs(slot=slot, seed=seed, shift=1) for slot, seed in enumerate(block)]
                await noop.run(workload, inputs, FRESH)
                checked = await noop.check(workload, inputs, list(range(len(inputs))))
                if any(finding.reason == "wrong.input-mutation" for finding in checked.findings):
                    return False
    except Failure as failure:
        return failure.reason != "wrong.inputs"
    finally:
        await noop.close()
    return True
