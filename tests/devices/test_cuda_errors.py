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


def test_own_errors_pass():
    with pytest.raises(UsageError, match="as it was"), cuda_errors("copying"):
        raise UsageError("as it was")
