"""PyTorch: a module on gemmkit's operators, trained for a few steps, and a layer of gemmkit.nn.

`gemmkit.torch.linear` is a PyTorch operator with gradients, including those of the bias and the
activation, which are computed in the product's kernel.
"""

from gemmkit import nn

try:
    import torch

    import gemmkit.torch
except ModuleNotFoundError:
    raise SystemExit("this example needs PyTorch: pip install 'gemmkit[torch]'") from None

torch.manual_seed(0)


class Block(torch.nn.Module):
    """Two fully connected layers, the first with its GELU in the same kernel."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(size, hidden), torch.nn.Linear(hidden, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x plus the output of the layers."""
        inner = gemmkit.torch.linear(x, self.first.weight, self.first.bias, "gelu")
        return x + gemmkit.torch.linear(inner, self.second.weight, self.second.bias)


device = "cuda" if torch.cuda.is_available() else "cpu"
block, x = Block(12, 24).to(device), torch.randn(16, 12, device=device)

# The same results as PyTorch's own, and the same gradients.
expected = x + block.second(torch.nn.functional.gelu(block.first(x)))
print("the result is PyTorch's:", torch.allclose(block(x), expected, atol=1e-5))
own = torch.autograd.grad(block(x).square().mean(), block.parameters())
theirs = torch.autograd.grad(expected.square().mean(), block.parameters())
alike = all(torch.allclose(*pair, atol=1e-5) for pair in zip(own, theirs, strict=True))
print("the gradients are PyTorch's:", alike)

# Train it to reverse its input.
optimizer = torch.optim.Adam(block.parameters(), lr=0.02)
losses = []
for _ in range(30):
    optimizer.zero_grad()
    loss = (block(x) - x.flip(1)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("the loss falls to less than a tenth:", losses[-1] < 0.1 * losses[0])

# Layers of gemmkit.nn accept PyTorch tensors too, and the weights of PyTorch modules.
lstm = torch.nn.LSTM(12, 8, num_layers=2).to(device)
with torch.no_grad():
    output, _ = nn.lstm(x[:, None], None, lstm.all_weights)
    print("the LSTM is PyTorch's:", torch.allclose(output, lstm(x[:, None])[0], atol=1e-5))
