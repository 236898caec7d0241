"""What the file of a reference voice may be, as far as that can be told without its sound.

Owns: opening it, and the bounds of length, rate and channels. Called by: the session's options, which refuse a file before
anything begins, and the stages that decode it. Never: loads a tensor library, or decodes more than a file's header by itself;
soundfile is loaded when the first file comes, so that describing the model stays light.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from model_minicpmo.errors import RecordingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import soundfile

SHORTEST_S = 0.5
"""The shortest recording that tells a voice, in seconds."""
LONGEST_S = 30.0
"""The longest recording that the front end and the speech tokenizer take at once, in seconds."""
LOWEST_HZ = 4_000
HIGHEST_HZ = 192_000
MOST_CHANNELS = 2


@contextlib.contextmanager
def open_recording(content: bytes) -> Iterator[soundfile.SoundFile]:
    """Open a reference voice: a wav or flac file of 0.5 to 30 s, mono or stereo, at 4 to 192 kHz.

    Whatever is raised until it is closed is the bytes' fault, whichever error the decoder makes of them: soundfile lets bare
    ValueErrors and MemoryErrors through beside its own. So nothing but decoding belongs into the block.

    Raises:
        RecordingError: The bytes are no such file; or, while it is open, its sound cannot be decoded.
    """
    import soundfile  # noqa: PLC0415 - loads a library of the system's and numpy

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            _check(file)
            yield file
    except RecordingError:
        raise
    except Exception as error:
        why = error.error_string if isinstance(error, soundfile.LibsndfileError) else str(error) or type(error).__name__
        raise RecordingError(
            f"the reference voice of {len(content)} bytes cannot be read as a wav or flac file: {why}"
        ) from error


def check_length(samples: int, rate: int) -> None:
    """Refuse a voice that is too short or too long; asked of what a file says of itself, and again of what was in it.

    Raises:
        RecordingError: So many samples at that rate, in Hz, do not last 0.5 to 30 s.
    """
    seconds = samples / rate
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise RecordingError(
            f"the reference voice lasts {seconds:.2f} s; it has to last between {SHORTEST_S:g} and {LONGEST_S:g} s"
        )


def _check(file: soundfile.SoundFile) -> None:
    """Refuse what is no voice before any of it is decoded."""
    if not LOWEST_HZ <= file.samplerate <= HIGHEST_HZ or file.channels > MOST_CHANNELS:
        raise RecordingError(
            f"the reference voice has {file.channels} channels at {file.samplerate} Hz; it has to be mono or stereo at "
            f"{LOWEST_HZ} to {HIGHEST_HZ} Hz"
        )
    check_length(file.frames, file.samplerate)
