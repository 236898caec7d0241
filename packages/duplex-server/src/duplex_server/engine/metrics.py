"""What the engine counts, for ``/metrics``.

Owns the names and labels of the series and the registry that they live in: one registry an engine, so that two engines in
one process do not mix. Written by every part of the engine, rendered by serving.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from duplex_core.stages import StageStats

_STAGE_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_UNIT_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.5, 1, 2, 5)


class Tally(Collector):
    """A counter for what happens with every frame: a number that the event loop adds to, and that is read when it is asked for.

    The library's own counter takes a lock and three calls for each addition.
    """

    def __init__(self, name: str, documentation: str, *, registry: CollectorRegistry) -> None:
        """Begin at zero."""
        self.total = 0
        self._created = time.time()
        self._name = name
        self._documentation = documentation
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What stands there now."""
        yield CounterMetricFamily(self._name, self._documentation, value=self.total, created=self._created)


class EngineMetrics:
    """The series of one engine."""

    def __init__(self) -> None:
        """Make the series, all at zero."""
        self.registry = CollectorRegistry()
        self.sessions = Gauge("duplex_sessions", "Sessions that hold a slot", registry=self.registry)
        self.max_sessions = Gauge("duplex_max_sessions", "Slots for sessions", registry=self.registry)
        self.detached = Gauge(
            "duplex_sessions_detached", "Sessions that hold a slot and have no client now", registry=self.registry
        )
        self.resumes = Counter(
            "duplex_resumes", "Attempts to take a session up again, by outcome", ["outcome"], registry=self.registry
        )
        self.admissions = Counter(
            "duplex_admissions", "Requests for a session, by outcome", ["outcome"], registry=self.registry
        )
        self.closed = Counter(
            "duplex_sessions_closed", "Sessions that ended, by reason", ["reason"], registry=self.registry
        )
        self._add_turns()
        self._add_stages()

    def _add_turns(self) -> None:
        """What happens in conversations."""
        self.responses = Counter(
            "duplex_responses", "Answers that ended, by status", ["status"], registry=self.registry
        )
        self.interruptions = Counter(
            "duplex_interruptions", "Advances of the interruption fence", registry=self.registry
        )
        self.purged = Counter(
            "duplex_purged_events", "Events that an interruption dropped before they were sent", registry=self.registry
        )
        self.stale = Counter(
            "duplex_stale_replies", "Stage replies that came after an interruption", registry=self.registry
        )
        self.unjudged = Counter(
            "duplex_unjudged_audio_seconds", "Audio that the speech detector did not judge", registry=self.registry
        )
        self.end_of_turn = Counter(
            "duplex_end_of_turn_verdicts",
            "Pauses that the end-of-turn detector was asked about, by what came of it",
            ["outcome"],
            registry=self.registry,
        )
        self.overlaps = Counter(
            "duplex_overlap_decisions",
            "Speech over an answer that was judged, by what it was taken for",
            ["decision"],
            registry=self.registry,
        )
        self.slow_readers = Counter(
            "duplex_slow_readers", "Clients dropped for reading too slowly", registry=self.registry
        )
        self.received_bytes = Tally(
            "duplex_received_bytes", "Characters of events that clients sent over sockets", registry=self.registry
        )
        self.sent_bytes = Tally(
            "duplex_sent_bytes", "Characters of events that were sent to clients over sockets", registry=self.registry
        )
        self.waiting = Gauge(
            "duplex_waiting",
            "Entries that wait in the queues of all sessions: commands, events",
            ["queue"],
            registry=self.registry,
        )

    def _add_stages(self) -> None:
        """Chat requests, and the work of the stages."""
        self.chats = Gauge("duplex_chats", "Chat requests that run", registry=self.registry)
        self.stage_seconds = Histogram(
            "duplex_stage_seconds",
            "From submission to the last output of a stage request",
            ["stage"],
            buckets=_STAGE_BUCKETS,
            registry=self.registry,
        )
        self.stage_load = Gauge(
            "duplex_stage_load",
            "What a stage (or one of its replicas) has of something now: seats taken, work that waits, replicas that are up",
            ["stage", "replica", "what"],
            registry=self.registry,
        )
        self.stage_counts = Counter(
            "duplex_stage_events",
            "How often something happened in a stage: steps, deadline misses, restarts",
            ["stage", "what"],
            registry=self.registry,
        )
        self.stage_unit_seconds = Histogram(
            "duplex_stage_unit_seconds",
            "The parts of one unit of a stage's work: queue, compute, transfer, gap, jitter",
            ["stage", "part"],
            buckets=_UNIT_BUCKETS,
            registry=self.registry,
        )

    def measured(self, stats: StageStats) -> None:
        """Take in what a stage told of itself."""
        replica = "" if stats.replica is None else str(stats.replica)
        for what, value in stats.gauges.items():
            self.stage_load.labels(stage=stats.stage, replica=replica, what=what).set(value)
        for what, count in stats.counts.items():
            self.stage_counts.labels(stage=stats.stage, what=what).inc(count)
        for part, values in stats.samples.items():
            series = self.stage_unit_seconds.labels(stage=stats.stage, part=part)
            for value in values:
                series.observe(value)
