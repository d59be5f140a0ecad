"""Record the calls of one run of a module, for modules that torch.export cannot trace."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from placewise.errors import InputError
from placewise.readers.torch.dtypes import dtype_name
from placewise.readers.torch.example import Example, fake_example, named_inputs, tensors_in
from placewise.readers.torch.kinds import written_values
from placewise.readers.torch.layers import arguments_of_layer
from placewise.readers.torch.program import named_arguments, storage_of, target_of, written_arguments
from placewise.readers.torch.traced_program import Parameter, TensorMeta, TracedCall, TracedProgram, ValueRef

MAX_CALLS = 1_000_000
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_ATTENTION_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def record_calls(example: Example, reason: str) -> TracedProgram:
    """Run the module once and record its calls: known layers as one call, and all other ATen calls.

    A module without data runs without data. Buffers and the random state are restored afterwards. Raises InputError
    with the `reason` of torch.export's failure if the run fails too.
    """
    cases = [None, example] if example.is_meta else [example]
    problem = ""
    for case in cases:
        try:
            return _run(fake_example(example) if case is None else case)
        except InputError:
            raise
        except Exception as error:  # a forward pass may raise anything
            problem = problem or f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    hint = "give it on a real device, with real inputs" if not example.has_data else "check the module and its inputs"
    raise InputError(f"torch.export cannot take it ({reason}), and running it fails ({problem})", remedy=hint)


def _run(example: Example) -> TracedProgram:
    recorder = _Recorder(example)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_restored_buffers(example.module))
        stack.enter_context(_module_hooks(recorder))
        stack.enter_context(_FunctionRecorder(recorder))
        stack.enter_context(_OperatorRecorder(recorder))
        outputs = tensors_in(example.module(*example.args, **example.kwargs))
    return recorder.listing(outputs)


@contextmanager
def _restored_buffers(module: nn.Module) -> Iterator[None]:
    before = [
        (buffer, buffer.clone())
        for buffer in module.buffers()
        if not buffer.is_meta and not isinstance(buffer, FakeTensor)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


class _Recorder:
    """The calls recorded so far. Tensors are identified by object, else by memory."""

    def __init__(self, example: Example) -> None:
        self.example = example
        self.calls: list[TracedCall] = []
        self.metas: dict[str, TensorMeta] = {}
        self.parameters: list[Parameter] = []
        self.inputs: list[str] = []
        self.scopes = [""]
        self.hidden = 0
        self.escaped: list[str] = []
        self._by_tensor: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._names: dict[int, str] = {}
        self._by_memory: dict[object, tuple[str, weakref.ref[torch.Tensor]]] = {}
        self._counts: dict[str, int] = {}
        self._unpacked: dict[str, list[str]] = {}
        for name, tensor in _named_weights(example.module):
            self._add_weight(name, tensor)
        for name, value in _input_tensors(example):
            self.inputs.append(self.add(name, value))

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Register a tensor under `name`, with a number appended if it is taken."""
        count = self._counts[name] = self._counts.get(name, -1) + 1
        name = f"{name}_{count}" if count else name
        self.metas[name] = _meta_of(tensor)
        self._remember(name, tensor)
        return name

    def _remember(self, name: str, tensor: torch.Tensor) -> None:
        self._by_tensor[id(tensor)] = tensor
        self._names[id(tensor)] = name
        memory = storage_of(tensor, None)
        if memory is not None:
            self._by_memory[memory] = (name, weakref.ref(tensor))

    def _add_weight(self, name: str, tensor: torch.Tensor) -> str:
        value = self.add(f"p_{name}", tensor)
        trains = isinstance(tensor, nn.Parameter) and tensor.requires_grad
        self.parameters.append(Parameter(value, name, storage_of(tensor, id(tensor)), trains))
        return value

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name of a tensor; one that no call produced is a constant of the model."""
        if self._by_tensor.get(id(tensor)) is tensor:
            return self._names[id(tensor)]
        known, owner = self._by_memory.get(storage_of(tensor, None), ("", None))
        if owner is not None and owner() is not None and self.metas[known].shape == tuple(tensor.shape):
            return known
        if self.escaped:
            return self._from_python(tensor)
        return self._add_weight(f"constant_{len(self.parameters)}", tensor)

    def _from_python(self, tensor: torch.Tensor) -> str:
        """A tensor created outside torch after values had left it (numpy); it may depend on all of them."""
        values = [ValueRef(name) for name in dict.fromkeys(self.escaped)]
        name = self.add("from_python", tensor)
        self._append(TracedCall(name, "python::from_python", {"values": values}, (name,), self.scopes[-1]))
        return name

    def _append(self, call: TracedCall) -> None:
        if len(self.calls) >= MAX_CALLS:
            raise InputError(f"one run calls more than {MAX_CALLS} operations", remedy="give smaller example inputs")
        self.calls.append(call)

    def call(
        self, target: str, arguments: Mapping[str, Any], result: Any, *, writes: Any = (), module: str = ""
    ) -> None:
        """Record a call, given its arguments and results as tensors."""
        arguments_by_name = {name: self._plain(value) for name, value in arguments.items()}
        base = target.partition(".")[0].partition("::")[2].strip("_")
        number = len(self.calls)
        results = [tensor for tensor in pytree.tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        names = tuple(self.add(base, tensor) for tensor in results)
        if not names and isinstance(result, (bool, int, float)):
            names = (self._number(base, result),)
        self._append(
            TracedCall(
                name=names[0] if names else f"{base}_call_{number}",
                target=target,
                arguments=arguments_by_name,
                results=names,
                scope=self.scopes[-1],
                origin=number,
                mutates=written_values(target, arguments_by_name, writes),
                extra={"module": module} if module else {},
            )
        )

    def _number(self, base: str, value: bool | float) -> str:
        count = self._counts[base] = self._counts.get(base, -1) + 1
        name = f"{base}_{count}" if count else base
        self.metas[name] = TensorMeta((), {bool: "bool", int: "int64"}.get(type(value), "float64"))
        return name

    def _plain(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return ValueRef(self.name_of(value))
        if isinstance(value, (list, tuple)):
            return [self._plain(item) for item in value]
        if isinstance(value, torch.ScriptObject):
            return [ValueRef(name) for name in self._packed(value)]
        return value if isinstance(value, (bool, int, float, str)) else None

    def _packed(self, value: torch.ScriptObject) -> list[str]:
        """The weights inside a ScriptObject, such as the packed matrix of a quantized layer."""
        scope = self.scopes[-1]
        if scope not in self._unpacked:
            self.hidden += 1
            try:
                tensors = tensors_in(value.__getstate__())
            except (AttributeError, RuntimeError):
                tensors = []
            finally:
                self.hidden -= 1
            names = [f"{scope}.packed_{place}".lstrip(".") for place in range(len(tensors))]
            self._unpacked[scope] = [self._add_weight(name, item) for name, item in zip(names, tensors, strict=True)]
        return self._unpacked[scope]

    def listing(self, outputs: list[torch.Tensor]) -> TracedProgram:
        names = tuple(dict.fromkeys(self.name_of(tensor) for tensor in outputs))
        return TracedProgram(self.metas, tuple(self.parameters), tuple(self.inputs), tuple(self.calls), names)


class _OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every ATen call outside known layers."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments_by_name = dict(named_arguments(func, args, kwargs or {}))
        if not self.notes.hidden:
            for value in pytree.tree_leaves(list(arguments_by_name.values())):
                if isinstance(value, torch.Tensor):
                    self.notes.name_of(value)  # before the call, which may modify it
        result = func(*args, **(kwargs or {}))
        if not self.notes.hidden:
            self.notes.call(target_of(func), arguments_by_name, result, writes=written_arguments(func))
        return result


class _FunctionRecorder(TorchFunctionMode):
    """Records attention as one call, and the values that leave torch for Python."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.notes = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self.notes
        if func in (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__) and not recorder.hidden:
            recorder.escaped.append(recorder.name_of(args[0]))
        if func is not _ATTENTION or recorder.hidden:
            return func(*args, **kwargs)
        recorder.hidden += 1
        try:
            result = func(*args, **kwargs)
        finally:
            recorder.hidden -= 1
        arguments_by_name = dict(zip(_ATTENTION_NAMES, args, strict=False)) | kwargs
        recorder.call("aten::scaled_dot_product_attention.default", arguments_by_name, result)
        return result


@contextmanager
def _module_hooks(recorder: _Recorder) -> Iterator[None]:
    """Hooks on every module that track the module path and record known layers as one call."""
    handles = []
    for path, module in recorder.example.module.named_modules():
        if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
            continue
        handles.append(module.register_forward_pre_hook(_enter_hook(recorder, path), with_kwargs=True))
        handles.append(module.register_forward_hook(_exit_hook(recorder), with_kwargs=True, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _enter_hook(recorder: _Recorder, path: str) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        recorder.scopes.append(path)
        if recorder.hidden or arguments_of_layer(module, args, kwargs) is not None:
            recorder.hidden += 1

    return hook


def _exit_hook(recorder: _Recorder) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if recorder.hidden:
            recorder.hidden -= 1
        layer_call = None if recorder.hidden or result is None else arguments_of_layer(module, args, kwargs)
        if layer_call is not None:
            target, arguments = layer_call
            recorder.call(target, arguments, result, module=f"nn.{type(module).__name__}")
        recorder.scopes.pop()

    return hook


def _named_weights(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers, and tensors in plain attributes."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                yield f"{path}.{name}".lstrip("."), value


def _input_tensors(example: Example) -> Iterator[tuple[str, torch.Tensor]]:
    """Input tensors with the names of forward's arguments."""
    for name, _, value in named_inputs(example):
        tensors = tensors_in(value)
        for place, tensor in enumerate(tensors):
            yield (name if tensors[0] is value else f"{name}_{place}"), tensor


def _meta_of(tensor: torch.Tensor) -> TensorMeta:
    try:
        strides = tuple(int(stride) for stride in tensor.stride())
    except (RuntimeError, NotImplementedError):  # sparse and nested tensors have none
        strides = None
    return TensorMeta(tuple(int(size) for size in tensor.shape), dtype_name(tensor.dtype), strides)
