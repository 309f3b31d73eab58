"""Environments that cannot share the main one: upstream Triton's files would overlay triton-xpu's, torch is large."""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


@nox.session
@nox.parametrize("triton", ["3.6.0", "3.9.0"])
def upstream(session, triton):
    """Compile with upstream Triton: the toolchain is the same for 3.3 to 3.9."""
    session.install(f"triton=={triton}", "-e", ".", "pytest", "pytest-timeout", "pytest-xdist", "ml_dtypes", "scipy")
    session.run("python", "-m", "pytest", "tests/test_toolchain.py", *session.posargs)
