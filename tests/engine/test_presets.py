"""Settings: presets are plain values, what cannot work is one clear line, nothing else tells them apart."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from stub_proposer import slowly_better

from engine.config import CampaignConfig
from engine.errors import BadInput
from engine.launch import agent_specs, create_campaign
from engine.presets import PRESET_SETTINGS, labelled, resolve
from engine.store import events as ev
from engine.store.reader import StoreReader


def test_a_preset_is_nothing_but_its_settings() -> None:
    for name, fixed in PRESET_SETTINGS.items():
        config = resolve({"config": name})
        assert config == msgspec.structs.replace(CampaignConfig(), config=name, **fixed)
    assert resolve({"config": "multi-unbounded"}).wins is None
    assert resolve({"config": "single"}).agents == 1


def test_what_a_person_sets_stands_before_the_preset_and_is_called_custom() -> None:
    config = resolve({"config": "multi-unbounded", "wins": 16})
    assert (config.wins, config.traps, config.config) == (16, None, "custom")
    assert resolve({"config": "multi-bounded", "agents": 7}).config == "multi-bounded"
    assert labelled(CampaignConfig(config="single")).config == "custom"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"draft_after": 5, "stop_after": 7}, "stop_after 8 or more"),
        ({"draft_after": 0}, "draft_after is 0"),
        ({"agents": 0}, "agents is 0"),
        ({"proposer": ["llm"], "model": ["m"], "api_base": "http://me:word@host/v1"}, "carries credentials"),
        ({"proposer": ["llm"], "model": ["m"], "api_base": "http://host/v1?key=abc"}, "carries credentials"),
        ({"proposer": ["llm"], "model": ["m@https://key@host/v1"]}, "carries credentials"),
        ({"proposer": ["llm"], "model": ["m"], "api_base": "localhost:8000"}, "not an http URL"),
        ({"proposer": ["llm"], "model": ["m"], "api_base": "http://host:port/v1"}, "not a URL"),
        ({"candidates": 10**30}, "at most"),
        ({"seed": 10**30}, "fewer digits"),
        ({"agents": 1000}, "1 to 64"),
        ({"candidates": 0}, "candidates is 0"),
        ({"minutes": -1}, "minutes is -1"),
        ({"max_cost": float("inf")}, "max_cost is inf"),
        ({"target_speedup": float("nan")}, "target_speedup is nan"),
        ({"device": "tpu"}, "use cpu, cuda or cuda:0"),
        ({"proposer": ["magic"]}, "unknown proposer 'magic'"),
        ({"proposer": []}, "no proposer"),
        ({"proposer": ["llm"]}, "add --model"),
        ({"model": ["openai/x"]}, "add --proposer llm"),
        ({"proposer": ["replay"]}, "add --replay"),
        ({"replay": "x.jsonl"}, "add --proposer replay"),
        ({"inbox": "candidates"}, "add --proposer inbox"),
        ({"prompt_tokens": 1}, "prompt_tokens is 1; use 1024 or more"),
        ({"memory": "public"}, "shared or private"),
        ({"wins": -1}, "wins is -1"),
        ({"margin": 1.5}, "margin is 1.5"),
        ({"config": "double"}, "unknown configuration 'double'"),
        ({"candidats": 3}, "unknown setting 'candidats'"),
        (
            {"candidates": 9, "canidates": 3},
            "unknown setting 'canidates' (did you mean 'candidates'?); known: agents",
        ),
        ({"seed_solutoin": "x"}, "did you mean 'seed_solution'?"),
        ({"agents": "two"}, "agents is 'two'; use a whole number"),
        ({"agents": 1.5}, "agents is 1.5; use a whole number"),
        ({"max_cost": "1e3"}, "max_cost is '1e3'; use a number"),  # YAML's floats have a dot
        ({"profile": 3}, "profile is 3; use true or false"),
        ({"device": 0}, "device is 0; use a text"),
        ({"model": [1]}, "model is [1]; use a text"),
        ({"strategies": 3}, "strategies is 3; use a list"),
        ({"wins": "al"}, "wins is 'al'; use a whole number, or all"),
        ({"leaderboard": "maybe"}, "leaderboard is 'maybe'; use on or off"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_with_a_fix(settings: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        resolve(settings, where="campaign.yaml")
    assert says in caught.value.message and caught.value.message.startswith("campaign.yaml")
    assert "\n" not in caught.value.message


def test_what_settings_point_at_must_be_there(problem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file, half, empty = tmp_path / "file", tmp_path / "half.jsonl", tmp_path / "empty.jsonl"
    file.touch()
    empty.touch()
    half.write_text('{"source": "def run(): ..."}\n{"source": 3}\n')
    for settings, says in (
        ({"proposer": ["replay"], "replay": str(half)}, r"half\.jsonl:2: "),
        ({"proposer": ["replay"], "replay": str(empty)}, r"empty\.jsonl: no reply in this file"),
        ({"proposer": ["inbox"], "inbox": str(file)}, "file: not a folder"),
        ({"proposer": ["inbox"], "inbox": str(file / "below")}, "file: not a folder"),
        ({"memory_from": "nobody"}, "no campaign 'nobody'"),
        ({"strategies": ["sorcery"]}, "no strategy 'sorcery'"),
        ({"proposer": ["replay"], "replay": "/nowhere.jsonl"}, "no campaign"),
    ):
        with pytest.raises(BadInput, match=says):
            create_campaign(resolve(settings), problem, None, "x")
    assert not list((Path(__import__("os").environ["KERNELARC_HOME"]) / "campaigns").glob("*"))


def test_an_inbox_that_is_not_there_yet_lies_where_the_person_is(problem, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The engine runs in another directory, and would make it there."""
    monkeypatch.chdir(tmp_path)
    folder = create_campaign(resolve({"proposer": ["inbox"], "inbox": "box"}), problem, None, "x")
    with StoreReader(folder) as reader:
        assert reader.campaign().config.inbox == str(tmp_path.resolve() / "box")


def test_names_are_checked_and_never_taken_twice(problem) -> None:  # type: ignore[no-untyped-def]
    create_campaign(CampaignConfig(), problem, None, "mine")
    for name in ("mine", "../escape", "a/b", "", "x" * 65, ".hidden"):
        with pytest.raises(BadInput):
            create_campaign(CampaignConfig(), problem, None, name)
    one, two = (create_campaign(CampaignConfig(), problem) for _ in range(2))
    assert one != two and one.name.startswith("scale_rows-")


def test_proposers_and_models_take_turns() -> None:
    config = CampaignConfig(agents=5, proposer=["llm", "recipes"], model=["a/1", "b/2"], candidates=11)
    specs = agent_specs(config)
    assert [s.name for s in specs] == ["1", "2", "3", "4", "5"]
    assert [s.proposer for s in specs] == ["llm", "recipes", "llm", "recipes", "llm"]
    assert [s.model for s in specs] == ["a/1", None, "b/2", None, "a/1"]
    assert [s.budget for s in specs] == [3, 2, 2, 2, 2]


async def test_the_configurations_differ_in_the_documented_settings_only(lab) -> None:  # type: ignore[no-untyped-def]
    """One agent sees the same prompts under every preset but for memory, siblings and who else is there."""
    shown = {}
    for name in PRESET_SETTINGS:
        campaign = lab(slowly_better, candidates=12, config=name, agents=1)
        campaign.create(name)
        await campaign.run()
        shown[name] = [msgspec.structs.replace(c, taken=()) for c in campaign.contexts]
        started = campaign.events(ev.CampaignStarted)[0]
        shown[name + "/started"] = msgspec.structs.replace(started, name="", config="")
    assert shown["single"] == shown["multi-bounded"] == shown["multi-unbounded"]
    assert shown["single/started"] == shown["multi-bounded/started"] == shown["multi-unbounded/started"]


async def test_private_agents_see_neither_memory_nor_code_of_each_other(lab) -> None:  # type: ignore[no-untyped-def]
    def script(context):  # type: ignore[no-untyped-def]
        return f"ms=0.{9 - context.position}5" if context.agent == "1" else f"ms=1.{context.position}"

    for settings, shared in (
        ({"memory": "private", "leaderboard": False}, False),
        ({"memory": "shared", "leaderboard": True}, True),
    ):
        campaign = lab(script, agents=2, candidates=12, delay_s=0.01, **settings)
        campaign.create("shared" if shared else "private")
        await campaign.run()
        seen = [c for c in campaign.contexts if c.agent == "2"]
        assert any(c.siblings for c in seen) is shared
        assert any(entry.agent == "1" for c in seen for entry in c.wins) is shared
        siblings = [s for c in seen for s in c.siblings]
        assert all(s.agent == "1" and s.latency_ms < c.best.latency_ms for c in seen for s in c.siblings)
        assert all(s.solution.entry_source for s in siblings)
