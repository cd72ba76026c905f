"""The command line's manners: instant help, one clear line for a wrong word, documented exit codes."""

from __future__ import annotations

import importlib
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from kernelarc_tui.cli import SECTIONS, root

COMMANDS = [(name, module, text) for section in SECTIONS.values() for name, (module, text) in section.items()]
HEAVY = ("torch", "litellm", "textual", "optuna", "numpy", "jinja2", "pydantic")


def run(*args: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelarc_tui", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(("name", "module", "text"), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_the_help_overview_says_what_each_verb_says_of_itself(name: str, module: str, text: str) -> None:
    command = getattr(importlib.import_module(f"kernelarc_tui.cli.{module}"), name)
    assert command.get_short_help_str(limit=200).rstrip(".") == text.rstrip(".")


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    found = []
    for name in command.list_commands(context):
        sub = command.get_command(context, name)
        assert sub is not None
        found += leaves(sub, (*path, name))
    return found


@pytest.mark.parametrize(("path", "command"), leaves(root), ids=[" ".join(p) for p, _ in leaves(root)])
def test_every_command_has_help_with_an_example(path: tuple[str, ...], command: click.Command) -> None:
    result = CliRunner().invoke(root, [*path, "--help"])
    assert result.exit_code == 0
    assert f"Example: kernelarc {' '.join(path)}" in result.output


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("run", "--help"), ("ls",)], ids=" ".join)
def test_looking_around_imports_nothing_heavy(args: tuple[str, ...]) -> None:
    code = (
        "import sys; from kernelarc_tui.cli import cli\n"
        f"try: cli({list(args)!r})\n"
        "except SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("rnu",), "did you mean 'run'"),
        (("hint", "c"), "Missing argument 'TEXT'"),
        (("run", "softmax_f32", "--agents", "many"), "--agents"),
        (("run", "softmax_f32", "--wins", "lots"), "neither a number nor 'all'"),
        (("budget", "c"), "at least one of"),
        (("attach", "no-such-campaign"), "no-such-campaign"),
        (("status",), "campaign"),
        (("problems", "show", "no-such-problem"), "no-such-problem"),
        (("evaluate", "no-such-problem", "x.py"), "no-such-problem"),
        (("skills", "show", "no-such-skill"), "no-such-skill"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_clear_line_and_exit_code_2(args: tuple[str, ...], says: str) -> None:
    done = run(*args)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("kernelarc: ") and says in lines[0], done.stderr


def test_a_campaign_file_with_a_wrong_key_names_file_and_key(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "campaign.yaml"
    file.write_text("agents: 2\nagnets: 3\n")
    done = run("run", "softmax_f32", "-f", str(file))
    assert done.returncode == 2
    assert "campaign.yaml" in done.stderr and "agnets" in done.stderr
