"""Masters and moments of AdamW, and where they lie between updates: beside the parameters, or in the host's memory.

AdamW works number by number, so its result does not depend on where they lie, nor on how they are cut into pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "master"
CHUNK = 1 << 24
"""Numbers that travel together, 64 MiB of each kind; a power of two, to which torch rounds pinned memory up."""

ALIGNMENT = 16
"""Numbers at whose multiples parameters begin: no vector of a CPU's or GPU's registers is cut in two, which would round
its ends in another way."""


class Piece(NamedTuple):
    """Numbers `start` to `stop` of a parameter, in their order, on its device: flat, or of its shape if all of it."""

    name: str
    start: int
    stop: int
    last: bool  # no later piece of this parameter follows
    master: Tensor  # float32, or the parameter itself where that has as many bits
    exp_avg: Tensor
    exp_avg_sq: Tensor

    def of(self, tensor: Tensor) -> Tensor:
        """The same numbers of a tensor of the parameter's shape."""
        if tensor.shape == self.master.shape:
            return tensor
        return tensor.view(-1)[self.start : self.stop]


class State(Protocol):
    """Masters (of rounded parameters) and moments (zero at first) by parameter."""

    def pieces(self, names: Sequence[str]) -> Iterator[list[Piece]]:
        """All of these parameters, one list after another; what was changed in a list counts once the next is taken."""

    def tensors(self, name: str) -> dict[str, Tensor]:
        """By kind and of its shape: MASTER where the parameter is rounded, MOMENTS, which Resident has not at first."""

    def load(self, name: str, kind: str, tensor: Tensor) -> None: ...

    def clear_moments(self) -> None: ...


class Resident:
    """All on the parameters' device."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], rounded: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._masters = {name: parameter.detach().float() for name, parameter in rounded.items()}
        self._moments: dict[str, dict[str, Tensor]] = {}

    def pieces(self, names: Sequence[str]) -> Iterator[list[Piece]]:
        yield [
            Piece(name, 0, self._parameters[name].numel(), True, self._master(name), **self._moments_of(name))
            for name in names
        ]

    def tensors(self, name: str) -> dict[str, Tensor]:
        master = {MASTER: self._masters[name]} if name in self._masters else {}
        return master | self._moments.get(name, {})

    def load(self, name: str, kind: str, tensor: Tensor) -> None:
        target = self._masters[name] if kind == MASTER else self._moments_of(name)[kind]
        target.copy_(tensor)

    def clear_moments(self) -> None:
        self._moments.clear()

    def _master(self, name: str) -> Tensor:
        return self._masters[name] if name in self._masters else self._parameters[name].detach()

    def _moments_of(self, name: str) -> dict[str, Tensor]:
        if name not in self._moments:  # at the first update: until then there is nothing to hold
            self._moments[name] = {kind: torch.zeros_like(self._master(name)) for kind in MOMENTS}
        return self._moments[name]


class Lane:
    """Work that is done in order, beside that of other lanes: a CUDA stream; without CUDA, the host itself."""

    def __init__(self, device: torch.device, current: bool = False) -> None:
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._stream = torch.cuda.current_stream(device) if current else torch.cuda.Stream(device)

    def do(self, work: Callable[[], Any]) -> None:
        if not self._cuda:
            work()
            return
        with torch.cuda.stream(self._stream):
            work()

    def mark(self) -> torch.cuda.Event | None:
        """The end of what the lane has been given so far."""
        return self._stream.record_event() if self._cuda else None

    def after(self, mark: torch.cuda.Event | None) -> None:
        """What the lane is given from now on waits for the mark of another one."""
        if mark is not None:
            self._stream.wait_event(mark)

    def finish(self) -> None:
        """The host waits for the lane."""
        if self._cuda:
            self._stream.synchronize()


class Offloaded:
    """All in the host's memory, pinned where the parameters are on CUDA; it visits their device chunk by chunk.

    Parameters lie end to end, rounded ones first, cut into chunks of equal size. Two chunks have room on the device:
    while one is updated, the one before goes out and the next one comes in, on lanes (CUDA streams) of their own.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        rounded: Mapping[str, nn.Parameter],
        chunk: int = CHUNK,
        lane: Callable[..., Lane] = Lane,
    ) -> None:
        self._parameters = {**rounded, **parameters}
        self._rounded = rounded.keys()
        self._chunk = chunk
        self._device = next(iter(parameters.values())).device
        self._lane = lane
        self._starts: dict[str, int] = {}
        total = 0
        for name, parameter in self._parameters.items():
            self._starts[name] = total
            total += _aligned(parameter.numel())
        kept = sum(_aligned(parameter.numel()) for parameter in rounded.values())
        self._host = {kind: self._chunks(total) for kind in MOMENTS}
        self._host[MASTER] = self._chunks(kept)
        self._visitors: list[dict[str, Tensor]] = []  # on the device, made at the first update
        for name in rounded:
            self.load(name, MASTER, parameters[name].detach())

    def pieces(self, names: Sequence[str]) -> Iterator[list[Piece]]:
        wanted = self._by_chunk(names)
        if not self._visitors:
            self._visitors = [
                {kind: torch.zeros(len(own[0]), device=self._device) for kind, own in self._host.items() if own}
                for _ in range(2)
            ]
        update, bring, take = (self._lane(self._device, current=current) for current in (True, False, False))
        start = update.mark()
        bring.after(start), take.after(start)
        taken: list[Any] = [None, None]  # by visitor: when it is free for another chunk
        brought: list[Any] = [None, None]

        def fetch(turn: int) -> None:
            if turn < len(wanted):
                bring.after(taken[turn % 2])
                self._copy(bring, wanted[turn][0], turn % 2, to_host=False)
                brought[turn % 2] = bring.mark()

        fetch(0)
        for turn, (chunk, spans) in enumerate(wanted):
            fetch(turn + 1)
            update.after(brought[turn % 2])
            yield [self._piece(name, start, stop, chunk, self._visitors[turn % 2]) for name, start, stop in spans]
            take.after(update.mark())
            self._copy(take, chunk, turn % 2, to_host=True)
            taken[turn % 2] = take.mark()
        take.finish()  # the host may read its tensors from here on

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The live ones where a parameter lies in one chunk, copies otherwise."""
        kinds = (MASTER, *MOMENTS) if name in self._rounded else MOMENTS
        shape = self._parameters[name].shape
        return {kind: _joined(self._views(name, kind)).view(shape) for kind in kinds}

    def load(self, name: str, kind: str, tensor: Tensor) -> None:
        views = self._views(name, kind)
        for view, part in zip(views, tensor.reshape(-1).split([len(view) for view in views]), strict=True):
            view.copy_(part)

    def clear_moments(self) -> None:
        for kind in MOMENTS:
            for chunk in self._host[kind]:
                chunk.zero_()

    def _chunks(self, numbers: int) -> list[Tensor]:
        pinned = self._device.type == "cuda"
        sizes = [min(self._chunk, numbers - start) for start in range(0, numbers, self._chunk)]
        return [torch.zeros(size, pin_memory=pinned) for size in sizes]

    def _spans(self, name: str) -> Iterator[tuple[int, int, int]]:
        """The parameter's part in each chunk: chunk, first and last-plus-one number of the parameter."""
        first, size = self._starts[name], self._parameters[name].numel()
        for chunk in range(first // self._chunk, (first + size - 1) // self._chunk + 1 if size else 0):
            yield chunk, max(0, chunk * self._chunk - first), min(size, (chunk + 1) * self._chunk - first)

    def _by_chunk(self, names: Sequence[str]) -> list[tuple[int, list[tuple[str, int, int]]]]:
        found: dict[int, list[tuple[str, int, int]]] = {}
        for name in names:
            for chunk, start, stop in self._spans(name):
                found.setdefault(chunk, []).append((name, start, stop))
        return sorted(found.items())

    def _place(self, name: str, start: int, stop: int, chunk: int) -> slice:
        offset = self._starts[name] - chunk * self._chunk
        return slice(start + offset, stop + offset)

    def _views(self, name: str, kind: str) -> list[Tensor]:
        return [
            self._host[kind][chunk][self._place(name, start, stop, chunk)] for chunk, start, stop in self._spans(name)
        ]

    def _piece(self, name: str, start: int, stop: int, chunk: int, visitor: dict[str, Tensor]) -> Piece:
        place = self._place(name, start, stop, chunk)
        whole = self._parameters[name].detach().view(-1)
        master = visitor[MASTER][place] if name in self._rounded else whole[start:stop]
        return Piece(name, start, stop, stop == len(whole), master, *(visitor[kind][place] for kind in MOMENTS))

    def _copy(self, lane: Lane, chunk: int, visitor: int, to_host: bool) -> None:
        for kind, chunks in self._host.items():
            if chunk < len(chunks):
                host, device = chunks[chunk], self._visitors[visitor][kind][: len(chunks[chunk])]
                target, source = (host, device) if to_host else (device, host)
                lane.do(lambda target=target, source=source: target.copy_(source, non_blocking=True))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])
