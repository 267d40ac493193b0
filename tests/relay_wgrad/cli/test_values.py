"""Values of options that are more than a number: what is refused, by which words."""

from __future__ import annotations

import pytest

from relay_wgrad.cli import arguments, main
from relay_wgrad.cli.train_options import with_steps

TRAIN = ["train", "squeezenet"]
REFUSED = [
    ([*TRAIN, "--mean", "1,2"], "--mean: must be one or three numbers, got '1,2'"),
    ([*TRAIN, "--std", "1,nan,1"], "--std: must be one or three numbers, got '1,nan,1'"),
    ([*TRAIN, "--mean", "red"], "--mean: must be one or three numbers, got 'red'"),
    ([*TRAIN, "--ema", "1"], "--ema: must be from 0 to below 1, got '1'"),
    ([*TRAIN, "--schedule", "sawtooth"], "--schedule: 'sawtooth': expected"),
    ([*TRAIN, "--schedule", "cosine(steps=0)"], "--schedule: "),
    ([*TRAIN, "--train", " , "], "--train: must be patterns of parameters' names, got ' , '"),
    ([*TRAIN, "--weight-decay", "-1"], "--weight-decay: must be a number from 0 on, got '-1'"),
    ([*TRAIN, "--weight-decay", ""], "--weight-decay: must be a number from 0 on, got ''"),
    (["inspect", "squeezenet", "--device", "cuda"], "--device is for --measure"),
]


@pytest.mark.parametrize(("args", "message"), REFUSED, ids=[" ".join(a[2:]) for a, _ in REFUSED])
def test_refused(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(args)
    except SystemExit as ended:  # by argparse
        code = int(ended.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("cosine", "cosine(steps=90)"),
        ("cosine(steps=7)", "cosine(steps=7)"),
        ("constant", "constant"),
        ("unheard of", "unheard of"),
    ],
)
def test_a_schedule_ends_with_the_training(text: str, made: str) -> None:
    assert with_steps(text, 90) == made


@pytest.mark.parametrize("text", ["0", "0.0", " 00 ", ".0", "0.25"])
def test_no_decay_can_be_asked_for(text: str) -> None:
    """`--resume` goes on with the saved one where none is given."""
    assert arguments.part(text) == float(text)


@pytest.mark.parametrize("text", ["cudnn,cutlass", "cudnn, cutlass", " cudnn , cutlass,"])
def test_names_may_have_blanks_around_them(text: str) -> None:
    assert arguments.backends(text) == ("cudnn", "cutlass")
    assert arguments.checkpoint(text) == ["cudnn", "cutlass"]
