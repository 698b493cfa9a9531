"""A server on 127.0.0.1 that speaks vLLM's wire strictly and samples from a real tiny model; knows no trainer.

It loads what is handed over, keeps cached prompts until it is told to forget them, refuses fields and types the real
one does not have, and misbehaves only where a test tells it to.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from peft import PeftModel
from pydantic import BaseModel, ConfigDict, Field
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

__all__ = ["BASE", "FakeVllm"]

BASE = "served-base"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CompletionBody(_Body):
    model: str
    prompt: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    n: Literal[1]
    max_tokens: int = Field(ge=1)
    seed: int = Field(ge=-(2**63), le=2**63 - 1)
    temperature: float = Field(gt=0, le=2)
    top_p: float = Field(ge=1, le=1)
    top_k: Literal[0, -1]
    min_p: float = Field(ge=0, le=0)
    repetition_penalty: float = Field(ge=1, le=1)
    presence_penalty: float = Field(ge=0, le=0)
    frequency_penalty: float = Field(ge=0, le=0)
    stop_token_ids: list[int]
    skip_special_tokens: bool
    logprobs: Literal[0]
    return_token_ids: bool
    cache_salt: str = Field(min_length=1)


class ReloadKwargs(_Body):
    weights_path: str


class RpcBody(_Body):
    method: Literal["reload_weights"]
    kwargs: ReloadKwargs


class LoadBody(_Body):
    lora_name: str
    lora_path: str


class UnloadBody(_Body):
    lora_name: str


class VersionBody(_Body):
    new_version: str


class FakeVllm:
    """Use as a context manager; `url` is its root. What it does wrong is set by the fields below `received`."""

    def __init__(self, base: Path, *, lora: bool = False, max_model_len: int = 1024, key: str = "") -> None:
        self._folder, self._lora, self._longest, self._key = base, lora, max_model_len, key
        self.whole = _load(base)
        self.adapters: dict[str, tuple[str, Any]] = {}
        self.version = "default"
        self._cache: dict[tuple[Any, ...], torch.Tensor] = {}
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self.received: list[tuple[str, Any]] = []
        self.logprobs_mode = "processed_logprobs"
        self.numbers: str | None = None  # what is really sent, where that is not what is said
        self.salted = True  # whether cached prompts of different salts are apart
        self.deaf_to_reset = False
        self.busy_resets = 0  # how many resets find requests still running
        self.deaf_to_reload = False
        self.statuses: deque[tuple[int, dict[str, str]]] = deque()  # of the next completions, before any answer
        self.hangs: deque[bool] = deque()  # whether the next completions never come
        self.alter: Callable[[dict[str, Any]], object] = lambda answer: None
        self.delay_s = 0.0
        self.running, self.most_running = 0, 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self._app(), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; nobody listens afterwards."""
        self._closing.set()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def restart(self) -> None:
        """As a restarted process: the weights it began with, no adapters, no version."""
        self.whole, self.adapters, self.version = _load(self._folder), {}, "default"
        self._cache.clear()

    def bodies(self, path: str) -> list[Any]:
        """What was sent to a path, in order."""
        return [body for at, body in self.received if at == path]

    @property
    def paths(self) -> list[str]:
        """Every path asked for, in order."""
        return [path for path, _ in self.received]

    # -- routes ----------------------------------------------------------------------------------

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.exception_handler(RequestValidationError)
        async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
            return JSONResponse({"error": {"message": str(error), "type": "Bad Request", "code": 400}}, 400)

        @app.middleware("http")
        async def log(request: Request, proceed: Any) -> Any:
            closed = request.url.path.startswith("/v1") and self._key
            if closed and request.headers.get("authorization") != f"Bearer {self._key}":
                return JSONResponse({"error": "Unauthorized"}, 401)
            raw = await request.body()
            self.received.append((request.url.path, None if not raw else await request.json()))
            return await proceed(request)

        app.get("/health")(lambda: Response(status_code=200))
        app.get("/v1/models")(self._models)
        app.get("/server_info")(self._info)
        app.post("/v1/completions", response_model=None)(self._completion)
        app.post("/collective_rpc", response_model=None)(self._rpc)
        app.post("/reset_prefix_cache")(self._reset)
        app.post("/update_weight_version")(self._update_version)
        app.get("/weight_info")(lambda: {"weight_version": self.version})
        if self._lora:
            app.post("/v1/load_lora_adapter", response_model=None)(self._load_adapter)
            app.post("/v1/unload_lora_adapter", response_model=None)(self._unload_adapter)
        return app

    def _models(self) -> dict[str, Any]:
        cards = [{"id": BASE, "object": "model", "root": str(self._folder), "parent": None,
                  "max_model_len": self._longest}]  # fmt: skip
        cards += [{"id": name, "object": "model", "root": root, "parent": BASE, "max_model_len": None}
                  for name, (root, _) in self.adapters.items()]  # fmt: skip
        return {"object": "list", "data": cards}

    def _info(self, config_format: Literal["text", "json"] = "text") -> dict[str, Any]:
        config = {"model_config": {"model": str(self._folder), "logprobs_mode": self.logprobs_mode}}
        return {"vllm_config": str(config) if config_format == "text" else config, "vllm_env": {}, "system_env": {}}

    def _rpc(self, body: RpcBody) -> Any:
        folder = Path(body.kwargs.weights_path)
        if not folder.is_absolute() or not list(folder.glob("*.safetensors")):
            return JSONResponse({"error": {"message": f"Cannot find any model weights with `{folder}`"}}, 500)
        if not self.deaf_to_reload:
            self.whole = _load(folder)
        return {"results": [None]}

    def _reset(self) -> dict[str, bool]:
        if self.busy_resets:
            self.busy_resets -= 1
            return {"success": False}
        if not self.deaf_to_reset:
            self._cache.clear()
        return {"success": True}

    def _update_version(self, body: VersionBody) -> dict[str, str]:
        self.version = body.new_version
        return {"message": "updated"}

    def _load_adapter(self, body: LoadBody) -> Any:
        if body.lora_name in self.adapters:
            problem = f"The lora adapter '{body.lora_name}' has already been loaded."
            return JSONResponse({"error": {"message": problem}}, 400)
        if not (Path(body.lora_path) / "adapter_config.json").exists():
            return JSONResponse({"error": {"message": "No adapter found"}}, 404)
        model = PeftModel.from_pretrained(_load(self._folder), body.lora_path).eval()  # type: ignore[arg-type]
        self.adapters[body.lora_name] = (body.lora_path, model)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    def _unload_adapter(self, body: UnloadBody) -> Any:
        if self.adapters.pop(body.lora_name, None) is None:
            return JSONResponse({"error": {"message": "The lora adapter cannot be found."}}, 404)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    def _completion(self, body: CompletionBody) -> Any:
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            if self.hangs and self.hangs.popleft():
                self._closing.wait(60)
            if self._closing.wait(self.delay_s):
                return Response(status_code=503)
            if self.statuses:
                status, headers = self.statuses.popleft()
                if status != 200:
                    return JSONResponse({"error": {"message": "busy"}}, status, headers=headers)
            if body.model != BASE and body.model not in self.adapters:
                message = f"The model `{body.model}` does not exist."
                return JSONResponse({"error": {"message": message, "type": "NotFoundError"}}, 404)
            with self._guard:
                answer = self._answer(body)
        finally:
            self.running -= 1
        self.alter(answer)
        return answer

    # -- sampling --------------------------------------------------------------------------------

    @torch.no_grad()
    def _answer(self, body: CompletionBody) -> dict[str, Any]:
        model = self.whole if body.model == BASE else self.adapters[body.model][1]
        draw = torch.Generator().manual_seed(body.seed)
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < body.max_tokens and not (ids and ids[-1] in body.stop_token_ids):
            logits = self._first_logits(model, body) if not ids else _logits(model, [*body.prompt, *ids])
            probability = (logits / body.temperature).softmax(-1)
            token = int(torch.multinomial(probability, 1, generator=draw))
            raw = (self.numbers or self.logprobs_mode) == "raw_logprobs"
            ids.append(token)
            logprobs.append(float((logits if raw else logits / body.temperature).log_softmax(-1)[token]))
        ended = ids[-1] in body.stop_token_ids
        choice = {
            "index": 0,
            "text": "…",
            "logprobs": {"token_logprobs": logprobs, "tokens": ["…"] * len(ids), "text_offset": [0] * len(ids),
                         "top_logprobs": [{"…": value} for value in logprobs]},
            "finish_reason": "stop" if ended else "length",
            "stop_reason": ids[-1] if ended else None,
            "token_ids": ids if body.return_token_ids else None,
            "prompt_token_ids": body.prompt if body.return_token_ids else None,
        }  # fmt: skip
        usage = {"prompt_tokens": len(body.prompt), "completion_tokens": len(ids), "total_tokens": 0}
        return {"id": "cmpl-1", "object": "text_completion", "model": body.model, "choices": [choice], "usage": usage}

    def _first_logits(self, model: Any, body: CompletionBody) -> torch.Tensor:
        """Those after the prompt, kept from whenever it was read first."""
        where = (body.cache_salt if self.salted else "", body.model, tuple(body.prompt))
        if where not in self._cache:
            self._cache[where] = _logits(model, body.prompt)
        return self._cache[where]


def _load(folder: Path) -> Any:
    transformers_logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


def _logits(model: Any, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
