"""From a model's words to a solution, or to the reason why they hold none."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.problems.model import Problem
from engine.problems.program import normalised, program_sha
from engine.problems.solution import python_solution
from engine.proposers.llm.fences import blocks, longest_fence
from engine.proposers.llm.reply import MAX_REPLY, Parsed, Unusable, read_reply

RUN = "def run(x, eps):\n    return x\n"
CUDA = "#include <torch/extension.h>\nvoid run(torch::Tensor x, double eps, torch::Tensor y) {\n}\n" + (
    'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }\n'
)


DIGITS = f"0x{'f' * 3700}"  # more decimal digits than Python prints


def fenced(text: str, info: str = "python", ticks: str = "```") -> str:
    return f"{ticks}{info}\n{text}{ticks}\n"


def read(text: str, problem: Problem, **more: object) -> Parsed | Unusable:
    return read_reply(text, problem, name="1-1", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (fenced(RUN), {"kernel.py": RUN}),
        (fenced(RUN, ""), {"kernel.py": RUN}),
        (fenced(RUN, "py"), {"kernel.py": RUN}),
        ("Here it is:\n\n" + fenced(RUN) + "\nIt is faster.", {"kernel.py": RUN}),
        (fenced(RUN, "python main.py"), {"main.py": RUN}),
        (fenced(RUN, "python:main.py"), {"main.py": RUN}),
        (fenced(RUN, 'python path="src/main.py"'), {"src/main.py": RUN}),
        (fenced("# file: main.py\n" + RUN), {"main.py": "# file: main.py\n" + RUN}),
        (fenced("# main.py\n" + RUN), {"main.py": "# main.py\n" + RUN}),
        (fenced(RUN, ticks="~~~"), {"kernel.py": RUN}),
        (fenced("x = '''\n```\n'''\n" + RUN, ticks="````"), {"kernel.py": "x = '''\n```\n'''\n" + RUN}),
        ("   ```python\n   " + RUN.replace("\n", "\n   ").rstrip() + "\n   ```", {"kernel.py": RUN}),
        (fenced("run(1, 2)\n") + fenced(RUN), {"kernel.py": RUN}),
        (fenced(RUN) + fenced(RUN), {"kernel.py": RUN}),
        (
            fenced(RUN, "python kernel.py") + fenced("def helper():\n    pass\n", "python util.py"),
            {"kernel.py": RUN, "util.py": "def helper():\n    pass\n"},
        ),
        (fenced("def run(x, eps):\n    return 0\n") + fenced(RUN, "python kernel.py"), {"kernel.py": RUN}),
        ("<think>" + fenced("def run(x, eps):\n    return 1\n") + "</think>\n" + fenced(RUN), {"kernel.py": RUN}),
        (fenced(CUDA, "cuda"), {"kernel.cu": CUDA}),
        (fenced(RUN.replace("\n", "\r\n")), {"kernel.py": RUN}),
    ],
)
def test_the_files_of_a_reply(text: str, files: dict[str, str], problem: Problem) -> None:
    found = read(text, problem)
    assert isinstance(found, Parsed), found
    assert {source.path: source.content for source in found.solution.sources} == files
    assert found.solution.definition == problem.name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "reply.empty"),
        (" \n\t", "reply.empty"),
        (RUN, "reply.no-code"),
        (fenced("hypothesis: x\n", "yaml"), "reply.no-code"),
        (fenced("diff --git a b\n", "diff"), "reply.no-code"),
        ("<think>" + fenced(RUN), "reply.no-code"),
        ("```python\n" + RUN, "reply.truncated"),
        (fenced("    def run(self, x):\n        return x\n"), "reply.wrong-entry-point"),
        (fenced("# def run(x):\nprint('def run(x)')\n"), "reply.wrong-entry-point"),
        (fenced(RUN) + fenced(RUN + "# other\nx = 1\n"), "reply.several-blocks"),
        (fenced(RUN, "python a.py") + fenced(RUN + "x = 1\n", "python b.py"), "reply.several-blocks"),
        (fenced(RUN, "python ../../x"), "reply.unsafe-path"),
        (fenced(RUN, "python path=../../x.py"), "reply.unsafe-path"),
        (fenced("# file: /etc/cron.d/x\n" + RUN), "reply.unsafe-path"),
        (fenced("# ../x.py\n" + RUN), "reply.unsafe-path"),
        (fenced(RUN, "python ~/x.py"), "reply.unsafe-path"),
        (fenced(RUN, "python a\\b.py"), "reply.unsafe-path"),
        (fenced(RUN, "python .hidden.py"), "reply.unsafe-path"),
        (fenced(RUN) + fenced("x\n", "text file=../y.py"), "reply.unsafe-path"),
        (fenced(RUN, "python reference.py"), "reply.unsafe-path"),
        (fenced(RUN) + fenced("int a;\n", "cuda k.cu"), "reply.invalid-solution"),
        (
            fenced(RUN, "python k.py") + fenced("a = 1\n", "python u.py") + fenced("a = 2\n", "python u.py"),
            "reply.invalid-solution",
        ),
        ("x" * (MAX_REPLY + 1), "reply.too-large"),
    ],
)
def test_a_reply_without_a_usable_solution_has_a_named_reason(text: str, reason: str, problem: Problem) -> None:
    found = read(text, problem)
    assert isinstance(found, Unusable), found
    assert found.reason == reason
    assert found.detail and "\n" not in found.detail


def test_a_reply_cut_at_its_limit_is_never_used_even_if_a_block_is_whole(problem: Problem) -> None:
    found = read(fenced(RUN) + "and now the second fi", problem, finish_reason="length")
    assert isinstance(found, Unusable) and found.reason == "reply.truncated"


def test_calling_style_and_language_are_read_off_the_source(problem: Problem) -> None:
    passing = read(fenced("import triton\n\ndef run(x, eps, y):\n    y.copy_(x)\n"), problem)
    assert isinstance(passing, Parsed)
    assert passing.solution.spec.destination_passing_style and passing.solution.spec.languages == ["triton"]
    native = read(fenced(CUDA, "cpp kernel.cu"), problem)
    assert isinstance(native, Parsed)
    assert native.solution.spec.binding == "torch" and native.solution.spec.entry_point == "kernel.cu::run"
    assert native.solution.spec.destination_passing_style


@pytest.mark.parametrize(
    "block",
    [
        "family: one-pass\nhypothesis: two reads\npredicted_change: rows\nreflection: |\n  why\n  a → b\n",
        '{"family": "one-pass", "hypothesis": "two reads", "predicted_change": "rows"}\n',
        "Family: one-pass\nHypothesis: two reads\nPredicted change: rows\n",
        "family: one-pass\nhypothesis: two reads\npredicted_change: rows\nnote: a: b: c\n",
    ],
)
def test_what_a_reply_says_about_itself(block: str, problem: Problem) -> None:
    found = read(fenced(block, "yaml") + fenced(RUN), problem)
    assert isinstance(found, Parsed)
    said = found.metadata
    assert (said.family, said.hypothesis, said.predicted_change) == ("one-pass", "two reads", "rows")


def test_words_are_bounded_and_a_broken_block_costs_nothing(problem: Problem) -> None:
    long = fenced(f"strategy: {'s' * 500}\nreflection: {'r' * 5000}\nfamily: [a, b]\n", "yaml")
    found = read(long + fenced(RUN), problem)
    assert isinstance(found, Parsed)
    assert len(found.metadata.strategy) <= 160 and len(found.metadata.reflection) <= 1200
    assert found.metadata.family == "a; b"
    bombs = "a: &a [x,x]\n" + "".join(f"k{i}: &k{i} [*a,*a]\n" for i in range(50)) + "hypothesis: [*k1, *k2\n"
    assert isinstance(read(fenced(bombs, "yaml") + fenced(RUN), problem), Parsed)


def test_parameters_are_plain_values(problem: Problem) -> None:
    block = "parameters:\n  block: 128\n  fast: true\n  name: x\n  nested: {a: 1}\n"
    found = read(fenced(block, "yaml") + fenced(RUN), problem)
    assert isinstance(found, Parsed)
    assert found.metadata.parameters == {"block": 128, "fast": True, "name": "x"}


def test_the_same_program_is_recognised_whatever_its_comments(problem: Problem) -> None:
    parent = python_solution(RUN, definition=problem.name, name="p")
    noisy = "# a comment\n\ndef run(x, eps):  # entry\n\n    return x   \n"
    found = read(fenced(noisy), problem, parent=program_sha(parent))
    assert isinstance(found, Unusable) and found.reason == "reply.unchanged"
    found = read(fenced(noisy), problem, earlier={program_sha(parent): 7})
    assert isinstance(found, Unusable) and found.reason == "reply.duplicate" and "position 7" in found.detail


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ('s = "# pragma unroll 4"\n', 's = "# pragma unroll 8"\n', "k.py"),
        ('s = """\n#pragma unroll 4\n"""\n', 's = """\n#pragma unroll 8\n"""\n', "k.py"),
        ("s = 'it\\'s # 1'\n", "s = 'it\\'s # 2'\n", "k.py"),
        ('s = "http://a";\n', 's = "http://b";\n', "k.cu"),
        ("#pragma unroll 4\n", "#pragma unroll 8\n", "k.cu"),
        ("if x:\n    y = 1\n", "if x:\n        y = 1\n", "k.py"),
    ],
)
def test_text_that_only_looks_like_a_comment_counts(one: str, other: str, path: str) -> None:
    assert normalised(one, path) != normalised(other, path)


@pytest.mark.parametrize(
    "block",
    [
        f"parameters: {{b: {DIGITS}, ok: 64}}\n",
        f"parameters: {{? {DIGITS} : 1, ok: 64}}\n",
        f"parameters: {{{'k' * 500}: 1, ok: 64}}\n",
        f"hypothesis: {DIGITS}\nfamily: [{DIGITS}, x]\nparameters: {{ok: 64}}\n",
        f"? {DIGITS}\n: 1\nparameters: {{ok: 64}}\n",
        "parameters: {a: .nan, b: -.inf, c: 1.0e+300, d: -0.0, ok: 64}\n",
        'parameters: {a: !!binary aGk=, b: 2026-01-01, c: null, d: "\\ud800", "\\ud800": 1, e: [1], ok: 64}\n',
        "hypothesis: &a [*a]\nfamily: &b [[*b], x]\nparameters: {e: *a, ok: 64}\n",
    ],
    ids=["digits", "a key of digits", "a long key", "words", "an unknown key", "floats", "kinds", "endless lists"],
)
def test_whatever_a_reply_says_can_be_stored_and_printed(block: str, problem: Problem) -> None:
    found = read(fenced(block, "yaml") + fenced(RUN), problem)
    assert isinstance(found, Parsed)
    said = found.metadata
    assert json.loads(json.dumps(said.parameters, allow_nan=False)) == said.parameters
    msgspec.json.encode(said)
    assert said.parameters["ok"] == 64 and f"{said.parameters}".encode()
    assert all(len(name) <= 40 for name in said.parameters)


@pytest.mark.parametrize(
    "value",
    ['!!int ""', "!!float x", "!!timestamp x", "!!bool x", "0x_", '"\\U00110000"', ":".join(["1"] * 3000) + ".5"],
    ids=["int", "float", "timestamp", "bool", "hexadecimal", "character", "many parts"],
)
def test_a_value_that_yaml_cannot_build_costs_nothing_but_itself(value: str, problem: Problem) -> None:
    found = read(fenced(f"family: rows\nnote: {value}\n", "yaml") + fenced(RUN), problem)
    assert isinstance(found, Parsed) and found.metadata.family == "rows"


def test_lists_that_name_each_other_are_not_walked(problem: Problem) -> None:
    lists = "a0: &a0 [x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 12)
    )
    started = time.process_time()
    found = read(fenced(f"{lists}hypothesis: *a11\nfamily: rows\n", "yaml") + fenced(RUN), problem)
    assert time.process_time() - started < 2
    assert isinstance(found, Parsed) and found.metadata.family == "rows"


def test_hostile_text_is_read_in_linear_time(problem: Problem) -> None:
    for text in (
        "`" * MAX_REPLY,
        "```\n" * (MAX_REPLY // 4),
        "<think>" * (MAX_REPLY // 7),
        fenced("(" * 100_000 + "\n" + RUN),
        fenced('"' * 300_000 + "\n" + RUN),
        fenced("# " * 190_000 + "\n" + RUN),
        fenced("/*" * 190_000, "cuda"),
        fenced("a: " * 100_000, "yaml"),
    ):
        started = time.process_time()
        read(text, problem)
        assert time.process_time() - started < 5, text[:20]


@given(st.text(alphabet="`~ \npython:yaml.def run(x)=#/\\", max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_text_has_an_outcome(text: str) -> None:
    from engine.problems.model import Definition, TensorSpec

    tensor = TensorSpec("float32", ["4"])
    definition = Definition(name="p", axes={}, inputs={"x": tensor}, outputs={"y": tensor}, reference="")
    found = read_reply(text, Problem(definition=definition, workloads=[]), name="n")
    assert isinstance(found, Parsed) or found.reason.startswith("reply.")


@given(st.text(alphabet="` \nab", max_size=200))
def test_a_fence_longer_than_any_inside_always_holds(text: str) -> None:
    ticks = "`" * max(3, longest_fence(text) + 1)
    body = text.rstrip("\n")
    found = blocks(f"{ticks}python\n{body}\n{ticks}\n")
    assert len(found) == 1 and found[0].closed and found[0].text.rstrip("\n") == body.rstrip("\n")


def test_only_what_ends_a_line_of_a_program_ends_one() -> None:
    """A comment may hold a line separator, a page feed or a next-line character; its rest is no statement."""
    line = "# one\u2028two\x0cthree\x85four"
    found = blocks(f"```python\r\n{line}\r\ndef run(x):\r\n    return x\r\n```\r\n")
    assert found[0].closed and found[0].text == f"{line}\ndef run(x):\n    return x\n"
