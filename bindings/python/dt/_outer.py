# SPDX-License-Identifier: Apache-2.0
"""Ranks that train by themselves, and bring their parameters together now and then."""

import dataclasses
import enum
import os
from typing import Any, Callable, List, Mapping, Optional, Sequence, Union

from . import _raw
from ._comm import Comm
from ._errors import invalid
from ._interruptible import Result
from ._types import Array, Handle, Owner, options_of, pack


class OuterFormat(enum.IntEnum):
    """What the mean over the ranks travels as. It is summed in f32."""

    F32 = 0
    BF16 = 1
    BITS8 = 2  # blocks of 64 elements, each with a scale of f32
    BITS4 = 3  # likewise


@dataclasses.dataclass(frozen=True)
class OuterOptions:
    """How ranks come together; the same on all ranks. Local SGD, the mean of the parameters, is rate=1 and
    momentum=0."""

    sync_every: int = 1  # steps in which each fragment has its turn once
    fragments: int = 1  # a divisor of sync_every: parts of the parameters, with turns one after the other
    delay: int = 0  # steps that go on while a mean is under way; less than sync_every / fragments
    alpha: float = 0.0  # in [0, 1]: how much of a rank's own parameters stays when the mean is there
    rate: float = 0.7  # of SGD on the global parameters
    momentum: float = 0.9  # in [0, 1)
    nesterov: bool = True
    format: OuterFormat = OuterFormat.F32


class Outer(Owner):
    """An outer optimizer, for slow networks: local SGD and DiLoCo, with fragments and a delay as in streaming
    DiLoCo. Each rank trains by itself with an inner optimizer, and calls step() behind each of its steps; in turns
    the mean of what ranks have changed is the gradient of a step of SGD on global parameters.

    Collective over `comm`, which is over host memory. Where several ranks train one model together, `comm` joins
    those with the same parameters of different groups; call Shard.updated() behind a step() that gives True.

    params: arrays of F32, F16 or BF16 in host memory, or a mapping of their names to them, with the same values
        on all ranks; they are kept as long as this is open, and dt writes to them in its calls

    One thread at a time, and nothing else writes to parameters meanwhile. Ctrl-C ends a call as it does those of
    Comm; then the parameters are undefined.
    """

    def __init__(self, comm: Comm, params: Union[Mapping[str, Array], Sequence[Array]],
                 options: Optional[OuterOptions] = None) -> None:
        chosen = OuterOptions() if options is None else options
        named = params.items() if isinstance(params, Mapping) else (("", each) for each in params)
        parts: List[Any] = options_of("Outer", OuterOptions, chosen,
                                      "sync_every fragments delay nesterov format alpha rate momentum")
        keep: List[Any] = []
        for name, array in named:
            what = f"Outer: params[{repr(name) if name else len(keep)}]"
            address, count, dtype, on_gpu, kept = _raw.buffer(array, True, what)
            if on_gpu:
                raise invalid(f"{what}: the array is GPU memory; give parameters in host memory")
            parts += [address, count, dtype, name]
            keep.append(kept)
        self._keep = keep
        self._comm = comm
        packed = pack(parts)
        super().__init__(comm._wait(
            keep, lambda: Handle(_raw.outer_create(comm._handle, packed), _raw.outer_destroy)))

    def _call(self, function: Callable[..., Result], *args: Any) -> Result:
        # Both live until dt is done, whatever ends this call and whoever closes this meanwhile.
        owner, keep = self._open(), self._keep
        return self._comm._wait((owner, keep), function, owner.number, *args)

    def step(self) -> bool:
        """To be called behind each step of the inner optimizer. Whether parameters were changed. Collective where
        it is a fragment's turn, or a mean is due. A step that fails has changed nothing: after the loss of a rank
        go on with move()."""
        return bool(self._call(_raw.outer_step))

    def sync(self) -> None:
        """Gives every fragment a turn at once, as before an evaluation: behind it all ranks have the global
        parameters. It counts no step. Collective."""
        self._call(_raw.outer_sync)

    @property
    def steps(self) -> int:
        """How many steps there were; load() sets what the file has, move() what the ranks have that are ahead."""
        return int(self._call(_raw.outer_steps))

    def move(self, comm: Comm) -> None:
        """Goes on over another communicator, such as that of the survivors (Comm.shrink()). Ranks that have had
        fewer means get the state of the others, also as their own parameters; a mean under way is dropped.
        Collective over `comm`."""
        owner, keep = self._open(), self._keep
        comm._wait((owner, keep), _raw.outer_move, owner.number, comm._handle)
        self._comm = comm

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the global parameters, the momentum and the number of steps to a file, in the layout of
        safetensors. Not collective: all ranks would write the same, so let one do it."""
        self._call(_raw.outer_save, os.fspath(path))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads what save() wrote, the same file on all ranks; its parameters become the rank's own. Any number of
        ranks and any options may read it, but for a momentum where the file has none. Collective."""
        self._call(_raw.outer_load, os.fspath(path))

    def close(self) -> None:
        """Drops it; parameters stay as they are."""
        super().close()
        self._keep = []

    def __repr__(self) -> str:
        state = "closed" if self._owner is None else f"{len(self._keep)} parameters"
        return f"<dt.Outer of {state}>"
