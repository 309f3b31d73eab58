"""Options and metadata, without a device."""

import pytest

import gridpact
from gridpact.errors import ContractTypeError, ContractValueError, UnsupportedError
from gridpact.metadata import KernelMetadata, LaunchMetadata, Option, check_fields, check_option_names, resolve_options

TABLE = {
    "num_warps": Option(4, check=lambda value: None if value in (1, 2, 4) else "expected 1, 2 or 4"),
    "num_ctas": Option(1, "default only", "there are no clusters"),
    "num_stages": Option(2, "irrelevant", "nothing is pipelined"),
    "debug": Option(False),
}


def test_options_are_resolved_with_defaults():
    due = {"num_warps": 2, "num_ctas": 1, "num_stages": 3, "debug": False}
    assert resolve_options({"num_warps": 2, "num_stages": 3, "num_ctas": 1}, TABLE, "dev") == due


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"num_warps": 3}, ContractValueError),
        ({"num_warps": True}, ContractValueError),
        ({"debug": 1}, ContractValueError),
        ({"num_ctas": 2}, UnsupportedError),
    ],
)
def test_value_that_an_option_does_not_take_is_refused(given, kind):
    with pytest.raises(kind) as caught:
        resolve_options(given, TABLE, "dev")
    assert caught.value.clause == "META-2"
    assert caught.value.subject == f"option {next(iter(given))!r}"


def test_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(ContractTypeError, match=r"Did you mean 'num_warps'\? \[META-3\]"):
        check_option_names(["num_warp"], TABLE, "kernel", ["x", "BLOCK"], "dev")
    with pytest.raises(ContractTypeError, match="Did you mean 'BLOCK'"):
        check_option_names(["BLOK"], TABLE, "kernel", ["x", "BLOCK"], "dev")
    with pytest.raises(ContractTypeError, match="Known: "):
        check_option_names(["zzzzzz"], TABLE, "kernel", ["x"], "dev")


def test_kernel_metadata_shows_every_field_of_the_toolchain():
    metadata = KernelMetadata("k", 4, 32, shared=16, fields={"num_stages": 3})
    assert (metadata.threads, metadata.shared, metadata.num_stages) == (128, 16, 3)
    with pytest.raises(AttributeError, match="no field 'nothing'"):
        metadata.nothing  # noqa: B018


def test_launch_metadata_is_built_once_and_only_when_looked_at():
    built = []

    def build():
        built.append(1)
        return {"name": "k", "grid": (1, 2, 3)}

    metadata = LaunchMetadata(build)
    assert built == []
    assert metadata["name"] == "k"
    assert metadata.get("grid") == (1, 2, 3)
    assert metadata.get("nothing", 5) == 5
    assert metadata.get() == {"name": "k", "grid": (1, 2, 3)}
    assert dict(metadata) == metadata.get()
    assert built == [1]


def test_launch_metadata_is_read_only():
    metadata = LaunchMetadata(lambda: {"name": "k"})
    with pytest.raises(TypeError):
        metadata["name"] = "other"
    metadata.get()["name"] = "other"
    assert metadata["name"] == "k"


@pytest.mark.parametrize(
    ("field", "value", "is_refused"),
    [
        ("num_ctas", 1, False),
        ("num_ctas", 0, True),
        ("num_ctas", True, True),
        ("num_ctas", 2, True),
        ("cluster_dims", [1, 1, 1], False),  # as JSON has it
        ("cluster_dims", (2, 1, 1), True),
        ("launch_cooperative_grid", True, True),
        ("allow_fp8e4nv", False, True),
        ("tmem_size", None, False),
        ("tmem_size", 128, True),
        ("warp_size", 16, False),  # irrelevant
        ("num_warps", 8, False),  # applied
        ("a_field_of_tomorrow", 0, False),
        ("a_field_of_tomorrow", "", False),
        ("a_field_of_tomorrow", 3, True),
    ],
)
def test_metadata_that_a_launch_would_drop_is_refused(sycl, field, value, is_refused):
    device = gridpact.open_device(sycl)
    if not is_refused:
        check_fields({field: value}, device, "'k'")
        return
    with pytest.raises(
        gridpact.UnsupportedError, match=rf"metadata field '{field}' of 'k': only .* on sycl:cpu"
    ) as caught:
        check_fields({field: value}, device, "'k'")
    assert (caught.value.clause, caught.value.capability) == ("META-2", field)


def test_each_field_that_is_not_done_is_asked():
    """The clause's own list of such fields leaves none of the device's table out."""
    from gridpact.backends import sycl
    from gridpact.contract import meta

    assert {name for name, field in sycl.FIELDS.items() if field.policy == "default only"} <= set(meta._FIELDS)
