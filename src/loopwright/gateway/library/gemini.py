"""Models of Google, with the extra `loopwright[google]`."""

from importlib import import_module

import httpx2
from pydantic_ai.models import Model

from loopwright.gateway.models import PROVIDERS, Endpoint


def model(to: Endpoint, http: httpx2.AsyncClient) -> Model:
    """A model at an endpoint."""
    models = import_module("pydantic_ai.models.google")
    providers = import_module("pydantic_ai.providers.google")
    other = None if to.url == PROVIDERS["google"].url else to.url
    provider = providers.GoogleProvider(api_key=to.key, base_url=other, http_client=http)
    made: Model = models.GoogleModel(to.model, provider=provider)
    return made
