"""What opening the screens imports: nothing heavy, and nothing of the engine's workings."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "litellm", "optuna", "numpy", "triton", "jinja2", "aiosqlite", "pydantic", "openai", "pygments")


def test_the_live_screen_needs_none_of_the_heavy_packages():
    code = (
        "import sys\n"
        "from kernelarc_tui.terminal import prepare\nprepare()\n"
        "import kernelarc_tui.app, kernelarc_tui.session, kernelarc_tui.screens.live, kernelarc_tui.screens.home\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_engine_never_imports_textual():
    from pathlib import Path

    root = Path(__file__).resolve().parents[2] / "engine"
    for path in root.rglob("*.py"):
        text = path.read_text()
        assert "import textual" not in text and "from textual" not in text, path
        assert "import kernelarc_tui" not in text and "from kernelarc_tui" not in text, path
