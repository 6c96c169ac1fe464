"""The Kubernetes API over aiohttp: credentials, errors, version negotiation, list and watch."""
