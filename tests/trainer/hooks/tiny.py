"""A tiny GRPO training by the real TRL: a random model and tokenizer made here, nothing downloaded; seconds on a CPU.

Run as a program it is one process of two under gloo: the first has the decision file, the other has none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = ("fix", "the", "bug", "add", "a", "test", "yes", "no", "run", "it")


def even(completions: list[str], **_: Any) -> list[float]:
    return [float(len(each) % 2 == 0) for each in completions]


def short(completions: list[str], **_: Any) -> list[float]:
    return [1.0 / (1 + len(each)) for each in completions]


def tiny_trainer(folder: Path, callbacks: list[Any], **changed: Any) -> Any:
    """A `GRPOTrainer` with two reward functions of weights 1 and 0.5."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    vocabulary = {word: number for number, word in enumerate(("<pad>", "<eos>", "<unk>", *WORDS))}
    core = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
            max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=1,
        )
    )  # fmt: skip
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "max_completion_length": 4,
        "max_steps": 6,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "reward_weights": [1.0, 0.5],
        "gradient_checkpointing": False,
    }
    return GRPOTrainer(
        model=model,
        args=GRPOConfig(**{**settings, **changed}),
        reward_funcs=[even, short],
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["fix the bug", "add a test", "run it", "fix it"] * 4}),
        callbacks=callbacks,
    )


def at_step(number: int, do: Callable[[], None]) -> Any:
    """A callback that does something at the end of a step, as the gate would from outside."""
    from transformers import TrainerCallback

    class At(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == number:
                do()

    return At()


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def main(folder: Path) -> None:
    """One of two processes."""
    import torch

    from palomar.trainer.hooks.decisions import DecisionFile
    from palomar.trainer.hooks.trl import PalomarCallback
    from palomar.trainer.hooks.watching import Actions, Watch
    from palomar.trainer.hooks.weights import WeightsFile

    rank = int(os.environ["RANK"])
    here = folder / f"node{rank}"  # only the first node has the files
    hook = PalomarCallback(
        Watch([DecisionFile(here / "decision.json", "demo")], ["c12"], Actions(on_block="save_and_stop")),
        weights=WeightsFile(here / "weights.json", "demo"),
    )

    def put(name: str) -> None:
        if rank == 0:
            (here / f"{name}.later").rename(here / f"{name}.json")

    callbacks = [at_step(2, lambda: put("weights")), at_step(3, lambda: put("decision")), hook]
    trainer = tiny_trainer(folder / "out", callbacks, ddp_backend="gloo")
    hook.attach(trainer)
    trainer.train()
    said = {
        "step": trainer.state.global_step,
        "stopped": None if hook.stopped is None else [hook.stopped.word, hook.stopped.sentence],
        "weights": trainer.reward_weights.tolist(),
        "version": hook.reward_version,
        "saved": saved(folder / "out"),
        "world": torch.distributed.get_world_size(),
    }
    (folder / f"said{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
