"""Whom Google sees, and where the credentials come from."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tpulm.cloud.google_rest import GoogleError, GoogleRest, is_anonymous


@dataclass(frozen=True)
class Identity:
    source: str  # for people
    email: str  # "" where it cannot be known
    is_service_account: bool = False

    @property
    def member(self) -> str:
        """As policies have it."""
        return f"{'serviceAccount' if self.is_service_account else 'user'}:{self.email or 'YOUR-EMAIL'}"


def identity(rest: GoogleRest) -> Identity:
    """Raises CloudRefused without credentials."""
    if is_anonymous("serviceusage"):
        return Identity("nobody in particular, as an emulator asks nobody who they are", "")
    credentials = rest.credentials
    kind = f"{type(credentials).__module__}.{type(credentials).__name__}"
    for name in ("service_account_email", "signer_email"):
        email = getattr(credentials, name, None)
        if isinstance(email, str) and "@" in email:
            return Identity(_source(kind), email, is_service_account=True)
    return Identity(_source(kind), getattr(credentials, "account", "") or _asked(rest), kind.startswith("google.auth.compute"))


def _source(kind: str) -> str:
    if file := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return f"the file {file} (GOOGLE_APPLICATION_CREDENTIALS)"
    if kind.startswith("google.auth.compute_engine."):
        return "this machine's service account, from the metadata server"
    if kind.startswith("google.auth.impersonated_credentials."):
        return "gcloud's login, as a service account"
    return "gcloud's login (application-default)"


def _asked(rest: GoogleRest) -> str:
    """A login that gcloud made may read its own address."""
    try:
        return str(rest.get("openidconnect", "v1/userinfo").get("email", ""))
    except GoogleError:
        return ""
