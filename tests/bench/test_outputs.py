"""What a call hands out is memory of its own: no input seen from another side, nor fewer bytes than it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from engine.bench import wire
from engine.bench.device_harness import _own_memory_taker
from engine.bench.harness import Arena, Refused, _place_reader, items_reader

WIDE = wire.OutputSpec("out", "float32", (8, 4), nbytes=8 * 4 * 4)
WORKLOAD = wire.WorkloadSpec(uuid="w", inputs=[], outputs=[WIDE], input_stride=4096, output_stride=4096)


@pytest.fixture
def arena() -> Iterator[Arena]:
    fd = os.memfd_create("inputs")
    os.ftruncate(fd, 4096)
    made = Arena(fd, 4096)
    os.close(fd)
    yield made


@pytest.fixture
def x(arena: Arena) -> torch.Tensor:
    tensor = arena.tensor(0, torch.float32, (4, 8))
    return tensor.copy_(torch.randn(4, 8))


HANDED_OUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "reshaped": lambda x: x.view(8, 4),
    "a part of it repeated": lambda x: x[:1, :4].expand(8, 4),
    "one row of its own repeated": lambda x: x[:1, :4].clone().expand(8, 4),
    "every other one of its own": lambda x: torch.cat([x, x]).view(8, 8)[:, ::2],
}


@pytest.mark.parametrize("view", HANDED_OUT.values(), ids=HANDED_OUT.keys())
def test_a_view_becomes_memory_of_its_own_within_the_call(
    arena: Arena, x: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    held: list[torch.Tensor] = []
    address, *strides = _place_reader([WORKLOAD], held, arena)(view(x), WIDE)
    assert not arena.address <= address < arena.address + 4096
    assert strides[:2] == [4, 1] and torch.equal(held[0], view(x))


def test_what_is_in_no_order_but_whole_is_left_alone(arena: Arena) -> None:
    held: list[torch.Tensor] = []
    value = torch.randn(4, 8).t()
    address, *strides = _place_reader([WORKLOAD], held, arena)(value, WIDE)
    assert address == value.data_ptr() and strides[:2] == [1, 8]


def test_on_a_device_a_view_of_an_input_is_copied_and_nothing_else() -> None:
    given = [torch.randn(4, 8), torch.randn(3)]
    own_memory = _own_memory_taker()
    copied = own_memory(given[0].t(), given)
    assert copied.is_contiguous() and torch.equal(copied, given[0].t())
    assert copied.untyped_storage().data_ptr() != given[0].untyped_storage().data_ptr()
    mine = torch.randn(8, 4)
    assert own_memory(mine, given) is mine


@pytest.mark.parametrize(
    ("returned", "status"),
    [
        (None, wire.STRUCTURE),
        ("done", wire.STRUCTURE),
        ((value for value in ()), wire.STRUCTURE),
        (torch.randn(8, 4).numpy(), wire.STRUCTURE),
        (object(), wire.TYPE),  # something that may pretend to be a tensor
        (type("Lazy", (), {"__array__": lambda self: None})(), wire.TYPE),
    ],
)
def test_a_slip_is_no_hack(returned: object, status: int) -> None:
    with pytest.raises(Refused) as refused:
        items_reader()(returned, [WIDE])
    assert refused.value.status == status
