"""What crosses a process border, and how: length-capped frames of strictly typed records, nothing else.

Between trusted processes (engine, zygote, keeper, judge) a frame is a 4-byte length and a msgpack record that
must decode as one of the structs below. A candidate's process may send one thing only: :data:`REPORT`, a fixed
binary header, fixed binary rows and a bounded text. Nothing is ever unpickled, evaluated or formatted.
"""

from __future__ import annotations

import array
import asyncio
import socket
import struct
from typing import Any, TypeVar

import msgspec

MAX_FRAME = 64 << 20  # a solution's sources or its library travel in one frame
MAX_TEXT = 4096  # bytes of candidate text in one report
MAX_CALLS = 256  # calls of one block

_LENGTH = struct.Struct("<I")
T = TypeVar("T")


class ProtocolError(Exception):
    """The other side broke the framing: it is treated as crashed or hostile, never asked again."""


# -- records between trusted processes ---------------------------------------------------------------------------


class InputSpec(msgspec.Struct, frozen=True):
    """One argument of ``run``: a tensor at ``offset`` bytes of an input slot, or a Python scalar."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    offset: int = 0
    nbytes: int = 0
    rotates: bool = False  # its elements are exchangeable: a rotation is another valid draw
    blends: bool = False  # they are normal floats: so is a weighted sum of two rotations
    redrawn: bool = False  # neither tells enough from another call's: where no seed is told, it is drawn anew


class OutputSpec(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    nbytes: int = 0


class WorkloadSpec(msgspec.Struct, frozen=True):
    """Shapes of one workload. Slots are page-aligned strides of the input and output arenas."""

    uuid: str
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    input_stride: int
    output_stride: int
    seeded: bool = True  # whoever holds the seed can draw the inputs, by our rules alone; else see ``made``
    made: bool = False  # by the problem's own code: no other inputs can be made of them by rotating
    told: bool = False  # a child on a device may build them from the call's seed; else their bytes travel


class Limits(msgspec.Struct, frozen=True):
    """Resource limits of one candidate process. ``memory`` 0: no address-space limit (CUDA reserves it)."""

    memory: int
    file_bytes: int = 256 << 20
    files: int = 256
    processes: int = 128
    cpu_s: int = 1200
    scratch: int = 512 << 20


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Fork a keeper with one child. Four descriptors travel along: control, output pipe, both arenas."""

    child: int
    uid: int
    limits: Limits
    device: str
    input_bytes: int
    output_bytes: int
    keeper_cores: list[int]
    child_cores: list[int]
    cache: str = ""  # key of this source's compile cache
    namespaces: bool = True  # try namespaces of its own for the child
    fallback_scratch: str = ""  # where the child's folders go if it cannot have a /tmp of its own


class Kill(msgspec.Struct, frozen=True, tag=True):
    child: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The zygote has imported what it will fork from."""

    layers: dict[str, str]
    versions: dict[str, str]
    vm_bytes: int
    seconds: float


class Spawned(msgspec.Struct, frozen=True, tag=True):
    child: int
    error: str = ""


class Exited(msgspec.Struct, frozen=True, tag=True):
    child: int
    status: int


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call of a block. ``style``: see :mod:`engine.bench.harness`; ``scalars`` in argument order.

    ``seed`` and ``shift`` are told only where the child builds its inputs itself (not on the CPU); without a seed
    they lie in the call's slot.
    """

    slot: int
    style: int
    scalars: list[float | int | bool]
    seed: int = 0
    shift: int = 0


class Load(msgspec.Struct, frozen=True, tag=True):
    """Make the candidate callable: write its sources, import the entry file (or the built library)."""

    sources: list[tuple[str, str]]
    entry_file: str
    entry_function: str
    destination_passing: bool
    workloads: list[WorkloadSpec]
    library: str = ""  # name of the extension module, for a built solution
    library_bytes: bytes = b""
    inputs: bytes = b""  # the problem, for a child that builds its inputs from seeds
    device: str = "cpu"
    timeout_s: float = 60.0
    digest_code: bytes = b""  # on a device: the kernel of the fingerprints, as the judge compiled it


class Run(msgspec.Struct, frozen=True, tag=True):
    """One block of calls on one workload, inside one window of the keeper's own clock."""

    workload: int
    calls: list[Call]
    timeout_s: float
    jitter: bool = False  # stop and continue everything many times meanwhile: races show, times mean nothing
    prelude: int = 0  # on a GPU: a block for the outside clock, with so many fills queued before each call


class Collect(msgspec.Struct, frozen=True, tag=True):
    """Copy the outputs of these calls of the last block out of the frozen process: (index in block, slot)."""

    workload: int
    calls: list[tuple[int, int]]


class Export(msgspec.Struct, frozen=True, tag=True):
    """To a child on a device: copy the outputs of these calls of the last block into the output arena."""

    workload: int
    calls: list[tuple[int, int]]


class SaveCache(msgspec.Struct, frozen=True, tag=True):
    """The compile phase is over: keep what the child compiled for later processes of the same source."""


class Affinity(msgspec.Struct, frozen=True, tag=True):
    """Where every thread of the child runs from now on, and at which niceness (lower than 0 needs root)."""

    cores: list[int]
    nice: int = 0


class Report(msgspec.Struct, frozen=True, tag=True):
    """A keeper's answer. ``rows`` and ``text`` are the candidate's own claims; the rest is measured outside it.

    ``event``: ``done`` | ``exit`` | ``signal`` | ``timeout`` | ``memory`` | ``protocol`` | ``processes`` |
    ``awake`` (something ran while everything had to stand still).
    """

    event: str
    wall_ns: int = 0
    cpu_ns: int = 0  # processor time of all its processes in the window; 0 if some of it cannot be seen
    rows: list[tuple[int, int]] = []
    text: bytes = b""
    code: int = 0
    facts: dict[str, str] = {}
    parallel: bool = False  # threads or processes beside the main one lived in the window
    aliased: bool = False  # calls of one block returned the same memory: only the last one can be looked at
    digests: list[list[int]] = []  # of collected outputs on a device, as delivered when their block ended
    strides: list[list[list[int]]] = []  # of collected outputs, in elements: call → output → dimension


FromEngine = Spawn | Kill
FromZygote = Ready | Spawned | Exited
ToKeeper = Load | Run | Collect | SaveCache | Affinity

# -- the candidate's one message ----------------------------------------------------------------------------------

REPORT_MAGIC = 0x4B415243
REPORT = struct.Struct("<IHHI")  # magic, rows, outputs per row, text bytes
ROW = struct.Struct("<BQ")  # status, claimed nanoseconds
PLACE = struct.Struct("<Q8q")  # address of an output, strides in elements (unused dimensions 0)
MAX_OUTPUTS = 128  # places of one row: outputs, and on a device the inputs too
MAX_DIMS = 8

OK, RAISED, STRUCTURE, SHAPE, DTYPE, TYPE, MEMORY, DEVICE, IMPORT, DISK, EXITED, INPUTS = range(12)
"""Row statuses: what the harness in the candidate's process says happened in a call (never trusted alone)."""

Row = tuple[int, int]
Place = tuple[int, ...]


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements between the first and the last element of a strided tensor, both included; 0 if it is empty."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def pack_report(rows: list[Row], places: list[list[Place]], text: bytes) -> bytes:
    """``places``: for every row, where each output lies; all rows have the same number of outputs."""
    text = text[:MAX_TEXT]
    outputs = len(places[0]) if places else 0
    parts = [REPORT.pack(REPORT_MAGIC, len(rows), outputs, len(text))]
    parts += [ROW.pack(status, nanoseconds) for status, nanoseconds in rows]
    parts += [PLACE.pack(*place) for row in places for place in row]
    return b"".join((*parts, text))


# -- framing ------------------------------------------------------------------------------------------------------


def frame(record: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(record)
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a {len(body)} byte message is larger than {MAX_FRAME} bytes")
    return _LENGTH.pack(len(body)) + body


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Blocking. Raises ``EOFError`` if the other side is gone."""
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(min(count - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def receive(sock: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """One frame, blocking. Raises ``EOFError`` or :class:`ProtocolError`."""
    (length,) = _LENGTH.unpack(read_exactly(sock, _LENGTH.size))
    return _decode(read_exactly(sock, _checked(length)), decoder)


def receive_with_fds(sock: socket.socket, decoder: msgspec.msgpack.Decoder[T], limit: int) -> tuple[T, list[int]]:
    """One frame whose first bytes carry up to ``limit`` descriptors. They arrive close-on-exec."""
    header, fds, _flags, _ = _recv_fds(sock, _LENGTH.size, limit)
    if not header:
        raise EOFError
    header += read_exactly(sock, _LENGTH.size - len(header))
    (length,) = _LENGTH.unpack(header)
    return _decode(read_exactly(sock, _checked(length)), decoder), fds


def _recv_fds(sock: socket.socket, size: int, limit: int) -> tuple[bytes, list[int], int, Any]:
    fds = array.array("i")
    message, ancillary, flags, address = sock.recvmsg(
        size, socket.CMSG_LEN(limit * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds), flags, address


def _checked(length: int) -> int:
    if length > MAX_FRAME:
        raise ProtocolError(f"a frame of {length} bytes")
    return length


def _decode(body: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ProtocolError(str(error)) from None


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """One frame from a stream. Raises ``EOFError`` or :class:`ProtocolError`."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        body = await reader.readexactly(_checked(length))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError from error
    return _decode(body, decoder)
