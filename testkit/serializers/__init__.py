"""The laws of a serializer as a pytest class, for users' own serializers and for ours."""

from testkit.serializers.golden_files import GoldenFiles
from testkit.serializers.serializer_contract import SerializerContract

__all__ = ["GoldenFiles", "SerializerContract"]
