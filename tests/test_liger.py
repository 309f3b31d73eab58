"""Liger's kernels, as PyPI has them, give what torch gives: Triton's own runtime with our launcher below it.

Each test names one operator, runs it in float32 through `gridpact.triton.driver`, and judges the result and all
gradients by the same mathematics in float64, written with torch. Memory that Liger allocates without filling holds NaN
until a kernel writes it.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here: `nox -s torch` has it")
pytest.importorskip("liger_kernel", reason="liger-kernel is not installed here: `nox -s torch` has it")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import gridpact.triton  # noqa: E402
from gridpact.errors import ContractValueError, UnsupportedError  # noqa: E402


@pytest.fixture(autouse=True, params=["sycl", pytest.param("cuda", marks=pytest.mark.gpu)])
def _liger_runs_on_gridpact(request, monkeypatch, tmp_path_factory):
    """Make the driver active, before Liger's modules are imported: `@triton.autotune` asks it where it decorates."""
    device = request.getfixturevalue(request.param)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    triton.runtime.driver.set_active(gridpact.triton.driver(device))
    torch.set_default_device("cpu" if request.param == "sycl" else device)
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_default_device("cpu")
    triton.runtime.driver.reset_active()


@pytest.fixture
def launches(monkeypatch):
    """Collect what our launcher launched: name of the kernel, and grid."""
    seen = []
    launch = gridpact.triton.Launcher.__call__

    def noted(launcher, x, y, z, *rest):
        seen.append((launcher.metadata.name, (x, y, z)))
        return launch(launcher, x, y, z, *rest)

    monkeypatch.setattr(gridpact.triton.Launcher, "__call__", noted)
    return seen


def trainable(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def in_double(tensor):
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def matches(liger, oracle, *inputs, rtol=1e-5, atol=1e-5):
    """Assert that two functions agree on inputs, and that the gradients of all inputs do that want one."""
    exact_inputs = [in_double(tensor) for tensor in inputs]
    result = liger(*(tensor.clone() for tensor in inputs))  # Liger may overwrite what it is given
    exact = oracle(*exact_inputs)
    torch.testing.assert_close(result.double(), exact, rtol=rtol, atol=atol)
    upstream = torch.randn_like(exact)
    result.backward(upstream.to(result.dtype))
    exact.backward(upstream)
    gradients = [tensor.grad.double() for tensor in inputs if tensor.requires_grad]
    exact_gradients = [tensor.grad for tensor in exact_inputs if tensor.requires_grad]
    torch.testing.assert_close(gradients, exact_gradients, rtol=rtol, atol=atol)


# ----------------------------------------------------------------------------------------------------- normalization


@pytest.mark.parametrize("mode", ["llama", "gemma", "none"])
def test_rms_norm(mode):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    matches(
        lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, mode),
        lambda x, w: F.rms_norm(x, (200,), w, eps=1e-6),
        trainable(3, 5, 200),
        trainable(200),
    )


def test_rms_norm_in_bfloat16():
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    matches(
        lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6),
        lambda x, w: F.rms_norm(x, (200,), w, eps=1e-6),
        trainable(7, 200, dtype=torch.bfloat16),
        trainable(200, dtype=torch.bfloat16),
        rtol=2**-6,
        atol=2**-4,
    )


def test_fused_add_rms_norm():
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    matches(
        lambda x, r, w: torch.stack(LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6)),
        lambda x, r, w: torch.stack([F.rms_norm(x + r, (200,), w, eps=1e-6), x + r]),
        trainable(7, 200),
        trainable(7, 200),
        trainable(200),
    )


def test_layer_norm():
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    matches(
        lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (200,), w, b, 1e-5),
        trainable(7, 200),
        trainable(200),
        trainable(200),
    )


def test_group_norm():
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    matches(
        lambda x, w, b: LigerGroupNormFunction.apply(x, w, b, 6, 3, 1e-5),
        lambda x, w, b: F.group_norm(x, 3, w, b, 1e-5),
        trainable(2, 6, 50),
        trainable(6),
        trainable(6),
    )


def test_poly_norm():
    from liger_kernel.ops.poly_norm import LigerPolyNormFunction

    def normalized(x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    matches(
        lambda x, w, b: LigerPolyNormFunction.apply(x, w, b, 1e-6),
        lambda x, w, b: w[0] * normalized(x**3) + w[1] * normalized(x**2) + w[2] * normalized(x) + b,
        trainable(7, 200),
        trainable(3),
        trainable(),
    )


def test_dyt():
    """Liger tunes this one over 18 configurations; its backward pass knows no CPU."""
    from liger_kernel.ops.dyt import LigerDyTFunction

    x, alpha, gamma, beta = torch.randn(5, 300), torch.randn(1), torch.randn(300), torch.randn(300)
    exact = torch.tanh(alpha.double() * x.double()) * gamma.double() + beta.double()
    torch.testing.assert_close(LigerDyTFunction.apply(x, alpha, gamma, beta).double(), exact, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------- activations, attention


def test_softmax():
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    matches(LigerSoftmaxFunction.apply, lambda x: torch.softmax(x, -1), trainable(7, 300))


def test_sparsemax():
    from liger_kernel.ops.sparsemax import LigerSparsemaxFunction

    def projected(x):
        """Project each row onto the probability simplex: subtract one threshold, cut at 0."""
        falling = x.sort(-1, descending=True).values
        size = torch.arange(1, x.shape[-1] + 1)
        threshold = ((falling.cumsum(-1) - 1) / size).max(-1, keepdim=True).values
        return (x - threshold).clamp(min=0)

    matches(lambda x: LigerSparsemaxFunction.apply(x, -1), projected, trainable(7, 100))


def test_swiglu():
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    matches(LigerSiLUMulFunction.apply, lambda a, b: F.silu(a) * b, trainable(7, 300), trainable(7, 300))


def test_geglu():
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    matches(
        LigerGELUMulFunction.apply,
        lambda a, b: F.gelu(a, approximate="tanh") * b,
        trainable(7, 300),
        trainable(7, 300),
    )


def test_relu_squared():
    from liger_kernel.ops.relu_squared import LigerReLUSquaredFunction

    matches(LigerReLUSquaredFunction.apply, lambda x: F.relu(x) ** 2, trainable(7, 300))


def test_rope():
    from liger_kernel.ops.rope import LigerRopeFunction

    angles = torch.rand(1, 9, 32).repeat(1, 1, 2) * 6
    cos, sin = angles.cos(), angles.sin()

    def turned(x):
        first, second = x.chunk(2, -1)
        return x * cos.double() + torch.cat([-second, first], -1) * sin.double()

    matches(
        lambda q, k: torch.cat(LigerRopeFunction.apply(q, k, cos, sin), 1),
        lambda q, k: torch.cat([turned(q), turned(k)], 1),
        trainable(2, 4, 9, 64),
        trainable(2, 2, 9, 64),
    )


def test_multi_token_attention():
    from liger_kernel.ops.multi_token_attention import LigerMultiTokenAttentionFunction

    future = torch.ones(40, 40, dtype=torch.bool).triu(1)

    def attention(scores, weight):
        probabilities = scores.masked_fill(future, -1e9).softmax(-1)
        return F.conv2d(probabilities, weight, padding=1).masked_fill(future, 0)

    matches(
        lambda scores, weight: LigerMultiTokenAttentionFunction.apply(scores, weight, None, 1, 1),
        attention,
        trainable(2, 3, 40, 40),
        trainable(3, 3, 3, 3),
    )


def test_embedding():
    from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction

    indices = torch.randint(0, 100, (2, 150))  # rows are used several times: their gradients add up
    matches(
        lambda table: LigerEmbeddingFunction.apply(table, indices),
        lambda table: F.embedding(indices, table),
        trainable(100, 200),
    )


# ------------------------------------------------------------------------------------------------------------ losses


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing):
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    target = torch.randint(0, 1000, (16,))
    target[5] = -100  # ignored
    matches(
        lambda x: LigerCrossEntropyFunction.apply(x, target, None, -100, 0.0, smoothing)[0],
        lambda x: F.cross_entropy(x, target, label_smoothing=smoothing),
        trainable(16, 1000),
    )


def test_cross_entropy_of_more_columns_than_one_block_has():
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    target = torch.tensor([0, 69_999, 40_000])
    matches(
        lambda x: LigerCrossEntropyFunction.apply(x, target, None)[0],
        lambda x: F.cross_entropy(x, target),
        trainable(3, 70_000),
    )


def test_fused_linear_cross_entropy():
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    target = torch.randint(0, 500, (12,))
    matches(
        lambda x, w, b: LigerFusedLinearCrossEntropyFunction.apply(x, w, target, b)[0],
        lambda x, w, b: F.cross_entropy(F.linear(x, w, b), target),
        trainable(12, 32),
        trainable(500, 32),
        trainable(500),
    )


@pytest.mark.parametrize("reduction", ["none", "sum", "batchmean"])
@pytest.mark.parametrize("is_log", [False, True], ids=["probabilities", "logarithms"])
def test_kl_div(is_log, reduction):
    from liger_kernel.ops.kl_div import LigerKLDivLossFunction

    predicted = torch.randn(8, 300).log_softmax(-1).requires_grad_()
    target = torch.randn(8, 300).log_softmax(-1)
    target = target if is_log else target.exp()
    matches(
        lambda x: LigerKLDivLossFunction.apply(x, target, reduction, is_log),
        lambda x: F.kl_div(x, target.double(), reduction=reduction, log_target=is_log),
        predicted,
    )


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_jsd(beta):
    from liger_kernel.ops.jsd import LigerJSDFunction

    target = torch.randn(8, 300).log_softmax(-1)

    def divergence(x):
        q, p = x.exp(), target.double().exp()
        if beta in (0.0, 1.0):  # the limits: forward and reverse Kullback-Leibler
            return ((p * (p.log() - x)) if beta == 0.0 else (q * (x - p.log()))).sum() / 8
        middle = beta * p + (1 - beta) * q
        return (beta * p * (p / middle).log() + (1 - beta) * q * (q / middle).log()).sum() / 8

    matches(
        lambda x: LigerJSDFunction.apply(x, target, None, beta),
        divergence,
        torch.randn(8, 300).log_softmax(-1).requires_grad_(),
    )


def test_tvd():
    from liger_kernel.ops.tvd import LigerTVDLossFunction

    q = torch.randn(8, 300).softmax(-1)
    matches(
        lambda p: LigerTVDLossFunction.apply(p, q),
        lambda p: 0.5 * (p - q.double()).abs().sum() / 8,
        torch.randn(8, 300).softmax(-1).requires_grad_(),
    )


def test_selective_log_softmax_of_grpo():
    from liger_kernel.ops.grpo_loss import fused_selective_log_softmax

    logits, ids = torch.randn(2, 6, 3000), torch.randint(0, 3000, (2, 5))
    exact = (logits[:, :-1].double() / 0.9).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    got = fused_selective_log_softmax(logits, ids, 0.9)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------------------- it is our launcher that ran


def test_each_kernel_is_launched_by_our_launcher(launches):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    x = trainable(7, 200)
    y = LigerLayerNormFunction.apply(x, torch.ones(200), torch.zeros(200), 1e-5)
    assert launches == [("_layer_norm_forward_kernel", (7, 1, 1))]
    y.sum().backward()
    assert [name for name, _ in launches[1:]] == ["_layer_norm_backward_kernel"]


def test_without_our_launcher_nothing_is_computed(monkeypatch):
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    monkeypatch.setattr(gridpact.triton.Launcher, "__call__", lambda *_: None)
    assert LigerSoftmaxFunction.apply(torch.randn(3, 300)).isnan().all()


# ----------------------------------------------------------------------- refusals that Triton's own runtime passes on


@triton.jit
def fill(out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, at)


def test_the_control_of_the_refusals_fills_its_output():
    out = torch.full((64,), -1, dtype=torch.int32)
    fill[(2,)](out, BLOCK=32)
    assert out.tolist() == list(range(64))


@pytest.mark.parametrize(
    ("grid", "clause", "axis"),
    [((-1,), "GRID-6", "x"), ((2, -3), "GRID-6", "y"), ((-2, -1), "GRID-6", "x"), ((1, 1, 2**31), "GRID-7", "z")],
)
def test_a_wrong_grid_is_refused_and_nothing_runs(grid, clause, axis):
    out = torch.full((64,), -1, dtype=torch.int32)
    with pytest.raises(ContractValueError, match=rf"^grid\.{axis}: ") as refused:
        fill[grid](out, BLOCK=32)
    assert refused.value.clause == clause
    assert (out == -1).all()


def test_an_option_that_the_device_cannot_apply_is_refused_and_nothing_runs():
    out = torch.full((64,), -1, dtype=torch.int32)
    blocks, clause = (32, "META-4") if out.is_cuda else (2, "META-2")  # a GPU has clusters of up to 16
    with pytest.raises(UnsupportedError, match=r"num_ctas") as refused:
        fill[(2,)](out, BLOCK=32, num_ctas=blocks)
    assert refused.value.clause == clause
    assert (out == -1).all()
