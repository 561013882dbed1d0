"""Records of attrs classes, dataclasses, NamedTuples, pydantic models and msgspec structs."""
