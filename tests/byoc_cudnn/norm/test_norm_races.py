"""Races in the normalizations' kernels, by ThreadSanitizer: a CPU thread for each of theirs."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from byoc_cudnn.building.toolchain import find
from byoc_cudnn.norm import NORMS
from tests.support.cuda_emulated import HEADER, emulated, includes

# Operands of the largest size that any needs: what is computed is told elsewhere.
MAIN = """
#include <cstdio>
#include <cstdlib>
int main() {
  const int rows = 2 * 9 * 12, channels = %d;
  auto some = [&](size_t count) {
    auto* made = static_cast<float*>(aligned_alloc(64, (8 * count + 63) / 64 * 64));
    for (size_t i = 0; i < 2 * count; ++i) made[i] = (rand() %% 1000) / 500.0f - 1;
    return static_cast<void*>(made);
  };
  const size_t n = static_cast<size_t>(rows) * channels, c = channels;
  RelayWgradNormCall call{};
  const int given = %d, groups = given < 0 ? 1 : given;  // of an image's channels; 0: a batch
  call.images = given < 0 ? 24 : given ? 2 : 1;  // < 0: of rows
  call.rows = given < 0 ? 1 : rows / call.images;
  call.channels = channels, call.groups = groups ? groups : channels;
  call.epsilon = 1e-5, call.momentum = 0.1, call.alpha = 0.1;
  if (groups) call.running_mean = call.running_var = nullptr;
  call.multiprocessors = 4, call.together = 1;
  for (const void** one : {&call.x, &call.dy, &call.dy2, &call.y, &call.residual, &call.mask,
                           &call.more, &call.skip}) {
    *one = some(n);
  }
  for (const void** one : {&call.gamma, &call.beta, &call.mean, &call.rstd, &call.running_mean,
                           &call.running_var}) {
    *one = some(2 * c);
  }
  for (void** one : {&call.out, &call.dresidual, &call.new_mask, &call.total}) *one = some(n);
  for (void** one : {&call.first, &call.second, &call.new_mean, &call.new_var}) *one = some(2 * c);
  if (groups) call.new_mean = call.new_var = nullptr;
  call.workspace = some(1 << 15), call.workspace_bytes = 1 << 18;
  for (auto& other : call.others) {
    other = {some(n), some(c), some(c), some(c), some(c), some(c), some(c), some(n),
             some(c), some(c), some(c), some(c)};
  }
  call.windows = {2, 9, 12, channels, 5, 6, 1, 1};
  const int status = %s(call, nullptr);
  std::printf("%%d launched together\\n", emulated::launched_together);
  return status;
}
"""


@cache
def needs_sanitizer() -> None:
    """Skips without a compiler that has ThreadSanitizer."""
    one = [*find().compiler, "-fsanitize=thread", "-x", "c++", "-", "-o", os.devnull]
    if subprocess.run(one, input=b"int main() {}", check=False, capture_output=True).returncode:
        pytest.skip("no compiler with ThreadSanitizer")


def races(folder: Path, kernel: str, channels: int, groups: int = 0, without: str = "") -> str:
    """What ThreadSanitizer says of a call, or nothing; without the barrier before some text."""
    text = NORMS.source_of(f"{NORMS.codegen}_{kernel}")
    if without:
        head, tail = text.split(without)
        barrier = max(map(head.rfind, ("__syncthreads()", "cooperative_groups::this_grid()")))
        text = head[:barrier] + head[head.index(";", barrier) + 1 :] + without + tail
    text = emulated(text)
    unit, program = folder / "kernel.cc", folder / "kernel"
    unit.write_text(text + MAIN % (channels, groups, f"{NORMS.codegen}_{kernel}"), encoding="utf-8")
    flags = [
        "-std=c++20", "-O1", "-g", "-w", "-fsanitize=thread", "-pthread", "-DRW_NORM_MANY=128",
        "-DRW_OF_A_THREAD=thread_local",
    ]  # fmt: skip
    units = [str(unit), str(HEADER.with_name("cuda_threads.cc"))]
    command = [*find().compiler, *flags, *includes(), *units, "-o", str(program)]
    needs_sanitizer()
    subprocess.run(command, check=True)
    environ = {**os.environ, "TSAN_OPTIONS": "exitcode=66"}
    done = subprocess.run([str(program)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 66), done.stderr
    return done.stderr if done.returncode else ""


@pytest.mark.longer("by ThreadSanitizer; those of convolutions stay")
@pytest.mark.longer_cases("forward_float32", "backward_")
@pytest.mark.parametrize(
    ("kernel", "channels", "groups"),
    [
        ("forward_bfloat16_relu_residual_bits", 72, 0),  # one launch
        ("forward_float32_relu", 13, 0),
        ("backward_bfloat16_relu_residual_bits_summed", 72, 0),
        ("backward_float32_relu", 13, 0),
        ("forward_float32_relu_of2_bits", 13, 0),
        ("backward_bfloat16_relu_of2_bits_summed", 72, 0),
        ("forward_bfloat16_relu_of3_bits", 72, 0),
        ("backward_float32_relu_of3_bits", 13, 0),
        ("backward_bfloat16_relu_pooled_3x3_2x2", 24, 0),
        ("forward_bfloat16_silu_after_total", 72, 0),
        ("forward_float32_silu_after_total", 13, 0),
        ("backward_bfloat16_silu_summed_total_skip", 72, 0),
        ("backward_float32_silu_summed_total_skip", 13, 0),
        (
            "forward_bfloat16_leaky_relu_residual_bits",
            72,
            72,
        ),  # of each image
        ("forward_float32_relu", 78, 2),
        ("backward_bfloat16_leaky_relu_residual_bits_summed", 72, 72),
        ("backward_float32_leaky_relu", 78, 2),
        ("forward_float32_none_rows", 516, -1),  # two warps have a row
        ("backward_float32_none_rows", 516, -1),
    ],
)
def test_there_are_none(tmp_path: Path, kernel: str, channels: int, groups: int) -> None:
    assert not races(tmp_path, kernel, channels, groups)


@pytest.mark.longer
@pytest.mark.parametrize(
    ("kernel", "channels", "groups", "before"),
    [
        ("backward_float32_relu", 13, 0, "write_sums<V>(sums, partial, shape);"),
        ("forward_bfloat16_relu_residual_bits", 72, 0, "const int parts = kMany / channels;"),
        ("forward_float32_none_rows", 516, -1, "    for (int w = 0; w < each; ++w)"),
        ("backward_float32_none_rows", 516, -1, "    const int stride = z.width * V;"),
    ],
)
def test_a_barrier_that_is_left_out_is_found(
    tmp_path: Path, kernel: str, channels: int, groups: int, before: str
) -> None:
    assert "data race" in races(tmp_path, kernel, channels, groups, without=before)
