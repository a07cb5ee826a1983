"""A run's tokenizer as a ``tokenizer.json`` that gives the same ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headswap.errors import ResourceError, UsageError
from headswap.text.tokenizer import SPACE, SentencePieceTokenizer, Tokenizer
from headswap.text.tokenizer_json import JsonTokenizer

BPE, UNIGRAM = 2, 1  # sentencepiece's own numbers


def convert(tokens: Tokenizer, before: Sequence[str], after: Sequence[str]) -> Any:
    """A ``tokenizers.Tokenizer`` that puts these specials around a text."""
    library, names = _library(), tokens.pieces(range(tokens.size))
    if isinstance(tokens, JsonTokenizer):
        made = library.Tokenizer.from_str(tokens.content)
        specials = tokens.appended
    else:
        assert isinstance(tokens, SentencePieceTokenizer)
        made = _from_sentencepiece(library, tokens, names)
        specials = tuple(name for name in names if tokens.is_special(name))
    made.add_special_tokens([library.AddedToken(n, normalized=False) for n in specials])
    ids = {name: tokens.special(name) for name in dict.fromkeys([*before, *after])}
    shown = {name: names[i] for name, i in ids.items() if i is not None}
    around = [*(shown[name] for name in before), "$A", *(shown[name] for name in after)]
    made.post_processor = library.processors.TemplateProcessing(
        single=around, special_tokens=[(shown[name], ids[name]) for name in shown]
    )
    return made


def _from_sentencepiece(library: Any, tokens: SentencePieceTokenizer, names: Sequence[str]) -> Any:
    proto = _proto(tokens.model)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    if names[: len(pieces)] != [name for name, _ in pieces]:
        raise UsageError(
            "a tokenizer whose pieces were renumbered has no tokenizer.json that gives its ids",
            fix="export to onnx, which keeps this tokenizer",
        )
    if proto.trainer_spec.model_type == BPE:
        made = library.Tokenizer(_bpe(library, names, pieces))
    elif proto.trainer_spec.model_type == UNIGRAM:
        appended = [(name, 0.0) for name in names[len(pieces) :]]
        made = library.Tokenizer(
            library.models.Unigram([*pieces, *appended], unk_id=tokens.unk, byte_fallback=True)
        )
    else:
        raise UsageError("only bpe and unigram tokenizers have a tokenizer.json")
    _wrap(library, made, proto)
    return made


def _wrap(library: Any, made: Any, proto: Any) -> None:
    """What happens to a text before it is cut, and to pieces after."""
    normal, before, decoders = library.normalizers, library.pre_tokenizers, library.decoders
    steps = []
    if charsmap := proto.normalizer_spec.precompiled_charsmap:
        steps.append(normal.Precompiled(charsmap))
    if proto.normalizer_spec.remove_extra_whitespaces:
        steps += [normal.Strip(left=True, right=True), normal.Replace(library.Regex(" {2,}"), " ")]
    made.normalizer = normal.Sequence(steps)
    prefix = "always" if proto.normalizer_spec.add_dummy_prefix else "never"
    made.pre_tokenizer = before.Metaspace(replacement=SPACE, prepend_scheme=prefix, split=True)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


def _bpe(library: Any, names: Sequence[str], pieces: Sequence[tuple[str, float]]) -> Any:
    """Sentencepiece merges the pair whose piece has the best score; here the ranks say so."""
    score = dict(pieces)
    found = []
    for name in score:
        for cut in range(1, len(name)):
            if name[:cut] in score and name[cut:] in score:
                found.append((-score[name], len(name[:cut]), name[:cut], name[cut:]))
    merges = [(left, right) for _, _, left, right in sorted(found)]
    vocabulary = {name: number for number, name in reversed(list(enumerate(names)))}
    return library.models.BPE(
        vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )


def _proto(model: bytes) -> Any:
    try:
        from sentencepiece import sentencepiece_model_pb2 as schema
    except ImportError as error:
        raise ResourceError(
            "reading a sentencepiece model needs protobuf", fix="pip install 'headswap[export]'"
        ) from error
    proto = schema.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(model)
    return proto


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ResourceError(
            "writing tokenizer.json needs tokenizers", fix="pip install 'headswap[export]'"
        ) from error
    return tokenizers
