"""``kernelarc`` and ``python -m kernelarc_tui``."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from kernelarc_tui.cli import cli

    cli()


if __name__ == "__main__":
    main()
