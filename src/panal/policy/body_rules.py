"""What a request's body may not contain, and whether its answer could be continued elsewhere.

Unknown fields pass to the engine; refused are those that make an engine open a connection, run code,
read a file, parse a language of the caller's or touch other requests, and sizes that only attack.
Everything works on decoded JSON. A small plain chat costs a few set tests and no walk.
"""

from collections.abc import Mapping
from typing import Any

from panal.core.errors import BadRequest
from panal.core.requests import Route
from panal.policy.body_content import check_messages, check_schema, check_tree

DEPTH_MAX = 64
SCHEMA_DEPTH_MAX = 32
MESSAGES_MAX = 2000
TOOLS_MAX = 128
STOP_MAX = 16
INPUTS_MAX = 2048
GRAMMAR_CHARACTERS_MAX = 16_384
REGEX_CHARACTERS_MAX = 4_096

DENIED_ANYWHERE = frozenset(
    {
        "api_base",
        "base_url",
        "api_key",
        "user_config",
        "litellm_params",
        "callback_url",
        "webhook_url",
        "proxy",
        "proxies",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "lora_path",
        "adapter_path",
        "allowed_local_media_path",
        "custom_logit_processor",
        "logits_processors",
        "trust_remote_code",
    }
)
"""Fields that name an address, a path or code, wherever they stand outside of messages and schemas."""

DENIED_ON_TOP = DENIED_ANYWHERE | {
    "chat_parser",
    "chat_template",
    "cache_salt",
    "kv_transfer_params",
    "priority",
    "request_id",
    "rid",
    "id_slot",
    "slot_id",
    "data_parallel_rank",
    "vllm_xargs",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "session_params",
    "n_predict",
    "lora",
    "lora_request",
    "image_data",
    "video_data",
    "audio_data",
}
"""Fields that belong to panal or the operator, or that let a caller reach other requests."""

TOOL_BUFFERING = ("stream", "whole")
"""panal's own field: whether a tool call is sent as it is made, or at once when the answer is complete."""

_LIMITS: dict[str, tuple[int, int]] = {
    "n": (1, 8),
    "best_of": (1, 8),
    "n_probs": (0, 20),
    "top_logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
    "max_tokens": (0, 10_000_000),
    "max_completion_tokens": (0, 10_000_000),
}
_TEXTS = {
    "grammar": GRAMMAR_CHARACTERS_MAX,
    "guided_grammar": GRAMMAR_CHARACTERS_MAX,
    "ebnf": GRAMMAR_CHARACTERS_MAX,
    "guided_regex": REGEX_CHARACTERS_MAX,
    "regex": REGEX_CHARACTERS_MAX,
}
_LISTS = {"messages": MESSAGES_MAX, "tools": TOOLS_MAX, "functions": TOOLS_MAX, "input": INPUTS_MAX}
_SCHEMAS = frozenset(
    {"tools", "functions", "response_format", "guided_json", "json_schema", "structured_outputs"}
)
_SPECIAL = (
    frozenset(_LIMITS)
    | frozenset(_TEXTS)
    | frozenset(_LISTS)
    | {"stop", "logprobs", "prompt", "tool_buffering"}
    | _SCHEMAS
)

_NEVER_CONTINUED = frozenset({
    "suffix", "echo", "grammar", "guided_grammar", "guided_regex", "guided_json", "guided_choice",
    "json_schema", "structured_outputs",
    "regex", "ebnf", "use_beam_search", "prompt_logprobs", "n_probs",
    "return_token_ids", "return_tokens_as_token_ids", "audio", "continue_final_message",
    "logprobs", "top_logprobs", "n", "best_of", "response_format", "tool_choice", "modalities",
})  # fmt: skip
_HARMLESS: dict[str, frozenset[Any]] = {
    "n": frozenset({1}),
    "best_of": frozenset({1}),
    "tool_choice": frozenset({"auto", "none"}),
}


_ZERO_IS_NOTHING = frozenset({"top_logprobs", "prompt_logprobs", "n_probs"})


ALLOWED_FOR_SENSITIVE = frozenset({
    "model", "messages", "prompt", "input", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice",
    "parallel_tool_calls", "functions", "function_call", "user", "encoding_format", "dimensions",
    "reasoning_effort", "echo", "suffix", "best_of", "panal_deadline_s",
    "tool_buffering",
})  # fmt: skip
"""All that a request may hold whose data is confidential or above: OpenAI's own fields (D4), and panal's."""


def check_sensitive_body(body: Mapping[str, Any]) -> None:
    """For confidential data and above unknown fields do not pass. Raises BadRequest naming the first."""
    if not ALLOWED_FOR_SENSITIVE.issuperset(body):
        name = next(name for name in body if name not in ALLOWED_FOR_SENSITIVE)
        raise BadRequest(f"The field '{name[:60]}' is not allowed with data of this class.", param=name[:60])


def check_body(body: Mapping[str, Any]) -> None:
    """Raises BadRequest naming the field for anything that is not allowed in a request."""
    if not DENIED_ON_TOP.isdisjoint(body):
        raise _refused(next(name for name in body if name in DENIED_ON_TOP))
    for name, value in body.items():
        if name in _SPECIAL:
            _check_special(name, value)
        elif isinstance(value, (dict, list)):
            check_tree(value, name, DENIED_ANYWHERE, depth=2, depth_max=DEPTH_MAX)


def resumable(route: Route, body: Mapping[str, Any]) -> bool:
    """Whether an answer to this could go on on another replica after it broke.

    False where the engine keeps a state that text does not show (schemas, grammars, several choices), where
    the answer holds more than text (log-probabilities), or where its prompt is more than text.
    """
    if route is Route.EMBEDDINGS:
        return False
    if not _NEVER_CONTINUED.isdisjoint(body) and not all(
        _has_no_effect(name, body[name]) for name in body if name in _NEVER_CONTINUED
    ):
        return False
    if body.get("min_tokens") and body.get("stop"):
        return False  # the engine looks for stop strings only after so many tokens, and forgets how many
    if route is Route.COMPLETIONS:
        prompt = body.get("prompt")
        return isinstance(prompt, str) or (isinstance(prompt, list) and _one_prompt(prompt))
    messages = body.get("messages")
    if not isinstance(messages, list):
        return False
    for message in messages:
        if type(message) is not dict or (
            type(content := message.get("content")) is not str and not _text_only(content)
        ):
            return False
    return True


def may_call_tools(body: Mapping[str, Any]) -> bool:
    """Whether the answer may hold tool calls, which only an engine's chat route tells from text."""
    return bool(body.get("tools") or body.get("functions")) and body.get("tool_choice") != "none"


def _has_no_effect(name: str, value: Any) -> bool:
    if value is None or value is False:
        return True
    if name == "response_format":
        return isinstance(value, dict) and value.get("type") == "text"
    if name == "modalities":
        return isinstance(value, list) and value == ["text"]
    harmless = _HARMLESS.get(name)
    if harmless is not None:
        return type(value) in (int, str) and value in harmless
    return name in _ZERO_IS_NOTHING and type(value) is int and value == 0


def _one_prompt(prompt: list[Any]) -> bool:
    return len(prompt) == 1 or (bool(prompt) and all(type(part) is int for part in prompt))


def _text_only(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return True


def _check_special(name: str, value: Any) -> None:
    if value is None:
        return
    if name == "messages":
        check_messages(value, MESSAGES_MAX, DENIED_ANYWHERE, DEPTH_MAX)
    elif name in _LIMITS:
        _check_number(name, value, *_LIMITS[name])
    elif name == "logprobs":
        if type(value) is not bool:
            _check_number(name, value, 0, 20)
    elif name == "stop":
        _check_stop(value)
    elif name == "tool_buffering":
        if value not in TOOL_BUFFERING:
            raise BadRequest("'tool_buffering' must be 'stream' or 'whole'.", param=name)
    elif name in _TEXTS and not (isinstance(value, str) and len(value) <= _TEXTS[name]):
        raise BadRequest(f"'{name}' must be a text of at most {_TEXTS[name]} characters.", param=name)
    elif name in _SCHEMAS:
        _check_list(name, value)
        _check_schemas(name, value)
    elif name in ("input", "prompt"):
        _check_prompts(name, value)


def _check_prompts(name: str, value: Any) -> None:
    if not isinstance(value, (str, list)):
        raise BadRequest(f"'{name}' must be a text or a list.", param=name)
    if isinstance(value, list) and not (value and all(type(part) is int for part in value)):
        if len(value) > INPUTS_MAX:
            raise BadRequest(f"'{name}' may have at most {INPUTS_MAX} entries.", param=name)
        check_tree(value, name, DENIED_ANYWHERE, depth=2, depth_max=DEPTH_MAX)


def _check_schemas(name: str, value: Any) -> None:
    if name == "structured_outputs" and isinstance(value, dict):
        for inner, most in (("grammar", GRAMMAR_CHARACTERS_MAX), ("regex", REGEX_CHARACTERS_MAX)):
            text = value.get(inner)
            if text is not None and not (isinstance(text, str) and len(text) <= most):
                raise BadRequest(f"'{name}.{inner}' must be a text of at most {most} characters.", param=name)
    if isinstance(value, str):
        if len(value) > GRAMMAR_CHARACTERS_MAX:
            raise BadRequest(f"'{name}' is too long as a text.", param=name)
        return
    check_schema(value, name, depth_max=SCHEMA_DEPTH_MAX)


def _check_list(name: str, value: Any) -> None:
    most = _LISTS.get(name)
    if most is not None and (not isinstance(value, list) or len(value) > most):
        raise BadRequest(f"'{name}' must be a list of at most {most} entries.", param=name)


def _check_number(name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise BadRequest(f"'{name}' must be a whole number from {low} to {high}.", param=name)


def _check_stop(value: Any) -> None:
    texts = [value] if isinstance(value, str) else value
    if (
        not isinstance(texts, list)
        or len(texts) > STOP_MAX
        or not all(isinstance(text, str) for text in texts)
    ):
        raise BadRequest(f"'stop' must be a text or a list of at most {STOP_MAX} texts.", param="stop")


def _refused(name: str) -> BadRequest:
    return BadRequest(f"The field '{name}' is not allowed in a request.", param=name)
