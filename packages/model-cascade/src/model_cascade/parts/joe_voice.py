"""The natural voice: the VITS model "joe", fed with phonemes from gruut.

Owns: the way from a clause to phonemes, their numbers, and samples. Called by: :func:`model_cascade.parts.voices.load_voice`.
Never: uses espeak (GPL): gruut's own lexicon speaks espeak's alphabet, which the model was trained on.

onnxruntime releases the interpreter lock while it computes. gruut is Python and holds it, some 2 ms a clause; by itself
it searches its lexicon's file without an index, 6 ms for each new word, so we read the lexicon into memory.
Model: "Conditional Variational Autoencoder with Adversarial Learning for End-to-End Text-to-Speech" (Kim et al., 2021)
in the form that Piper exports: inputs ``input`` (phoneme numbers), ``input_lengths``, ``scales``.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import warnings
from pathlib import Path

import numpy as np
import onnxruntime as ort

from model_cascade.parts import weights
from model_cascade.parts.errors import Cancel, CancelledError, VoiceError, never
from model_cascade.parts.speech_text import pieces, speakable
from model_cascade.parts.voices import Pcm, paced

with warnings.catch_warnings():
    # What gruut imports calls datetime.utcnow(), which Python 3.12 deprecates, and holds escapes that are none. Of these
    # Python warns when it compiles them: of a deprecation up to 3.11, of wrong syntax since.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", SyntaxWarning)
    from gruut.lang import get_settings
    from gruut.text_processor import TextProcessor
    from gruut.utils import remove_non_word_chars

_LONGEST = 160
_STRESS_AND_TIES = frozenset("|\u2016")
_BREAKS = frozenset(",.?!;:")


class JoeVoice:
    """A male American voice, 22 050 Hz. About a quarter of real time on one core.

    Args:
        speed: How fast it speaks, 1.0 being the pace of the recordings.

    Raises:
        WeightsError: The weights are missing or are not those that were tested.
    """

    name = "joe"

    def __init__(self, *, speed: float = 1.0) -> None:
        config = json.loads(weights.verified(weights.JOE_CONFIG).read_text(encoding="utf-8"))
        self.sample_rate_hz = int(config["audio"]["sample_rate"])
        self._numbers: dict[str, list[int]] = config["phoneme_id_map"]
        how = config["inference"]
        self._scales = np.array([how["noise_scale"], how["length_scale"] / speed, how["noise_w"]], np.float32)
        self._phonemes = _Phonemes()
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = str(weights.verified(weights.JOE_MODEL))
        self._model = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def synthesize(self, text: str, cancelled: Cancel = never) -> Pcm:
        """Speak a clause, as :class:`~model_cascade.parts.voices.Voice` says."""
        found = []
        for piece in pieces(speakable(text), _LONGEST):
            if cancelled():
                raise CancelledError("Speech")
            found.append(self._speak(piece))
        return np.concatenate(found) if found else np.zeros(0, np.int16)

    def _speak(self, piece: str) -> Pcm:
        numbers = [number for one in self._phonemes.of(piece) for number in (*self._numbers.get(one, ()), 0)]
        if not any(numbers):
            return np.zeros(0, np.int16)
        sequence = np.array([[*self._numbers["^"], 0, *numbers, *self._numbers["$"]]], np.int64)
        lengths = np.array([sequence.shape[1]], np.int64)
        feed = {"input": sequence, "input_lengths": lengths, "scales": self._scales}
        wave = self._model.run(None, feed)[0].reshape(-1)
        if not np.isfinite(wave).all():
            raise VoiceError(f"The voice {self.name} gave samples that are no numbers for {piece!r}")
        return paced((np.clip(wave, -1.0, 1.0) * 32767).astype(np.int16), piece, self.sample_rate_hz)


class _Phonemes:
    """Looks words up, and guesses those that are not in the lexicon from their letters."""

    def __init__(self) -> None:
        for file in (weights.ENGLISH_SPELLING, weights.ENGLISH_TAGGER):
            weights.verified(file)
        lexicon = _Lexicon(weights.verified(weights.ENGLISH_LEXICON))
        settings = get_settings("en-us", model_prefix="espeak", lookup_phonemes=lexicon)
        self._processor = TextProcessor(default_lang="en-us", settings={"en-us": settings, "en_US": settings})
        self._lock = threading.Lock()
        self.of("It loads its 3 models at once, qwertily.")

    def of(self, text: str) -> str:
        """Spell a clause in espeak's alphabet, words apart by spaces, punctuation kept."""
        with self._lock:
            graph, root = self._processor(text, lang="en-us", detect_dates=False)
            sentences = list(self._processor.sentences(graph, root))
        spelled = ""
        for word in (word for sentence in sentences for word in sentence.words):
            if word.text[:1] in _BREAKS:
                spelled += word.text[0]
            elif word.phonemes and not (word.is_minor_break or word.is_major_break):
                sounds = "".join(one for one in "".join(word.phonemes) if one not in _STRESS_AND_TIES)
                spelled += f" {sounds}" if spelled else sounds
        return spelled


class _Lexicon:
    """Pronunciations by word and role (0.3 s to read, 30 MB), asked as gruut asks for them.

    A role is a part of speech, such as ``gruut:VBD`` for the past tense "read"; the empty one is a word's usual one.
    """

    def __init__(self, path: Path) -> None:
        self._words: dict[str, dict[str, str]] = {}
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as file:
            for word, role, sounds in file.execute(
                "SELECT word, role, phonemes FROM word_phonemes ORDER BY word, pron_order"
            ):
                self._words.setdefault(word, {}).setdefault(role, sounds)

    def __call__(self, word: str, role: str | None = None, do_transforms: bool = True) -> list[str] | None:
        """Look a word up as it is, then (``do_transforms``) in lower case and without what is no letter."""
        forms = [word]
        if do_transforms:
            forms += [word.lower(), remove_non_word_chars(word), remove_non_word_chars(word.lower())]
        found = next((self._words[form] for form in forms if form in self._words), None)
        if found is None:
            return None
        sounds = found.get(role or "") or found.get("") or next(iter(found.values()))
        return sounds.split()
