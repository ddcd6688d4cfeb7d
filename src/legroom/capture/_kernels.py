"""Fused operations as machine code: one loop over the elements, made by the C++ compiler.

In goes a program and how its tensors lie in memory; out comes a function that computes its result,
or None where there is no compiler or the program has something that is not written down here. Then
the program runs block by block, with the same bits. See Note [Kernels].
"""

# Note [Kernels]
# 1. Only what IEEE 754 defines to the last bit is compiled: sums, products, quotients, comparisons,
#    choices. The compiler may neither contract a product and a sum nor reorder anything. Where
#    PyTorch's own was compiled so that it does, both forms are tried on some numbers first.
# 2. A kernel is a shared library without any header but the language's, so it takes a fraction of a
#    second to make. It is kept in the cache folder, under a name that says what it was made from,
#    by which compiler and for which processor.
# 3. Large tensors are cut into as many parts as PyTorch has threads; ctypes lets go of the
#    interpreter meanwhile.
# 4. What goes wrong here makes nothing wrong, only slower. `LEGROOM_KERNELS=off` does without.

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import math
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from legroom.cache import cache_folder
from legroom.capture._operations import APPLY_MASK
from legroom.capture._program import Place, Step, read_program, write_program

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-std=c++17", "-shared", "-fPIC",
)  # fmt: skip
_SECONDS = 60
_TYPES = {torch.float32: "float", torch.float64: "double", torch.bool: "unsigned char"}
_FEWEST_PER_THREAD = 1 << 16
_MOST_LOOPS = 3

_Kind = tuple[bool, ...]
"""How a tensor is broadcast: of each run of dimensions, whether it has all, or only ones."""
Kernel = Callable[[Sequence[torch.Tensor]], None]
"""Is called with what the program is given and its result, cut as in Note [Fused], rule 1."""


# What operations are in C++ ----------------------------------------------------------------------


class _NotWrittenError(Exception):
    """Something that has no form here."""


def _forms() -> dict[Any, str]:
    aten: Any = torch.ops.aten
    made = {
        aten.neg.default: "-{0}",
        aten.abs.default: "__builtin_fabs({0})",
        aten.relu.default: "({0} < 0 ? 0 : {0})",
        aten.rsub.Scalar: "{1} - {0}",
        aten.clamp_min.default: "({0} < {1} ? {1} : {0})",
        aten.clamp_max.default: "({0} > {1} ? {1} : {0})",
        aten.clamp.default: "(({0} < {1} ? {1} : {0}) > {2} ? {2} : ({0} < {1} ? {1} : {0}))",
        aten.where.self: "({0} ? {1} : {2})",
        aten.masked_fill.Scalar: "({1} ? {2} : {0})",
        aten.threshold_backward.default: "({1} <= {2} ? 0 : {0})",
        aten.sigmoid_backward.default: "{0} * (1 - {1}) * {1}",
        aten.logical_not.default: "!{0}",
        aten.bitwise_not.default: "!{0}",
        APPLY_MASK: "{0} * (({1} ? 1 : 0) / {2})",
    }
    signs = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<",
             "le": "<=", "gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|"}  # fmt: skip
    for name, sign in signs.items():
        packet = getattr(aten, name)
        made[packet.Tensor] = made[packet.Scalar] = f"{{0}} {sign} {{1}}"
    return made


_FORMS = _forms()
_CONTRACTED = {
    torch.ops.aten.tanh_backward.default: (
        "{0} * FMA(-{1}, {1}, 1)",
        "{0} * (1 - {1} * {1})",
    ),
    torch.ops.aten.addcmul.default: (
        "FMA({1}, {2}, {0})",
        "{0} + {1} * {2}",
    ),
}
"""Forms of which PyTorch has one or the other, by how it was compiled: see `_contracted`."""
_FMA = {torch.float32: "fmaf", torch.float64: "fma"}
_POWERS = {2: "{0} * {0}", 3: "{0} * {0} * {0}"}


def _expression(
    step: Step, operands: list[str | Any], dtype: torch.dtype, forms: Mapping[Any, str]
) -> str:
    """What a step computes; numbers among the operands are read in `dtype`."""
    aten: Any = torch.ops.aten
    if step.operation is aten._to_copy.default:
        return f"({operands[0]} != 0)" if step.dtype is torch.bool else str(operands[0])
    if step.operation is aten.pow.Tensor_Scalar:
        if operands[1] not in _POWERS:
            raise _NotWrittenError
        return _POWERS[operands[1]].format(operands[0])
    form = forms.get(step.operation)
    if form is None and step.operation in _CONTRACTED:
        form = _contracted(step.operation, dtype)
    if form is None or step.kwargs not in ({}, {"alpha": 1}):
        raise _NotWrittenError
    return form.format(
        *(each if isinstance(each, str) else _number(each, dtype) for each in operands)
    )


@functools.lru_cache(maxsize=16)
def _contracted(operation: Any, dtype: torch.dtype) -> str | None:
    """The form that has this PyTorch's bits on some thousand numbers; None if none has."""
    compiler = _find_compiler()
    generator = torch.Generator().manual_seed(0)
    operands = [each for each in operation._schema.arguments if not each.kwarg_only]
    given = [torch.randn(4099, generator=generator, dtype=dtype) for _ in operands]
    expected = operation(*given)
    places = tuple(Place(number) for number in range(len(given)))
    program = write_program([Step(operation, places, {}, dtype)])
    for text in _CONTRACTED[operation]:
        form = text.replace("FMA", f"__builtin_{_FMA[dtype]}")
        source = _source(program, (dtype,) * len(given), ((True,),) * len(given), {operation: form})
        result = torch.empty_like(expected)
        _call(_function(compiler, source), [*given, result])
        if torch.equal(result, expected):
            return form
    return None


def _number(value: Any, dtype: torch.dtype) -> str:
    """A number as PyTorch reads it beside a tensor of that type."""
    if dtype is torch.bool:
        return str(int(bool(value)))
    number = float(value)
    if math.isnan(number):
        raise _NotWrittenError
    written = f"{'-' if number < 0 else ''}__builtin_inf()" if math.isinf(number) else number.hex()
    return f"(({_TYPES[dtype]})({written}))"


def _source(
    program: str,
    dtypes: Sequence[torch.dtype],
    kinds: Sequence[_Kind],
    forms: Mapping[Any, str] = _FORMS,
    place: int | None = None,
) -> str:
    """The kernel of a program; `kinds` says of each tensor given how it is broadcast.

    Args:
        place: Of the tensor given that the result takes the place of; None: of none.
    """
    steps = read_program(program)
    known = list(dtypes)
    lines = []
    for number, (dtype, kind) in enumerate(zip(dtypes, kinds, strict=True)):
        lines.append(f"const {_typed(dtype)} v{number} = p{number}[{_index(kind)}];")
    for step in steps:
        read = [known[place] for place in step.reads()]
        floats = {dtype for dtype in read if dtype is not torch.bool}
        if len(floats) > 1 and step.operation is not torch.ops.aten._to_copy.default:
            raise _NotWrittenError
        computed = floats.pop() if floats else torch.bool
        is_kept = step.dtype in (computed, torch.bool)
        if not is_kept and step.operation is not torch.ops.aten._to_copy.default:
            raise _NotWrittenError
        if computed is torch.bool and step.operation not in _ON_TRUTH_VALUES:
            raise _NotWrittenError
        operands = [f"v{arg.number}" if isinstance(arg, Place) else arg for arg in step.args]
        made, computes = _typed(step.dtype), _expression(step, operands, computed, forms)
        lines.append(f"const {made} v{len(known)} = ({made})({computes});")
        known.append(step.dtype)
    result = _typed(steps[-1].dtype)
    pointers = [f"{result}* __restrict out = ({result}*)p[{len(dtypes)}];"]
    pointers += [
        f"const {_typed(dtype)}* p{number} = out;"
        if number == place
        else f"const {_typed(dtype)}* __restrict p{number} = (const {_typed(dtype)}*)p[{number}];"
        for number, dtype in enumerate(dtypes)
    ]
    lines.append(f"out[i] = v{len(known) - 1};")
    body = "".join(f"    {each}\n" for each in lines)
    loop = _FLAT_LOOP if all(len({*kind}) == 1 for kind in kinds) else _LOOP
    return (
        f"// {program}\n"
        'extern "C" void run(long first, long last, long middle, long inner, void** p) {\n'
        + "".join(f"  {each}\n" for each in pointers)
        + loop.format(body)
        + "}\n"
    )


def _index(kind: _Kind) -> str:
    """Which element of a tensor is read in the loops over rows, middle and inner dimensions."""
    if len({*kind}) == 1:
        return "i" if kind[0] else "0"
    has_rows, *has_middle, has_inner = kind
    terms = []
    if has_rows:
        terms.append("r * middle" if has_middle == [True] else "r")
    if has_middle == [True]:
        terms.append("m")
    index = " + ".join(terms) or "0"
    return f"({index}) * inner + c" if has_inner else index


_FLAT_LOOP = """\
  for (long i = first * middle * inner; i < last * middle * inner; ++i) {{
{}  }}
"""
_LOOP = """\
  for (long r = first; r < last; ++r)
  for (long m = 0; m < middle; ++m)
  for (long c = 0; c < inner; ++c) {{
    const long i = (r * middle + m) * inner + c;
{}  }}
"""
_ON_TRUTH_VALUES = {
    torch.ops.aten.logical_not.default,
    torch.ops.aten.bitwise_not.default,
    torch.ops.aten.bitwise_and.Tensor,
    torch.ops.aten.bitwise_and.Scalar,
    torch.ops.aten.bitwise_or.Tensor,
    torch.ops.aten.bitwise_or.Scalar,
    torch.ops.aten._to_copy.default,
    torch.ops.aten.where.self,
}


def _typed(dtype: torch.dtype) -> str:
    if dtype not in _TYPES:
        raise _NotWrittenError
    return _TYPES[dtype]


# From source to function -------------------------------------------------------------------------


def kernel_of(program: str, cut: Sequence[torch.Tensor], place: int | None = None) -> Kernel | None:
    """The kernel of a program for tensors cut like these; None where there is none.

    Args:
        place: Of the tensor given that is the result as well; None: none is.
    """
    if cut[-1].dim() > _MOST_LOOPS or not all(each.is_contiguous() for each in cut):
        return None
    shape = cut[-1].shape
    kinds = tuple(_kind_of(each.shape, shape) for each in cut[:-1])
    return _kernel(program, tuple(each.dtype for each in cut[:-1]), kinds, place)


def _kind_of(shape: Sequence[int], whole: Sequence[int]) -> _Kind:
    if math.prod(shape) == 1:
        return (math.prod(whole) == 1,) * len(whole)
    return tuple(mine == theirs for mine, theirs in zip(shape, whole, strict=True))


@functools.lru_cache(maxsize=4096)
def _kernel(
    program: str,
    dtypes: tuple[torch.dtype, ...],
    kinds: tuple[_Kind, ...],
    place: int | None,
) -> Kernel | None:
    try:
        run = _function(_find_compiler(), _source(program, dtypes, kinds, place=place))
    except (_NotWrittenError, OSError, subprocess.SubprocessError, RuntimeError):
        return None
    return functools.partial(_call, run)


def _call(run: Any, cut: Sequence[torch.Tensor]) -> None:
    result = cut[-1]
    num_rows, *middle, inner = result.shape if result.dim() > 1 else (*result.shape, 1)
    pointers = (ctypes.c_void_p * len(cut))(*(each.data_ptr() for each in cut))

    def run_part(first: int, last: int) -> None:
        run(first, last, math.prod(middle), inner, pointers)

    in_parts(run_part, num_rows, result.numel())


def in_parts(run: Callable[[int, int], None], count: int, num_elements: int) -> None:
    """Run from first to last of `count`, on as many threads as PyTorch has, if it is enough."""
    num_parts = min(torch.get_num_threads(), count, num_elements // _FEWEST_PER_THREAD)
    if num_parts < 2:
        run(0, count)
        return
    ends = [count * number // num_parts for number in range(num_parts + 1)]
    threads = _threads(torch.get_num_threads())
    parts = [threads.submit(run, first, last) for first, last in itertools.pairwise(ends)]
    for part in parts:
        part.result()


@functools.lru_cache(maxsize=4)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="legroom-kernel")


def kernel_compiler() -> str | None:
    """The compiler that fused operations are compiled with, in one line; None if they are not."""
    found = _find_compiler()
    return f"{found[0]}: {found[1].splitlines()[0]}" if found else None


@functools.lru_cache(maxsize=1)
def _find_compiler() -> tuple[str, str] | None:
    """The C++ compiler and what it says of itself; None if there is none, or none is wanted."""
    if os.environ.get("LEGROOM_KERNELS") == "off":
        return None
    names = (os.environ["CXX"],) if os.environ.get("CXX") else _COMPILERS
    for name in names:
        path = shutil.which(name)
        if path is not None:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                told = subprocess.run(
                    [path, "--version"], capture_output=True, text=True, check=True, timeout=10
                )
                return path, told.stdout
    return None


def compiled(source: str) -> Any:
    """The function `run` of a piece of C++; None where there is no compiler, or it fails."""
    try:
        return _function(_find_compiler(), source)
    except (_NotWrittenError, OSError, subprocess.SubprocessError):
        return None


def _function(compiler: tuple[str, str] | None, source: str) -> Any:
    if compiler is None:
        raise _NotWrittenError
    path, version = compiler
    said = "\n".join((source, version, *_FLAGS, _processor()))
    name = hashlib.sha256(said.encode()).hexdigest()[:24]
    folder = cache_folder() / "kernels"
    library = folder / f"{name}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Moved within one folder: Landlock's first version refuses to move between two.
        handle, built = tempfile.mkstemp(dir=folder, suffix=".made")
        os.close(handle)
        try:
            subprocess.run(
                [path, *_FLAGS, "-x", "c++", "-", "-o", built],
                input=source.encode(), capture_output=True, check=True, timeout=_SECONDS,
            )  # fmt: skip
            os.replace(built, library)
        finally:
            with contextlib.suppress(FileNotFoundError):  # where it was moved
                os.unlink(built)
    run = ctypes.CDLL(str(library)).run
    run.argtypes = [ctypes.c_long] * 4 + [ctypes.c_void_p]
    run.restype = None
    return run


@functools.lru_cache(maxsize=1)
def _processor() -> str:
    """What `-march=native` depends on, so that a folder can be shared between machines."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return f"{platform.machine()} {platform.processor()}"
