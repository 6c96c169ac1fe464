"""What is shown to Prometheus, and to whom."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, model_validator


class MetricsSettings(BaseModel):
    """The port for metrics and probes, and what is there."""

    metrics_address: str = Field(
        "",
        pattern=r"^(.*:[0-9]{1,5})?$",
        description="HOST:PORT, or :PORT for all addresses, to serve /metrics for Prometheus, /healthz and /readyz for probes. "
        "Default: nowhere.",
    )
    tls_cert_file: Path | None = Field(
        None,
        description="Certificate of that port, PEM, read again when it changes: it speaks HTTPS then. Default: plain HTTP.",
    )
    tls_key_file: Path | None = Field(None, description="The key for it.")
    metrics_token_file: Path | None = Field(
        None,
        description="File with a bearer token, read again when it changes: /metrics is only for who sends it; probes need "
        "none. Default: for who reaches the port.",
    )
    legacy_metrics: bool = Field(
        False,
        description="true: HAMi's metrics under the names that they had before its version 2.9, too.",
    )

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("--tls-cert-file and --tls-key-file go together")
        if self.metrics_token_file is not None and self.tls_cert_file is None:
            raise ValueError(
                "--metrics-token-file needs --tls-cert-file and --tls-key-file: without TLS the token could be read on its way"
            )
        given = self.tls_cert_file is not None or self.legacy_metrics
        if given and not self.metrics_address:
            raise ValueError("what is said of the port for metrics needs --metrics-address: without it there is none")
        return self
