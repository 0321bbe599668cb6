"""docs/wire.md and protocol/ change together."""

import ast

import pytest

from protocol.envelope import (
    DEFAULT_BASE_PORT,
    MAX_PAYLOAD_BYTES,
    MAX_QUEUED_BYTES,
    PLANE_MARK,
    PLANE_PORT,
    PORTS,
    WIRE_VERSION,
    Plane,
)
from tests.support.wire_document import WIRE, digest_of, digest_of_tree, documented, wire_modules

KIB, MIB = 1 << 10, 1 << 20
TEXT = WIRE.read_text(encoding="utf-8")


def size(n_bytes: int) -> str:
    return f"{n_bytes // MIB} MiB" if n_bytes >= MIB else f"{n_bytes // KIB} KiB"


def test_every_module_of_the_wire_has_its_line() -> None:
    assert sorted(documented()) == wire_modules()


@pytest.mark.parametrize("module", wire_modules())
def test_a_module_of_the_wire_does_not_change_without_the_document(module: str) -> None:
    assert documented()[module] == digest_of(module), (
        f"protocol/{module}.py has changed: say in docs/wire.md what is different on the wire, "
        "raise WIRE_VERSION if a node of the build before would misread it, and renew the digests: "
        "python -m tests.support.wire_document"
    )


@pytest.mark.parametrize("plane", sorted(PLANE_PORT))
def test_the_table_of_planes_has_the_numbers_of_the_code(plane: Plane) -> None:
    cells = (
        f"| `{plane}` | {PLANE_MARK[plane]} | {PLANE_PORT[plane]} "
        f"| {size(MAX_PAYLOAD_BYTES[plane])} | {size(MAX_QUEUED_BYTES[plane])} |"
    )
    assert cells in TEXT


def test_the_version_and_the_ports_are_those_of_the_code() -> None:
    assert f"Wire version: {WIRE_VERSION}." in TEXT
    for number, port in enumerate(PORTS, start=DEFAULT_BASE_PORT):
        assert f"| {number} | {port} |" in TEXT


def test_a_digest_is_of_what_a_module_does_and_not_of_what_it_says() -> None:
    one = digest_of_tree(ast.parse('"""One."""\nA = 1\n"""Of A."""\n'))
    same = digest_of_tree(ast.parse('"""Another."""\nA = 1  # of A\n'))
    other = digest_of_tree(ast.parse('"""One."""\nA = 2\n'))
    assert one == same != other
