"""Run in an environment of its own by test_other_clients: larger client libraries, unchanged.

Arguments: the library, the server's address, the model.
"""

import sys


def langchain_openai(url: str, model: str) -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="any", model=model)
    answer = chat.invoke("hi")
    assert answer.content == "hello world", answer
    assert answer.usage_metadata["output_tokens"] > 0, answer
    assert "".join(str(part.content) for part in chat.stream("hi")) == "hello world"


def langchain_ollama(url: str, model: str) -> None:
    from langchain_ollama import ChatOllama, OllamaLLM

    chat = ChatOllama(base_url=url, model=model, validate_model_on_init=True, temperature=0, num_ctx=200)
    answer = chat.invoke("hi")
    assert answer.content == "hello world", answer
    assert answer.response_metadata["done_reason"] == "stop", answer
    assert "".join(str(part.content) for part in chat.stream("hi")) == "hello world"
    assert OllamaLLM(base_url=url, model=model).invoke("hi") == "hello world"


def litellm(url: str, model: str) -> None:
    from litellm import completion

    messages = [{"role": "user", "content": "hi"}]
    for name, base in (
        (f"openai/{model}", f"{url}/v1"),
        (f"ollama_chat/{model}", url),
        (f"ollama/{model}", url),
        (f"anthropic/{model}", url),
    ):
        answer = completion(model=name, api_base=base, api_key="any", messages=messages, max_tokens=50)
        assert answer.choices[0].message.content == "hello world", (name, answer)
        parts = completion(
            model=name, api_base=base, api_key="any", messages=messages, max_tokens=50, stream=True
        )
        assert "".join(part.choices[0].delta.content or "" for part in parts) == "hello world", name


def llama_index(url: str, model: str) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.ollama import Ollama
    from llama_index.llms.openai_like import OpenAILike

    messages = [ChatMessage(role="user", content="hi")]
    like = OpenAILike(model=model, api_base=f"{url}/v1", api_key="any", is_chat_model=True)
    assert like.chat(messages).message.content == "hello world"
    assert "".join(part.delta or "" for part in like.stream_chat(messages)) == "hello world"
    native = Ollama(model=model, base_url=url, request_timeout=60, context_window=200)
    assert native.chat(messages).message.content == "hello world"
    assert native.complete("hi").text == "hello world"


if __name__ == "__main__":
    library, url, model = sys.argv[1:]
    globals()[library](url, model)
