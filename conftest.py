"""One option for all packages: ``--thorough-sample n`` runs every n-th of the thorough tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--thorough-sample", type=int, default=1, metavar="N", help="run every N-th thorough test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not in the sample."""
    step = config.getoption("--thorough-sample")
    thorough = [item for item in items if item.get_closest_marker("thorough")]
    left_out = {item for n, item in enumerate(thorough) if n % step}
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=items.index))
        items[:] = [item for item in items if item not in left_out]
