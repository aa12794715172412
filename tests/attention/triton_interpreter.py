"""Triton's interpreter: runs kernels in a process of their own, since the variable must be set before Triton loads."""

import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

LOADED = ("torch", "triton", "regard.attention", "regard.ops", "regard.decode", "regard.layers")


def run_interpreted(module: str, *arguments: str) -> dict[str, Any]:
    """What `answer` printed when this module was run with Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton is not installed")
    with TemporaryDirectory() as folder:
        server = fork_server()
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps([module, folder, arguments]), file=server.stdin, flush=True)
        answer = server.stdout.readline().strip()
        out, err = (Path(folder, name) for name in ("out", "err"))
        assert answer == "0", err.read_text() if err.exists() else "the interpreter's process is dead"
        return json.loads(out.read_text().splitlines()[-1])


@cache
def fork_server() -> subprocess.Popen:
    """A process of which each module's is a fork, for torch and Triton take seconds to load; it ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", __name__],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def serve_forks() -> None:
    for name in LOADED:
        import_module(name)
    for line in sys.stdin:
        module, folder, arguments = json.loads(line)
        if (child := os.fork()) == 0:
            os._exit(run_in_folder(module, folder, arguments))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run_in_folder(module: str, folder: str, arguments: list[str]) -> int:
    sys.argv[1:] = arguments
    with open(f"{folder}/out", "w") as sys.stdout, open(f"{folder}/err", "w") as sys.stderr:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except BaseException:
            traceback.print_exc()
            return 1
    return 0


def print_json(cases: Callable[[], dict[str, Any]]) -> None:
    patch_interpreter_loops()
    patch_language_once()
    cache_interpreted_types()
    print(json.dumps(cases()))


def patch_interpreter_loops() -> None:
    """Triton 3.6 counts loops with int(array of one number), which numpy 2.4 no longer takes."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_and_mend


def patch_language_once() -> None:
    """Triton patches its whole language at each call of a jitted function within a kernel: a third of all the time."""
    from triton.runtime import interpreter

    patch, patched = interpreter._patch_lang, set()

    def patch_unless_patched(function: Any) -> Any:
        module = id(function.__globals__)  # the names of the language that it sees
        if module not in patched:
            patched.add(module)
            patch(function)  # and never restored: this process does nothing else
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_unless_patched


def cache_interpreted_types() -> None:
    """Shapes and types of tensors, which the interpreter makes anew for each result: another third of the time."""
    from triton.language import core
    from triton.runtime import interpreter

    make_block: Callable[..., None] = core.block_type.__init__  # takes a tuple as well as the list of its annotation
    numpy_type = cache(interpreter._get_np_dtype)
    blocks: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, Any] = {}

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        values = shape.values if isinstance(shape, core.tuple) else shape
        key = id(element_ty), tuple(one.value if isinstance(one, core.constexpr) else one for one in values)
        if key not in blocks:
            make_block(self, element_ty, shape)
            blocks[key] = vars(self)  # holds the type of its elements, so that no other takes over its id
        self.__dict__ = dict(blocks[key])

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if sizes not in shapes:
            shapes[sizes] = core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(prod(sizes))
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[sizes]

    def element_type(type: Any) -> Any:
        element = type.element_ty if isinstance(type, core.block_type) else type
        return uint64 if isinstance(element, core.pointer_type) else numpy_type(element)

    def equal(self: Any, other: Any) -> Any:
        return core.constexpr(self.values == (other.values if isinstance(other, core.tuple) else list(other)))

    uint64 = interpreter._get_np_dtype(core.pointer_type(core.int8))
    core.block_type.__init__ = init_block
    core.tensor.__init__ = init_tensor
    core.tuple.__eq__ = equal
    interpreter._get_np_dtype = element_type


def compile_to_ptx(kernel: Any, given: dict[str, Any], kinds: dict[str, str] | None = None) -> str:
    """The PTX of a kernel for a Hopper GPU; all but constants is bfloat16 or as `kinds` says."""
    kinds = {"ends": "*i32", **dict.fromkeys(("heads", "n_q", "n_k", "start", "low", "high"), "i32"), **(kinds or {})}
    kinds = {name: kinds.get(name, "*bf16") for name in kernel.arg_names}
    return compile_for_hopper(kernel, given, kinds, num_warps=4, num_stages=2).asm["ptx"]


def compile_for_hopper(
    kernel: Any, given: dict[str, Any], kinds: dict[str, str], aligned: Iterable[str] = (), **options: int | None
) -> Any:
    """A kernel compiled for a Hopper GPU, which need not exist; what is neither given nor in `kinds` is an integer."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    indices = {name: (n,) for n, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in given else kinds.get(name, "i32") for name in indices},
        {index: given[name] for name, index in indices.items() if name in given},
        {indices[name]: [["tt.divisibility", 16]] for name in aligned if name not in given},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


if __name__ == "__main__":
    serve_forks()
