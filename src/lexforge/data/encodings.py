"""Which encoding fits bytes that are not UTF-8."""

from __future__ import annotations

# The usual encodings before Unicode. Of two that fit a text equally well, the first is taken: the detector
# of all encodings reads French in cp1252 as cp1250, and short Russian in KOI8-R as Japanese.
_ENCODINGS = (
    "cp1252 cp932 euc_jp cp949 gb18030 big5 cp1251 koi8_r cp1250 cp1253 cp1254 cp1255 cp1256"
).split()
SAMPLE_BYTES = 2**16
"""What the detector sees at most."""


def fitting_encoding(sample: bytes) -> str:
    """Return the encoding that fits some lines beyond ASCII best.

    Args:
        sample: Whole lines, at most `SAMPLE_BYTES` of them are read.

    Returns:
        The name that Python gives the encoding; "" if none fits.
    """
    from charset_normalizer import from_bytes

    found = list(from_bytes(sample[:SAMPLE_BYTES], cp_isolation=_ENCODINGS))
    if not found:
        return ""
    best = (found[0].chaos, found[0].coherence)
    equal = {
        name
        for match in found
        if (match.chaos, match.coherence) == best
        for name in (match.encoding, *match.could_be_from_charset)
    }
    return next((name for name in _ENCODINGS if name in equal), found[0].encoding)
