"""A reference runs in the process that traces it and can forge what that says: all of it is data, no more."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.problems.library import find_problem
from engine.problems.model import Problem
from engine.recipes.expressions import evaluate
from engine.recipes.graph import Dtype, RawGraph, Ref
from engine.recipes.index import Unsupported
from engine.recipes.match import Misfit, match, match_all
from engine.recipes.model import Recipe
from engine.recipes.reply import Call, NoTrace, Reply, Request, read_reply
from engine.recipes.rows import Builder
from engine.recipes.rules import RULES
from engine.recipes.sizes import Size
from engine.recipes.subject import subject_of
from engine.recipes.tracing import calls_for, prepare, trace_reference
from tests.content.helpers import CPU, TASKS, small_problem, traced

ATTENTION = "masked_softmax_attention_fp32"
ENGINE = Path(__file__).resolve().parents[2] / "engine"

FORGED = """
import msgspec as _m
_encode = _m.msgpack.encode
def _forge(reply):
{body}
def _lie(reply, *a, **k):
    return _forge(reply) if hasattr(reply, "graphs") else _encode(reply, *a, **k)
_m.msgpack.encode = _lie
"""


def lying(body: str) -> Problem:
    """The bundled attention, whose reference makes the tracer's reply with ``body``."""
    problem = find_problem(ATTENTION)
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    reference = problem.definition.reference + FORGED.format(body=lines)
    return msgspec.structs.replace(
        problem, definition=msgspec.structs.replace(problem.definition, reference=reference)
    )


def text_that_runs(canary: Path) -> str:
    """An expression that starts a program without any name but its own."""
    classes = "().__class__.__base__.__subclasses__()"
    return f"[c for c in {classes} if c.__name__ == 'Popen'][0](['touch', '{canary}']).wait() or 0.125"


SCALES = """
for number, graph in enumerate(reply.graphs.values()):
    for op in graph.ops:
        for place, item in enumerate(op.args):
            if op.base in ("mul", "div") and isinstance(item, float):
                op.args[place] = {item}
    {more}
return _encode(reply)
"""


@pytest.mark.parametrize(
    ("item", "more"),
    [("{text!r}", "pass"), ("1000.0 + 7 * number", "graph.axes[{text!r}] = 1000 + 7 * number")],
    ids=["an argument", "the name of an axis"],
)
async def test_a_text_in_a_reply_is_never_run(
    tmp_path: Path, item: str, more: str, recipes: dict[str, Recipe]
) -> None:
    canary = tmp_path / "ran"
    text = text_that_runs(canary)
    body = SCALES.format(item=item.format(text=text), more=more.format(text=text))
    subject = await prepare(lying(body), CPU, "attention")
    assert subject.traces  # the lie has the form of a trace
    _, misfits = match_all(recipes.values(), subject)
    assert "vendor-library/fused-sdpa" in {m.recipe for m in misfits}
    assert not canary.exists()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("import os\nwhile True:\n    for fd in range(3, 30):\n        try: os.write(fd, b'x' * 65536)\n"
         "        except OSError: pass", "wrote more than 8 MiB"),
        ("return b'\\xc1'", "no readable answer"),
        ("raise SystemExit(3)", "ended with code 3"),
    ],
    ids=["endless", "no document", "an error"],
)  # fmt: skip
async def test_whatever_is_replied_there_is_only_no_trace(body: str, why: str) -> None:
    traces, said = await trace_reference(lying(body), timeout_s=40.0)
    assert traces == [] and why in said
    subject = subject_of(find_problem(ATTENTION), traces, CPU, "attention")
    assert subject.graph is None and subject.why_no_graph


# In this process, from here on: the same forged replies, many of them.


@pytest.fixture(scope="module")
def honest() -> tuple[list[Call], dict[str, Any]]:
    """The calls for the attention, and the honest reply to them as plain data."""
    from engine.recipes.capture import trace_all

    problem = find_problem(ATTENTION)
    calls = calls_for(problem)
    graphs = trace_all(Request(reference=problem.definition.reference, calls=calls))
    return calls, msgspec.to_builtins(Reply(graphs=graphs))


def forged(honest: tuple[list[Call], dict[str, Any]], change: Callable[[dict[str, Any]], None]) -> bytes:
    reply: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(honest[1]), strict=False)
    for graph in reply["graphs"].values():
        change(graph)
    return msgspec.msgpack.encode(reply)


def nested(depth: int) -> Any:
    item: Any = 1
    for _ in range(depth):
        item = [item]
    return item


def first_args(item: Any) -> Callable[[dict[str, Any]], None]:
    return lambda graph: graph["ops"][0]["args"].append(item)


def first_value(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda graph: next(iter(graph["values"].values())).update(fields)


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a size below zero": first_value(shape=[-1]),
    "a size that no tensor has": first_value(shape=[2**63]),
    "a hundred dimensions": first_value(shape=[1] * 100),
    "a type that is a program": first_value(dtype="float32); import os"),
    "an input that is not there": lambda g: g["inputs"].update(extra=0),
    "an input of another shape": lambda g: g["values"][next(iter(g["inputs"].values()))].update(shape=[7]),
    "an input without a value": lambda g: g["inputs"].update({next(iter(g["inputs"])): 10**6}),
    "an output without a value": lambda g: g["outputs"].append(10**6),
    "a result without a value": lambda g: g["ops"][0]["outs"].append(-3),
    "a constant without a value": lambda g: g.update(constants={10**6: [1.0]}),
    "a constant of many numbers": lambda g: g.update(constants={0: [1.0] * 1000}),
    "an operator that is a program": lambda g: g["ops"][0].update(name="mul(); import os"),
    "more operators than are traced": lambda g: g.update(ops=g["ops"][:1] * 7000),
    "a tensor that nobody described": first_args({"t": "v", "id": 10**6}),
    "a record of no kind": first_args({"t": "x", "id": 1}),
    "a type in an argument that is a program": first_args({"t": "d", "name": "float32)"}),
    "bytes in an argument": first_args(b"bytes"),
    "a number that no tensor holds": first_args(2**64 - 1),
    "lists in lists": first_args(nested(9)),
    "a long text": first_args("x" * 100_000),
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"\x91" * 200_000, "Expected `object`"),
        (b"\x81\xa1x" + b"\x91" * 200_000 + b"\x90", "nested too deeply"),
        (msgspec.msgpack.encode({"graphs": [1]}), "Expected `object`"),
        (msgspec.msgpack.encode({"graphs": {"w": {"ops": []}}}), "missing required field"),
    ],
    ids=["nothing", "lists", "deep", "other types", "a part"],
)
def test_another_document_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(NoTrace, match=why):
        read_reply(data, [])


def test_an_answer_to_a_call_that_was_not_made_is_refused(honest: tuple[list[Call], dict[str, Any]]) -> None:
    with pytest.raises(NoTrace, match="was not made"):
        read_reply(forged(honest, lambda graph: None), honest[0][1:])


@pytest.mark.parametrize("lie", LIES)
def test_a_reply_of_another_form_is_refused(lie: str, honest: tuple[list[Call], dict[str, Any]]) -> None:
    assert read_reply(forged(honest, lambda graph: None), honest[0])
    with pytest.raises(NoTrace):
        read_reply(forged(honest, LIES[lie]), honest[0])


def test_names_and_axes_are_those_of_the_request(honest: tuple[list[Call], dict[str, Any]]) -> None:
    def rename(graph: dict[str, Any]) -> None:
        graph.update(axes={"evil": 3}, scalars={"evil": 3.0}, label="evil", error="a\x1b[31mb\nc")

    calls = [msgspec.structs.replace(call, axes=call.axes | {"no name": 1, "class": 2}) for call in honest[0]]
    graphs = read_reply(forged(honest, rename), calls)
    assert [g.label for g in graphs] == [c.key for c in calls]
    assert [g.axes for g in graphs] == [c.axes for c in honest[0]]  # what no expression can name is left out
    assert all(g.scalars == c.scalars for g, c in zip(graphs, calls, strict=True))
    assert {g.error for g in graphs} == {"ab c"}


def swapped(graph: dict[str, Any], op: str, place: int, item: Any) -> None:
    for node in graph["ops"]:
        if node["name"].startswith(op):
            node["args"][place] = item


CONTRADICTIONS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a softmax of a number": lambda g: swapped(g, "_softmax", 0, 3),
    "a softmax over nothing": lambda g: swapped(g, "_softmax", 1, None),
    "a softmax over dimension 99": lambda g: swapped(g, "_softmax", 1, 99),
    "a view of a text": lambda g: swapped(g, "view", 0, "text"),
    "products of numbers": lambda g: swapped(g, "bmm", 0, 1),
    "a circle": lambda g: g["ops"][0]["args"].__setitem__(0, {"t": "v", "id": g["outputs"][0]}),
    "nothing but names": lambda g: [op.update(args=[], kwargs={}) for op in g["ops"]] and None,
    "no shapes": lambda g: [v.update(shape=[]) for n, v in g["values"].items() if n not in g["inputs"].values()]
    and None,
    "gigantic shapes": lambda g: [
        v.update(shape=[2**62] * len(v["shape"])) for n, v in g["values"].items() if n not in g["inputs"].values()
    ]
    and None,
    "empty shapes": lambda g: [
        v.update(shape=[0] * len(v["shape"])) for n, v in g["values"].items() if n not in g["inputs"].values()
    ]
    and None,
    "no operators": lambda g: g.update(ops=[]),
    "no outputs": lambda g: g.update(outputs=[]),
    "no inputs": lambda g: g.update(inputs={}),
    "every scale infinite": lambda g: swapped(g, "mul", 1, float("inf")),
    "every scale no number": lambda g: swapped(g, "mul", 1, float("nan")),
}  # fmt: skip


@pytest.mark.parametrize("data_dependent", [False, True])
@pytest.mark.parametrize("lie", CONTRADICTIONS)
def test_a_trace_that_contradicts_itself_fits_nothing_made_for_it(
    lie: str, data_dependent: bool, honest: tuple[list[Call], dict[str, Any]], recipes: dict[str, Recipe]
) -> None:
    """The rules read what is wrong inside as well as they can; that no error leaves them is what counts."""

    def change(graph: dict[str, Any]) -> None:
        graph["data_dependent"] = data_dependent
        CONTRADICTIONS[lie](graph)

    assert matched(forged(honest, change), honest[0], recipes)


def test_whatever_bytes_change_no_error_leaves_the_matching(
    honest: tuple[list[Call], dict[str, Any]], recipes: dict[str, Recipe]
) -> None:
    rng, data = random.Random(0), msgspec.msgpack.encode(honest[1])
    read = 0
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 2)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        read += matched(bytes(changed), honest[0], recipes)
    assert read > 20  # some of them are still read as traces


def matched(reply: bytes, calls: list[Call], recipes: dict[str, Recipe]) -> bool:
    """Match every recipe against what a reply says; whether it was a trace at all."""
    problem = find_problem(ATTENTION)
    try:
        traces = read_reply(reply, calls)
    except NoTrace:
        return False
    subject = subject_of(problem, traces, CPU, "attention")
    fits, misfits = match_all(recipes.values(), subject)
    assert len(fits) + len(misfits) == len(recipes)
    return True


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by zero"), OverflowError(), KeyError(3), IndexError(), AttributeError("id"),
              TypeError(), ValueError(), RecursionError(), StopIteration()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_matcher_that_fails_is_a_misfit_with_its_reason(
    error: Exception, recipes: dict[str, Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rule(subject: Any, options: Any) -> dict[str, Any]:
        raise error

    recipe = recipes["row-blocks"]
    monkeypatch.setitem(RULES, recipe.file.rule, rule)
    found = match(recipe, traced(elementwise("return x + x")))
    assert isinstance(found, Misfit) and type(error).__name__ in found.why


def elementwise(body: str, before: str = "", cols: int = 64) -> Problem:
    reference = f"import torch\n{before}\ndef run(x):\n    {body}\n"
    tensor = ("rows cols", "float32")
    return small_problem(
        reference, {"x": tensor}, {"y": tensor}, {"rows": None, "cols": cols}, [{"rows": 4}, {"rows": 7}]
    )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = x.sum()\n    for _ in range(60): y = y + y\n    return y", "too many steps"),
        ("for _ in range(2500): x = x + 1\n    return x", "RecursionError"),
        ("for i in range(18): x = x[:, 1 << i :] + x[:, : -(1 << i)]\n    return x", "20000 steps"),
    ],
    ids=["a number that doubles", "a long chain", "slices of slices"],
)
def test_a_reference_cannot_make_the_matching_grow_without_end(
    body: str, why: str, recipes: dict[str, Recipe]
) -> None:
    problem = elementwise(body, cols=1 << 20)
    found = match(recipes["row-blocks"], traced(problem))
    assert isinstance(found, Misfit) and why in found.why


def test_a_tensor_from_outside_the_call_is_no_error() -> None:
    subject = traced(elementwise("return x + TABLE", before="TABLE = torch.ones(1, 64)"))
    assert subject.graph is None and "neither an input nor computed from one" in subject.why_no_graph


# Expressions


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-3", -3), ("1e-06", 1e-6), ("rows * 2", 14), ("(rows) // (3) * (2)", 4), ("rows + 1 - 2", 6),
        ("(scale ** -0.5)", 2.0), ("1.0 / (4.0)", 0.25), ("float('-inf')", float("-inf")), ("7 % 4", 3),
    ],
)  # fmt: skip
def test_expressions_of_the_compiler(text: str, value: float) -> None:
    assert evaluate(text, {"rows": 7, "scale": 0.25}) == value


@pytest.mark.parametrize(
    "text",
    [
        "cols", "rows.real", "rows[0]", "(lambda: 1)()", "[1 for _ in 'a']", "'text'", "f'{rows}'", "True",
        "rows and 1", "rows if rows else 1", "rows == 7", "~rows", "rows << 70", "float('1')", "float(rows)",
        "int('7')", "abs(-1)", "__import__('os')", "1 / 0", "10 ** 64 ** 64", "2 ** 65", "9" * 30, "", "\0",
        "(" * 500 + "1" + ")" * 500, "1 +" * 9000 + "1", "-" * 3000 + "1", "rows; rows", "(x := 1)", "1j",
        "(-2.0) ** 0.5", "rows,", "*rows", "None", "...",
    ],
    ids=lambda text: text[:20].replace("\0", "nul"),
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(Unsupported):
        evaluate(text, {"rows": 7})


@pytest.mark.parametrize("item", ["0.5", "rows", None, [1.0], Ref(0), Dtype("float32"), b"1"])
def test_only_numbers_become_literals(item: Any) -> None:
    from engine.recipes.index import Domain

    graph: Any = None
    builder = Builder(graph, Domain(Size("4", (4,)), Size("8", (8,))))
    with pytest.raises(Unsupported):
        builder.literal(item)
    assert builder.program.scalars == {}


def test_the_engine_evaluates_no_text() -> None:
    """``exec`` is for a problem's own code, in the children that are made for it."""
    children = {"recipes/capture.py", "problems/reference.py", "problems/kernelbench_child.py"}
    found: dict[str, set[str]] = {}
    for path in ENGINE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if name in ("eval", "exec", "compile", "__import__"):
                found.setdefault(name, set()).add(str(path.relative_to(ENGINE)))
    assert found == {"exec": children, "compile": children}


@pytest.mark.parametrize("name", [path.name for path in TASKS])
def test_honest_traces_are_read_as_they_are(name: str) -> None:
    from engine.recipes.capture import trace_all

    problem = find_problem(name)
    calls = calls_for(problem)
    graphs = trace_all(Request(reference=problem.definition.reference, calls=calls))
    found: list[RawGraph] = read_reply(msgspec.msgpack.encode(Reply(graphs=graphs)), calls)
    assert [(g.label, g.ops, g.axes, g.scalars) for g in found] == [
        (g.label, g.ops, g.axes, g.scalars) for g in graphs.values()
    ]
