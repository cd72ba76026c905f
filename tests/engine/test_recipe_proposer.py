"""The offline proposer: what fits, in which order, with which parameters; decided by the context alone."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from engine.guard.gate import check
from engine.hardware.facts import cpu_facts
from engine.problems.library import find_problem
from engine.problems.model import Problem
from engine.problems.program import program_sha
from engine.problems.solution import Solution, solution_sha
from engine.proposers.base import Context, Exhausted, Incumbent, MemoryEntry, PastCandidate, Proposal
from engine.proposers.recipes.choice import (
    CHEAP_TRIES,
    RECIPE,
    WRAPPERS_AFTER,
    WRAPPERS_IF_NOTHING_WON,
    Option,
    ordered,
)
from engine.proposers.recipes.materials import measured_candidates
from engine.proposers.recipes.proposer import RecipeProposer, fitting, proposal_for
from engine.proposers.recipes.search import Observed, neighbours, points
from engine.proposers.recipes.tunables import tunables_of, with_values
from engine.recipes.match import Fit
from engine.recipes.model import Parameter, RecipeFile, Restriction
from engine.recipes.space import every_point, starting_points, violation
from engine.records import Mode, Outcome, WorkloadResult
from engine.skills import load_skills

SPACE = RecipeFile(
    name="toy", family="toy", kernel_types=("any",), languages=("pytorch",), rule="reference", description="",
    hypothesis="", predicted="",
    parameters={
        "order": Parameter(choices=("rows", "cols")),
        "block": Parameter(kind="log", low=16, high=1024, default=64),
        "unroll": Parameter(kind="int", low=1, high=8, when="order == 'rows'"),
    },
    restrictions=(Restriction(expr="block * unroll <= 2048", why="registers"),),
    points=({"order": "rows", "block": 128},),
)  # fmt: skip


@pytest.fixture(scope="module")
def bundled() -> Problem:
    return find_problem("rmsnorm_residual_fp32")


@pytest.fixture(scope="module")
def fits(bundled: Problem) -> dict[str, Fit]:
    """The real matching of the real recipes against a bundled problem, as an engine does it."""
    return asyncio.run(fitting(session_of(bundled)))


def session_of(problem: Problem, **more: Any) -> Any:
    """As much of a campaign's session as matching recipes needs."""
    bench = SimpleNamespace(device=cpu_facts())
    return SimpleNamespace(
        writer=Writer(), problem=problem, bench=bench, kernel_type="norm", skills=load_skills(), **more
    )


def context(problem: Problem, **fields: Any) -> Context:
    from engine.launch import reference_solution

    seed = Incumbent(agent="1", number=0, solution=reference_solution(problem), latency_ms=1.0, speedup=1.0)
    defaults: dict[str, Any] = {
        "problem": problem, "kernel_type": "norm", "device": cpu_facts(), "agent": "1", "ordinal": 0,
        "position": 1, "seed": 0, "mode": Mode.REFINE, "strategy": "memory-layout", "base": seed, "best": seed,
    }  # fmt: skip
    return Context(**{**defaults, **fields})


def history_of(
    problem: Problem, fits: dict[str, Fit], count: int, ms: Any = None
) -> tuple[tuple[PastCandidate, ...], set[str]]:
    """Play ``count`` positions with invented latencies."""
    history: tuple[PastCandidate, ...] = ()
    taken: set[str] = set()
    for position in range(1, count + 1):
        proposal = proposal_for(context(problem, position=position, history=history, taken=taken), fits)
        taken.add(program_sha(proposal.solution))
        latency = ms(proposal) if ms else 1.0 - 0.01 * position
        history += (
            PastCandidate(
                number=position, position=position, mode=Mode.REFINE, strategy=proposal.strategy,
                family=proposal.family, parameters=proposal.parameters,
                outcome=Outcome.REVERT if latency is None else Outcome.ACCEPT, latency_ms=latency,
                source_sha=solution_sha(proposal.solution),
            ),
        )  # fmt: skip
    return history, taken


def test_the_bundled_problem_has_recipes_of_its_own_and_the_reference_as_material(fits: dict[str, Fit]) -> None:
    assert "compiled-reference" in fits and "lean-reference" in fits
    assert any(fit.recipe.file.rule != "reference" for fit in fits.values())


def test_every_point_of_every_fitting_recipe_passes_the_gate(bundled: Problem, fits: dict[str, Fit]) -> None:
    from engine.recipes.render import render

    for fit in fits.values():
        for point in every_point(fit.recipe.file, fit.facts)[:12]:
            result = check(render(fit, point), bundled)
            assert result.ok, f"{fit.recipe.key} {point}: {result.reason} {result.detail}"


def test_proposals_are_new_and_follow_from_the_context_alone(bundled: Problem, fits: dict[str, Fit]) -> None:
    one, taken = history_of(bundled, fits, 14)
    two, _ = history_of(bundled, fits, 14)
    assert one == two
    assert len(taken) == 14, "no source twice"
    rebuilt = msgspec.json.decode(msgspec.json.encode(one), type=tuple[PastCandidate, ...])
    again = context(bundled, position=15, history=rebuilt, taken=taken)
    assert proposal_for(again, fits) == proposal_for(context(bundled, position=15, history=one, taken=taken), fits)


async def test_what_was_in_flight_when_its_agent_ended_can_be_proposed_again(bundled: Problem) -> None:
    """The position is used again, and what is proposed at it follows from the store: the same program."""
    session = session_of(bundled, programs={}, reader=None)
    live: Any = SimpleNamespace(state=lambda *words: None)
    shas = []
    for ended in ("in flight", "judged", "judged"):
        agent = RecipeProposer(session)
        proposal = await agent.propose(context(bundled), live)
        assert isinstance(proposal, Proposal)
        if ended == "judged":
            await agent.judged(proposal, Outcome.REVERT, None, "keep.slower")
        await agent.close()
        shas.append(program_sha(proposal.solution))
    assert shas[0] == shas[1] != shas[2]


def test_fitted_recipes_come_before_wrappers_of_the_reference(bundled: Problem, fits: dict[str, Fit]) -> None:
    first = proposal_for(context(bundled), fits)
    assert fits[str(first.parameters[RECIPE])].recipe.file.rule != "reference"


def test_a_proposal_says_what_it_tries(bundled: Problem, fits: dict[str, Fit]) -> None:
    proposal = proposal_for(context(bundled), fits)
    assert proposal.hypothesis and proposal.predicted_change and proposal.family
    assert proposal.strategy in load_skills().skills


def test_a_draft_leaves_the_family_and_its_line_stays_in_the_new_one(
    bundled: Problem, fits: dict[str, Fit]
) -> None:
    history, taken = history_of(bundled, fits, 3)
    draft = proposal_for(context(bundled, position=4, history=history, taken=taken, mode=Mode.DRAFT), fits)
    assert draft.family != history[-1].family
    line = PastCandidate(
        number=4, position=4, mode=Mode.DRAFT, strategy=draft.strategy, family=draft.family,
        parameters=draft.parameters, outcome=Outcome.REVERT, latency_ms=1.4,
    )  # fmt: skip
    recipe = fits[str(draft.parameters[RECIPE])]
    taken.add(program_sha(draft.solution))
    second = proposal_for(
        context(bundled, position=5, history=(*history, line), taken=taken, mode=Mode.DRAFT), fits
    )
    if len(every_point(recipe.recipe.file, recipe.facts)) > 1:
        assert second.family == draft.family


def test_agents_do_not_start_with_the_same_candidate(bundled: Problem, fits: dict[str, Fit]) -> None:
    first = proposal_for(context(bundled), fits)
    taken = {program_sha(first.solution)}
    second = proposal_for(context(bundled, agent="2", ordinal=1, taken=taken), fits)
    assert program_sha(second.solution) not in taken


def test_when_everything_was_tried_the_agent_is_told(bundled: Problem, fits: dict[str, Fit]) -> None:
    class Everything:
        def __contains__(self, sha: object) -> bool:
            return True

    with pytest.raises(Exhausted, match="nothing is left"):
        proposal_for(context(bundled, taken=Everything()), fits)
    with pytest.raises(Exhausted, match="no recipe fits"):
        proposal_for(context(bundled), {})


class Writer:
    """Something that the shared trace can be kept with."""


OPTIONS = [Option(name="a", skill="s1", family="fa", cost=1), Option(name="b", skill="s1", family="fb", cost=1),
           Option(name="c", skill="s2", family="fc", cost=5)]  # fmt: skip


def test_agents_that_think_at_the_same_time_propose_different_sources(
    bundled: Problem, fits: dict[str, Fit], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.proposers.recipes.proposer import RecipeProposer

    session: Any = SimpleNamespace(reader=None, writer=Writer(), programs={})
    live: Any = SimpleNamespace(state=lambda *words: None)

    async def known(self: RecipeProposer) -> dict[str, Fit]:
        return fits

    monkeypatch.setattr(RecipeProposer, "_recipes", known)

    async def all_at_once() -> list[str]:
        asked = [context(bundled, agent=name) for name in "123"]
        replies = await asyncio.gather(*(RecipeProposer(session).propose(each, live) for each in asked))
        return [solution_sha(reply.solution) for reply in replies]

    assert len(set(asyncio.run(all_at_once()))) == 3


async def test_a_recipe_that_cannot_be_rendered_is_reported_and_passed_over(
    bundled: Problem, fits: dict[str, Fit]
) -> None:
    from dataclasses import replace

    from engine.proposers.recipes.proposer import RecipeProposer

    name = str(proposal_for(context(bundled), fits).parameters[RECIPE])
    broken = replace(
        fits[name], recipe=msgspec.structs.replace(fits[name].recipe, template="{{ f.nothing.here }}")
    )
    notes: list[str] = []

    async def note(code: str, text: str) -> None:
        notes.append(f"{code} {text}")

    session: Any = SimpleNamespace(note=note, reader=None, writer=Writer(), programs={})
    proposer = RecipeProposer(session)

    async def recipes() -> dict[str, Fit]:
        return {**fits, name: broken}

    proposer._recipes = recipes  # type: ignore[method-assign]
    live: Any = SimpleNamespace(state=lambda *args: None)
    proposal: Any = await proposer.propose(context(bundled, history=(), position=1), live)
    assert proposal.parameters[RECIPE] != name
    assert len(notes) == 1 and name in notes[0]


async def test_matching_that_failed_is_tried_again_by_the_next_who_asks(
    bundled: Problem, fits: dict[str, Fit], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.proposers.recipes import proposer as module

    answers: list[Any] = [OSError(11, "Resource temporarily unavailable"), fits]

    async def traced(problem: Problem) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [], "not traced"

    monkeypatch.setattr(module, "trace_reference", traced)
    session = session_of(bundled)
    agents = [module.RecipeProposer(session) for _ in range(3)]
    with pytest.raises(OSError, match="temporarily"):
        await agents[0].strategies(["operator-fusion"])
    assert await agents[1].strategies(["operator-fusion"]) == ("operator-fusion",)
    assert await agents[2].strategies(["operator-fusion"]) == ("operator-fusion",) and not answers


def tried(name: str, latency_ms: float | None, mode: Mode = Mode.REFINE) -> PastCandidate:
    return PastCandidate(
        number=1, position=1, mode=mode, strategy="s1", family=f"f{name}", parameters={RECIPE: name},
        outcome=Outcome.REVERT, latency_ms=latency_ms,
    )  # fmt: skip


def order(history: list[PastCandidate], **fields: Any) -> list[str]:
    defaults: dict[str, Any] = {"strategy": "s1", "mode": Mode.REFINE, "ordinal": 0, "rng": random.Random(5)}
    return [option.name for option in ordered(OPTIONS, history, **{**defaults, **fields})]


def test_the_order_of_recipes() -> None:
    assert order([]) == ["a", "b", "c"]
    assert order([], ordinal=1) == ["b", "a", "c"], "agents begin at different recipes"
    assert order([], strategy="s2")[0] == "a", "what is expensive waits until something was measured"
    some = [tried("a", 0.9), tried("a", 0.8)] * (CHEAP_TRIES // 2)
    assert order(some[:-1], strategy="s2")[0] != "c", "one cheap try is still owed"
    assert order(some, strategy="s2")[0] == "c", "then the chosen strategy's recipes come first"
    assert order([tried("a", 0.9)])[0] == "b", "an untried recipe before a known one"
    assert order([tried("a", None), tried("a", None), tried("b", 0.9)])[-1] == "a", "never right: last"
    win = MemoryEntry(id=1, kind="win", kernel_type="norm", strategy="s1 · fb: it helps", reflection="")
    assert order([], wins=[win])[0] == "b"
    trap = MemoryEntry(
        id=2, kind="trap", kernel_type="norm", strategy="s1 · fa", reflection="", error="wrong.numerical"
    )
    assert order([], traps=[trap])[-1] == "a"
    both = [tried("a", 0.9), tried("b", 0.5)]
    assert order(both)[0] == "b", "refinement stays with the fastest"
    assert order(both, mode=Mode.DRAFT)[0] != "b", "a draft leaves it"


def test_wrappers_of_the_reference_wait_for_what_was_made_for_the_problem() -> None:
    wrapper = Option(name="w", skill="s2", family="fw", cost=1, wrapper=True)

    def first(options: list[Option], history: list[PastCandidate], mode: Mode = Mode.REFINE) -> str:
        found = ordered(options, history, strategy="s2", mode=mode, ordinal=0, rng=random.Random(5))
        return found[0].name

    both = [OPTIONS[0], wrapper]
    kept = msgspec.structs.replace(tried("a", 0.9), outcome=Outcome.KEEP)
    assert first(both, []) == "a", "although the chosen strategy has only the wrapper"
    assert first([wrapper], []) == "w", "nothing else fits"
    assert first(both, [tried("a", 0.9)] * WRAPPERS_IF_NOTHING_WON) == "w"
    assert first(both, [kept] * (WRAPPERS_AFTER - 1)) == "a" and first(both, [kept] * WRAPPERS_AFTER) == "w"
    assert first(both, [kept], Mode.DRAFT) == "w", "a draft leaves the family"


def test_declared_points_come_in_the_order_that_suits_the_problem() -> None:
    ordered_space = msgspec.structs.replace(
        SPACE, points=({"block": 64}, {"block": 256}, {"block": 512}), order="(block - f.best) | abs"
    )
    first = [point["block"] for point in starting_points(ordered_space, {"best": 500})]
    assert first == [512, 256, 64], "the defaults last, and only once"


def test_the_search_covers_a_space_without_repeats_and_within_its_rules() -> None:
    seen: list[Observed] = []
    visited = []
    whole = every_point(SPACE, {})
    for turn in range(len(whole)):
        known = [one.point for one in seen]
        point = next((p for p in points(SPACE, {}, seen, seed=turn, local=turn % 2 == 0) if p not in known), None)
        assert point is not None, f"stopped after {turn} of {len(whole)}"
        assert violation(SPACE, point, {}) is None
        visited.append(point)
        seen.append(Observed(point=point, latency_ms=cost(point)))
    assert len(visited) == len(whole)
    assert visited[0] == {"order": "rows", "block": 128, "unroll": 1}, "declared points come first"


def cost(point: Any) -> float:
    ideal = abs(math.log2(point["block"]) - 9) + (0 if point["order"] == "cols" else 2) + 0.05 * point["unroll"]
    return 1.0 + ideal


def test_the_search_finds_a_good_point_sooner_than_chance() -> None:
    def tries_until_best(seed: int) -> int:
        seen: list[Observed] = []
        best = min(cost(p) for p in every_point(SPACE, {}))
        for turn in range(200):
            known = [one.point for one in seen]
            found = points(SPACE, {}, seen, seed=seed * 1000 + turn, local=turn % 2 == 0)
            point = next(p for p in found if p not in known)
            seen.append(Observed(point=point, latency_ms=cost(point)))
            if cost(point) <= best + 0.5:
                return turn + 1
        return 200

    needed = sorted(tries_until_best(seed) for seed in range(7))
    assert needed[3] <= 14, f"median of {needed}"


def test_neighbours_differ_in_one_active_parameter() -> None:
    centre = {"order": "cols", "block": 64, "unroll": 1}
    found = neighbours(SPACE, {}, centre, random.Random(0))
    assert {(p["order"], p["block"]) for p in found} == {("cols", 32), ("cols", 128), ("rows", 64)}


def test_a_failed_point_repels_the_optimizer_and_old_values_out_of_the_space_are_ignored() -> None:
    seen = [Observed(point={"order": "rows", "block": 16, "unroll": u}, latency_ms=None) for u in range(1, 7)]
    seen.append(Observed(point={"order": "sideways", "block": 7}, latency_ms=0.1))
    asked = list(points(SPACE, {}, seen, seed=3, local=False))
    assert asked and all(violation(SPACE, point, {}) is None for point in asked)


def test_nothing_heavy_is_imported_for_a_first_proposal(tmp_path: Path) -> None:
    import subprocess
    import sys

    heavy = "('optuna', 'torch', 'litellm')"
    code = f"import sys, engine.proposers.recipes; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


TUNED = """\
import torch

BLOCK = 128  # tune: 32, 64, 128, 256
ALPHA = 0.5  # a constant that nobody declared
STEP = 2     # tune: 1, 2, 4

def run(x, weight):
    return x * weight
"""


def test_constants_that_their_author_declared_are_tuned_and_nothing_else_changes(bundled: Problem) -> None:
    from engine.problems.solution_io import solution_from_source

    solution = solution_from_source(TUNED, bundled, name="llm-57")
    assert [(t.name, t.value, t.choices) for t in tunables_of(solution)] == [
        ("BLOCK", 128, (32, 64, 128, 256)),
        ("STEP", 2, (1, 2, 4)),
    ]
    sibling = Incumbent(
        agent="2", number=57, solution=solution, latency_ms=0.5, speedup=2.0, strategy="tiling-pipelining"
    )
    taken = {program_sha(solution)}
    seen = set()
    for position in range(1, 12):
        proposal = proposal_for(context(bundled, position=position, siblings=(sibling,), taken=taken), {})
        assert proposal.parameters[RECIPE] == "tune-57" and proposal.family == "tuning"
        text = proposal.solution.entry_source
        assert (
            text.replace(f"BLOCK = {proposal.parameters['BLOCK']} ", "BLOCK = 128 ").replace(
                f"STEP = {proposal.parameters['STEP']} ", "STEP = 2 "
            )
            == TUNED
        )
        seen.add((proposal.parameters["BLOCK"], proposal.parameters["STEP"]))
        taken.add(program_sha(proposal.solution))
    assert len(seen) == 11, "every other combination once"
    with pytest.raises(Exhausted):
        proposal_for(context(bundled, position=12, siblings=(sibling,), taken=taken), {})


@pytest.mark.parametrize(
    "line",
    ["BLOCK = compute()  # tune: 1, 2", "BLOCK = 128  # tune: 128", "BLOCK = 128  # tune: a, b",
     "x = 1; y = 2  # tune: 1, 2 or so",
     "BLOCK = 128"],
)  # fmt: skip
def test_a_line_that_declares_nothing_usable_is_left_alone(bundled: Problem, line: str) -> None:
    from engine.problems.solution_io import solution_from_source

    assert tunables_of(solution_from_source(f"{line}\n{line}\n", bundled, name="x")) == []


def test_a_cuda_constant_is_tuned_too(bundled: Problem) -> None:
    from engine.problems.solution import Solution, SolutionSpec, SourceFile

    text = "constexpr int kBlock = 64;  // tune: 32, 64\nvoid run() {}\n"
    spec = SolutionSpec(languages=["cuda_cpp"], entry_point="k.cu::run")
    solution = Solution("k", "d", "a", spec, [SourceFile("k.cu", text)])
    (tunable,) = tunables_of(solution)
    assert with_values(solution, [tunable], {"kBlock": 32}).entry_source == text.replace("= 64;", "= 32;")


def test_winners_on_different_shapes_are_put_together(bundled: Problem) -> None:
    from engine.launch import reference_solution
    from engine.problems.solution_io import solution_from_source
    from engine.recipes.dispatch import Measured

    uuids = [workload.uuid for workload in bundled.workloads]
    reference = reference_solution(bundled)
    other = solution_from_source(bundled.definition.reference + "\n\nX = 1\n", bundled, name="other")
    one = Measured(label="#3", solution=reference, latencies_ms={u: 1.0 + (u == uuids[0]) for u in uuids})
    two = Measured(label="#5", solution=other, latencies_ms={u: 2.0 - (u == uuids[0]) for u in uuids})
    proposal = proposal_for(context(bundled), {}, [one, two])
    assert proposal.family == "dispatch" and "#3" in proposal.hypothesis and "#5" in proposal.hypothesis
    assert check(proposal.solution, bundled).ok, check(proposal.solution, bundled).detail
    with pytest.raises(Exhausted):
        proposal_for(context(bundled, taken={program_sha(proposal.solution)}), {}, [one, two])
    with pytest.raises(Exhausted):
        proposal_for(context(bundled), {}, [one])


class Records:
    """As much of a store's reader as latencies need: number → milliseconds by workload."""

    def __init__(self, solution: Solution, times_ms: dict[int, dict[str, float]]) -> None:
        self._solution, self._times_ms = solution, times_ms

    def solution(self, number: int) -> Solution:
        return self._solution

    def workloads(self, number: int) -> list[WorkloadResult]:
        return [
            WorkloadResult(uuid=uuid, status="PASSED", latency_ms=ms)
            for uuid, ms in self._times_ms[number].items()
        ]


def test_who_was_measured_while_the_cpu_was_busy_loses_no_shape_by_it(
    bundled: Problem, fits: dict[str, Fit]
) -> None:
    from engine.launch import reference_solution

    history, _ = history_of(bundled, fits, 2)
    quiet, busy = (
        msgspec.structs.replace(past, number=number, latency_ms=ms)
        for past, number, ms in zip(history, (1, 2), (2.0, 1.0), strict=True)
    )
    records = Records(reference_solution(bundled), {1: {"a": 1.0, "b": 4.0}, 2: {"a": 1.5, "b": 6.0}})
    measured = measured_candidates(context(bundled, position=3, history=(quiet, busy)), records)
    assert {one.label: one.latencies_ms for one in measured} == {
        "#1": pytest.approx({"a": 1.0, "b": 4.0}),
        "#2": pytest.approx({"a": 0.5, "b": 2.0}),
    }


def test_a_fitted_recipe_computes_what_the_reference_does(bundled: Problem, fits: dict[str, Fit]) -> None:
    """The trace crosses a process as JSON on its way to the recipes: nothing of it may get lost."""
    import torch

    from engine.recipes.render import render

    fit = next(fit for fit in fits.values() if fit.recipe.file.rule == "rows-torch")
    solution = render(fit, {})
    spaces: dict[str, dict[str, Any]] = {"reference": {}, "candidate": {}}
    exec(compile(bundled.definition.reference, "reference", "exec"), spaces["reference"])
    exec(compile(solution.entry_source, "candidate", "exec"), spaces["candidate"])
    torch.manual_seed(0)
    inputs = [torch.randn(6, 1024), torch.randn(6, 1024), torch.rand(1024), 1e-6]
    wanted = spaces["reference"]["run"](*inputs)
    given = [torch.full_like(tensor, float("nan")) for tensor in wanted]
    spaces["candidate"]["run"](*inputs, *given)
    for one, other in zip(wanted, given, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_dispatch_is_tried_as_soon_as_two_win_on_different_shapes_and_again_when_it_promises_more(
    bundled: Problem, fits: dict[str, Fit]
) -> None:
    from engine.recipes.dispatch import Measured

    history, taken = history_of(bundled, fits, 2)
    names = [w.uuid for w in bundled.workloads]

    def measured(number: int, first: float, others: float) -> Measured:
        solution = proposal_for(context(bundled, position=number), fits).solution
        source = msgspec.structs.replace(solution.sources[0], content=f"# {number}\n{solution.entry_source}")
        solution = msgspec.structs.replace(solution, sources=[source])
        times = dict.fromkeys(names, others) | {names[0]: first}
        return Measured(label=f"#{number}", solution=solution, latencies_ms=times)

    def family(known: tuple[PastCandidate, ...], *measurements: Measured) -> str:
        position = len(known) + 1
        now = context(bundled, position=position, history=known, taken=taken)
        return proposal_for(now, fits, measurements).family

    one, two = measured(1, 1.0, 2.0), measured(2, 4.0, 1.0)
    assert family(history, one) != "dispatch"
    assert family(history, one, two) == "dispatch", "the very next proposal"
    done = msgspec.structs.replace(history[-1], family="dispatch", position=3, number=3, latency_ms=1.0)
    later = tuple(msgspec.structs.replace(history[0], number=n, position=n) for n in (4, 5, 6))
    assert family((*history, done), one, two) != "dispatch", "just tried"
    assert family((*history, done, *later), one, two) != "dispatch", "promises no more than the last one gave"
    assert family((*history, done, *later), one, two, measured(7, 0.5, 4.0)) == "dispatch"
