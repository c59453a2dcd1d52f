"""Batches that claim to be much more than they are: no more is unpacked than a bound, and that is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.cluster.segments import segments_in
from headrace.cluster.unpack import Codec, unpack
from headrace.errors import Failed
from tests.records import batch_of

CLAIMED = 300_000_000

READ = """
import re, sys
from pathlib import Path
from headrace.cluster.segments import segments_in
from headrace.errors import Failed
[segment] = segments_in(Path(sys.argv[1]))
for batch in segment.batches():
    assert segment.plain_bytes(batch) is None
    try:
        list(segment.records(batch))
    except Failed as error:
        print(error.problem)
# Not getrusage: its maximum is that of the process before exec, which is the test's.
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def bomb(codec: Codec) -> bytes:
    """Few bytes that stand for many; those of snappy only say so."""
    if codec == "snappy":
        return bytes.fromhex("ffffffff07") + b"x" * 20  # 2 GB
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, codec) as stream:
        for _ in range(CLAIMED // 1_000_000):
            stream.write(bytes(1_000_000))
    return bytes(packed.getvalue())


def test_a_batch_that_claims_gigabytes_costs_little_memory(tmp_path: Path) -> None:
    codecs: list[Codec] = ["gzip", "snappy", "lz4", "zstd"]
    framed = b"\x82SNAPPY\x00" + bytes(8) + len(bomb("snappy")).to_bytes(4, "big") + bomb("snappy")
    data = b"".join(batch_of(bomb(codec), codec, base=at, checksum=0) for at, codec in enumerate(codecs))
    (tmp_path / "00000000000000000000.log").write_bytes(data + batch_of(framed, "snappy", base=4, checksum=0))
    read = subprocess.run([sys.executable, "-c", READ, tmp_path], capture_output=True, text=True, check=True)
    *said, peak_kb = read.stdout.splitlines()
    assert [line.split(" bytes of ")[1] for line in said] == [
        f"{codec} decompress to more than 64 MB" for codec in [*codecs, "snappy"]
    ]
    assert int(peak_kb) * 1000 < CLAIMED


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_damaged_bytes_are_an_error_of_their_batch(codec: Codec) -> None:
    whole = pa.compress(b"abc" * 1000, codec=codec, asbytes=True)
    for damaged in (b"\xff" * 12, whole[: len(whole) // 2]):
        with pytest.raises(Failed, match=r"cannot be decompressed|decompress to more"):
            unpack(codec, damaged)


@pytest.mark.parametrize("payload", ["", "00" * 50, "ff" * 50, "01" * 20, "0e00000001", "80" * 30])
def test_records_whose_lengths_do_not_fit_are_an_error_of_their_batch(tmp_path: Path, payload: str) -> None:
    (tmp_path / "00000000000000000000.log").write_bytes(batch_of(bytes.fromhex(payload), "none", records=2_000_000_000))
    [segment] = segments_in(tmp_path)
    [batch] = segment.batches()
    with pytest.raises(Failed, match="of 2,000,000,000 in the batch is damaged"):
        list(segment.records(batch))
