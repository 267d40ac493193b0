"""An autoencoder of handwritten digits, its layer one `torch.autograd.Function`.

The encoder is a convolution with the weights `w_f`, the decoder a transposed one with weights `w_b`
of its own.  The layer's backward pass calls each gradient by name, as code written for a cuDNN
extension does; its three gradients are compared with those of PyTorch's autograd, and then it is
trained on the digits of scikit-learn.
"""

import sys
import time

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import conv2d, conv_transpose2d

import relay_wgrad.torch as rt

CODES, STRIDE, PADDING = 3, 2, 1  # 8x8 pixels become 3x4x4 numbers
EPOCHS, BATCH, RATE = 12, 32, 0.01


class Autoencoder(torch.autograd.Function):
    """x -> transposed convolution by w_b of relu(convolution of x by w_f)."""

    @staticmethod
    def forward(ctx, x, w_f, w_b):
        code = rt.convolution(x, w_f, None, STRIDE, PADDING, 1, 1, False, False).relu_()
        ctx.save_for_backward(x, w_f, w_b, code)
        return rt.convolution_transpose(code, w_b, None, STRIDE, PADDING, 0, 1, 1, False, False)

    @staticmethod
    def backward(ctx, grad):
        x, w_f, w_b, code = ctx.saved_tensors
        rest = (STRIDE, PADDING, 1, 1, False, False, False)
        grad_w_b = rt.convolution_transpose_backward_weight(code, w_b.shape, grad, *rest)
        grad_code = rt.convolution_transpose_backward_input(grad, w_b, *rest) * (code > 0)
        grad_w_f = rt.convolution_backward_weight(x, w_f.shape, grad_code, *rest)
        needs_x = ctx.needs_input_grad[0]  # nobody needs it in training
        grad_x = rt.convolution_backward_input(x.shape, w_f, grad_code, *rest) if needs_x else None
        return grad_x, grad_w_f, grad_w_b


def difference(x, w_f, w_b):
    """The largest difference of a gradient from autograd's, relative to its norm."""
    operands = [t.double().requires_grad_() for t in (x, w_f, w_b)]
    x, w_f, w_b = operands
    plain = conv_transpose2d(
        conv2d(x, w_f, None, STRIDE, PADDING).relu(), w_b, None, STRIDE, PADDING
    )
    ours = Autoencoder.apply(x, w_f, w_b)
    want = torch.autograd.grad((plain - x).square().mean(), operands)
    got = torch.autograd.grad((ours - x).square().mean(), operands)
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(got, want, strict=True))


def picture(image):
    """Eight lines of text; darker is more."""
    return ["".join(" .:-=+*#%@"[min(9, max(0, int(v * 10)))] * 2 for v in row) for row in image]


def main():
    torch.manual_seed(0)
    digits = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    digits = digits[torch.randperm(len(digits))]
    train, test = digits[:1536], digits[1536:]
    w_f = (0.2 * torch.randn(CODES, 1, 4, 4)).requires_grad_()
    w_b = (0.2 * torch.randn(CODES, 1, 4, 4)).requires_grad_()

    error = difference(test[:8], w_f.detach(), w_b.detach())
    print(f"gradients by x, w_f and w_b: at most {error:.1e} from autograd's")

    optimizer = torch.optim.Adam([w_f, w_b], lr=RATE)
    blank = (test - train.mean(0)).square().mean().item()
    print(
        f"{len(train)} digits; mean squared error on {len(test)} others, {blank:.4f} for the mean"
    )
    start = time.perf_counter()
    for epoch in range(EPOCHS):
        for x in train.split(BATCH):
            optimizer.zero_grad()
            (Autoencoder.apply(x, w_f, w_b) - x).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            loss = (Autoencoder.apply(test, w_f, w_b) - test).square().mean().item()
        print(f"epoch {epoch + 1}: {loss:.4f}")
    print(f"{time.perf_counter() - start:.1f} s, in which the kernels were built")

    with torch.no_grad():
        again = Autoencoder.apply(test[:3], w_f, w_b)
    for before, after in zip(test[:3, 0], again[:, 0], strict=True):
        print(*map("   ->   ".join, zip(picture(before), picture(after), strict=True)), sep="\n")
    return error < 1e-12 and loss < 0.2 * blank


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
