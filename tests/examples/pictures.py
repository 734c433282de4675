"""What a test can say of a picture without looking at it."""

import struct


def check_picture(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert 300 < height < 4000 and 300 < width < 4000
    assert len(content) > 10_000  # an empty one is smaller
