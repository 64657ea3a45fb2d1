"""A simulated GPU: tensors with the device `cuda:0` that hold real numbers on the CPU.

Inside `pretended()`, the GPU code runs under these CUDA rules:

    an operation on tensors from both devices raises, except for 0-dimensional tensors and indices
    kernels that exist only on a GPU (attention over packed rows, mm of bfloat16 into float32)
        accept only what the real kernels accept, and are computed by plain formulas
    every time the host waits for the GPU, the wait is counted for the source line that causes it

The waits are what torch.cuda.set_sync_debug_mode reports: a number read on the host, a copy
between devices unless `non_blocking`, and sizes that depend on values (nonzero, indexing with a
mask, repeat_interleave without output_size). Sharding and NCCL are not simulated.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves

from infra import loading

ROOT = Path(__file__).parent.parent
SOURCES = f"{ROOT}/"
NO_SOURCES = (f"{ROOT}/tests/", f"{ROOT}/.venv/")
CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
FREE, TOTAL = 60e9, 80e9  # bytes of memory

waits = Counter()  # source line -> number of waits for the GPU
calls = Counter()  # operation -> number of calls


def place() -> str:
    """The innermost source line being executed, such as `infra/head.py:125`."""
    frame = sys._getframe()
    while frame:
        path = frame.f_code.co_filename
        if path.startswith(SOURCES) and not path.startswith(NO_SOURCES):
            return f"{path.removeprefix(SOURCES)}:{frame.f_lineno}"
        frame = frame.f_back
    return "tests"


class Pretended(torch.Tensor):
    """A tensor on the GPU. In torch's C++ code its device is `meta`."""

    @staticmethod
    def __new__(cls, real: torch.Tensor, requires_grad: bool = False):
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device="meta",
            requires_grad=requires_grad,
        )
        self.held = real.detach()
        return self

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), options=None):
        return computed(operation, arguments, options or {})

    def __repr__(self):
        return f"Pretended({self.held})"


def mapped(function: Callable, x):
    """x with every tensor in it replaced by function(tensor)."""
    if isinstance(x, torch.Tensor):
        return function(x)
    if isinstance(x, (list, tuple)):
        return type(x)([mapped(function, each) for each in x])
    if isinstance(x, dict):
        return {name: mapped(function, each) for name, each in x.items()}
    return x


def real(x):
    """x with GPU tensors replaced by the CPU tensors that they hold."""
    return mapped(lambda each: each.held if is_on_gpu(each) else each, x)


def on_gpu(x):
    """x with all its tensors on the GPU."""
    return mapped(lambda each: each if is_on_gpu(each) else Pretended(each), x)


def is_on_gpu(x) -> bool:
    return isinstance(x, Pretended)


# ---- operations ----------------------------------------------------------------------------------


def computed(operation, arguments: tuple, options: dict):
    """Run an operation of torch's dispatcher: on the CPU's tensors or on the simulated GPU."""
    name = str(operation)
    calls[name] += 1
    tensors = [x for x in tree_leaves((arguments, options)) if isinstance(x, torch.Tensor)]
    here = [x for x in tensors if is_on_gpu(x)]
    device = options.get("device")
    if not here and (device is None or torch.device(device).type != "meta" or real_meta):
        return operation(*arguments, **options)

    if operation is aten.copy_.default:
        return copied(*arguments, **options)
    if operation is aten._to_copy.default:
        return moved(*arguments, **options)
    refuse_mixed(operation, arguments, tensors)
    if operation is aten._local_scalar_dense.default or depends_on_values(name, arguments, options):
        waits[place()] += 1
    if operation is aten._local_scalar_dense.default:
        return operation(real(arguments[0]))
    if operation is aten._fused_sdp_choice.default:
        return 0  # attention by plain formulas
    if name in KERNELS:
        return on_gpu(KERNELS[name](operation, *real((arguments, options))))

    if device is not None:
        options = options | {"device": "cpu"}
    out = on_gpu(operation(*real(arguments), **real(options)))
    if device is not None:
        return out  # shares no memory with `arguments`
    return return_and_correct_aliasing(operation, arguments, options, out)


def refuse_mixed(operation, arguments: tuple, tensors: list[torch.Tensor]) -> None:
    """Raise RuntimeError if CPU and GPU tensors are mixed, as CUDA does."""
    elsewhere = [x for x in tensors if not is_on_gpu(x) and x.dim() > 0]
    if str(operation).startswith(("aten.index.", "aten.index_put", "aten._unsafe_index")):
        indices = [x for x in tree_leaves(arguments[1]) if isinstance(x, torch.Tensor)]
        if is_on_gpu(arguments[0]):
            waits[place()] += sum(not is_on_gpu(x) for x in indices)  # each index is copied
            elsewhere = [x for x in elsewhere if not any(x is index for index in indices)]
    if elsewhere:
        raise RuntimeError(f"{operation}: expected all tensors to be on the same device, {place()}")


def depends_on_values(name: str, arguments: tuple, options: dict) -> bool:
    """Whether the result's size depends on values, so that the host waits for the GPU."""
    if name.startswith(("aten.nonzero", "aten.masked_select", "aten._unique", "aten.unique")):
        return True
    if name.startswith("aten.index"):
        return any(getattr(x, "dtype", None) is torch.bool for x in tree_leaves(arguments[1:2]))
    return name == "aten.repeat_interleave.Tensor" and options.get("output_size") is None


def copied(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """to.copy_(source), on either device or across devices."""
    if is_on_gpu(to) != is_on_gpu(source) and not non_blocking:
        waits[place()] += 1
    real(to).copy_(real(source))
    return to


def moved(
    x: torch.Tensor, *, dtype=None, device=None, non_blocking: bool = False, **_
) -> torch.Tensor:
    """x.to(...) for a tensor on the GPU: converts its dtype, or copies it to the host."""
    out = real(x).to(dtype or x.dtype, copy=True)
    if device is None or torch.device(device).type in ("cuda", "meta"):
        return Pretended(out)
    if not non_blocking:
        waits[place()] += 1
    return out


# ---- GPU-only kernels ----------------------------------------------------------------------------


def half_precision_product(_, arguments: tuple, options: dict) -> torch.Tensor:
    """torch.mm(a, b, out_dtype=torch.float32)."""
    a, b, out_dtype = arguments
    assert a.dtype == b.dtype == torch.bfloat16
    assert out_dtype is torch.float32
    return a.float() @ b.float()


def sequences(given: SimpleNamespace) -> Iterator[tuple]:
    """(rows, s Q, s K, V [heads, tokens, size], weights [heads, tokens, tokens]) of each sequence.

    All in float32; s is the scale of the attention scores.
    """
    scale = given.scale or given.query.shape[-1] ** -0.5
    together = given.query.shape[1] // given.key.shape[1]
    window = given.window_size or [-1, 0]
    start = given.cu_seq_q.tolist()
    for a, b in zip(start[:-1], start[1:], strict=True):
        each = (x[a:b].transpose(0, 1).float() for x in (given.query, given.key, given.value))
        Q, K, V = each
        K, V = (x.repeat_interleave(together, dim=0) for x in (K, V))
        age = torch.arange(b - a)[:, None] - torch.arange(b - a)
        seen = age >= 0
        if window[0] >= 0:
            seen &= age <= window[0]
        scores = Q @ K.transpose(1, 2) * scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        yield slice(a, b), Q * scale, K * scale, V, weights


def named_arguments(operation, arguments: tuple, options: dict) -> SimpleNamespace:
    """An operation's arguments, keyed by the names in its schema."""
    names = [each.name for each in operation._schema.arguments]
    by_place = dict(zip(names[: len(arguments)], arguments, strict=True))
    return SimpleNamespace(**(dict.fromkeys(names) | by_place | options))


def check_packed(given: SimpleNamespace) -> None:
    """The flash kernel's requirements for packed rows."""
    q, k, v = given.query, given.key, given.value
    start = given.cu_seq_q
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16
    assert start.dtype == torch.int32
    assert start[-1] == len(q)
    assert (start[1:] - start[:-1]).max() <= given.max_q
    assert all(x.stride(-1) == 1 for x in (q, k, v))


def packed_attention(operation, arguments: tuple, options: dict) -> tuple[torch.Tensor, ...]:
    given = named_arguments(operation, arguments, options)
    check_packed(given)
    assert given.enable_gqa or given.query.shape[1] == given.key.shape[1]
    out = torch.empty_like(given.query)
    for rows, _, _, V, weights in sequences(given):
        out[rows] = (weights @ V).transpose(0, 1).to(out.dtype)
    tokens, heads, _ = out.shape
    return out, torch.zeros(heads, tokens), torch.zeros(2, dtype=torch.uint64)


def packed_attention_backward(operation, arguments: tuple, options: dict) -> tuple:
    given = named_arguments(operation, arguments, options)
    check_packed(given)
    gradients = [torch.empty_like(x) for x in (given.query, given.key, given.value)]
    for rows, scaled_Q, scaled_K, V, weights in sequences(given):
        upstream = given.grad_out[rows].transpose(0, 1).float()
        of_weights = upstream @ V.transpose(1, 2)
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        of_Q = of_scores @ scaled_K
        of_K = of_scores.transpose(1, 2) @ scaled_Q
        of_V = weights.transpose(1, 2) @ upstream
        for gradient, of_each in zip(gradients, (of_Q, of_K, of_V), strict=True):
            heads = of_each.unflatten(0, (gradient.shape[1], -1)).sum(1)  # heads that share keys
            gradient[rows] = heads.transpose(0, 1).to(gradient.dtype)
    return tuple(gradients)


KERNELS = {
    "aten.mm.dtype": half_precision_product,
    "torch_attn._varlen_attn.default": packed_attention,
    "torch_attn._varlen_attn_backward.default": packed_attention_backward,
}

# ---- call interception ---------------------------------------------------------------------------

MADE = {  # operations that create tensors, from numbers on the host or from no input
    *(torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.empty, torch.full),
    *(torch.arange, torch.rand, torch.randn, torch.randint, torch.eye, torch.linspace),
    *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like),
}
FROM_HOST = {torch.tensor, torch.as_tensor}
real_meta = []  # not empty while a real `meta` tensor is created


class Operations(TorchDispatchMode):
    """Intercepts operations that have no GPU tensor among their arguments."""

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        return computed(operation, arguments, options or {})


class Functions(TorchFunctionMode):
    """Intercepts calls that torch's C++ code would refuse without CUDA."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        name = getattr(function, "__name__", "")
        first = arguments[0] if arguments else None
        device = options.get("device")
        kind = None if device is None else torch.device(device).type

        if kind == "meta":
            real_meta.append(True)
            try:
                return function(*arguments, **options)
            finally:
                real_meta.pop()
        if options.pop("pin_memory", False) or name == "pin_memory":
            return first if name == "pin_memory" else function(*arguments, **options)
        if kind == "cuda" and function in MADE:
            return made(function, arguments, options)
        if name in ("to", "cuda") and isinstance(first, torch.Tensor):
            return sent(function, arguments, options)
        if not is_on_gpu(first):
            return function(*arguments, **options)

        if name == "__get__":
            for each in ("device", "is_cuda", "is_meta"):
                if function is getattr(torch.Tensor, each).__get__:
                    return getattr(Pretended, each).fget(first)
        if name == "numpy":
            raise TypeError(f"can't convert cuda:0 device type tensor to numpy, {place()}")
        if name == "tolist":
            waits[place()] += 1
            return first.held.tolist()
        if name == "new_tensor":
            waits[place()] += 1
            return Pretended(torch.tensor(*arguments[1:], **({"dtype": first.dtype} | options)))
        if name in ("__getitem__", "__setitem__"):
            index = tree_index(arguments[1])
            return function(first, index, *arguments[2:], **options)
        return function(*arguments, **options)


def made(function, arguments: tuple, options: dict) -> torch.Tensor:
    """A new tensor on the GPU."""
    if is_on_gpu(arguments[0]) and function is torch.as_tensor:
        return arguments[0]
    waits[place()] += function in FROM_HOST
    wants_gradient = options.pop("requires_grad", False)
    options = options | {"device": "cpu"}
    if isinstance(arguments[0], torch.Tensor) and not is_on_gpu(arguments[0]):
        options.setdefault("dtype", arguments[0].dtype)
    return Pretended(function(*real(arguments), **options), wants_gradient)


def sent(function, arguments: tuple, options: dict) -> torch.Tensor:
    """x.to(...) or x.cuda() for a tensor on either device."""
    x, *rest = arguments
    others = [each for each in (*rest, options.get("device")) if each is not None]
    dtype = options.get("dtype")
    device = CUDA if function.__name__ == "cuda" else None
    for each in others:
        if isinstance(each, torch.dtype):
            dtype = each
        elif isinstance(each, torch.Tensor):
            device, dtype = each.device, each.dtype
        elif isinstance(each, (str, torch.device)):
            device = torch.device(each)
    if device is None or device.type != "cuda":
        return function(*arguments, **options)

    copy = options.get("copy", False)
    if is_on_gpu(x):
        return x.to(dtype or x.dtype, copy=copy)
    if not options.get("non_blocking", False):
        waits[place()] += 1
    return Pretended((x if dtype is None else x.to(dtype)).clone())


def tree_index(index):
    """The index with its lists copied to the GPU. Each copy is a wait."""
    if isinstance(index, tuple):
        return tuple(tree_index(each) for each in index)
    if isinstance(index, list):
        waits[place()] += 1
        return Pretended(torch.tensor(index))
    return index


# ---- a machine with a GPU ------------------------------------------------------------------------


def whole(policy, layers, mesh) -> None:
    """Replaces ranks.shard: one rank holds the full model and computes in bfloat16."""
    policy.to(torch.bfloat16)
    policy.reshard = lambda: None


def filled(policy, models: list[torch.nn.Module]) -> None:
    """Replaces loading.broadcast_weights."""
    given = dict(models[0].named_parameters())
    for name, parameter in policy.lm.named_parameters():
        parameter.data.copy_(given[name])


FUNCTIONS = {  # of torch.cuda
    "is_available": lambda: True,
    "set_device": lambda device: None,
    "current_device": lambda: 0,
    "empty_cache": lambda: None,
    "synchronize": lambda: None,
    "mem_get_info": lambda device=None: (FREE, TOTAL),
    "get_device_name": lambda: "pretended",
    "get_device_properties": lambda device: SimpleNamespace(total_memory=TOTAL),
    "reset_peak_memory_stats": lambda: None,
    "max_memory_allocated": lambda: 1,
    "set_sync_debug_mode": lambda mode: None,
}


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """Simulates a machine with one GPU. The process group must already exist."""
    waits.clear()
    calls.clear()
    with contextlib.ExitStack() as stack:
        for name, function in FUNCTIONS.items():
            stack.enter_context(patch.object(torch.cuda, name, function))
        stack.enter_context(patch.object(loading, "device_mesh", lambda: None))
        stack.enter_context(patch.object(loading, "shard", whole))
        stack.enter_context(patch.object(loading, "broadcast_weights", filled))
        stack.enter_context(Operations())
        stack.enter_context(Functions())
        yield
