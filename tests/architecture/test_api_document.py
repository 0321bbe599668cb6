from tests.support.scope_table import documented, table


def test_the_routes_by_scope_are_those_of_the_code() -> None:
    assert documented() == table(), "renew it: python -m tests.support.scope_table"
