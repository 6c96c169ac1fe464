"""A certificate, and an admission server with a client."""

from collections.abc import AsyncIterator, Iterator

import pytest
import structlog

from tests.unit.webhook.admission.https import CertificateFiles, certificate
from tests.unit.webhook.server import Both, serving


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A command that runs in this process sets the log up, for a stream that is closed when it ends."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    """A certificate for 127.0.0.1."""
    return certificate(tmp_path_factory.mktemp("pki"))


@pytest.fixture
async def both(files: CertificateFiles) -> AsyncIterator[Both]:
    """A webhook with its own limits, and a client."""
    async with serving(files) as pair:
        yield pair
