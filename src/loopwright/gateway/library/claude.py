"""Models of the Anthropic Messages protocol."""

from functools import cached_property
from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from anthropic._models import FinalRequestOptions
from anthropic.resources.beta.beta import AsyncBeta
from anthropic.resources.beta.messages import AsyncMessages
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from loopwright.gateway.library.messages import around, opened
from loopwright.gateway.models import Endpoint


class _Messages(AsyncMessages):
    async def create(self, **options: Any) -> Any:  # noqa: ANN401 - as the SDK has it
        return await super().create(**around(options, ("messages", "tools"), sealed=True))


class _Beta(AsyncBeta):
    @cached_property
    def messages(self) -> AsyncMessages:
        return _Messages(self._client)


class Client(AsyncAnthropic):
    """The SDK's client, with the shortcut for long histories."""

    @cached_property
    def beta(self) -> AsyncBeta:
        return _Beta(self)

    async def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        """The SDK's hook between its traversal and building the body."""
        options = await super()._prepare_options(options)
        options.json_data = opened(options.json_data)
        return options


def model(
    to: Endpoint, http: httpx2.AsyncClient, *, client: type[AsyncAnthropic] = Client
) -> Model:
    """A model at an endpoint. Retries and time limits are ours, so the SDK has none."""
    sdk = client(base_url=to.url, api_key=to.key, http_client=http, max_retries=0, timeout=None)
    return AnthropicModel(to.model, provider=AnthropicProvider(anthropic_client=sdk))
