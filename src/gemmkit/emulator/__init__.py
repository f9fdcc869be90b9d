"""Runs PTX on a CPU: results, Nsight Compute's memory counters, and sanitizers for every access.

program = load(ptx, entry)
execution = program.run(request, memory)
"""

from gemmkit.emulator.launch import Execution, LaunchRequest
from gemmkit.emulator.machine.memory import Allocation, DeviceMemory
from gemmkit.emulator.program import Program, load

__all__ = ["Allocation", "DeviceMemory", "Execution", "LaunchRequest", "Program", "load"]
