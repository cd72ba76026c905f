"""What the engine itself costs per candidate: 16 agents, a model that answers at once, recorded verdicts.

    python tests/benchmarks/engine_overhead.py [--candidates 2000] [--agents 16] [--proposer llm|stub] [--json]

``llm`` is the real LLM proposer, with its prompts, ledger and reading of replies, over a model call that
answers at once (litellm is not loaded); ``stub`` leaves all of that out. Prints the engine's ``process_time``
per candidate (limit 20 ms) and its resident memory after a quarter of the candidates and at the end (limit:
15 % or 12 MiB of growth). Exit status 1 if a limit is passed. The bench and the model are replaced by ones
that cost next to nothing; store, socket, guard policy and memory are the real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fixtures")]

LIMIT_MS = 20.0
GROWTH = 1.15
GROWTH_BYTES = 12 << 20


def resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def answer_at_once(script) -> None:  # type: ignore[no-untyped-def]
    """The model call of the LLM proposer, replaced by one that streams ``script(agent, position)`` in pieces."""
    from engine.proposers.llm import access, calls
    from engine.proposers.llm.money import Counted, Price

    async def facts_of(model):  # type: ignore[no-untyped-def]
        return access.ModelFacts(price=Price(prompt=1e-9, reply=1e-9))

    async def stream(model, messages, **limits):  # type: ignore[no-untyped-def]
        count[0] += 1
        text = script(count[0])
        for start in range(0, len(text), 64):
            yield access.Chunk(text=text[start : start + 64])
        size = sum(len(message.content) for message in messages)
        yield access.End(finish_reason="stop", counted=Counted(prompt=size // 4, reply=len(text) // 4))

    count = [0]
    access.facts_of = facts_of  # type: ignore[assignment]
    calls.access.stream = stream  # type: ignore[assignment]


def reply(turn: int) -> str:
    """A KEEP now and then, dead ends of several kinds, about 60 lines of source."""
    if turn % 170 == 0:
        fake = f"ms={0.999 ** (turn / 17):.6f}"
    elif turn % 11 == 0:
        fake = "fail=wrong.numerical"
    else:
        fake = f"ms={1.0 + (turn % 7) / 10:.2f}"
    word = "abcdefghijklmnop"[turn % 16] * 4
    filler = "".join(f"    step{i} = hidden_states * {turn + i}\n" for i in range(60))
    return (
        f"```yaml\nfamily: {word} rows\nhypothesis: {word} once, number {turn}\nreflection: {word}\n```\n\n"
        f'```python kernel.py\nFAKE = "fake: {fake}"\ndef run(hidden_states, residual, weight, eps):\n{filler}'
        f"    return hidden_states * {turn}, residual\n```\n"
    )


async def measure(candidates: int, agents: int, proposer: str) -> dict[str, float]:
    from fake_bench import FakeBench
    from stub_proposer import StubProposer

    from engine.host import serve
    from engine.launch import create_campaign
    from engine.presets import resolve
    from engine.problems.library import find_problem
    from engine.proposers import build_proposer

    if proposer == "llm":
        answer_at_once(reply)

    class Forgetful(list):  # the stub would keep every context it was shown
        def append(self, item: object) -> None: ...

    def script(context):  # type: ignore[no-untyped-def]
        """A KEEP now and then, dead ends of several kinds, words that differ."""
        turn = context.position
        if turn % 11 == 0:
            return f"fail=wrong.numerical idea={'abcdefgh'[turn % 8] * 4}_{context.agent}"
        if turn % 17 == 0:
            return f"ms={0.99 ** (turn / 17):.6f} idea={'ijklmnop'[turn % 8] * 4}"
        return f"ms={1.0 + (turn % 7) / 10:.2f} n={turn} idea={'qrstuvwx'[turn % 8] * 4}"

    chosen = {"proposer": ["llm"], "model": ["openai/fake"]} if proposer == "llm" else {}
    config = resolve({"candidates": candidates, "agents": agents, "stop_after": 10**6, "max_cost": 1e6} | chosen)
    folder = create_campaign(config, find_problem("rmsnorm_residual_fp32"), None, "overhead")
    marks: list[tuple[int, float, int]] = []

    def started(launcher) -> None:  # type: ignore[no-untyped-def]
        session = launcher.session
        seen = session.committed

        def committed(stored) -> None:  # type: ignore[no-untyped-def]
            seen(stored)
            done = session.summary.candidates
            if not marks or done - marks[-1][0] >= candidates // 8:
                gc.collect()
                marks.append((done, time.process_time(), resident()))

        session.committed = committed

    summary = await serve(
        folder,
        bench=FakeBench,
        proposers=build_proposer if proposer == "llm" else lambda *_: StubProposer(script, Forgetful()),
        started=started,
    )
    gc.collect()
    marks.append((summary.candidates, time.process_time(), resident()))
    first, last = marks[0], marks[-1]
    quarter = next(mark for mark in marks if mark[0] >= candidates // 4)
    return {
        "candidates": summary.candidates,
        "agents": agents,
        "process_ms_per_candidate": 1000 * (last[1] - first[1]) / (last[0] - first[0]),
        "resident_mib_quarter": quarter[2] / (1 << 20),
        "resident_mib_end": last[2] / (1 << 20),
        "wins": summary.wins,
        "traps": summary.traps,
        "keeps": summary.outcomes.get("KEEP", 0),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--candidates", type=int, default=2000)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--proposer", choices=["llm", "stub"], default="llm")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernelarc-overhead-") as home:
        os.environ["KERNELARC_HOME"] = os.environ["XDG_RUNTIME_DIR"] = home
        figures = asyncio.run(measure(arguments.candidates, arguments.agents, arguments.proposer))
    start, end = figures["resident_mib_quarter"], figures["resident_mib_end"]
    flat = end <= max(start * GROWTH, start + GROWTH_BYTES / (1 << 20))
    fast = figures["process_ms_per_candidate"] <= LIMIT_MS
    if arguments.json:
        print(json.dumps(figures | {"fast": fast, "flat": flat}))
    else:
        print("  ".join(f"{key} {value:.4g}" for key, value in figures.items()))
        print(f"{'ok' if fast else 'TOO SLOW'}: ≤ {LIMIT_MS:g} ms    {'ok' if flat else 'GROWS'}: memory flat")
    return 0 if fast and flat else 1


if __name__ == "__main__":
    sys.exit(main())
