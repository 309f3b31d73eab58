"""Devices as fixtures: a test for each device runs on all that are here, and says by name which are not."""

import os
import shutil

import pytest

import gridpact
from gridpact import backends, native


def pytest_addoption(parser):
    parser.addoption(
        "--require-device",
        action="append",
        default=[],
        help="fail instead of skipping where this device is not usable; may be repeated",
    )

    parser.addoption(
        "--require-browser", action="store_true", help="fail instead of skipping where no Chromium is here"
    )


def require(request, name):
    """Skip a test where a device is not usable, or fail it if the run demands the device."""
    status = backends.device_status(name)
    if not status.is_usable:
        if name in request.config.getoption("--require-device"):
            pytest.fail(f"{name} is required: {status.reason}")
        pytest.skip(f"{name}: {status.reason}")
    return name


@pytest.fixture(autouse=True, scope="session")
def kernel_cache(tmp_path_factory):
    """Keep what tests compile out of the user's cache, and what the user compiled out of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRIDPACT_KERNEL_CACHE", str(tmp_path_factory.mktemp("kernel-cache")))
        yield


@pytest.fixture(scope="session")
def browser(request):
    """Give a headless Chromium, one for the session."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path, reason = None, "playwright is not installed"
    else:
        reason = "none is on $PATH, and $CHROMIUM names none"
    if path is None:
        told = f"no Chromium here: {reason}"
        if request.config.getoption("--require-browser"):
            pytest.fail(told)
        pytest.skip(told)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # CI runs as root
        yield opened
        opened.close()


@pytest.fixture
def sycl(request):
    """Name the SYCL CPU device."""
    return require(request, "sycl:cpu")


@pytest.fixture
def cuda(request):
    """Name the first NVIDIA GPU."""
    return require(request, "cuda:0")


@pytest.fixture(params=["reference", "sycl:cpu"])
def device(request):
    """Name each device that runs without special hardware, one after another, and make it current."""
    with gridpact.device(require(request, request.param)) as opened:
        yield opened.name


@pytest.fixture
def by_definition():
    """Send each launch through the Python definition, a part of which the test replaces."""
    native.turn("off", True)
    yield
    native.turn("off", False)


@pytest.fixture
def natively():
    """Give the launches that the native path makes."""
    made = []
    native.use("tap", made.append)
    yield made
    native.use("tap", None)
