"""A coverage-guided fuzzer of Relay's text: only the documented error may come out.

    pip install atheris
    python -m tests.fuzz.fuzz_relay_text --seconds 600

A text that is read must print, read back to an equal program, and print the same again.  A failing
input is written to `crash-…` in the working directory; give its path to run it alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from relay_wgrad import relay

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures" / "relay"
SMALL = 16_000  # characters: larger seeds make the mutations slow

# What a mutation may insert at once.
WORDS = (
    '#[version = "0.0.5"]',
    "#[metadata]",
    "def @main(",
    "fn (",
    "let %x",
    "%0 = ",
    "%0",
    "%x",
    "@main",
    "meta[relay.Constant][0]",
    "meta[relay.attrs.InitOpAttrs][0]",
    "/* ty=",
    "*/",
    " span=a:1:2 */",
    "Tensor[(2, ?), float32]",
    "float32",
    "if (True) {",
    "} else {",
    "-> ",
    "1f",
    "2i64",
    "nanf",
    "-inff",
    "None",
    "True",
    "axis=",
    "[1, 2]",
    '"NCHW"',
    '\\"',
    "\\x41",
    ".0",
    "(",
    ")",
    "{",
    "}",
    ";",
    '"type_key": "',
    "b64ndarrays",
    '"data": [',
    '"attrs": {',
    "nn.relu(",
    "ref(",
    "match",
    "type ",
)


def check(text: str) -> None:
    """Raises AssertionError, or whatever else should not come out."""
    try:
        mod = relay.fromtext(text)
    except relay.RelayTextError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.line >= 1, refused
        assert refused.column >= 1, refused
        return
    printed = relay.astext(mod)
    again = relay.fromtext(printed, max_depth=100_000)
    assert relay.structural_equal(mod, again), printed
    assert relay.astext(again) == printed


def _one_input(data: bytes) -> None:
    check(data.decode("utf-8", errors="replace"))


def _corpus(folder: Path) -> None:
    """The small fixtures, and bodies that the tests read."""
    from tests.support.relay.malformed import MALFORMED, REFUSED
    from tests.support.relay.texts import BODIES, main

    texts = [path.read_text(encoding="utf-8") for path in sorted(FIXTURES.glob("*.relay"))]
    texts += [main(body) for body in BODIES]
    texts += [text for _, text, _, _ in [*MALFORMED, *REFUSED]]
    for i, text in enumerate(text for text in texts if len(text) < SMALL):
        (folder / f"seed-{i}").write_text(text, encoding="utf-8", errors="replace")
    lines = []
    for i, word in enumerate(WORDS):
        escaped = "".join(f"\\x{byte:02x}" for byte in word.encode())
        lines.append(f'w{i}="{escaped}"')
    (folder.parent / "words.dict").write_text("\n".join(lines), encoding="ascii")


def main_(arguments: list[str]) -> None:
    """Fuzzes for a while, or checks the inputs that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("inputs", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    for path in options.inputs:
        _one_input(path.read_bytes())
    if options.inputs:
        return
    atheris: Any = __import__("atheris")
    for name, module in list(sys.modules.items()):
        if name.startswith("relay_wgrad.relay") and not name.startswith(
            "relay_wgrad.relay.records"
        ):
            _instrument(atheris, module)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        _corpus(corpus)
        flags = [
            f"-max_total_time={options.seconds}", f"-seed={options.seed}", "-timeout=20",
            f"-max_len={SMALL}", f"-dict={folder}/words.dict", "-rss_limit_mb=4096",
        ]  # fmt: skip
        atheris.Setup([sys.argv[0], *flags, str(corpus)], _one_input)
        atheris.Fuzz()


def _instrument(atheris: Any, module: Any) -> None:
    for value in list(vars(module).values()):
        owner = getattr(value, "__module__", None)
        if owner != module.__name__:
            continue
        if isinstance(value, type):
            for member in vars(value).values():
                if hasattr(member, "__code__"):
                    atheris.instrument_func(member)
        elif hasattr(value, "__code__"):
            atheris.instrument_func(value)


if __name__ == "__main__":
    main_(sys.argv[1:])
