"""What Inductor and Triton make for the pretended GPU: everything up to the launch is theirs, and nothing is launched.

Graphs are lowered, scheduled and written as kernels; when they are called, their operations run one by one instead, on
fake tensors. `measured` compiles a written kernel down to the cubin of the GPU's capability and reads it.
"""

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton  # pyright: ignore[reportMissingImports]
from torch._inductor import config
from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_heuristics
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

CUOBJDUMP = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TILES = re.compile(r"\b(BLOCK_[MN]\d?) : tl.constexpr = (\d+)")
WRITTEN = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str='cuda'", re.S)
RESOURCES = re.compile(r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+)")
ATOMICS = re.compile(r"\b(?:RED|ATOM)\w*\.")


class Written(NamedTuple):
    """A kernel as Inductor wrote it."""

    name: str
    source: str


class Usage(NamedTuple):
    """What a kernel takes of the GPU. stack: bytes a thread keeps in memory, as its registers do not hold them."""

    kernel: str
    tiles: str
    registers: int
    stack: int
    shared: int
    atomics: int

    def __str__(self) -> str:
        name = "backward" if self.backward else "forward"
        return (
            f"{name} {self.tiles}: {self.registers} registers, stack {self.stack} B, shared {self.shared:,} B, "
            f"{self.atomics} atomics"
        )

    @property
    def backward(self) -> bool:
        return "backward" in self.kernel

    @property
    def fits(self) -> bool:
        return self.shared <= torch.cuda.get_device_properties(0).shared_memory_per_block_optin


class OnHost(TorchDispatchMode):
    """What would be made on a device is made on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.device, lambda device: torch.device("cpu"), (args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def nothing_launched() -> Iterator[list[list[Written]]]:
    """Gives the kernels of every graph that is compiled inside, graph by graph."""
    graphs: list[list[Written]] = []

    def module(lowered: GraphLowering, code: Any) -> Any:
        graphs.append([Written(*found) for found in WRITTEN.findall(code.value)])
        return SimpleNamespace(__file__="", call=torch.fx.Interpreter(lowered.orig_gm).boxed_run)

    def folded(graph: Any, fold: Any = UniformValueConstantFolder.run) -> Any:
        with OnHost():  # constants are computed while a graph is compiled, and here no device computes
            return fold(graph)

    with (
        mock.patch.object(GraphLowering, "_compile_to_module_lines", module),
        mock.patch.object(UniformValueConstantFolder, "run", folded),
        # No cache answers for a graph that was seen before, and no product is measured with padding and without.
        config.patch(force_disable_caches=True, shape_padding=False),
    ):
        torch._dynamo.reset()
        yield graphs
        torch._dynamo.reset()


def measured(kernel: Written) -> list[Usage]:
    """Every configuration that Inductor would try of a kernel, compiled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kernel.name}.py"  # Triton reads a kernel's source from its file
        path.write_text(kernel.source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(kernel.name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        tuned = getattr(module, kernel.name)
        assert isinstance(tuned, triton_heuristics.CachingAutotuner)
        return [read(kernel, each, compiled(tuned, each)) for each in tuned.configs or ()]


def compiled(tuned: triton_heuristics.CachingAutotuner, chosen: Any) -> Any:
    made = []

    def keep(*words: Any, compile: Any = triton.compile, **options: Any) -> Any:
        made.append(compile(*words, **options))
        return made[-1]

    with mock.patch.object(triton, "compile", keep):
        tuned._precompile_config(chosen)
    return made[0]


def read(kernel: Written, chosen: Any, binary: Any) -> Usage:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        resources, code = (
            subprocess.run([CUOBJDUMP, word, file.name], capture_output=True, text=True, check=True).stdout
            for word in ("--dump-resource-usage", "--dump-sass")
        )
    found = RESOURCES.search(resources)
    assert found is not None, resources
    sizes = " ".join(f"{name}={size}" for name, size in dict(TILES.findall(kernel.source)).items())
    return Usage(
        kernel.name,
        f"{sizes} warps={chosen.num_warps} stages={chosen.num_stages}".strip(),
        registers=int(found["registers"]),
        stack=int(found["stack"]),
        shared=binary.metadata.shared,
        atomics=len(ATOMICS.findall(code)),
    )
