"""Environments that cannot share the main one: upstream Triton's files would overlay triton-xpu's, torch is large."""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


@nox.session
@nox.parametrize("triton", ["3.6.0", "3.9.0"])
def upstream(session, triton):
    """Compile with upstream Triton, and launch up to the driver call: the toolchain is the same for 3.3 to 3.9."""
    session.install(
        f"triton=={triton}", "-e", ".[cuda]", "pytest", "pytest-timeout", "pytest-xdist", "ml_dtypes", "scipy"
    )
    names = ("toolchain", "cuda_fake", "triton_cuda_fake", "triton_hooks", "plan", "variants")
    tests = session.posargs or [f"tests/test_{name}.py" for name in names]
    session.run("python", "-m", "pytest", "-m", "not gpu", *tests)


@nox.session
def torch(session):
    """Run Liger's kernels, unmodified, and torch's tensors; `torch` and Liger would both pull in upstream Triton."""
    session.install("-e", ".[sycl]", "pytest", "pytest-timeout", "pytest-xdist", "ml_dtypes", "scipy")
    session.install("filelock", "fsspec", "jinja2", "networkx", "packaging", "setuptools", "sympy", "typing-extensions")
    session.install("--no-deps", "torch==2.13.0", "liger-kernel==0.8.5")  # a CPU build of torch: others need CUDA's
    session.run("python", "-c", "import torch, liger_kernel")  # else the tests would skip themselves
    tests = session.posargs or ["tests/test_liger.py", "tests/test_torch.py"]
    session.run("python", "-m", "pytest", "-n", "2", "-m", "not gpu", "--require-device=sycl:cpu", *tests)
