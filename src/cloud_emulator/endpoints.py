"""Where each of Google's APIs is served: at the root, or, where their paths are alike, below a name of its own."""

from __future__ import annotations

# By gcloud's names. No bucket's name begins with "_", so none is hidden.
PATHS = {
    "TPU": "",
    "SERVICEUSAGE": "_serviceusage",
    "CLOUDRESOURCEMANAGER": "_cloudresourcemanager",
    "CLOUDBILLING": "_cloudbilling",
    "IAM": "_iam",
    "CLOUDQUOTAS": "_cloudquotas",
    "SECRETMANAGER": "_secretmanager",
    "COMPUTE": "_compute",
}
PREFIXES = frozenset(filter(None, PATHS.values()))


def environment_for(url: str) -> dict[str, str]:
    """gcloud's own variables; the addresses end with a slash, as it needs them."""
    return {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{url}/{path}/" if path else f"{url}/" for name, path in PATHS.items()}
