"""What the routes of foreign dialects are for, and their bodies; loaded to describe the API."""

from typing import Final, get_args

from skulkd.api.dialects.anthropic_bodies import (
    CountedTokens,
    CountRequest,
    MessageEvent,
    MessagesRequest,
    WholeMessage,
)
from skulkd.api.dialects.ollama_bodies import (
    ChatLine,
    Embedded,
    EmbedRequest,
    GenerateLine,
    GenerateRequest,
    LoadedModels,
    OlderEmbedded,
    OlderEmbedRequest,
    OllamaChatRequest,
    OllamaVersion,
    PlacedModels,
    ShownModel,
    ShowRequest,
)
from skulkd.api.dialects.openai_bodies import (
    BenchCompletion,
    ChatCompletion,
    ChatCompletionChunk,
    ChatRequest,
    CompletionRequest,
    EmbeddingList,
    EmbeddingsRequest,
    Ranking,
    RerankRequest,
    TextCompletion,
)
from skulkd.api.dialects.responses_bodies import AnyEvent, Response, ResponseRequest
from skulkd.api.route_notes import Note

_SSE: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"

DIALECT_NOTES: Final[dict[str, Note]] = {
    "POST /v1/chat/completions": Note(
        summary="Chat, in OpenAI's form",
        asks=ChatRequest,
        answers=ChatCompletion,
        streams=_SSE,
        events=(ChatCompletionChunk,),
    ),
    "POST /bench/chat/completions": Note(
        summary="Chat, whole, and say what it took", asks=ChatRequest, answers=BenchCompletion
    ),
    "POST /v1/completions": Note(
        summary="Complete a text, in OpenAI's older form",
        asks=CompletionRequest,
        answers=TextCompletion,
        streams=_SSE,
        events=(TextCompletion,),
    ),
    "POST /v1/responses": Note(
        summary="Respond, in OpenAI's form",
        asks=ResponseRequest,
        answers=Response,
        streams=_SSE,
        events=get_args(AnyEvent),
    ),
    "POST /v1/embeddings": Note(
        summary="Embed texts, in OpenAI's form", asks=EmbeddingsRequest, answers=EmbeddingList
    ),
    "POST /v1/rerank": Note(
        summary="Order documents by a query", asks=RerankRequest, answers=Ranking
    ),
    "POST /v1/messages": Note(
        summary="Chat, in Anthropic's form",
        asks=MessagesRequest,
        answers=WholeMessage,
        streams=_SSE,
        events=get_args(MessageEvent),
    ),
    "POST /v1/messages/count_tokens": Note(
        summary="Count the tokens of a prompt, in Anthropic's form",
        asks=CountRequest,
        answers=CountedTokens,
    ),
    "POST /ollama/api/chat": Note(
        summary="Chat, in Ollama's form",
        asks=OllamaChatRequest,
        answers=ChatLine,
        streams=_LINES,
        events=(ChatLine,),
    ),
    "POST /ollama/api/generate": Note(
        summary="Answer a prompt, in Ollama's form",
        asks=GenerateRequest,
        answers=GenerateLine,
        streams=_LINES,
        events=(GenerateLine,),
    ),
    "POST /ollama/api/show": Note(
        summary="Show one model, in Ollama's form", asks=ShowRequest, answers=ShownModel
    ),
    "POST /ollama/api/embed": Note(
        summary="Embed texts, in Ollama's form", asks=EmbedRequest, answers=Embedded
    ),
    "POST /ollama/api/embeddings": Note(
        summary="Embed a text, in Ollama's older form",
        asks=OlderEmbedRequest,
        answers=OlderEmbedded,
    ),
    "GET /ollama/api/tags": Note(
        summary="List the placed models, in Ollama's form", answers=PlacedModels
    ),
    "GET /ollama/api/ps": Note(
        summary="List the loaded models, in Ollama's form", answers=LoadedModels
    ),
    "GET /ollama/api/version": Note(
        summary="Say whose API this is, in Ollama's form", answers=OllamaVersion
    ),
}
