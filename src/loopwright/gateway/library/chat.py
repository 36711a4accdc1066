"""Models of the OpenAI protocols: Chat Completions, which many services and servers implement, and
Responses.
"""

from functools import cached_property
from typing import Any

import httpx2
from openai import AsyncOpenAI
from openai.resources.chat.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses.responses import AsyncResponses
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers import Provider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from loopwright.gateway.library.messages import around
from loopwright.gateway.models import Endpoint


class _Completions(AsyncCompletions):
    async def create(self, **options: Any) -> Any:  # noqa: ANN401 - as the SDK has it
        return await super().create(**around(options, ("messages", "tools")))


class _Responses(AsyncResponses):
    async def create(self, **options: Any) -> Any:  # noqa: ANN401 - as the SDK has it
        return await super().create(**around(options, ("input", "tools")))


class _Chat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _Completions(self._client)


class Client(AsyncOpenAI):
    """The SDK's client, with the shortcut for long histories."""

    @cached_property
    def chat(self) -> AsyncChat:
        return _Chat(self)

    @cached_property
    def responses(self) -> AsyncResponses:
        return _Responses(self)


def model(to: Endpoint, http: httpx2.AsyncClient, *, client: type[AsyncOpenAI] = Client) -> Model:
    """A model at an endpoint. Retries and time limits are ours, so the SDK has none."""
    sdk = client(base_url=to.url, api_key=to.key, http_client=http, max_retries=0, timeout=None)
    provider: Provider[AsyncOpenAI]
    if to.provider.startswith("openai"):
        provider = OpenAIProvider(openai_client=sdk)
    else:
        provider = OpenAICompatibleProvider(to.provider, openai_client=sdk)
    if to.wire == "responses":
        return OpenAIResponsesModel(to.model, provider=provider)
    return OpenAIChatModel(to.model, provider=provider)
