"""``demo`` and ``run``: start a campaign, then watch it or print lines."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from engine.config import PRESETS, CampaignConfig
from engine.decoding import read_yaml
from engine.errors import BadInput
from kernelarc_tui.cli.common import CountOrAll, Positive, emit_json, json_option, say_no_screen

DEMO_PROBLEM = "linear_gelu_residual_fp32"
DEMO: dict[str, Any] = {"candidates": 14, "agents": 2, "minutes": 1.3, "device": "cpu", "proposer": ["recipes"]}


@click.command()
@click.option("--headless", is_flag=True, help="Lines instead of the screen (also when there is no terminal).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the offline agents.")
@json_option
def demo(headless: bool, seed: int, as_json: bool) -> None:
    """A campaign on a bundled CPU problem: no GPU, no key, under 90 s.

    \b
    Example: kernelarc demo
             kernelarc demo --headless --json
    """
    config = config_from({**DEMO, "seed": seed}, None)
    name = f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    start(config, DEMO_PROBLEM, seed_solution=None, name=name, headless=headless, as_json=as_json)


@click.command()
@click.argument("problem")
@click.option(
    "-f", "file", type=click.Path(dir_okay=False, path_type=Path), help="campaign.yaml with the same keys."
)
@click.option("--config", type=click.Choice(PRESETS), help="Preset of agents, memory and leaderboard.")
@click.option("--agents", type=click.IntRange(1, 64), help="How many agents.  [default: 2]")
@click.option("--proposer", multiple=True, help="recipes, llm, replay or inbox; repeat: agents take turns.")
@click.option("--model", multiple=True, help="A litellm model name; repeat: agents take turns.")
@click.option(
    "--rotate-models/--fixed-models", default=None, help="Every proposal asks the next model, or an agent's own."
)
@click.option("--api-base", help="Base URL of an OpenAI-compatible server (vLLM, llama.cpp, Ollama).")
@click.option("--candidates", type=click.IntRange(1), help="Candidate budget of the campaign.  [default: 100]")
@click.option("--minutes", type=Positive(), help="Time budget; pauses do not count.")
@click.option("--max-cost", type=Positive(), help="Hard limit in US dollars; reserved before each call.")
@click.option("--max-tokens-total", type=int, help="Token limit where a model's price is unknown.")
@click.option(
    "--context-tokens", type=int, help="Window of a model that litellm does not know, or of your server."
)
@click.option("--reply-tokens", type=int, help="max_tokens of a model call.  [default: 16000]")
@click.option(
    "--target-speedup", type=Positive(), help="Stop when the best reaches this speed-up over the reference."
)
@click.option("--draft-after", type=int, help="r_draft: non-improvements before a draft.  [default: 5]")
@click.option("--stop-after", type=int, help="r_stop: non-improvements before an agent stops.  [default: 15]")
@click.option("--margin", type=float, help="KEEP margin as a fraction; never below the measured noise.")
@click.option("--device", help="cpu, cuda or cuda:i.  [default: a GPU if there is one]")
@click.option("--seed", type=int, help="Seed of the offline agents and the strategy policy.")
@click.option("--memory", type=click.Choice(["shared", "private"]), help="Who sees an agent's wins and traps.")
@click.option("--wins", type=CountOrAll(), help="Wins kept per kernel type.  [default: 16]")
@click.option("--traps", type=CountOrAll(), help="Traps kept per kernel type.  [default: 16]")
@click.option("--leaderboard", type=click.Choice(["on", "off"]), help="May agents read faster siblings?")
@click.option("--memory-from", help="Carry wins and traps over from campaign C.")
@click.option("--strategy", "strategies", multiple=True, help="Use only these skills; repeat.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Correctness rounds while searching.  [default: 3]")
@click.option(
    "--profile/--no-profile", default=None, help="Profile every KEEP on a GPU, for its agent's next prompt."
)
@click.option("--replay", help="For --proposer replay: a campaign, or a JSONL of replies.")
@click.option("--inbox", help="For --proposer inbox: the folder to watch.")
@click.option(
    "--seed-solution", type=click.Path(path_type=Path), help="Start from this solution (.json, .py or .cu)."
)
@click.option("--name", help="Name of the campaign.  [default: problem and time]")
@click.option("--headless", is_flag=True, help="Run in the foreground with line output.")
@json_option
def run(
    problem: str, file: Path | None, seed_solution: Path | None, name: str | None, headless: bool, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Start a campaign on PROBLEM and watch it.

    The engine is its own process: closing this terminal or leaving the screen does not stop it.

    \b
    Example: kernelarc run masked_softmax_attention_fp32 --agents 2 --candidates 40
             kernelarc run ./my_problem --proposer llm --model openai/gpt-5 --max-cost 20
    """
    from_file = _settings_in(file) if file else {}
    name_from_file = _text_of(from_file, "name", file)
    name = name if name is not None else name_from_file
    seed_from_file = _text_of(from_file, "seed_solution", file)
    if seed_solution is None and seed_from_file:
        seed_solution = Path(seed_from_file)
    flags = {key: value for key, value in given.items() if value not in (None, ())}
    config = config_from({**from_file, **flags}, file)
    start(config, problem, seed_solution=seed_solution, name=name, headless=headless, as_json=as_json)


def config_from(given: dict[str, Any], file: Path | None) -> CampaignConfig:
    """What was asked for over its preset over the defaults. Raises ``BadInput`` naming the key and the file.

    Keys are written as people write them: ``wins: all``, ``leaderboard: off``, one model without a list.
    """
    from engine.presets import resolve

    settings = dict(given)
    for key in ("wins", "traps"):
        if settings.get(key) == "all":
            settings[key] = None
    for key in ("proposer", "model", "strategies"):
        if isinstance(settings.get(key), str):
            settings[key] = [settings[key]]
    if settings.get("leaderboard") in ("on", "off"):
        settings["leaderboard"] = settings["leaderboard"] == "on"
    if "device" not in settings:
        from engine.hardware.facts import default_device

        settings["device"] = default_device()
    return resolve(settings, where=str(file) if file else "")


def _text_of(settings: dict[str, Any], key: str, file: Path | None) -> str | None:
    """Take a key that is not a setting of the campaign out of the file's."""
    value = settings.pop(key, None)
    if value is not None and not isinstance(value, str):
        raise BadInput(f"{key} is {value!r}", where=str(file), fix="use a text")
    return value


def _settings_in(file: Path) -> dict[str, Any]:
    value = read_yaml(file)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadInput("must be a mapping of settings", where=str(file), fix="for instance 'agents: 4'")
    settings = {key.replace("-", "_"): item for key, item in value.items()}
    twice = next((key for key in value if "-" in key and key.replace("-", "_") in value), None)
    if twice is not None:
        raise BadInput(f"{twice} and {twice.replace('-', '_')} are one setting", where=str(file), fix="keep one")
    return settings


def start(
    config: CampaignConfig, problem: str, *, seed_solution: Path | None, name: str | None, headless: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Create the campaign, then run it here (headless) or detached with the screen on it."""
    from engine.launch import create_campaign, start_detached
    from engine.problems.library import find_problem
    from engine.problems.solution_io import load_solution

    found = find_problem(problem)
    seed = load_solution(seed_solution, found) if seed_solution else None
    folder = create_campaign(config, found, seed, name)
    if headless or as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        if not (headless or as_json):
            say_no_screen("the engine runs here, in the foreground")
        raise click.exceptions.Exit(foreground(folder, as_json=as_json))
    start_detached(folder)
    from kernelarc_tui.cli.watch import open_screen

    for line in inbox_lines(folder):  # left on the terminal when the screen is gone
        click.echo(line)
    open_screen(folder)


def inbox_lines(folder: Path) -> list[str]:
    """Where candidates are waited for, a line for each inbox agent."""
    from engine.proposers import inbox_folders
    from engine.store.reader import StoreReader

    with StoreReader(folder) as reader:
        folders = inbox_folders(folder, reader.campaign().config.inbox, reader.summary())
    return [
        f"agent {name} waits for candidates: save kernel.py or solution.json in {inbox}"
        for name, inbox in folders.items()
    ]


def foreground(folder: Path, *, as_json: bool) -> int:
    """Run the engine here with line output. Exit code: 0 with a KEEP, 1 without, 3 fault, 130 interrupt."""
    from engine.launch import run_foreground
    from engine.records import StopReason
    from engine.reports.status import status_json
    from engine.store.reader import StoreReader
    from kernelarc_tui.cli.lines import event_line

    def show(stored: Any) -> None:
        line = event_line(stored)
        if line:
            click.echo(line, err=as_json)

    for line in inbox_lines(folder):
        click.echo(line, err=as_json)
    interrupted = False
    try:
        run_foreground(folder, show)
    except KeyboardInterrupt:
        interrupted = True
    with StoreReader(folder) as reader:
        summary = reader.summary()
        status = status_json(reader, folder)
    if as_json:
        emit_json(status)
    else:
        best = f"   best kernel: kernelarc export {summary.name}" if summary.best else ""
        click.echo(f"report: kernelarc report {summary.name}{best}")
    if interrupted:
        return 130
    if summary.stop_reason is StopReason.FAULT:
        return 3
    return 0 if summary.outcomes.get("KEEP", 0) else 1
