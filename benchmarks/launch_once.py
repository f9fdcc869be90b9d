"""Launch each kernel once per size on the GPU, for tools that watch launches: ncu, the sanitizer.

Nothing else runs on the GPU. Each launch is one JSON line on standard output, in their order.
"""

from __future__ import annotations

import argparse
import json

from gemmkit import LADDER, GemmProblem, find_kernel
from gemmkit.devices.cuda import CudaDevice
from gemmkit.devices.device import Scratch
from gemmkit.devices.operands import Operands, bind_arguments
from gemmkit.jit.compiler import compile_plan
from gemmkit.kernels.fitting import fitting, in_types_of
from gemmkit.trials.freshness import source_digest
from gemmkit.verify import check, make_inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="512", help="N or MxNxK, comma-separated")
    parser.add_argument("--kernels", default=",".join(kernel.name for kernel in LADDER))
    arguments = parser.parse_args()
    device = CudaDevice()
    for shape in arguments.shapes.split(","):
        for name in arguments.kernels.split(","):
            print(json.dumps(launch(device, name, GemmProblem.from_shape(shape))), flush=True)


def launch(device: CudaDevice, name: str, problem: GemmProblem) -> dict[str, object]:
    """Run a kernel as it is by default, on the likest problem it takes; what ran, and if right."""
    kernel = find_kernel(name)
    problem = fitting(kernel, in_types_of(kernel, problem), device.spec)
    plan = kernel.plan(problem, kernel.default, device.spec)
    binary = compile_plan(plan, device.spec.arch)
    inputs = make_inputs(problem)
    operands = Operands.upload(device, problem, inputs.arrays)
    bound = bind_arguments(problem, operands)
    scratch = Scratch.of(device, plan, bound)
    device.launch(binary, plan, bound | scratch.arguments)
    result, _ = operands.results(device, inputs.arrays)
    return {
        "kernel": kernel.name,
        "shape": problem.shape,
        "config": kernel.default.as_dict(),
        "source": source_digest(kernel),
        "gpu": device.spec.name,
        "arch": binary.arch,
        "compiler": binary.compiler,
        "correct": check(problem, inputs, result).correct,
    }


if __name__ == "__main__":
    main()
