"""``python -m engine run FOLDER``: the engine process of one campaign."""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] != "run":
        print("usage: python -m engine run FOLDER", file=sys.stderr)
        return 2
    from engine.host import run_process

    return run_process(Path(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
