"""A microphone and a loudspeaker, through the optional ``sounddevice``.

Owns all contact with sound hardware. Used by ``duplex-client talk``. The sound card's own threads only hand audio over: the
microphone's into the event loop, the loudspeaker's out of a :class:`~duplex_client.playback.PlaybackClock`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from duplex_client.playback import PlaybackClock
from duplex_core.audio import pcm16_ms

BLOCK_MS = 20
MAX_SKEW_MS = 100.0
"""How far the sound card's time may run from the clock's before it is set anew."""


class NoSoundDevice(Exception):
    """There is no way to the microphone or the loudspeaker here; the message says what to install or to use instead."""


def _sounddevice() -> Any:
    try:
        import sounddevice  # noqa: PLC0415
    except (ImportError, OSError) as exc:
        raise NoSoundDevice(
            f"no sound device can be used: {exc}. Install the extra with `pip install 'duplex-client[mic]'` "
            f"(on Debian and Ubuntu also `apt-get install libportaudio2`), or use --wav FILE with --out FILE"
        ) from exc
    return sounddevice


@contextmanager
def microphone(rate_hz: int) -> Iterator[AsyncIterator[bytes]]:
    """The default microphone as 16-bit mono PCM, in blocks of 20 ms, while the context lasts.

    Raises:
        NoSoundDevice: there is none.
    """
    device = _sounddevice()
    loop = asyncio.get_running_loop()
    blocks: asyncio.Queue[bytes] = asyncio.Queue()

    def deliver(data: Any, _frames: int, _when: Any, _status: Any) -> None:
        loop.call_soon_threadsafe(blocks.put_nowait, bytes(data))

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield await blocks.get()

    try:
        stream = device.RawInputStream(
            samplerate=rate_hz, channels=1, dtype="int16", blocksize=rate_hz * BLOCK_MS // 1000, callback=deliver
        )
    except device.PortAudioError as exc:
        raise NoSoundDevice(f"the microphone cannot be opened: {exc}") from exc
    with stream:
        yield pieces()


@contextmanager
def loudspeaker(playback: PlaybackClock, rate_hz: int) -> Iterator[None]:
    """Sound what ``playback`` plays, by the event loop's clock, while the context lasts.

    Raises:
        NoSoundDevice: there is none.
    """
    device = _sounddevice()
    cursor = Cursor()

    def fill(out: Any, _frames: int, _when: Any, _status: Any) -> None:
        duration_ms = pcm16_ms(len(out), rate_hz)
        out[:] = playback.render(cursor.advance(time.monotonic() * 1000.0, duration_ms), duration_ms, rate_hz)

    try:
        stream = device.RawOutputStream(
            samplerate=rate_hz, channels=1, dtype="int16", blocksize=rate_hz * BLOCK_MS // 1000, callback=fill
        )
    except device.PortAudioError as exc:
        raise NoSoundDevice(f"the loudspeaker cannot be opened: {exc}") from exc
    with stream:
        yield


class Cursor:
    """Where a sound card is on the clock: block after block without a seam, set anew only when it has run away."""

    def __init__(self) -> None:
        self._next_ms: float | None = None

    def advance(self, now_ms: float, duration_ms: float) -> float:
        """The moment at which the block that is wanted at ``now_ms`` begins."""
        begins_ms = self._next_ms
        if begins_ms is None or abs(begins_ms - now_ms) > MAX_SKEW_MS:
            begins_ms = now_ms
        self._next_ms = begins_ms + duration_ms
        return begins_ms
