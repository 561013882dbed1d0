"""The rules from type hints to serializers, family by family.

They are those of `DEFAULT_RULES`; what asks them is `typeserializers.kernel.serializer_inference`.
"""
