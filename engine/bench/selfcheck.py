"""Started in a sandbox to see whether it can be entered at all; prints one word."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.stdout.write("inside\n")
