"""``completion``: shell completion, printed."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print shell completion for bash, zsh or fish.

    \b
    Example: kernelarc completion bash >> ~/.bashrc
    """
    from kernelarc_tui.cli import root

    cls = get_completion_class(shell)
    assert cls is not None
    click.echo(cls(root, {}, "kernelarc", "_KERNELARC_COMPLETE").source())
