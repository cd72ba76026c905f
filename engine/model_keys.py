"""Which environment variable holds the key of a model's provider. Names only: no value is ever read out.

The providers are those that litellm takes one plain key for. A provider that is not listed here, or that has other
ways of knowing who asks (AWS, Google Cloud, Azure), is never said to lack one. A campaign is refused for want of a
key, so in doubt nothing is missing: a call that fails says why.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

PROVIDERS: dict[str, tuple[str, ...]] = {  # any one of the variables is enough
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
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
WAYS: dict[str, tuple[str, ...]] = {
    "openai": ("OPENAI_IDENTITY_PROVIDER_ID", "OPENAI_IDENTITY_TOKEN_FILE"),
    "anthropic": ("ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_IDENTITY_TOKEN_FILE", "ANTHROPIC_IDENTITY_TOKEN"),
}
"""Of a workload's identity, which a provider takes instead of a key: litellm alone can tell whether it does."""
OTHERS = (
    "AZURE_API_KEY",
    "AZURE_AD_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_PROFILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HF_TOKEN",
    "HUGGINGFACE_API_KEY",
    "NVIDIA_NIM_API_KEY",
    "VERTEXAI_PROJECT",
)
"""Of providers that work without, too."""
PROXY = "USE_LITELLM_PROXY"
"""Has litellm ask its own proxy for every model, whatever its provider."""
_UNPREFIXED = ((re.compile(r"gpt-|chatgpt-|o\d(-|$)"), "openai"), (re.compile(r"claude-"), "anthropic"))


def keys_set(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the variables with a model's key that are set."""
    named = dict.fromkeys(name for table in (PROVIDERS, WAYS) for names in table.values() for name in names)
    return [name for name in (*named, *OTHERS) if environ.get(name)]


def dotenv_file(environ: Mapping[str, str] = os.environ) -> str:
    """The text of the ``.env`` that litellm adds to the environment as it is loaded; empty if there is none.

    That is the first one in a folder above litellm's own, such as that of a project with its ``.venv`` in it.
    """
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None or environ.get("LITELLM_MODE", "DEV") != "DEV":
        return ""
    found = next((file for above in Path(spec.origin).parents if (file := above / ".env").is_file()), None)
    try:
        return found.read_text(encoding="utf-8", errors="replace") if found else ""
    except OSError:
        return ""


def missing_key(
    model: str, api_base: str | None, environ: Mapping[str, str] = os.environ, *, dotenv: str = ""
) -> str:
    """The variable that ``model`` needs and that is not set; empty if there is nothing to miss.

    A server of one's own, ``api_base`` or ``model@http://…``, needs none. A name in the ``.env`` counts as set.
    """
    if api_base is not None or "@http" in model or environ.get(PROXY) or PROXY in dotenv:
        return ""
    provider, slash, _ = model.partition("/")
    if not slash:
        provider = next((name for pattern, name in _UNPREFIXED if pattern.match(model)), "")
    names = PROVIDERS.get(provider, ())
    enough = (*names, *_ways(provider, names))
    there = any(environ.get(name) or re.search(rf"\b{name}\b", dotenv) for name in enough)
    return "" if not names or there else names[0]


def _ways(provider: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """What may stand in for a key: an identity, or the address of another server, which may ask for none.

    OpenAI's and Anthropic's clients insist on a key whatever the server.
    """
    bases = tuple(name.replace("_API_KEY", "_API_BASE") for name in names if name.endswith("_API_KEY"))
    return WAYS.get(provider, bases)
