"""The texts of the native kernels: what no test on one device can see."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from litegpu.gpu.backends.cuda import kernels as cuda

TEXTS = {file.name: file.read_text() for file in resources.files(cuda).iterdir() if file.name.endswith(".cu")}
KERNELS = {name: text for name, text in TEXTS.items() if "__global__" in text}
#: Those of which some warps copy and others multiply, with the function of the former.
DIVIDED = {
    "columns.cu": "if (threadIdx.x >= MULTIPLYING)", "float_convolution.cu": "if (team == CONSUMERS)",
    "halo.cu": "copy_tiles(", "persistent.cu": "copy_tiles(", "pingpong.cu": "copy_tiles(",
    "specialized.cu": "copy_tiles(",
    "wide_stem.cu": "form_blocks(",
}  # fmt: skip
#: Those that wait within a function of another file, before which they read constants.
WAITING = {"depthwise.cu": "depthwise_sums.cu", "squeeze.cu": "depthwise_sums.cu"}


def waiting(name: str) -> tuple[str, str]:
    """The text in which a kernel waits, and what of it comes from the function on that does."""
    text = TEXTS[WAITING.get(name, name)]
    return text, text[text.index("void add_products(" if name in WAITING else "__global__") :]


def test_every_kernel_is_looked_at() -> None:
    assert {
        "attention.cu",
        "byte_attention.cu",
        "byte_depthwise.cu",
        "byte_excite.cu",
        "byte_inverted.cu",
        "byte_matvec.cu",
        "byte_squeeze.cu",
        "columns.cu",
        "convolution.cu",
        "depthwise.cu",
        "excite.cu",
        "float_convolution.cu",
        "group_norm.cu",
        "grouped.cu",
        "halo.cu",
        "inverted.cu",
        "long_depthwise.cu",
        "lookup.cu",
        "lstm.cu",
        "matmul.cu",
        "matvec.cu",
        "moments.cu",
        "pair.cu",
        "patch.cu",
        "persistent.cu",
        "pingpong.cu",
        "places.cu",
        "pool.cu",
        "separable.cu",
        "short_attention.cu",
        "short_softmax.cu",
        "softmax.cu",
        "specialized.cu",
        "squeeze.cu",
        "stem.cu",
        "tensor_lstm.cu",
        "warpgroup_attention.cu",
        "wide_stem.cu",
        "widening.cu",
        "window.cu",
    } == set(KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_waits_before_it_lets_others_start(name: str) -> None:
    """With programmatic launch it may begin before the one in front of it has ended, and the one behind it before it
    has: it waits once, on every way through it, and only then lets go."""
    text, body = waiting(name)
    assert name not in WAITING or KERNELS[name].count("  add_products(") == 1
    calls = re.findall(r"\n( *)(wait_for_predecessors|launch_dependents)\(\);", text)
    if name in DIVIDED:
        calls = [("  ", call) for _, call in calls]  # the warps that copy may do so within their branch
    expected = [("  ", "wait_for_predecessors"), ("  ", "launch_dependents")]  # unconditionally
    if name in DIVIDED:  # by the warps that copy; those that multiply wait before they read operands
        expected.append(("  ", "wait_for_predecessors"))
        body = text[text.index(DIVIDED[name]) :]
        stores = re.finditer(r"(STORE(?!_CONSTANTS)|store_)\w*(<\w+>)?\(", text)
        assert text.rindex("wait_for_predecessors") < min(m.start() for m in stores)
    assert calls == expected
    assert re.search(r"wait_for_predecessors\(\);\s+launch_dependents\(\);", body)


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_loaded_early_is_constant(name: str) -> None:
    """In front of the wait a kernel calls nothing that reads what other kernels write."""
    begin = DIVIDED.get(name, "__global__")
    begin = f"void {begin}" if begin.endswith("(") else begin
    body = KERNELS[name][KERNELS[name].index(begin) :]
    if name in WAITING:
        body = body[: body.index("add_products(")] + waiting(name)[1]
    before = body[: body.index("wait_for_predecessors();")]
    called = set(
        re.findall(r"^ +(?:if \([^;]*\) )?(?:for \([^{]*\) )?(copy_\w+|load_\w+|bring\w*)\(", before, re.MULTILINE)
    )
    assert called <= {"copy_weights", "load_weights", "load_taps", "copy_factors", "copy_again"}, called
    assert "_OPERANDS(" not in before


def without_own_copies(text: str) -> str:
    """What is left where neither PROLOGUE nor FETCHED_AT is defined, but for what stands in their place."""
    kept, opened = [], []
    for line in text.splitlines(keepends=True):
        if line.startswith("#if"):
            opened.append("PROLOGUE" in line or "FETCHED_AT" in line)
        if not any(opened):
            kept.append(line)
        if line.startswith("#endif"):
            opened.pop()
    return "".join(kept)


def test_shared_memory_is_awaited_where_it_is_read() -> None:
    """Between a wait for copies and the first use of what they brought there is a barrier, of the workgroup or of the
    team: others have copied too. A prologue, and what is fetched for an epilogue, is what the thread has copied
    itself."""
    for name, whole in TEXTS.items():
        text = without_own_copies(whole)
        for found in re.finditer(r"copies_wait<[^>]*>\(\);\n((?: +[^\n]*\n|#[^\n]*\n){1,4})", text):
            assert "__syncthreads();" in found[1] or "team_sync(" in found[1], f"{name}: {found[0]}"


@pytest.mark.parametrize("name", TEXTS)
def test_no_lambda_has_a_parameter_of_any_type(name: str) -> None:
    """NVRTC 13.0 takes the call of such a lambda for a function of the host."""
    assert not re.search(r"\[&?\w*\]\([^)]*\bauto\b", TEXTS[name])
