from types import SimpleNamespace

import pytest

from gemmkit.devices.cuda_spec import spec_of
from gemmkit.errors import DeviceError
from gemmkit.gpu import BOARDS


def properties(**given):
    h100 = {
        "multiprocessor_count": 132,
        "clock_rate": 1_980_000,
        "memory_clock_rate": 2_619_000,
        "global_memory_bus_width": 5120,
        "l2_cache_size": 50 * 2**20,
        "max_threads_per_multiprocessor": 2048,
        "max_blocks_per_multiprocessor": 32,
        "max_shared_memory_per_multiprocessor": 228 * 1024,
        "max_shared_memory_per_block_optin": 227 * 1024,
        "reserved_shared_memory_per_block": 1024,
        "max_registers_per_multiprocessor": 65536,
        "max_registers_per_block": 65536,
        "max_threads_per_block": 1024,
    }
    return SimpleNamespace(**(h100 | given))


@pytest.mark.parametrize(
    ("name", "capability", "sms", "board"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, "h100"),
        ("NVIDIA H100 PCIe", (9, 0), 114, "h100pcie"),
        ("NVIDIA H200", (9, 0), 132, "h200"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, "a100"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 108, "a10040gb"),
        ("NVIDIA GeForce RTX 3090", (8, 6), 82, "rtx3090"),
        ("NVIDIA RTX A6000", (8, 6), 84, "rtxa6000"),
        ("Tesla T4", (7, 5), 40, "t4"),
    ],
)
def test_known_boards(name, capability, sms, board):
    assert spec_of(name, capability, properties(multiprocessor_count=sms)) is BOARDS[board]


def test_unknown_board_takes_the_drivers_figures():
    spec = spec_of("NVIDIA GeForce RTX 3090 Ti", (8, 6), properties(multiprocessor_count=84))
    assert spec.fp32_accumulation == 0.5
    assert spec.name == "RTX 3090 Ti"
    assert spec.capability == BOARDS["rtx3090"].capability
    assert spec.sm_count == 84
    assert spec.clock_mhz == 1980
    assert spec.dram_gb_per_s == pytest.approx(3352, rel=1e-3)
    assert spec.l2_bytes == 50 * 2**20


def test_a_slice_of_a_known_board_is_not_that_board():
    spec = spec_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0), properties(multiprocessor_count=16))
    assert spec.fp32_accumulation == 1
    assert spec.sm_count == 16


def test_unknown_member_of_a_known_family():
    spec = spec_of("NVIDIA Next", (12, 7), properties(max_threads_per_multiprocessor=1536))
    assert spec.arch == "sm_127a"
    assert spec.capability.max_threads_per_sm == 1536
    assert spec.pipes.fp32 == 128


def test_too_old_a_gpu():
    with pytest.raises(DeviceError, match=r"6\.1.*7\.5"):
        spec_of("NVIDIA GeForce GTX 1080", (6, 1), properties())
