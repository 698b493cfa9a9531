"""Weights → vLLM server: a folder is written, the server told to load it, and asked whether it did. Samples nothing.

Whole weights are a folder of safetensors that replaces the server's own; adapters get a new name each time, and the
older ones are unloaded. Every handover has a name of its own (`u12-1f0c9a3e`), so that weights of another process,
an earlier try or a restarted server are never taken for these.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from task_app.core.errors import PolicyError, TrainError
from task_app.train.chat_network import ChatNetwork
from task_app.train.disk import make_folder
from task_app.train.vllm_wire import PROCESSED, ServedModel, VllmServer

__all__ = ["Handover"]


class Handover:
    """Hands one network's weights to one server; nothing may be sampled meanwhile.

    name   what this handover is called; "" before the first
    model  the name to ask for: the adapter's, or the base model's
    """

    def __init__(self, network: ChatNetwork, server: VllmServer, folder: Path) -> None:
        self._network, self._server, self._folder = network, server, folder.absolute()
        self._adapters = bool(network.settings.lora_rank)
        self._version = self._base = ""
        self.name = self.model = ""

    def give(self, version: str) -> bool:
        """Make the server sample from the network as it is now, called `version`; whether that took anything.

        Raises TrainError when the server cannot be used, refuses, or does not have them afterwards.
        """
        if version == self._version:
            return False
        self._version = ""
        with self._explained(version):
            if not self._base:
                self._base = self._check_server()
            name = f"{version}-{uuid.uuid4().hex[:8]}"
            folder = self._write(name)
            (self._give_adapters if self._adapters else self._give_whole)(name, folder)
        self._delete_others(folder)
        self._version, self.name, self.model = version, name, name if self._adapters else self._base
        return True

    def check_current(self) -> None:
        """Raise TrainError when the server has other whole weights than were handed over; adapters are told by the
        answer's own model name."""
        if self._adapters:
            return
        version = self._server.version()
        if version != self.name:
            raise TrainError(
                f"the vLLM server's weight_version is {version!r}, expected was {self.name!r}: it was restarted, or "
                "another run hands it weights; run again to resume"
            )

    # -- inside ----------------------------------------------------------------------------------

    def _check_server(self) -> str:
        """The base model's name, when the server is one that can be learned from."""
        self._server.check_health()
        mode = self._server.logprobs_mode()
        if mode != PROCESSED:
            raise TrainError(
                f"its logprobs_mode is {mode!r}: these are not of the distribution it samples from; start it with "
                f"--logprobs-mode {PROCESSED}"
            )
        base = next((model for model in self._server.models() if not model.parent), None)
        if base is None:
            raise TrainError("its model list has no base model")
        settings = self._network.settings
        needed = settings.max_prompt_tokens + settings.max_new_tokens
        if base.longest is not None and base.longest < needed:
            raise TrainError(
                f"its max_model_len is {base.longest}, model.max_prompt_tokens and model.max_new_tokens need {needed}; "
                f"start it with --max-model-len {needed}"
            )
        return base.name

    def _write(self, name: str) -> Path:
        """The weights in a folder that appears whole."""
        target = self._folder / name
        make_folder(target, self._network.save)
        return target

    def _give_whole(self, name: str, folder: Path) -> None:
        self._server.reload(folder)
        self._server.reset_prefix_cache()
        self._server.set_version(name)
        version = self._server.version()
        if version != name:
            raise TrainError(f"its weight_version is {version!r}, expected was {name!r}")

    def _give_adapters(self, name: str, folder: Path) -> None:
        self._server.load_adapter(name, folder)
        models = self._server.models()
        if not any(model.name == name for model in models):
            raise TrainError(f"its model list has no {name!r} after loading it")
        for model in models:
            if self._is_ours(model) and model.name != name:
                self._server.unload_adapter(model.name)
        self._server.reset_prefix_cache()

    def _is_ours(self, model: ServedModel) -> bool:
        """Whether it was handed over from this folder, by this process or one before it."""
        return bool(model.parent) and Path(model.root).parent == self._folder

    def _delete_others(self, kept: Path) -> None:
        for path in self._folder.iterdir():
            if path != kept and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _explained(self, version: str) -> Iterator[None]:
        """Say what was tried and what to look at."""
        try:
            yield
        except (PolicyError, TrainError) as error:
            flags = (
                "--enable-lora, --max-lora-rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
                if self._adapters
                else "the same model"
            )
            raise TrainError(
                f"weights {version} could not be handed to the vLLM server: {error}. It must run with "
                f"VLLM_SERVER_DEV_MODE=1 and {flags}, and see {self._folder} at this path; run again to resume"
            ) from error
