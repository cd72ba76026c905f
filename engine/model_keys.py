"""Which environment variable holds the key of a model's provider. Names only: no value is ever read out.

The providers are those that litellm takes one plain key for. A provider that is not listed here, or that has other
ways of knowing who asks (AWS, Google Cloud, Azure), is never said to lack one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

PROVIDERS: dict[str, tuple[str, ...]] = {  # any one of the variables is enough
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
    "dashscope": ("DASHSCOPE_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": ("FIREWORKS_AI_API_KEY", "FIREWORKS_API_KEY", "FIREWORKSAI_API_KEY", "FIREWORKS_AI_TOKEN"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY", "MISTRAL_AZURE_API_KEY"),
    "moonshot": ("MOONSHOT_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY", "OR_API_KEY"),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_AI_TOKEN"),
    "xai": ("XAI_API_KEY",),
    "zai": ("ZAI_API_KEY",),
}
OTHERS = (
    "AZURE_API_KEY",
    "AWS_ACCESS_KEY_ID",
    "HF_TOKEN",
    "HUGGINGFACE_API_KEY",
    "NVIDIA_NIM_API_KEY",
    "VERTEXAI_PROJECT",
)
"""Of providers that work without, too."""
_UNPREFIXED = ((re.compile(r"gpt-|chatgpt-|o\d(-|$)"), "openai"), (re.compile(r"claude-"), "anthropic"))


def keys_set(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the variables with a model's key that are set."""
    named = dict.fromkeys(name for names in PROVIDERS.values() for name in names)
    return [name for name in (*named, *OTHERS) if environ.get(name)]


def missing_key(model: str, api_base: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The variable that ``model`` needs and that is not set; empty if there is nothing to miss.

    A server of one's own, ``api_base`` or ``model@http://…``, needs none.
    """
    if api_base is not None or "@http" in model:
        return ""
    provider, slash, _ = model.partition("/")
    if not slash:
        provider = next((name for pattern, name in _UNPREFIXED if pattern.match(model)), "")
    names = PROVIDERS.get(provider, ())
    return "" if not names or any(environ.get(name) for name in names) else names[0]
