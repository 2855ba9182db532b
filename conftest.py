"""Samples of the tests, for the sessions that repeat what another one runs in full."""

from collections.abc import Iterable

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--sample", default="1/1", metavar="K/N", help="run the K-th of N parts of the tests")
    parser.addoption("--thorough-sample", type=int, default=1, metavar="N", help="run every N-th thorough test")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not in the sample, of the tests that the other options leave."""
    step = config.getoption("--thorough-sample")
    _leave_out(config, items, (item for n, item in enumerate(filter(_is_thorough, items)) if n % step))
    part, parts = map(int, config.getoption("--sample").split("/"))
    _leave_out(config, items, (item for n, item in enumerate(items) if n % parts != part - 1))


def _is_thorough(item: pytest.Item) -> bool:
    return item.get_closest_marker("thorough") is not None


def _leave_out(config: pytest.Config, items: list[pytest.Item], unwanted: Iterable[pytest.Item]) -> None:
    left_out = set(unwanted)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
