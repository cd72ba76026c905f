"""Honest idioms that look like an attack, each with the attack that it looks like: only the first passes."""

from __future__ import annotations

import time

import pytest

from engine.guard.gate import GateResult, check
from engine.problems.solution import Solution, SolutionSpec, SourceFile, python_solution
from tests.fixtures.gate_problem import PROBLEM, RUN


def gate(source: str) -> GateResult:
    return check(python_solution(source + RUN, definition="p", name="c"), PROBLEM)


def gate_files(*sources: tuple[str, str]) -> GateResult:
    spec = SolutionSpec(languages=["pytorch"], entry_point="kernel.py::run", destination_passing_style=False)
    files = [SourceFile(path, content) for path, content in sources]
    return check(Solution(name="c", definition="p", author="a", spec=spec, sources=files), PROBLEM)


CLASS = (
    "class Q:\n    def start(self): pass\n    def submit(self, f): self.f = f\n    def flush(self): return 1\n"
    "q = Q()\n"
)
TYPED = "import torch\nfrom typing import Annotated, Literal\n"
SCRIPT = "import torch\n@torch.jit.script\n"
ACT = "import torch.nn.functional as F\ndef act(name): return getattr(F, name)\n"
GET = "import torch\ndef get(o, n): return getattr(o, n)\n"
DECODED = "X = bytes.fromhex('5f5f676c6f62616c735f5f').decode()\n"
SELF = "import sys\nME = sys.modules[__name__]\n"

PAIRS = {  # name: (honest, hostile, how the hostile one is refused)
    # methods that are named as those of threads and pools
    "own stopwatch": (
        CLASS + "q.start()",
        "import threading\nq = threading.Thread(target=print)\nq.start()",
        "gate.unjoined-work",
    ),
    "own queue": (
        CLASS + "q.submit(print)\nq.flush()",
        "from concurrent import futures\nq = futures.ThreadPoolExecutor()\nq.submit(print)",
        "gate.unjoined-work",
    ),
    "own queue beside a lock": (
        "import threading\nLOCK = threading.Lock()\n" + CLASS + "q.submit(print)",
        "import threading\nT = threading\n" + CLASS + "q = T.Thread(target=print)\nq.start()",
        "gate.unjoined-work",
    ),
    "place of a match": (
        "import re\nA = re.search('a', 'ba').start()",
        "from multiprocessing import pool\nA = pool.ThreadPool().apply_async(print)",
        "gate.unjoined-work",
    ),
    "profiler": (
        "import torch\nprof = torch.profiler.profile()\nprof.start()\nprof.stop()",
        "import importlib\nt = importlib.import_module('threading').Thread()\nt.start()",
        "gate.unjoined-work",
    ),
    "forked work": (
        "import torch\ndef f(x):\n    return torch.jit.wait(torch.jit.fork(torch.sin, x))",
        "from torch.jit import fork\nfork(print)",
        "gate.unjoined-work",
    ),
    "module by its own name": (
        CLASS + "class Timer(Q): pass\nt = Timer()\nt.start()",
        SELF + "import threading\nt = ME.threading.Thread(target=print)\nt.start()",
        "gate.unjoined-work",
    ),
    "class of an object": (
        CLASS + "K = type(q)\nK().start()",
        "import threading\nK = type(threading.current_thread())\nK(target=print).start()",
        "gate.unjoined-work",
    ),
    # a module's own names that are also builtins
    "torch's compile": (
        "from torch import nn, compile\n@compile\ndef f(x): return x",
        "f = compile('1', 'f', 'eval')\nfrom torch import compile",
        "gate.forbidden-call",
    ),
    "own compile": (
        "def compile(shape): return shape\nk = compile(3)",
        "def deco(f): return f('1', 'f', 'eval')\n@deco\ndef g(*a): return compile(*a)\n"
        "def compile(shape): return shape",
        "gate.forbidden-call",
    ),
    "own reload": (
        "def reload(x): return x\ndef f(x): return reload(x)",
        "def exec(x): return x\ndel exec\nexec('1')",
        "gate.forbidden-call",
    ),
    "assigned compile": (
        "import torch\ncompile = torch.compile\nf = compile(max)",
        "compile = compile\nf = compile('1', 'f', 'eval')",
        "gate.forbidden-call",
    ),
    "optional compile": (
        "try:\n    from torch import compile\nexcept ImportError:\n    def compile(f): return f\nf = compile(max)",
        "try:\n    from torch import compile\nexcept ImportError:\n    pass\nf = compile(max)",
        "gate.forbidden-call",
    ),
    "own class compile": (
        "class compile: pass\nk = compile()",
        "class K:\n    compile = 1\nk = compile('1', 'f', 'eval')",
        "gate.forbidden-call",
    ),
    "own exec": (
        "def exec(x): return x\ny = exec(1)",
        "def exec(x): return x\nglobals().pop('exec')\nexec('1')",
        "gate.forbidden-call",
    ),
    "own eval": (
        "def eval(x): return x\ny = eval(1)",
        SELF + "def eval(x): return x\ndelattr(ME, 'eval')\neval('1')",
        "gate.forbidden-call",
    ),
    "own help": (
        "def help(x): return x\ny = help(1)",
        "help = 1\ntry:\n    1 / 0\nexcept ZeroDivisionError as help:\n    pass\nhelp()",
        "gate.forbidden-call",
    ),
    "own breakpoint": (
        "breakpoint = 3\ny = breakpoint + 1",
        "def breakpoint(f=breakpoint): f()",
        "gate.forbidden-call",
    ),
    "own open": (
        "open = ['a', 'w']\ny = open[0]",
        "if 0:\n    def open(path, mode): return mode\ny = open('a', 'w')",
        "gate.forbidden-call",
    ),
    "own vars": ("vars = [1, 2]\ny = vars[0]", "if 0:\n    globals = None\ny = globals()", "gate.forbidden-call"),
    "model.eval": (
        "import torch\nm = torch.nn.Linear(2, 2).eval()",
        "class M:\n    eval = eval\nm = M.eval('1')",
        "gate.forbidden-call",
    ),
    # annotations with parentheses
    "annotated with a shape": (
        TYPED + "def f(x: Annotated[torch.Tensor, 'float32, shape (n, h)']) -> Annotated[int, '(n, h)']: return x",
        TYPED + "def f(x: Annotated['g(1)', 'shape']): return x",
        "gate.obfuscation",
    ),
    "annotated, all of it text": (
        TYPED + "def f(x: \"Annotated[torch.Tensor, 'shape (n, h)']\"): return x",
        TYPED + "def f(x: \"Annotated['g(1)', 'shape']\"): return x",
        "gate.obfuscation",
    ),
    "words with parentheses": (
        "def f(x: 'tokens (2 hidden)'): return x",
        "def f(x: 'n g(1)'): return x",
        "gate.obfuscation",
    ),
    "literal": (
        TYPED + "def f(x: Literal['gelu(tanh)']): return x",
        "class Literal:\n    def __class_getitem__(cls, x): return x\ndef f(x: Literal['g(1)']): return x",
        "gate.obfuscation",
    ),
    "annotated, perhaps": (
        TYPED + "def f(x: Annotated[int, 'g(1)']): return x",
        TYPED + "class A: pass\nif 1:\n    Annotated = A\ndef f(x: Annotated[int, 'g(1)']): return x",
        "gate.obfuscation",
    ),
    "callable": (
        "def f(x: 'Callable[[int], (int)]'): return x",
        "def f(x: '*a, g(1)'): return x",
        "gate.obfuscation",
    ),
    "a name in text": (
        "def f(x: 'torch.Tensor'): return x",
        "def f(x: 'C[exec]'): return x",
        "gate.forbidden-call",
    ),
    "type comment": (
        SCRIPT + "def k(g):\n    s = g  # type: torch.Tensor  (tokens, hidden)\n    return s",
        SCRIPT + "def k(\n    g,  # type: open('f')\n):\n    # type: (...) -> Tensor\n    return g",
        "gate.obfuscation",
    ),
    # computed attribute names
    "helper that is given constants": (
        ACT + "def f(x): return act('silu')(x) + act(name='gelu')(x)\nD = {'os': 1}",
        ACT + "def f(x): return act('silu')(x) + act('os')(x)",
        "gate.forbidden-name",
    ),
    "text that nothing reads": (
        ACT + "def f(n): return act(n)\nNOTE = 'os'",
        ACT + "class C:\n    NOTE = 'os'\ndef f(): return act(C.NOTE)",
        "gate.obfuscation",
    ),
    "helper with a default": (
        "import torch\ndef op(name='exp'): return getattr(torch, name)\nA, B = op(), op('log')\nD = ['os']",
        "import torch\ndef op(name='exp'): return getattr(torch, name)\nA, B = op(), op(*D)\nD = ['os']",
        "gate.obfuscation",
    ),
    "loop over constants": (
        "import torch\nn = 'exp'\nA = getattr(torch, n)",
        "import torch\nn = 'exp'\nfor n in 'serialization os'.split():\n    A = getattr(torch, n)\nD = ['os']",
        "gate.obfuscation",
    ),
    "mode of a file": (
        "M = 'r'\ndef f(): return open('a', M)",
        "def f(mode='r'): return open('a', mode)\nf('w')",
        "gate.forbidden-call",
    ),
    "helper that is called": (
        ACT + "A = act('silu')\nD = ['os']",
        ACT + "A = act('silu')\nD = list(map(act, ['os']))",
        "gate.obfuscation",
    ),
    "helper that keeps its argument": (
        ACT + "A = act('silu')\nD = ['os']",
        "import torch\ndef act(name):\n    name = D[0]\n    return getattr(torch, name)\n"
        "A = act('exp')\nD = ['os']",
        "gate.obfuscation",
    ),
    "helper used within operator.setitem": (
        "import operator\n" + ACT + "operator.setitem({}, 1, act('silu'))\nD = ['os']",
        "import operator\n" + ACT + "operator.setitem(act('silu'), 1, 1)\ng = act\nD = [g(n) for n in ['os']]",
        "gate.obfuscation",
    ),
    "in-place and grouped operators": (
        "import torch\ndef f(x, op): return getattr(x, op + '_')(), getattr(torch, f'_foreach_{op}')([x])",
        "def f(x, op): return getattr(x, '__' + op + '__')",
        "gate.obfuscation",
    ),
    "dtype of a tensor": (
        "import torch\ndef f(x): return getattr(torch, str(x.dtype)[6:])",
        "import types\nD = types.FunctionType.__doc__\nA = D.index('glob')\n"
        "def f(g): return getattr(g, D[A:A + 7])",
        "gate.obfuscation",
    ),
    "name from a table": (
        "import torch\nNAMES = ('exp', 'log')\ndef f(i): return getattr(torch, NAMES[i])",
        "import functools, torch\nd = getattr(torch, functools.WRAPPER_UPDATES[0])",
        "gate.obfuscation",
    ),
    "private function": (
        "import torch\ndef f(op): return getattr(torch, '_' + op)",
        "def f(g, op): return getattr(g, '_' + ('_' + op))",
        "gate.obfuscation",
    ),
    "own prefix": (
        "P = 'my_'\ndef f(g, op): return getattr(g, P + op)",
        "P = '_' * 2\ndef f(g, op):\n    n = f'{P}{op}{P}'\n    return getattr(g, n)",
        "gate.obfuscation",
    ),
    "name that grows": (
        "import torch\ndef f(x, op):\n    n = op\n    n += '_'\n    return getattr(x, n)()",
        "def f(g, op):\n    n = '__'\n    n += op\n    n += '__'\n    return getattr(g, n)",
        "gate.obfuscation",
    ),
    "formatted name": (
        "def f(g, op): return getattr(g, '{}_{}'.format('scaled', op))",
        "def f(g, op): return getattr(g, '__{}__'.format(op)), getattr(g, '__%s__' % op)",
        "gate.obfuscation",
    ),
    # a helper's argument is judged by what it would be as an attribute that is written out
    "member by a helper": (
        GET + "A = get(get(torch, 'nn'), 'functional')\nD = 'os'",
        GET + "A = get(get(torch, 'utils'), 'collect_env').run('id')",
        "gate.obfuscation",
    ),
    "module of a helper's module": (
        GET + "u = get(torch, 'nn')\nA = get(u, 'functional')",
        GET + "A = get(get(torch, 'EXP'.lower()), 'HUB'.lower()).load('o/r', 'm')",
        "gate.obfuscation",
    ),
    "module by a helper": (
        GET + "A = get(torch, 'EXP'.lower())",
        GET + "A = get(torch, 'HUB'.lower()).load('o/r', 'm')",
        "gate.forbidden-name",
    ),
    "loader by a helper": (
        GET + "A = get(torch, 'sparse')",
        GET + "A = get(torch, 'serialization').load('f', weights_only=False)",
        "gate.forbidden-name",
    ),
    "member of what the caller gives": (
        GET + "A = get(torch.cuda, 'Event')",
        GET + "A = get(torch.cuda, 'set_stream')",
        "gate.forbidden-name",
    ),
    "default of a name": (
        "X = 'exp'\ndef get(o, n=X): return getattr(o, n)\ndef f(x):\n    X = 'os'\n    return get(x)",
        DECODED + "def get(o, n=X): return getattr(o, n)\ndef f(x):\n    X = 'shape'\n    return get(x)",
        "gate.obfuscation",
    ),
    "keyword default of a name": (
        "X = 'exp'\ndef get(o, *, n=X): return getattr(o, n)\ndef f(x):\n    X = 1\n    return get(x)",
        DECODED + "def get(o, *, n=X): return getattr(o, n)\ndef f(x):\n    X = 'shape'\n    return get(x)",
        "gate.obfuscation",
    ),
    "argument of a name": (
        GET + "X = 'exp'\ndef f(): return get(torch, X)",
        DECODED + "def get(o, n): return getattr(o, n)\ndef f(x): return get(x, X)",
        "gate.obfuscation",
    ),
    "composed argument": (
        GET + "def f(op):\n    n = 'my_' + op\n    return get(torch, n)",
        "def get(o, n): return getattr(o, n)\ndef f(x, op):\n    n = '__' + op\n    return get(x, n)",
        "gate.obfuscation",
    ),
    "name that a loop spells": (
        "def f(g):\n    n = ''\n    for c in ('a', 'b'):\n        n += c\n    return getattr(g, n)",
        "def f(g):\n    n = ''\n    for c in ('__', 'globals', '__'):\n        n += c\n    return getattr(g, n)",
        "gate.obfuscation",
    ),
    # what is bound to a builtin's name, or bears its name elsewhere, does what the builtin does
    "open of a module": (
        "from gzip import open\ndef f(p):\n    with open(p, 'rb') as g: return g.read()",
        "from tokenize import open\nA = open('/etc/passwd')",
        "gate.forbidden-call",
    ),
    "open of a module, renamed": (
        "from gzip import open as o\ndef f(p): return o(p)",
        "from tokenize import open as o\nA = o('/etc/passwd')",
        "gate.forbidden-call",
    ),
    "open as a member": (
        "import gzip\ndef f(p): return gzip.open(p)",
        "import tokenize\nA = list(map(tokenize.open, ['/etc/passwd']))",
        "gate.forbidden-call",
    ),
    "file classes": (
        "import gzip\ndef f(p): return gzip.GzipFile(p, 'rb')",
        "from lzma import LZMAFile as F\nA = F('a', 'wb')",
        "gate.forbidden-call",
    ),
    "file by keyword": (
        "def f(p): return open(file=p)",
        "A = open(file='/etc/passwd')",
        "gate.forbidden-call",
    ),
    "unpacked arguments": (
        "def f(*a): return max(*a)",
        "A = open(*('a', 'w'))",
        "gate.forbidden-call",
    ),
    "own setattr": (
        "import torch\nclass K:\n    def __setattr__(self, n, v): super().__setattr__(n, v)",
        "import torch\ndef setattr(o, n, v): object.__setattr__(o, n, v)\nsetattr(torch.cuda, 'synchronize', 7)",
        "gate.monkey-patch",
    ),
    "setter that is called": (
        "class K:\n    def __init__(self): object.__setattr__(self, 'x', 1)",
        "import torch\npatch = object.__setattr__\npatch(torch.cuda, 'synchronize', 7)",
        "gate.obfuscation",
    ),
    "getter that is called": (
        "class K:\n    def __getattribute__(self, n): return object.__getattribute__(self, n)",
        DECODED + "g = object.__getattribute__\ndef f(x): return g(x, X)",
        "gate.obfuscation",
    ),
    "deleter that is called": (
        "class K:\n    def __delattr__(self, n): super().__delattr__(n)",
        "import torch\n(lambda f: f(torch.cuda, 'synchronize'))(type.__delattr__)",
        "gate.obfuscation",
    ),
    "setter by its text": (
        "A = getattr(object, '__init__')",
        "import torch\ngetattr(object, '__setattr__')(torch.cuda, 'synchronize', 7)",
        "gate.obfuscation",
    ),
    "setter's own call": (
        "A = object.__init__.__doc__",
        "import torch\nobject.__setattr__.__call__(torch.cuda, 'synchronize', 7)",
        "gate.obfuscation",
    ),
    "setter of an own class": (
        "class K: pass\nk = K()\nK.__setattr__(k, 'x', 7)",
        "import torch\nclass K: pass\nK.__setattr__(torch.cuda, 'synchronize', 7)",
        "gate.monkey-patch",
    ),
    "setter of unpacked arguments": (
        "class K: pass\nk = K()\nobject.__setattr__(k, 'x', 7)",
        "import torch\nobject.__setattr__(*(torch.cuda, 'synchronize', 7))",
        "gate.obfuscation",
    ),
    "assigned getattr": (
        "getattr = {'a': 1}\ny = getattr['a']",
        DECODED + "getattr = object.__getattribute__\ndef f(x): return getattr(x, X)",
        "gate.obfuscation",
    ),
    "module that is there": (
        "import torch\ndef put(o): o.x = 7\nput(torch.nn.Module())",
        "import torch\ndef put(o): o.synchronize = 7\nput(torch.cuda)",
        "gate.monkey-patch",
    ),
    # patterns look attributes and entries up
    "class pattern": (
        "def f(x):\n    match x:\n        case complex(real=r): return r",
        "def f(x):\n    match x:\n        case object(__globals__=g): return g",
        "gate.forbidden-name",
    ),
    "class pattern of a module": (
        "import torch\nmatch torch:\n    case object(float32=t): pass",
        "import torch\nmatch torch:\n    case object(hub=h): h.load('o/r', 'm')",
        "gate.obfuscation",
    ),
    "mapping pattern": (
        "def f(x):\n    match x:\n        case {'n': n}: return n",
        "def f(x):\n    match x:\n        case {'__builtins__': b}: return b",
        "gate.forbidden-name",
    ),
    "captured subject": (
        "def f(x):\n    match x:\n        case y: return y",
        "import torch\nmatch torch.cuda:\n    case c: c.synchronize = 7",
        "gate.monkey-patch",
    ),
    "what a pattern looks up": (
        "import dataclasses\n@dataclasses.dataclass\nclass K:\n    x: int = 1",
        "import abc\nclass K(abc.ABC):\n    __match_args__: tuple = ('__globals__',)",
        "gate.forbidden-name",
    ),
    "fields of a pattern": (
        "import dataclasses\n@dataclasses.dataclass\nclass K:\n    shape: int = 1",
        "import dataclasses\n@dataclasses.dataclass\nclass K:\n    __globals__: int = 1",
        "gate.forbidden-name",
    ),
    "members by keyword": (
        "K = type('K', (), dict(x=1))",
        "K = type('K', (), dict(__match_args__=('__globals__',)))",
        "gate.forbidden-name",
    ),
    # pools of libraries
    "scipy without work": (
        "from scipy import special\nA = special.erf(1.0)",
        "from scipy._lib._util import MapWrapper\nMapWrapper(2).pool.apply_async(print)",
        "gate.unjoined-work",
    ),
    "data set": (
        "from torch.utils.data import TensorDataset\nD = TensorDataset",
        "from torch.utils.data import dataloader\nD = dataloader.DataLoader([1], num_workers=1)",
        "gate.forbidden-import",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_an_honest_idiom_passes_and_its_hostile_twin_does_not(name: str) -> None:
    honest, hostile, reason = PAIRS[name]
    assert gate(honest) == GateResult(ok=True)
    assert gate(hostile).reason == reason, gate(hostile)


def test_what_one_file_makes_another_may_not_start_and_leave() -> None:
    entry = "import helpers, more\n" + RUN
    start = ("more.py", "def go(t):\n    t.start()\n")
    assert gate_files(("kernel.py", entry), ("helpers.py", "X = 1\n"), start).ok
    maker = ("helpers.py", "from threading import Thread\n")
    found = gate_files(("kernel.py", entry), maker, start)
    assert found.reason == "gate.unjoined-work" and "more.py line 2" in found.detail


def test_another_file_can_take_a_name_away() -> None:
    mine = "def exec(x): return x\ndef f(x): return exec(x)\n" + RUN
    assert gate_files(("kernel.py", mine), ("notes.txt", "")).ok
    other = ("helpers.py", "def take(m):\n    del m.exec\n")
    assert gate_files(("kernel.py", mine), other).reason == "gate.forbidden-call"


def test_a_path_through_another_source_is_refused() -> None:
    assert gate_files(("kernel.py", RUN), ("kernel/x.txt", "")).ok
    for path in ("kernel.py/x.txt", "kernel.py/a/b.txt"):
        found = gate_files(("kernel.py", RUN), (path, ""))
        assert found.reason == "gate.path" and path in found.detail and "rename" in found.detail


def test_who_sets_the_search_path_is_told_that_it_needs_none() -> None:
    found = gate("import os, sys\nsys.path.insert(0, os.path.dirname(__file__))")
    assert found.reason == "gate.forbidden-call" and "searched already" in found.detail


def test_long_composed_names_take_linear_time() -> None:
    chain = " + ".join(f"a[{i}]" for i in range(800))
    start = time.process_time()
    found = gate("def f(a):\n" + "".join(f"    getattr(a, {chain})\n" for _ in range(20)))
    assert found.reason == "gate.obfuscation"
    gate("def f(a, b):\n    n = " + "(" * 90 + "b" + " + '_')" * 90 + "\n" + "    getattr(a, n)\n" * 4000)
    assert time.process_time() - start < 10.0


@pytest.mark.parametrize(
    ("imported", "mode"),
    [(m, "'w'") for m in ("gzip", "bz2", "lzma", "wave", "codecs", "io", "os", "aifc", "tokenize", "helpers_lib")],
)
def test_what_is_imported_as_open_is_judged_as_open(imported: str, mode: str) -> None:
    assert not gate(f"from {imported} import open\nA = open('a', {mode})").ok
    assert not gate(f"from {imported} import open as o\nA = o('/etc/passwd')").ok


def test_many_calls_and_values_take_linear_time() -> None:
    start = time.process_time()
    calls = "".join(f"A{i} = get(torch, 'exp{i}')\n" for i in range(2000))
    gate("import torch\ndef get(o, n):\n" + "    getattr(o, n)\n" * 2000 + calls)
    gate("import torch\ndef get(o, n):\n" + "    getattr(o, n)\n" * 2000 + calls + "get(torch, D)\n")
    gate("def f(g, op):\n" + "    n = 'a' + 'b'\n" * 3000 + "    getattr(g, n + '_')\n" * 3000)
    assert time.process_time() - start < 10.0
