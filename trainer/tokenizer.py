"""A word-level tokenizer for policies that speak a closed vocabulary: one word, one token."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers

from palomar.trainer.hf import transformers

PAD, UNKNOWN = "<pad>", "<unk>"


def word_tokenizer(words: Sequence[str]) -> transformers.PreTrainedTokenizerFast:
    """Tokenizer over `words`, split at white space.

    Decoding joins the words by one space, so that text of words of the vocabulary survives the way there and back. It
    has no end-of-text token: the word that ends an answer is part of the answer, and the model's config names it.
    """
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([PAD, UNKNOWN, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
