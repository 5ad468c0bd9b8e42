"""The environment of a pod beside a service of lgov."""

from __future__ import annotations


def service_links(service: str, *, address: str = "10.0.0.1") -> dict[str, str]:
    """The variables that Kubernetes writes for a service into each pod of its namespace, and Docker for a linked container."""
    prefix = service.upper().replace("-", "_")
    at = f"tcp://{address}:8321"
    return {
        f"{prefix}_SERVICE_HOST": address.strip("[]"),
        f"{prefix}_SERVICE_PORT": "8321",
        f"{prefix}_SERVICE_PORT_HTTP": "8321",
        f"{prefix}_PORT": at,
        f"{prefix}_PORT_8321_TCP": at,
        f"{prefix}_PORT_8321_TCP_PROTO": "tcp",
        f"{prefix}_PORT_8321_TCP_PORT": "8321",
        f"{prefix}_PORT_8321_TCP_ADDR": address.strip("[]"),
        f"{prefix}_NAME": f"/agent/{service}",
        f"{prefix}_ENV_PATH": "/usr/bin",
    }
