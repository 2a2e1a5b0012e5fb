"""What all tests share."""

from __future__ import annotations

import signal

import pytest

# A shell starts what runs in its background with SIGINT ignored, and so would be whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
