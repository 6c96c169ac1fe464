"""aiohttp as we import it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("program", ["hami_kubeletplugin.daemon.service", "hami_kubeletplugin.webhook.service"])
def test_no_authority_of_the_host_is_read(program: str) -> None:
    """Neither program trusts, or pays for, what the host trusts; contexts that are made later are as ever."""
    code = (
        f"import {program}, ssl, aiohttp.connector as c;"
        "print(c._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'], c._SSL_CONTEXT_VERIFIED.verify_mode.name,"
        " ssl.create_default_context.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["0", "CERT_REQUIRED", "ssl"]
