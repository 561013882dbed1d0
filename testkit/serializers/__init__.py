"""The laws of a serializer as a pytest class, for users' own serializers and for ours.

One serializer by itself, with hostile bytes and golden files; what another may take over is in `testkit.upgrades`.
"""

from testkit.serializers.golden_files import GoldenFiles
from testkit.serializers.serializer_contract import SerializerContract

__all__ = ["GoldenFiles", "SerializerContract"]
