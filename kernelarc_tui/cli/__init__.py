"""The command line. ``kernelarc --help`` must stay instant, so each verb's module is imported when it is used."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, TextIO, cast

import click

import engine
from engine.errors import KernelArcError
from engine.text import one_line

_CLI = "kernelarc_tui.cli"
LINE_LIMIT = 2000  # characters of one line of an error

# section → command → (module, one line of help). The help text here is what ``kernelarc --help`` shows without
# importing the module; a test keeps it equal to the command's own.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Campaigns": {
        "demo": ("campaigns", "A campaign on a bundled CPU problem: no GPU, no key, under 90 s."),
        "run": ("campaigns", "Start a campaign on PROBLEM and watch it."),
        "attach": ("watch", "Open the screen on a campaign (default: the newest)."),
        "ls": ("watch", "List campaigns."),
        "status": ("watch", "One screen of plain text, or JSON."),
        "replay": ("watch", "Watch a finished campaign again."),
        "serve": ("watch", "The same screen in a browser on this machine."),
        "delete": ("watch", "Delete a campaign that is not running."),
    },
    "Controls": {
        "pause": ("control", "Pause a campaign, or one agent; the device is given back."),
        "resume": ("control", "Continue a paused campaign, or an interrupted one from its store."),
        "draft": ("control", "Make an agent draft another algorithm, DSL or layout next."),
        "hint": ("control", "Give an agent a hint for its next proposal."),
        "stop": ("control", "Stop a campaign, or one agent."),
        "veto": ("control", "Take a KEEP back; the best returns to the previous one."),
        "budget": ("control", "Change the budgets of a running campaign."),
    },
    "Judging": {
        "evaluate": ("evaluate", "The guard alone on one or more solutions."),
        "profile": ("profile", "What a candidate's kernels do on the GPU: Nsight Compute, or CUPTI."),
        "problems": ("problems", "Bundled and user problems: list, show, check, bounds, import."),
    },
    "Knowledge": {
        "skills": ("skills", "Strategy skills and their eligibility for a problem."),
        "memory": ("memory", "Wins and traps: list, show, pin, expire."),
    },
    "Results": {
        "export": ("results", "Take the best kernel home: solution.json, source, evidence."),
        "report": ("results", "A campaign's report: KEEPs, trajectory, best kernel, settings."),
    },
    "This box": {
        "doctor": ("doctor", "What works here: device, compiler, sandbox, keys present, terminal."),
        "completion": ("shell", "Print shell completion for bash, zsh or fish."),
    },
}
_MODULES = {name: module for section in SECTIONS.values() for name, (module, _) in section.items()}


class LazyGroup(click.Group):
    """Imports a verb's module only when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _MODULES.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(f"{_CLI}.{module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in _MODULES:
            import difflib

            near = difflib.get_close_matches(name, _MODULES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; see kernelarc --help"
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(engine.__version__, prog_name="kernelarc")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Campaigns of agents that optimize GPU kernels, judged by a guard that cannot be fooled.

    \b
    kernelarc demo                      see a whole campaign in under 90 seconds
    kernelarc run PROBLEM --agents 4    start one; it outlives this terminal
    kernelarc                           all campaigns, on the home screen
    """
    if ctx.invoked_subcommand is None:
        if sys.stdout.isatty() and sys.stdin.isatty():
            from kernelarc_tui.cli.watch import open_screen

            open_screen(None)
        else:
            from kernelarc_tui.cli.common import say_no_screen

            click.echo(ctx.get_help())
            say_no_screen("kernelarc ls and kernelarc status are plain text")


class Output:
    """A standard stream whose reader may go away (``kernelarc ls | head -1``).

    From then on what is written is dropped and ``gone`` is true: the command still does its work, and its exit
    code still says how that ended. Characters that the terminal's encoding lacks are written as escapes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.gone = False
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        self.gone = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _guard_output() -> None:
    """Python leaves ``None`` where a standard stream was closed (``>&-``); then there is nobody to write to."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        setattr(sys, name, cast("TextIO", Output(stream)))


def cli(args: list[str] | None = None) -> None:
    """Entry point: one clear line for bad input, never a traceback; the exit codes are a contract."""
    _guard_output()
    try:
        code = root.main(args=args, prog_name="kernelarc", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.Abort:
        click.echo("kernelarc: interrupted", err=True)
        code = 130
    except click.ClickException as error:
        where = f" ({error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        click.echo(f"kernelarc: {one_line(error.format_message(), LINE_LIMIT)}{where}", err=True)
        code = 2
    except KernelArcError as error:
        click.echo(f"kernelarc: {one_line(error.message, LINE_LIMIT)}", err=True)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except OSError as error:  # a full disk behind ``>``, a folder that may not be entered
        where = f"{one_line(str(error.filename))}: " if error.filename else ""
        click.echo(f"kernelarc: {where}{error.strerror or error}", err=True)
        code = 3
    sys.exit(code if isinstance(code, int) else 0)
