"""nnU-Net's losses, as it writes them: soft Dice, and Dice with cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class SoftDice(nn.Module):
    """As nnU-Net's `MemoryEfficientSoftDiceLoss`: labels (N, 1, …) become one-hot by a scatter."""

    def __init__(self, batch_dice: bool, do_bg: bool, smooth: float) -> None:
        super().__init__()
        self.batch_dice, self.do_bg, self.smooth = batch_dice, do_bg, smooth

    def forward(self, x: Any, y: Any, mask: Any = None) -> Any:
        x, axes = torch.softmax(x, 1), tuple(range(2, x.ndim))
        with torch.no_grad():
            onehot = torch.zeros(x.shape, device=x.device, dtype=torch.bool)
            onehot.scatter_(1, y.long(), 1)
            onehot = onehot if self.do_bg else onehot[:, 1:]
            truth = onehot.sum(axes) if mask is None else (onehot * mask).sum(axes)
        x = x if self.do_bg else x[:, 1:]
        both, seen = x * onehot, x
        if mask is not None:
            both, seen = both * mask, seen * mask
        found = [both.sum(axes), seen.sum(axes), truth]
        if self.batch_dice:
            found = [one.sum(0) for one in found]
        score = (2 * found[0] + self.smooth) / torch.clip(found[1] + found[2] + self.smooth, 1e-8)
        return -score.mean()


class DiceAndCrossEntropy(nn.Module):
    """As nnU-Net's `DC_and_CE_loss`."""

    def __init__(self, ignore: int | None, dice: SoftDice) -> None:
        super().__init__()
        self.ignore, self.dice = ignore, dice
        self.ce = nn.CrossEntropyLoss(ignore_index=-100 if ignore is None else ignore)

    def forward(self, x: Any, y: Any) -> Any:
        if self.ignore is None:
            return self.ce(x, y[:, 0]) + self.dice(x, y)
        mask = y != self.ignore
        return self.ce(x, y[:, 0]) + self.dice(x, torch.where(mask, y, 0), mask)
