import pytest

from gemmkit.devices.cuda_errors import cuda_errors
from gemmkit.errors import DeviceError, UsageError


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY: The API call failed", "too little free memory"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "outside its arrays"),
        ("CUDA_ERROR_TIMER_EXPIRED", "list of errors"),
        ("something else", "something else"),
    ],
)
def test_errors_become_sentences(text, sentence):
    with pytest.raises(DeviceError, match=f"copying failed: .*{sentence}"), cuda_errors("copying"):
        raise RuntimeError(text)


class CUDAError(Exception):
    """Like the driver's, which is no RuntimeError and has no public name."""


def test_the_drivers_own_class():
    with pytest.raises(DeviceError, match="no NVIDIA GPU"), cuda_errors("opening"):
        raise CUDAError("CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected")


@pytest.mark.parametrize("error", [UsageError("as it was"), TypeError("as it was")])
def test_other_errors_pass(error):
    with pytest.raises(type(error), match="as it was"), cuda_errors("copying"):
        raise error
