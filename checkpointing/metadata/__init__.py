"""What a checkpoint says of itself, as objects and as bytes: sections, the whole of them, and every version of both.

Pure: bytes in, objects out, and back. Nothing here opens a file, holds a clock or decides anything; `storage` reads and
writes `_metadata` files.
"""
