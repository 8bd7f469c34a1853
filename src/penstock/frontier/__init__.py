"""How far reading has come: frontiers, what they know together, and what they wait for."""

from penstock.frontier.chunks import (
    JOURNALS_PER_CHUNK_MAX,
    CorruptFrontierError,
    decode_chunks,
    encode_chunks,
)
from penstock.frontier.hints import (
    ResolvedHints,
    clear_discharged_hints,
    describe_unresolved,
    project_commits_to_hints,
    project_unresolved_hints,
    resolve_hints,
    retain_bindings,
    without_byte_deltas,
)
from penstock.frontier.names import apply_name_delta, name_delta
from penstock.frontier.reduce import DifferentProducersError, reduce, reduce_all, reduce_entries
from penstock.frontier.resume import ResumePoint, resolve_checkpoint
from penstock.frontier.table import Frontier, JournalFrontier, ProducerFrontier
from penstock.frontier.text import FrontierTextError, from_json, to_json
from penstock.frontier.validation import (
    FrontierColumnError,
    JournalOrderError,
    JournalRepeatedError,
    ProducerOrderError,
    ProducerRepeatedError,
)

__all__ = [
    "Frontier",
    "JournalFrontier",
    "ProducerFrontier",
    "reduce",
    "reduce_all",
    "reduce_entries",
    "ResolvedHints",
    "resolve_hints",
    "project_unresolved_hints",
    "project_commits_to_hints",
    "retain_bindings",
    "without_byte_deltas",
    "clear_discharged_hints",
    "describe_unresolved",
    "ResumePoint",
    "resolve_checkpoint",
    "to_json",
    "from_json",
    "JOURNALS_PER_CHUNK_MAX",
    "encode_chunks",
    "decode_chunks",
    "name_delta",
    "apply_name_delta",
    "FrontierColumnError",
    "JournalOrderError",
    "JournalRepeatedError",
    "ProducerOrderError",
    "ProducerRepeatedError",
    "DifferentProducersError",
    "CorruptFrontierError",
    "FrontierTextError",
]
