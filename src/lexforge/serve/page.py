"""The search page: one HTML file without any request to another host, and the policy that it is sent with."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"


def search_page(max_k: int, max_query_length: int) -> tuple[str, str]:
    """Make the search page.

    Args:
        max_k: The largest number of hits that the page may ask for.
        max_query_length: The largest number of characters of a query.

    Returns:
        The page, and its Content-Security-Policy, by which a browser runs no other script.
    """
    style, script = _source("page.css"), _source("page.js")
    page = _source("page.html")
    for place, text in {
        "{{ style }}": style,
        "{{ script }}": script,
        "{{ max_k }}": str(max_k),
        "{{ max_query_length }}": str(max_query_length),
    }.items():
        page = page.replace(place, text)
    policy = {
        "default-src": "'none'",
        "script-src": f"'sha256-{_digest(script)}'",
        "style-src": f"'sha256-{_digest(style)}'",
        "connect-src": "'self'",
        "img-src": "data:",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return page, "; ".join(f"{name} {value}" for name, value in policy.items())


def _source(name: str) -> str:
    return (TEMPLATE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The SHA-256 of what stands in an element, as a policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
