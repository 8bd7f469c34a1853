"""Checkpoints: where barriers cut the streams, and what a snapshot of the cut holds.

barrier.py has the mark itself, injector.py brings it into the sources, alignment.py is what an
operator with several inputs does about it, and watermark.py says how far the streams are complete.
"""

from penstock.checkpoint.alignment import (
    CHECKPOINTS_IN_FLIGHT_MAX,
    RECORDED_BYTES_MAX,
    Alignment,
)
from penstock.checkpoint.alignment_events import (
    Aborted,
    AbortReason,
    AlignmentEffect,
    AlignmentEvent,
    BarrierArrived,
    BarrierOvertook,
    Capture,
    CheckpointCancelled,
    DataArrived,
    Deliver,
    Forward,
    Hold,
    Ignored,
    IgnoreReason,
    InputEnded,
    Release,
    Snapshot,
    TimePassed,
)
from penstock.checkpoint.barrier import (
    BARRIER_BYTES,
    Barrier,
    Event,
    Flags,
    StreamMessage,
    Watermark,
)
from penstock.checkpoint.injector import Injector
from penstock.checkpoint.watermark import (
    ClusterWatermark,
    WatermarkState,
    WatermarkTracker,
    cluster_minimum,
    member_minimum,
)

__all__ = [
    "BARRIER_BYTES",
    "Barrier",
    "Flags",
    "Event",
    "Watermark",
    "StreamMessage",
    "Injector",
    "CHECKPOINTS_IN_FLIGHT_MAX",
    "RECORDED_BYTES_MAX",
    "Alignment",
    "AlignmentEvent",
    "DataArrived",
    "BarrierArrived",
    "BarrierOvertook",
    "InputEnded",
    "CheckpointCancelled",
    "TimePassed",
    "AlignmentEffect",
    "Deliver",
    "Hold",
    "Release",
    "Capture",
    "Forward",
    "Snapshot",
    "Aborted",
    "AbortReason",
    "Ignored",
    "IgnoreReason",
    "WatermarkState",
    "WatermarkTracker",
    "member_minimum",
    "cluster_minimum",
    "ClusterWatermark",
]
