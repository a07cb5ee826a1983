"""Small models of other people's making, with random weights, and their tokenizers."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from conftest import corpus_text

SIZE = 400
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
TEXTS = ["The film was good", "a very bad book, really", "Éclair ﬁ ½ 東京 🙂", "  a  b ", "", "x!"]


def wordpiece() -> tuple[Tokenizer, dict[str, str]]:
    """BERT's: lower-cased words in pieces, [CLS] and [SEP] around them."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.train_from_iterator(
        lines(), trainers.WordPieceTrainer(vocab_size=300, special_tokens=names)
    )
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), names, strict=True))
    return made, roles


def bytes_of(names: list[str], before: str = "", after: str = "") -> Tokenizer:
    """GPT-2's: bytes in pieces that begin with their space."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(lines(), trainer)
    if before or after:
        made.post_processor = processors.TemplateProcessing(
            single=f"{before} $A {after}".split(),
            special_tokens=[(name, names.index(name)) for name in (before, after) if name],
        )
    return made


def roberta_words() -> tuple[Tokenizer, dict[str, str]]:
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made = bytes_of(names, "<s>", "</s>")
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    roles = ("bos", "pad", "eos", "unk", "mask")
    return made, {**dict(zip(roles, names, strict=True)), "cls": "<s>", "sep": "</s>"}


def gpt2_words() -> tuple[Tokenizer, dict[str, str]]:
    end = "<|endoftext|>"
    return bytes_of([end]), {"bos": end, "eos": end, "unk": end}


def llama_words() -> tuple[Tokenizer, dict[str, str]]:
    """Unigrams with marked spaces, one mark before a text, no padding."""
    names = ["<unk>", "<s>", "</s>"]
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=names, unk_token="<unk>")
    made.train_from_iterator(lines(), trainer)
    made.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", 1)]
    )
    return made, {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}


def eurobert_words() -> tuple[Tokenizer, dict[str, str]]:
    names = ["<|begin|>", "<|end|>", "<|pad|>", "<|mask|>"]
    made = bytes_of(names, names[0], names[1])
    return made, dict(zip(("bos", "eos", "pad", "mask"), names, strict=True))


WORDS = {
    "bert": wordpiece,
    "roberta": roberta_words,
    "camembert": roberta_words,
    "gpt2": gpt2_words,
    "llama": llama_words,
    "mistral": llama_words,
    "qwen2": gpt2_words,
    "qwen3": gpt2_words,
    "eurobert": eurobert_words,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
GROUPED = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8}
MODELS = {
    "bert": ("BertForMaskedLM", SHAPE),
    "bert alone": ("BertModel", SHAPE),
    "roberta": ("RobertaForMaskedLM", {**SHAPE, "type_vocab_size": 1, "pad_token_id": 1}),
    "camembert": ("CamembertForMaskedLM", {**SHAPE, "pad_token_id": 1}),
    "gpt2": ("GPT2LMHeadModel", {**GPT2, "bos_token_id": 0, "eos_token_id": 0}),
    "gpt2 alone": ("GPT2Model", GPT2),
    "llama": ("LlamaForCausalLM", SHAPE),
    "llama grouped": ("LlamaForCausalLM", {**GROUPED, "attention_bias": True}),
    "llama tied": ("LlamaForCausalLM", {**SHAPE, "tie_word_embeddings": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**SHAPE, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "eurobert": ("EuroBertForMaskedLM", {**SHAPE, "pad_token_id": 2, "mask_token_id": 3}),
    "eurobert grouped": ("EuroBertModel", {**GROUPED, "pad_token_id": 2, "mlp_bias": True}),
}


def lines() -> list[str]:
    return [*corpus_text(40).split("\n"), *TEXTS]


def save(kind: str, folder: Path, **changes: object) -> tuple[Path, torch.nn.Module]:
    """A model of a kind, saved as its makers save it."""
    name, shape = MODELS[kind]
    family = kind.split()[0]
    kinds = {"bert": "Bert", "roberta": "Roberta", "gpt2": "GPT2", "eurobert": "EuroBert"}
    config = getattr(transformers, f"{kinds.get(family, family.capitalize())}Config")
    torch.manual_seed(1)
    model = getattr(transformers, name)(config(vocab_size=SIZE, **{**shape, **changes})).eval()
    with torch.no_grad():
        for tensor in model.parameters():  # beyond the small first weights, biases included
            tensor.add_(0.1 * torch.randn_like(tensor))
    model.save_pretrained(folder)
    words, roles = WORDS[family]()
    named = {f"{role}_token": word for role, word in roles.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)
    return folder, model
