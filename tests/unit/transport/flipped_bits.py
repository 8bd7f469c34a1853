"""Run as a program: decodes frames of some kinds with each single bit flipped in turn, and looks at
whatever comes out. A crash here is what the test that starts it is about."""

from __future__ import annotations

import sys

import pyarrow as pa

from penstock.errors import RemoteProtocolError
from penstock.transport.stages import StageDecoders, StageEncoders
from tests.unit.transport.made_batches import one_of_each


def main(kind: str) -> None:
    batch = pa.record_batch([one_of_each()[kind]], ["x"])
    encoders = StageEncoders()
    first, second = (b"".join(map(bytes, encoders.encode("s", batch))) for _ in range(2))
    for before, frame in (([], first), ([first], second)):
        for bit in range(8 * len(frame)):
            flipped = bytearray(frame)
            flipped[bit // 8] ^= 1 << bit % 8
            decoders = StageDecoders()
            for each in before:
                decoders.decode("s", pa.py_buffer(each))
            try:
                decoded = decoders.decode("s", pa.py_buffer(bytes(flipped)))
            except RemoteProtocolError:
                continue
            try:
                decoded.validate(full=True)
            except pa.ArrowInvalid as error:
                sys.exit(f"{kind}: bit {bit} of frame {len(before)} was taken, but: {error}")
            decoded.equals(batch)
    sys.stdout.write(f"{kind}: harmless\n")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
