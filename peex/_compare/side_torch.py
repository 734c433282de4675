"""A module of PyTorch as a side of a comparison, seen by PyTorch's own hooks. PyTorch
is never imported here: who has such a module has done so.
"""

import collections
import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from .._errors import PeexError
from .sides import AbstractSide, Arrays, Backward, Given, numeric, Replayed, Visit


def is_torch_module(x: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.nn.Module)


class TorchSide(AbstractSide):
    """A module, run as it is."""

    def __init__(self, model: Any, args: Any):
        self.model = model
        self._torch: Any = sys.modules["torch"]
        first = next(model.parameters(), None)
        self._device = "cpu" if first is None else first.device
        given = {} if isinstance(args, Mapping) else tuple(args)
        named = args if isinstance(args, Mapping) else {}
        self._args = tuple(map(self._as_tensors, given)) if given else ()
        self._kwargs = {name: self._as_tensors(x) for name, x in named.items()}
        self.args = [_numpy(x) for x in _tensors((self._args, self._kwargs))]
        # Of one that is there twice, the first name, as in `named_modules`.
        self.parameters = {n: _numpy(p) for n, p in model.named_parameters()}
        self._modules = {n: m for n, m in model.named_modules() if _can_be_called(m)}
        self.visits = []
        self._visits: dict[tuple[str, int], Visit] = {}
        before = self._torch.get_rng_state()
        with self._torch.no_grad(), self._hooked(lambda _: self._record):
            out = self._run()
        if not self._torch.equal(before, self._torch.get_rng_state()):
            raise PeexError(
                "The other draws random numbers, although it is in inference mode, so "
                "two runs of it differ by chance. Where that is dropout, write "
                "`torch.nn.functional.dropout(x, p, training=self.training)`."
            )
        self.outputs = [_numpy(x) for x in _tensors(out)]
        ran = {name for name, _ in self._visits}
        for (name, _), visit in self._visits.items():
            prefix = f"{name}." if name else ""
            # What is inside but wasn't called belongs to what is around it.
            inner = [n for n in ran if n != name and n.startswith(prefix)]
            visit.is_leaf = not inner
            mine = (p for p in self.parameters if p.startswith(prefix))
            others = tuple(f"{n}." for n in inner)
            visit.parameters = tuple(p for p in mine if not p.startswith(others))

    def _as_tensors(self, x: Any) -> Any:
        """Arrays as tensors; integers as PyTorch has them, of 64 bits."""

        def one(x: Any) -> Any:
            is_array = isinstance(x, jax.Array | np.ndarray | np.generic)
            if not is_array or not numeric(x):
                return x
            made = self._tensor(np.array(x))
            wide = made.dtype in (self._torch.int32, self._torch.int16)
            return (made.long() if wide else made).to(self._device)

        return jax.tree.map(one, x, is_leaf=self._torch.is_tensor)

    def _tensor(self, x: np.ndarray) -> Any:
        x = np.ascontiguousarray(x)
        if x.dtype.name == "bfloat16":
            raw = self._torch.from_numpy(x.view(np.int16))
            return raw.view(self._torch.bfloat16)
        return self._torch.from_numpy(x.reshape(np.shape(x)))

    def _run(self) -> Any:
        return self.model(*self._args, **self._kwargs)

    @contextlib.contextmanager
    def _hooked(self, act: Callable[[str], Any]) -> Iterator[None]:
        """With hooks on all modules. `act(name)` is called with the number of the call,
        the tensors that it is given, or that it returned, and which of these it is; it
        returns others in their place, or `None`.
        """
        count: collections.Counter[str] = collections.Counter()
        running: dict[str, list[int]] = collections.defaultdict(list)
        handles = []

        def hook(name: str, module: Any) -> None:
            fn = act(name)

            def before(_: Any, args: Any, kwargs: Any) -> Any:
                running[name].append(count[name])
                count[name] += 1
                mine = _tensors((args, kwargs))
                new = fn(name, running[name][-1], mine, "inputs")
                return None if new is None else _with((args, kwargs), iter(new))

            def after(_: Any, args: Any, kwargs: Any, out: Any) -> Any:
                new = fn(name, running[name].pop(), _tensors(out), "outputs")
                return None if new is None else _with(out, iter(new))

            add = module.register_forward_pre_hook, module.register_forward_hook
            handles.append(add[0](before, with_kwargs=True))
            handles.append(add[1](after, with_kwargs=True))

        try:
            for name, module in self._modules.items():
                hook(name, module)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _record(self, name: str, number: int, tensors: list[Any], which: str) -> None:
        arrays = [_numpy(x) for x in tensors]
        if which == "inputs":
            kind = type(self._modules[name]).__name__
            visit = Visit(name or ".", number, (), kind, True, [], arrays, name)
            self._visits[name, number] = visit
        else:
            visit = self._visits[name, number]
            visit.outputs = arrays
            self.visits.append(visit)

    def replay(self, given: Mapping[Visit, Given]) -> Mapping[Visit, Replayed]:
        inputs: dict[Visit, Arrays] = {}
        found: dict[Visit, Replayed] = {}

        def act(name: str, number: int, tensors: list[Any], which: str) -> Any:
            visit = self._visits[name, number]
            arrays = [_numpy(x) for x in tensors]
            mine = given.get(visit)
            if which == "inputs":
                inputs[visit] = arrays
                return None if mine is None else self._replaced(tensors, mine.inputs)
            found[visit] = Replayed(inputs[visit], arrays)
            return None if mine is None else self._replaced(tensors, mine.outputs)

        with self._torch.no_grad(), self._hooked(lambda _: act):
            self._run()
        return found

    def _replaced(self, tensors: list[Any], arrays: Arrays) -> list[Any]:
        new = list(tensors)
        for i, x in enumerate(arrays):
            if x is not None:
                new[i] = self._tensor(np.array(x)).to(tensors[i])
        return new

    def backward(self, weights: Arrays) -> Backward:
        torch = self._torch
        found: dict[Visit, dict[int, np.ndarray]] = collections.defaultdict(dict)

        def act(name: str, number: int, tensors: list[Any], which: str) -> Any:
            """Each output as a tensor of its own, so that what a container hands on is
            told from what its last part returned.
            """
            if which == "inputs":
                return None
            visit = self._visits[name, number]
            new = list(tensors)
            for i, x in enumerate(tensors):
                if not x.is_floating_point() and not x.is_complex():
                    continue
                with torch.enable_grad():
                    if not x.requires_grad:  # nothing is trained before it
                        x = x.detach().clone().requires_grad_()
                        own.append(x)
                    new[i] = x.clone()
                new[i].register_hook(lambda g, i=i: found[visit].update({i: _numpy(g)}))
            return new

        named = {
            n: p for n, p in self.model.named_parameters() if p.is_floating_point()
        }
        frozen = [p for p in named.values() if not p.requires_grad]
        kept = self._args, self._kwargs
        given = [x.detach().clone() for x in _tensors(kept)]
        # What is before the first parameter has cotangents too.
        own = [x.requires_grad_() for x in given if x.is_floating_point()]
        self._args, self._kwargs = _with(kept, iter(given))
        try:
            for p in frozen:
                p.requires_grad_()
            with torch.enable_grad(), self._hooked(lambda _: act):
                outputs = _tensors(self._run())
                total = torch.zeros((), device=self._device)
                for x, w in zip(outputs, weights, strict=False):
                    if w is not None and x.requires_grad:
                        w = self._tensor(np.array(w)).to(x)
                        total = total + torch.sum(torch.real(x * w))
                wanted = [*named.values(), *own]
                # This leaves `p.grad` as it is.
                grads = torch.autograd.grad(total, wanted, allow_unused=True)
        finally:
            self._args, self._kwargs = kept
            for p in frozen:
                p.requires_grad_(False)
        zeros = lambda p, g: np.zeros(tuple(p.shape)) if g is None else _numpy(g)
        pairs = zip(named.items(), grads, strict=False)
        # What nothing depends on is never reached.
        every = lambda v: [
            None if x is None or x.dtype.kind in "biu" else found[v].get(i, 0 * x)
            for i, x in enumerate(v.outputs)
        ]
        return Backward(
            {visit: every(visit) for visit in self.visits},
            {name: zeros(p, g) for (name, p), g in pairs},
        )


def _can_be_called(module: Any) -> bool:
    """Not what only holds others, as a `ModuleList`."""
    torch: Any = sys.modules["torch"]
    holders = torch.nn.ModuleList, torch.nn.ModuleDict
    holders += torch.nn.ParameterList, torch.nn.ParameterDict
    return not isinstance(module, holders)


def _numpy(x: Any) -> np.ndarray:
    x = x.detach().cpu()
    if str(x.dtype) == "torch.bfloat16":
        import ml_dtypes  # what JAX itself needs

        return x.float().numpy().astype(ml_dtypes.bfloat16)
    return x.clone().resolve_conj().numpy()


def _tensors(tree: Any) -> list[Any]:
    """The tensors in a pytree of PyTorch's, in order."""
    torch: Any = sys.modules["torch"]
    if torch.is_tensor(tree):
        return [tree]
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [x for part in tree for x in _tensors(part)]
    return []


def _with(tree: Any, new: Iterator[Any]) -> Any:
    """The same with other tensors."""
    torch: Any = sys.modules["torch"]
    if torch.is_tensor(tree):
        return next(new)
    if isinstance(tree, Mapping):
        made: Any = copy.copy(tree)
        for key, value in tree.items():
            made[key] = _with(value, new)
        return made
    if isinstance(tree, list | tuple):
        parts = [_with(x, new) for x in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree
