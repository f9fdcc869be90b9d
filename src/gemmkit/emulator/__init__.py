"""PTX on a CPU: results, the memory counters of Nsight Compute, and a check of every access.

program = load(ptx, entry)
execution = program.run(request, memory)
"""

from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine.memory import Allocation, DeviceMemory
from gemmkit.emulator.program import Program, load

__all__ = ["Allocation", "DeviceMemory", "Execution", "LaunchRequest", "Program", "load"]
