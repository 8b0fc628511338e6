"""The models that the tests of faults ask: one for each way of carrying HTTP, so that what holds holds for each."""

from __future__ import annotations

from typing import Any

from tests.harness import openai

TRANSPORTS = ("threads", "engine")
KEY = "sk-MARKED-5ae81c07f2"
KEY_ENV = {"TANDEM_TEST_KEY": KEY}


def models(url: str, **more: Any) -> list[dict[str, Any]]:
    """A model for each transport, by its name; all are asked with KEY."""
    return [
        openai(url, abbr=transport, api_key_env="TANDEM_TEST_KEY", transport=transport, **more)
        for transport in TRANSPORTS
    ]
