"""The rules by which an old snapshot resolves its compatibility with a new serializer."""
