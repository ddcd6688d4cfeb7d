"""A running program's operations and storages, recorded as they come and go.

In go the calls that PyTorch dispatches, on fake tensors; out come one `RawOperation` per operation
that computes and one `RawStorage` per storage, with the positions at which it was born and died.
See Note [Recording].
"""

# Note [Recording]
# 1. Recording never stops between steps: what is alive when a step begins is what was born earlier
#    and has not died.
# 2. A storage's death is told by a finalizer of its Python object, which PyTorch keeps for as long
#    as the storage. It is placed after the last operation that had begun.
# 3. Views and reads of metadata leave no trace. What TorchDynamo runs while it traces does not
#    either.
# 4. Under a dispatch mode autograd adds gradients up out of place. In a plain run it adds in place
#    where nobody else holds the first one, so such additions are marked, and one storage is made of
#    two afterwards. The same holds for gradients of selections, which it writes into zeros.
# 5. Whole numbers and truth values that were real stay real as long as they are small, and so do
#    those that the program makes of nothing (`arange`): they often decide where the program goes
#    (`if mask.all()`). Other values are not known, nor are those of a real tensor once something
#    unknown was written into it. A single random number is taken to be a half: models skip layers
#    by `if torch.rand([]) < 0.1`; so is a number of an optimizer, which may divide by one less it.
# 6. Outside of models, what is made of nothing or of real tensors is data: it is computed, and its
#    values are what they are in plain training. Only what was there before is not written to.

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.capture._fake_rules import ASSUMED, FAKE_RULES
from legroom.capture._heap import shape_and_dtype
from legroom.capture._into_zeros import WRITES_INTO_ZEROS
from legroom.capture._kinds import Kind, Phase
from legroom.capture._real import real_tensors
from legroom.capture._signature import signature_of
from legroom.capture._sites import SiteTable
from legroom.errors import TorchInterfaceError

_TESTED = "2.13.0"
_SMALL_BYTES = 1 << 20
_ACCUMULATION = torch.ops.aten.add.Tensor
_LIFTS = ("lift", "lift_fresh", "lift_fresh_copy")
_MAKERS = ("arange", "empty", "full", "ones", "zeros", "tril_indices", "triu_indices")
_UNIFORM = torch.ops.aten.rand.default
_READ_VALUE = torch.ops.aten._local_scalar_dense.default


@dataclass(slots=True)
class RawStorage:
    """One storage of the recorded program.

    Attributes:
        born: Position of the operation that made it, or before which it was first seen; -1 for
            what was there when recording began.
        is_made: Whether operation `born` made it.
        died: Position of the last operation that had begun when it died; None while it lives.
    """

    index: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    born: int
    is_made: bool
    died: int | None = None
    kind: Kind | None = None
    name: str = ""


@dataclass(slots=True)
class RawOperation:
    """One operation, or one run of a captured piece.

    Attributes:
        site: Number of its source line in the recorder's table; -1 if unknown.
        by_autograd: Whether autograd itself called it, to add up gradients.
        writes_in_place_in_eager: Out of place only here; see Note [Recording], rule 4.
        run: What stands here instead of one operation; see `_pieces.PieceRun`.
    """

    name: str
    phase: Phase
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    updates: tuple[int, ...] = ()
    signature: str = ""
    is_random: bool = False
    site: int = -1
    module: str = ""
    by_autograd: bool = False
    writes_in_place_in_eager: bool = False
    run: Any = None


@dataclass(slots=True)
class _Pending:
    """Deaths while an operation runs, which may turn out not to be one."""

    dead: list[RawStorage] = field(default_factory=list)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation that is dispatched while it is active; see Note [Recording].

    Attributes:
        operations: In the order in which they ran.
        storages: In the order in which they were first seen.
        phase: What the program is doing; set by whoever knows.
        current_module: Tells the path of the module that is running.
        is_in_model: Tells whether that is, or is in, one that has parameters.
        on_forward: Is told the module of every operation of forward.
        assumed: Source lines at which an unknown value was read, with how often.
        guessed: Operations whose sizes were guessed, by what was assumed.
        has_closure: Whether an optimizer has run a backward pass within its step.
        is_led_by_values: Whether such an optimizer has asked a value what to do next.
        device: Where the program trains.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[RawOperation] = []
        self.storages: list[RawStorage] = []
        self.sites = SiteTable()
        self.phase = Phase.OTHER
        self.current_module: Callable[[], str] = lambda: ""
        self.is_in_model: Callable[[], bool] = lambda: True
        self.assumed: dict[int, int] = {}
        self.guessed: dict[str, set[str]] = {}
        self.has_closure = self.is_led_by_values = False
        self.on_forward: Callable[[str], None] | None = None
        self.device = torch.device("cpu")
        self._mode = mode
        self._known: dict[int, RawStorage] = {}
        self._pending: _Pending | None = None
        self._pauses = 0
        self._unknown: set[int] = set()
        self._site_of_node: dict[int, tuple[int, str]] = {}
        self._finalizers: list[weakref.finalize[..., Any]] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True: TorchDynamo need not leave a frame alone because of us."""
        return True

    @property
    def position(self) -> int:
        """Position of the next operation."""
        return len(self.operations)

    def pause(self) -> None:
        """Record nothing until `resume` was called as often."""
        self._pauses += 1

    def resume(self) -> None:
        """Record again."""
        self._pauses -= 1

    def close(self) -> None:
        """Watch storages no longer."""
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()
        self._known.clear()

    # Storages ------------------------------------------------------------------------------------

    def add_storage(
        self, tensor: torch.Tensor, *, is_made: bool, num_bytes: int | None = None
    ) -> RawStorage:
        """The storage behind a tensor; a new one if it was not known."""
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None:
            return known
        shape, dtype = shape_and_dtype(tensor)
        raw = RawStorage(
            index=len(self.storages),
            num_bytes=storage.nbytes() if num_bytes is None else num_bytes,
            shape=shape,
            dtype=dtype,
            born=self.position if is_made else self.position - 1,
            is_made=is_made,
        )
        self.storages.append(raw)
        self._watch(storage, raw)
        return raw

    def alias(self, storage: torch.UntypedStorage, raw: RawStorage) -> None:
        """Let another storage count as a known one: a real one behind its fake."""
        self._known[storage._cdata] = raw
        finalizer = weakref.finalize(storage, self._known.pop, storage._cdata, None)
        finalizer.atexit = False
        self._finalizers.append(finalizer)

    def find_storage(self, storage: torch.UntypedStorage) -> RawStorage | None:
        """What is recorded of a storage, if it is known."""
        return self._known.get(storage._cdata)

    def find(self, tensor: torch.Tensor) -> RawStorage | None:
        """The storage behind a tensor, if it is known."""
        try:
            return self._known.get(tensor.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):  # sparse and nested tensors
            return None

    def _watch(self, storage: torch.UntypedStorage, raw: RawStorage) -> None:
        self._known[storage._cdata] = raw
        finalizer = weakref.finalize(storage, self._has_died, storage._cdata, raw)
        finalizer.atexit = False
        self._finalizers.append(finalizer)

    def _has_died(self, key: int, raw: RawStorage) -> None:
        if self._known.get(key) is raw:
            del self._known[key]
        if self._pending is not None:
            self._pending.dead.append(raw)
        raw.died = self.position - 1

    # Operations ----------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._pauses or TracingContext.try_get() is not None:
            return func(*args, **kwargs)
        if func is _READ_VALUE:
            return self._value_of(args[0])
        tensors = [item for item in _leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        if self._stays_real(func, args, kwargs, tensors):
            self._pending = _Pending()
            with real_tensors():
                output = func(*args, **kwargs)
            if func.is_view:
                self._pending = None
            else:
                self._record(func, args, kwargs, tensors, output)
            return output
        given = args, kwargs
        if any(not isinstance(tensor, FakeTensor) for tensor in tensors):
            is_lift = func.overloadpacket.__name__ in _LIFTS
            to_fake = self._lifted if is_lift else self._to_fake
            args, kwargs = _mapped(args, to_fake), _mapped(kwargs, to_fake)
            tensors = [item for item in _leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        if func.is_view:
            return func(*args, **kwargs)
        self._pending = _Pending()
        output = self._ruled(func, *given) if func in FAKE_RULES else func(*args, **kwargs)
        if func is _UNIFORM and output.numel() == 1:
            _assume_half(output)
        self._record(func, args, kwargs, tensors, output)
        for tensor in _written_by(func, *given):
            if not isinstance(tensor, FakeTensor) and (raw := self.find(tensor)) is not None:
                self._unknown.add(raw.index)
        return output

    def _stays_real(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> bool:
        """See Note [Recording], rules 5 and 6."""
        if self.phase is Phase.OTHER and not self.is_in_model():
            return self._is_data(func, args, kwargs, tensors)
        if not tensors:
            return _makes_small_numbers(func, args, kwargs)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if is_random or any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return False
        if func.is_view:
            return func.overloadpacket.__name__ not in _LIFTS  # torch.tensor() makes them
        known = [self.find(tensor) for tensor in tensors]
        written = [self.find(tensor) for tensor in _written_by(func, args, kwargs)]
        return (
            all(_holds_small_numbers(tensor) for tensor in tensors)
            and not any(raw is not None and raw.index in self._unknown for raw in known)
            and all(raw is not None and raw.is_made for raw in written)
        )

    def _is_data(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> bool:
        """See Note [Recording], rule 6."""
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return False
        raws = [self.find(tensor) for tensor in tensors]
        written = [self.find(tensor) for tensor in _written_by(func, args, kwargs)]
        is_known = not any(raw is not None and raw.index in self._unknown for raw in raws)
        return is_known and all(raw is not None and raw.is_made for raw in written)

    def _ruled(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a rule of ours says, given the values that are known; see Note [Fake rules]."""
        args, kwargs = _mapped(args, self._without_unknown), _mapped(kwargs, self._without_unknown)
        if func in ASSUMED and _decides_by_fakes(func, args):
            self.guessed.setdefault(ASSUMED[func], set()).add(str(func))
        return FAKE_RULES[func](*args, **kwargs)

    def _record(
        self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor], output: Any
    ) -> None:
        pending, self._pending = self._pending, None
        reads = [self.add_storage(tensor, is_made=False).index for tensor in _dense(tensors)]
        made = [
            tensor
            for tensor in _dense(_leaves(output))
            if tensor.untyped_storage()._cdata not in self._known
        ]
        updates = [
            raw.index
            for tensor in _written_by(func, args, kwargs)
            if (raw := self.find(tensor)) is not None
        ]
        if not made and not updates:
            return
        position = self.position
        writes = [self.add_storage(tensor, is_made=True).index for tensor in made]
        site, module, by_autograd = self._origin()
        phase = self._phase(tensors, module)
        if self.on_forward is not None and phase is Phase.FORWARD:
            self.on_forward(module)
        self.operations.append(
            RawOperation(
                name=str(func),
                phase=phase,
                reads=tuple(dict.fromkeys(reads)),
                writes=tuple(dict.fromkeys(writes)),
                updates=tuple(dict.fromkeys(updates)),
                signature=signature_of(func, args, kwargs),
                is_random=torch.Tag.nondeterministic_seeded in func.tags,
                site=site,
                module=module,
                by_autograd=by_autograd,
                writes_in_place_in_eager=(by_autograd and func is _ACCUMULATION)
                or (phase is Phase.BACKWARD and func in WRITES_INTO_ZEROS),
            )
        )
        for raw in pending.dead if pending is not None else ():
            raw.died = position

    def _phase(self, tensors: list[torch.Tensor], module: str) -> Phase:
        """Backward and optimizer are told; the rest is told apart by who asks."""
        if self.phase is not Phase.OTHER:
            return self.phase
        if module:
            return Phase.FORWARD
        is_loss = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return Phase.LOSS if is_loss else Phase.OTHER

    def _origin(self) -> tuple[int, str, bool]:
        """Source line and module, and whether autograd itself is adding gradients up."""
        if self.phase is not Phase.BACKWARD:
            module = self.current_module()
            site = self.sites.here(module)
            if torch.is_grad_enabled():
                self._site_of_node[_newest_node()] = (site, module)
            return site, module, False
        node = _running_node()
        if node is None or "AccumulateGrad" in node.name():
            return -1, "", True
        return *self._site_of_node.get(node._sequence_nr(), (-1, "")), False

    def _value_of(self, tensor: torch.Tensor) -> Any:
        values = self.values_of(tensor)
        with real_tensors():
            return values.item()

    def values_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor that the program reads: a real one; made up where none is known.

        What is made up takes the memory of one. Where it was, is listed in `assumed`.
        """
        known = tensor if not isinstance(tensor, FakeTensor) else tensor.constant
        raw = self.find(tensor)
        if known is not None and (raw is None or raw.index not in self._unknown):
            return known
        self.is_led_by_values |= self.has_closure and tensor.dtype is torch.bool
        if self.phase is not Phase.OPTIMIZER:
            site = self.sites.here(self.current_module())
            self.assumed[site] = self.assumed.get(site, 0) + 1
        is_half = self.phase is Phase.OPTIMIZER and tensor.is_floating_point()
        with real_tensors():
            made_up = torch.full((), 0.5 if is_half else 1, dtype=tensor.dtype)
            return made_up.expand(tensor.shape)

    def hears(self, tensor: FakeTensor) -> bool:
        """Whether the program itself asks for a fake of this recording."""
        is_ours = tensor.fake_mode is self._mode and not self._pauses
        return is_ours and TracingContext.try_get() is None

    def _without_unknown(self, value: Any) -> Any:
        """A fake in place of a real tensor that something unknown was written into."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        raw = self.find(value)
        return self._to_fake(value) if raw is not None and raw.index in self._unknown else value

    def _to_fake(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        raw = self.add_storage(value, is_made=False) if _is_dense(value) else None
        fake = self._fake_of(value)
        if raw is not None and self.find(fake) is None:
            self.alias(fake.untyped_storage(), raw)
        return fake

    def _lifted(self, value: Any) -> Any:
        """What `torch.tensor()` has made, as an optimizer's steps: only the fake of it lives on."""
        if not _is_dense(value) or isinstance(value, FakeTensor) or self.find(value) is not None:
            return self._to_fake(value)
        fake = self._fake_of(value)
        self.add_storage(fake, is_made=False)
        return fake

    def _fake_of(self, value: torch.Tensor) -> torch.Tensor:
        self.pause()
        try:
            return self._mode.from_tensor(value, static_shapes=True)
        finally:
            self.resume()


def _assume_half(number: torch.Tensor) -> None:
    """See Note [Recording], rule 5."""
    if isinstance(number, FakeTensor):
        with real_tensors():
            number.constant = torch.full(number.shape, 0.5, dtype=number.dtype)


def _newest_node() -> int:
    """Sequence number of the newest node of an autograd graph: that of the running operation."""
    try:
        return int(torch._C._autograd._get_sequence_nr()) - 1
    except AttributeError:
        raise TorchInterfaceError("torch._C._autograd._get_sequence_nr", tested=_TESTED) from None


def _running_node() -> Any:
    """The node whose backward is running; None between nodes, where the engine adds gradients."""
    try:
        return torch._C._current_autograd_node()
    except AttributeError:
        raise TorchInterfaceError("torch._C._current_autograd_node", tested=_TESTED) from None


def _is_dense(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided


def _dense(values: Any) -> list[torch.Tensor]:
    return [value for value in values if _is_dense(value)]


def _holds_small_numbers(tensor: torch.Tensor) -> bool:
    return (
        not tensor.dtype.is_floating_point
        and not tensor.dtype.is_complex
        and tensor.numel() * tensor.element_size() <= _SMALL_BYTES
    )


def _makes_small_numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call makes a small tensor of whole numbers, on the CPU, out of nothing."""
    if func.overloadpacket.__name__ not in _MAKERS:
        return False
    if torch.device(kwargs.get("device") or "cpu").type != "cpu":
        return False
    dtype = kwargs.get("dtype")
    if dtype is None:
        is_whole = func.overloadpacket.__name__ in ("arange", "full")
        if not is_whole or any(isinstance(item, float) for item in _leaves(args)):
            return False
    elif dtype.is_floating_point or dtype.is_complex:
        return False
    return _holds_small_numbers(func(*args, **{**kwargs, "device": "meta", "pin_memory": None}))


def _decides_by_fakes(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the size of a result depends on values that are not known."""
    if func is torch.ops.aten.index.Tensor:
        deciding = [each for each in args[1] if each is not None and each.dtype is torch.bool]
    elif func in (
        torch.ops.aten.masked_select.default,
        torch.ops.aten._pack_padded_sequence.default,
    ):
        deciding = [args[1]]
    elif func is torch.ops.aten._ctc_loss.Tensor:
        deciding = [args[3]]
    else:
        deciding = [args[0]]
    return any(isinstance(each, FakeTensor) and each.constant is None for each in deciding)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, function) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, function) for key, item in value.items()}
    return function(value)


@functools.cache
def _write_places(func: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _written_by(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    found = []
    for place, name in _write_places(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        found.extend(_dense(_leaves(value)))
    return found
