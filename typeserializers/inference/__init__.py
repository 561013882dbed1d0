"""The rules from type hints to serializers, family by family.

The registry that asks them is `typeserializers.kernel.serializer_inference`.
"""
