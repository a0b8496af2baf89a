"""Compile Triton kernels ahead of time for chips that are not here, and read the result.

Run as a program, so that the tests' own process may interpret the same kernels: it reads a JSON list of requests from
stdin and prints a JSON list of reports, one per request. The assembler and the disassembler come with triton.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

MATRIX_INSTRUCTION = {80: r"\bmma\.sync", 89: r"\bmma\.sync", 90: r"wgmma\.mma_async", 100: r"tcgen05\.mma"}


def compile_all(requests: list[dict]) -> list[dict]:
    """Reports of `requests`, in their order, from one process per core."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, __file__], input=json.dumps(requests), capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout)


def compile_one(request: dict) -> dict:
    """{arch, module, kernel, signature: {argument: type}, constants: {argument: value}, warps, stages} -> report."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(request["module"]), request["kernel"])
    names = list(kernel.arg_names)
    constants = request["constants"]
    signature = {name: "constexpr" if name in constants else request["signature"][name] for name in names}
    # Pointers and widths are multiples of 16 in practice, and the launcher specialises for it.
    divisible = [name for name in names if signature[name].startswith("*") or name in request["divisible"]]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in divisible},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", request["arch"], 32),
        options={"num_warps": request["warps"], "num_stages": request["stages"]},
    )
    usage, sass = _disassemble(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    return {
        "target": re.search(r"\.target (\S+)", ptx)[1],
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", sass)),
        "shared": compiled.metadata.shared,
        "matrix_instructions": len(re.findall(MATRIX_INSTRUCTION[request["arch"]], ptx)),
        "tma_loads": len(re.findall(r"cp\.async\.bulk\.tensor", ptx)),
        "narrow_offsets": re.findall(r"tt\.addptr .*, tensor<[0-9x]*i32>|tt\.addptr .*, i32", compiled.asm["ttir"]),
        "atomics": len(re.findall(r"\b(?:atom|red)\.", ptx)),
    }


def _disassemble(cubin: bytes) -> tuple[dict[str, int], str]:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, sass = (
            subprocess.run([tools / "cuobjdump", option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("--dump-resource-usage", "-sass")
        )
    return {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", usage)}, sass


if __name__ == "__main__":
    requests = json.load(sys.stdin)
    with ProcessPoolExecutor(min(len(requests), os.cpu_count())) as pool:
        json.dump(list(pool.map(compile_one, requests)), sys.stdout)
