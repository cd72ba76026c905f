"""litellm is loaded late, off the loop, silently, and without touching the network."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = textwrap.dedent(
    """
    import asyncio, logging, socket, sys

    def refuse(*args, **kwargs):
        raise AssertionError(f"network: {args}")

    socket.getaddrinfo = socket.create_connection = refuse
    socket.socket.connect = refuse

    import engine.proposers.llm
    from engine.proposers.llm import access
    from engine.proposers.llm.pool import Served
    assert "litellm" not in sys.modules and "jinja2" not in sys.modules

    async def main():
        beats, done = 0, False

        async def pulse():
            nonlocal beats
            while not done:
                await asyncio.sleep(0.005)
                beats += 1

        beating = asyncio.create_task(pulse())
        first, second = await asyncio.gather(access.load(), access.load())
        done = True
        await beating
        assert first is second
        assert beats > 20, "the loop goes on while litellm is imported"
        known = await access.facts_of(Served("openai/gpt-4o"))
        assert known.price is not None and (known.context, known.longest_reply) == (128_000, 16_384)
        nothing = access.ModelFacts()
        # The last three are looked up over the network by litellm, or taken for free, if one lets it.
        for name in ("openai/nobody-has-heard-of-it", "ollama_chat/mine", "ollama/mine", "huggingface/a/b"):
            assert await access.facts_of(Served(name)) == nothing, name
        log = logging.getLogger("kernelarc.engine")
        log.setLevel(logging.INFO)
        told = []
        log.addFilter(lambda record: told.append(record.getMessage()) or True)
        for _ in range(2):
            await access.facts_of(Served("openai/nor-of-this"))
        assert [line.partition(":")[0] for line in told] == ["model.not-listed"] and "nor-of-this" in told[0]

    asyncio.run(main())
    """
)


def test_loading_needs_no_network_prints_nothing_and_leaves_the_loop_alive() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
