"""The laws of a serializer as a pytest class, for users' own serializers and for ours."""

from typeserializers.contract.golden_files import GoldenFiles
from typeserializers.contract.serializer_contract import SerializerContract

__all__ = ["GoldenFiles", "SerializerContract"]
